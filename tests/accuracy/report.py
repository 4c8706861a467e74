"""Print predicted against measured steps and their parts: ``python -m tests.accuracy.report``."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from statistics import mean, median

from tests.accuracy.compare import Compared, compare, components, fastest
from tests.accuracy.published_runs import OUTSIDE, ComparedRun, compared_runs
from tests.accuracy.truth import TRUTH, measured_components, measured_steps

MOST_GPUS = 4
# Which of several measured numbers has no waiting for others in it; of the rest the median counts.
REPRESENTATIVE: dict[str, Callable[[list[float]], float]] = {
    "pp_p2p": min,
    "optimizer": lambda stages: stages[0],  # later stages have nothing left to do and wait for the first
}


def print_jobs(jobs: list[Compared]) -> None:
    """Print one line per GPT-NeoX job, against its fastest batch."""
    print("Whole steps, GPT-NeoX jobs, against the fastest batch")
    print(f"{'job':44} {'measured s':>10} {'predicted s':>11} {'error':>7}  90 % interval, s")
    for job in jobs:
        cost = job.prediction.step
        interval = f"{cost.low_us / 1e6:.2f} to {cost.high_us / 1e6:.2f}{'' if job.inside else '  (outside)'}"
        print(f"{job.step.job:44} {job.step.seconds:10.3f} {job.seconds:11.3f} {job.error:+7.1%}  {interval}")


def print_components(jobs: list[Compared]) -> None:
    """Print every measured part beside its prediction and the reference's."""
    predicted = {job.step.job: components(job.prediction) for job in jobs}
    print("\nParts of those steps, µs; three numbers are the first, a middle and the last stage")
    print(f"{'job':44} {'part':13} {'measured':>30} {'predicted':>30} {'error':>7} {'reference':>9}")
    for part in measured_components():
        if part.job not in predicted or part.name not in predicted[part.job]:
            continue
        ours, measured = predicted[part.job][part.name], [x for x in part.microseconds if x]
        choose = REPRESENTATIVE.get(part.name, median)
        ratio = choose(ours) / choose(measured) - 1.0
        reference = f"{choose(part.reference) / choose(measured) - 1.0:+9.1%}" if part.reference else ""
        shown = [" ".join(f"{x:.0f}" for x in numbers) for numbers in (part.microseconds, ours)]
        print(f"{part.job:44} {part.name:13} {shown[0]:>30} {shown[1]:>30} {ratio:+7.1%} {reference}")


def print_summary(name: str, rows: list[Compared]) -> None:
    """Print one line about many rows."""
    mape, bias = mean(abs(row.error) for row in rows), mean(row.error for row in rows)
    inside = mean(row.inside for row in rows)
    print(f"{name}: MAPE {mape:.2%}, mean {bias:+.2%}, inside their interval {inside:.0%}")


def print_single_node(rows: list[Compared]) -> None:
    """Print the single-node rows by layout, with the mean over all."""
    groups: dict[tuple[int, ...], list[Compared]] = defaultdict(list)
    for row in rows:
        run = row.prediction.run
        layout = run.layout
        key = (run.model.hidden_size, layout.tensor_parallel_size, layout.pipeline_parallel_size, run.micro_batch_size)
        groups[key].append(row)
    print(f"\nWhole steps, vTrain rows of up to {MOST_GPUS} GPUs: error by layout")
    print("hidden  tp  pp  micro-batch  rows     mean     least     most   inside")
    for group, members in sorted(groups.items()):
        errors = [row.error for row in members]
        numbers = f"{mean(errors):+8.1%} {min(errors):+9.1%} {max(errors):+8.1%}"
        inside = mean(row.inside for row in members)
        print(f"{group[0]:6} {group[1]:3} {group[2]:3} {group[3]:12} {len(members):5} {numbers} {inside:8.0%}")
    print_summary(f"all {len(rows)} rows", rows)


def print_published(rows: list[ComparedRun]) -> None:
    """Print published step times beside their predictions, and what is known about those outside their interval."""
    print("Whole steps that others published, on a cluster known from data sheets (Selene)")
    print(f"{'row':58} {'GPUs':>5} {'measured s':>10} {'predicted s':>11} {'error':>7}  90 % interval, s")
    for row in rows:
        step = row.prediction.step
        interval = f"{step.low_us / 1e6:.2f} to {step.high_us / 1e6:.2f}{'' if row.inside else '  (outside)'}"
        numbers = f"{row.run.seconds:10.2f} {step.us / 1e6:11.2f} {row.error:+7.1%}"
        print(f"{row.label:58} {row.run.num_gpus:5} {numbers}  {interval}")
    for table in dict.fromkeys(row.run.table for row in rows):
        print(f"{table}: MAPE {mean(abs(row.error) for row in rows if row.run.table == table):.1%}")
    for label, known in OUTSIDE.items():
        print(f"{label} is outside: {known}")
    print()


def main() -> int:
    """Print the report; what needs measured steps is left out where there are none."""
    print_published(compared_runs())
    if not (TRUTH / "step_times.csv").is_file():
        print("no measured steps beside the checkout: ../shared/truth/step_times.csv is absent", file=sys.stderr)
        return 0
    steps = list(measured_steps())
    jobs = [compare(step) for step in fastest(step for step in steps if step.group == "gpumodeling25")]
    print_jobs(jobs)
    print_components(jobs)
    single = [compare(step) for step in steps if step.group == "vtrain_single"]
    small = [row for row in single if row.step.num_gpus <= MOST_GPUS]
    large = [row for row in single if row.step.num_gpus > MOST_GPUS]
    if small:
        print_single_node(small)
    if large:
        print_summary(f"{len(large)} rows of more than {MOST_GPUS} GPUs, used for no choice", large)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
