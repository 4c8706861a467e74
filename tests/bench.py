"""Measure how fast predicting is: ``python -m tests.bench``. Prints; timing decides no test.

In this process it counts CPU time, which other processes disturb less.

The reference's numbers are its own tool's, measured on its published example (cold: first start; warm: later ones).
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from predictor.core.base.bundled import EXAMPLES_FOLDER
from predictor.core.base.read_yaml import read_mapping
from predictor.core.costs.published import PublishedSystem
from predictor.core.plan.loading import load
from predictor.core.plan.short_config import expand
from predictor.core.plan.to_run import to_run
from predictor.core.schema.sections import validate
from predictor.core.step.prediction import predict
from predictor.core.workload.run import TrainingRun
from predictor.layout_search.question import SearchQuestion, search_problem
from predictor.layout_search.rank import rank

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = EXAMPLES_FOLDER / "llemma_7b_4_2_2_P.yml"
MEASUREMENTS = Path(os.environ.get("MEASUREMENTS", ROOT.parent / "shared" / "measurements"))
PROCESSES = 7
CONFIGS = 2500
SEARCHES = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    ours: str
    reference: str
    goal: str


def new_process(command: list[str]) -> tuple[float, float]:
    """Run a command and return its wall time in seconds and its peak resident memory in MB.

    It may keep its compiled modules, as anyone's process does after the first one.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "training")])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}"
    return wall, usage.ru_maxrss * 1024 / 1e6


def short_forms() -> Iterator[dict[str, object]]:
    """Return different short forms, every size of the documented list and the number of layers varied."""
    example = read_mapping(EXAMPLE)
    sizes = itertools.product(
        (1, 2, 4, 8),  # pp
        (1, 2, 4),  # mp
        (1, 2, 4),  # dp
        (1, 2, 4, 8),  # b
        (2048, 4096, 1024),  # l
        ((32, 4096), (40, 5120), (16, 2048), (64, 8192)),  # h, dim
        (8, 16, 4),  # micro-batches
        (32, 40, 24),  # encoders
    )
    for pp, mp, dp, b, length, (h, dim), micro_batches, encoders in sizes:
        yield example | {"training_config": [pp, mp, dp, b, h, length, dim, micro_batches, 4], "encoders": encoders}


def spread(count: int) -> list[dict[str, object]]:
    """Return so many short forms, evenly spread over all of them."""
    every = list(short_forms())
    return [every[i * len(every) // count] for i in range(count)]


def per_second(work: Callable[[TrainingRun], object], runs: list[TrainingRun]) -> float:
    """Return how many runs a second of CPU time a function gets through."""
    started = time.process_time()
    for run in runs:
        work(run)
    return len(runs) / (time.process_time() - started)


def in_process() -> list[Row]:
    """Predict different configurations in this process."""
    _, system = load(EXAMPLE)
    forms = spread(CONFIGS)
    runs = [to_run(validate(expand(form), is_short=True), system.hardware.gpus_per_node) for form in forms]
    assert len(set(runs)) == CONFIGS
    predict(runs[0], system)
    fresh = PublishedSystem(system.folder, system.precision)
    predict(runs[0], fresh)
    rate = per_second(lambda run: predict(run, fresh), runs)

    def forgetful(run: TrainingRun) -> None:
        fresh.forget()
        predict(run, fresh)

    rate_without_memory = per_second(forgetful, runs[::5])
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, form in enumerate(forms[::5]):
            paths.append(Path(folder) / f"{i}.yml")
            paths[-1].write_text(yaml.safe_dump(form), encoding="utf-8")
        started = time.process_time()
        for path in paths:
            predict(*load(path))
        from_files = len(paths) / (time.process_time() - started)
    return [
        Row("in process, different configurations", f"{rate:,.0f}/s", "6.3/s", "1,000/s"),
        Row("  each shape timed anew", f"{rate_without_memory:,.0f}/s", "", ""),
        Row("  from files, YAML and checks included", f"{from_files:,.0f}/s", "", ""),
    ]


def long_step() -> list[Row]:
    """Predict a step of 8,192 micro-batches on 16 stages of 5 chunks, interleaved, in a new process."""
    form = {
        "system": "Perlmutter",
        "model": {"num_layers": 80, "hidden_size": 4096, "num_attention_heads": 32, "sequence_length": 2048},
        "parallelism": {
            "pipeline_parallel_size": 16,
            "virtual_pipeline_parallel_size": 5,
            "blocking_transfers": False,
        },
        "training": {"micro_batch_size": 1, "num_micro_batches": 8192},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.yml"
        path.write_text(yaml.safe_dump(form), encoding="utf-8")
        wall, peak = new_process([sys.executable, "-m", "predictor", str(path)])
    return [
        Row("interleaved 1F1B, 16 × 5 chunks, 8,192 micro-batches", f"{wall:.2f} s", "", "1 s"),
        Row("  peak memory", f"{peak:.0f} MB", "", "150 MB"),
    ]


def start_up() -> list[Row]:
    """Predict an example in new processes."""
    command = [sys.executable, "-m", "predictor", str(EXAMPLE)]
    new_process(command)
    walls, peaks = zip(*(new_process(command) for _ in range(PROCESSES)), strict=True)
    return [
        Row("new process, wall time", f"{statistics.median(walls):.2f} s", "2.2 s (cold 7.8 s)", "0.6 s"),
        Row("new process, peak memory", f"{statistics.median(peaks):.0f} MB", "514 MB", "150 MB"),
    ]


def fitting() -> list[Row]:
    """Fit both systems into a temporary folder, where there are measurements."""
    if not MEASUREMENTS.is_dir():
        print(f"no measurement tables in {MEASUREMENTS}: fitting is not timed", file=sys.stderr)
        return []
    total = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name, donor in (("Perlmutter", []), ("Vista", ["--donor", f"{folder}/Perlmutter"])):
            command = [sys.executable, "-m", "fitting", "fit", "--system", f"training/systems/{name}.yaml"]
            command += ["--measurements", str(MEASUREMENTS), "--out", f"{folder}/{name}", *donor]
            total += new_process(command)[0]
    return [Row("fitting both systems", f"{total:.1f} s", "", "30 s")]


def searching() -> list[Row]:
    """Search every layout of LLaMA-3 70B on 1,024 GPUs."""
    question = SearchQuestion(
        model="llama3-70b",
        system="Perlmutter",
        num_gpus=1024,
        global_batch_size=1024,
        tensor_parallel_across_nodes=True,
    )
    walls, rates = [], []
    for _ in range(SEARCHES):
        one = search_problem(question)
        one.system.forget()
        started = time.process_time()
        found = rank(one.space, one.system, one.memory_gib, top=10)
        walls.append(time.process_time() - started)
        rates.append(found.considered / walls[-1])
    count = f"search, {found.considered:,} layouts, {found.replayed} replayed"
    return [
        Row(count, f"{statistics.median(walls):.2f} s", "", "2 s"),
        Row("  layouts a second, every chunk timed anew", f"{statistics.median(rates):,.0f}/s", "", "20,000/s"),
    ]


def main() -> None:
    """Print the table."""
    rows = [*start_up(), *long_step(), *in_process(), *searching(), *fitting()]
    print(f"{'':54}{'here':>12}  {'reference':>20}  {'goal':>8}")
    for row in rows:
        print(f"{row.name:54}{row.ours:>12}  {row.reference:>20}  {row.goal:>8}")


if __name__ == "__main__":
    main()
