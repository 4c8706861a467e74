"""Predict steps of the four models in another precision from one trace, and set them beside traces in it.

Records every model in both precisions, measures its operators and the casts in both, and predicts each precision from
the trace in the other one. For a machine with nothing else to do: steps of two ranks are compared, not operators. Of
the profiled steps the fastest stands for the run, in either precision: something else on the machine slowed the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from microbench.device import Device
from microbench.traced.cold import ColdClock
from microbench.traced.record import record_run
from microbench.traced.settings import TraceRecord, read_record, settings_of
from microbench.traced.tables import table_of
from microbench.traced.together import measure_traced
from predictor.core.timeline.graph import replay_graph
from predictor.replay.files.execution_trace import read_execution_trace
from predictor.replay.files.kineto import read_trace
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.precision.casts import fit_cast
from predictor.replay.precision.forward_graph import operator_graph, traced_times
from predictor.replay.precision.measured_costs import MeasuredCosts, joined, read_measured_costs, write_measured_costs
from predictor.replay.precision.operator_graph import Precision
from predictor.replay.precision.plan_changes import changed_tasks, plan_changes
from predictor.replay.precision.plan_time import uniform_plan
from predictor.replay.precision.precision_costs import PrecisionCosts

PRECISIONS = ("fp32", "bf16")
# Small enough for two cores and two minutes a model, and large enough that collectives are a small part of a step.
SIZES: dict[str, dict[str, Any]] = {
    "vgg16": {"batch": 24, "image": 64, "width": 48},
    "resnet50": {"batch": 16, "image": 96},
    "bert": {"batch": 12, "sequence": 128, "layers": 2},
    "roberta": {"batch": 3, "sequence": 128, "layers": 2},
}
STEPS, WARM_UP = 5, 2
CAST_EXPONENTS = range(12, 25)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prediction beside its measurement; times of one step of rank 0 in µs.

    Attributes:
        traced_us: in the precision that the prediction starts from.
        measured_us: in the other precision.
        operators: that compute in another precision.
        casts: that the prediction inserts.
        noise: of the two runs' steps, with and without the profiler, the slowest over the fastest, less one; the larger
            one. No prediction can be held to less.
    """

    model: str
    source: str
    target: str
    traced_us: float
    predicted_us: float
    measured_us: float
    operators: int
    casts: int
    noise: float

    @property
    def error(self) -> float:
        """Return predicted over measured, less one."""
        return self.predicted_us / self.measured_us - 1.0


def record_both(
    model: str, device: Device, out: Path, reuse: bool, say: Callable[[str], None]
) -> dict[str, tuple[Path, TraceRecord]]:
    """Record a model in both precisions; with ``reuse``, those that are there are taken as they are."""
    runs = {}
    for precision in PRECISIONS:
        folder = out / model / precision
        if reuse and (folder / "record.json").is_file():
            runs[precision] = folder, read_record(folder)
            continue
        say(f"recording {model} in {precision}")
        values = {"model": model, "precision": precision, "device": device.kind, "keep": "fastest"}
        settings = settings_of({**values, "steps": STEPS, "warm_up": WARM_UP, **SIZES[model]})
        runs[precision] = record_run(settings, device, out)
    return runs


def measure_both(model: str, device: Device, out: Path, reuse: bool, say: Callable[[str], None]) -> MeasuredCosts:
    """Measure a model's operators in both precisions."""
    path = out / model / "costs.json"
    if reuse and path.is_file():
        return read_measured_costs(path)
    trace = out / model / PRECISIONS[0] / "rank-0.json.gz"
    result = measure_traced(trace, None, PRECISIONS, None, device, say)
    for name, share, reason in result.unsupported:
        say(f"{model}: not measured: {name}, {share:.1%} of the step: {reason}")
    costs = table_of(device, operators=result.rows)
    write_measured_costs(path, costs)
    return costs


def measure_casts_between(device: Device, out: Path, reuse: bool) -> MeasuredCosts:
    """Measure the casts between both precisions."""
    from microbench.traced.casts import measure_casts

    path = out / "casts.json"
    if reuse and path.is_file():
        return read_measured_costs(path)
    measured = measure_casts(device.kind, ColdClock(device), CAST_EXPONENTS, PRECISIONS)
    casts = tuple(fit_cast(Precision(source), Precision(target), samples) for source, target, samples in measured)
    costs = table_of(device, casts=casts)
    write_measured_costs(path, costs)
    return costs


def predict(folder: Path, target: str, costs: MeasuredCosts) -> tuple[float, float, int, int]:
    """Return a traced step's time in its own and in another precision, in µs, and the changed operators and casts."""
    local = local_graph(read_trace(folder / "rank-0.json.gz"))
    execution = read_execution_trace(folder / "execution-0.json.gz")
    precisions = tuple(map(Precision, PRECISIONS))
    graph = operator_graph(local, execution, precisions=precisions)
    prices = PrecisionCosts(traced_times(local, graph), measured=costs)
    changes = plan_changes(local, graph, uniform_plan(graph, Precision(target)), prices)
    predicted = replay_graph(changed_tasks(local, changes)).makespan_us
    return local.step_us, predicted, changes.operators, len(changes.inserted)


def compare(
    models: Sequence[str], device: Device, out: Path, reuse: bool, say: Callable[[str], None]
) -> list[Comparison]:
    """Record, measure and predict each model in both directions.

    Args:
        models: by name.
        device: to measure.
        out: folder of traces and costs.
        reuse: take what is in the folder as it is.
        say: takes a line of progress.
    """
    out.mkdir(parents=True, exist_ok=True)
    casts = measure_casts_between(device, out, reuse)
    comparisons = []
    for model in models:
        runs = record_both(model, device, out, reuse, say)
        costs = joined([measure_both(model, device, out, reuse, say), casts])
        for source, target in (PRECISIONS, PRECISIONS[::-1]):
            traced, predicted, operators, inserted = predict(runs[source][0], target, costs)
            measured = min(runs[target][1].steps[0].profiled_us)
            noise = max(step_noise(record) for _, record in runs.values())
            comparisons.append(
                Comparison(model, source, target, traced, predicted, measured, operators, inserted, noise)
            )
            say(render(comparisons[-1:]).splitlines()[-1])
    return comparisons


def step_noise(record: TraceRecord) -> float:
    """Return by how much the slowest step of a run is slower than its fastest, of those under the profiler or not."""
    times = record.steps[0]
    return max(max(steps) / min(steps) for steps in (times.profiled_us, times.unprofiled_us)) - 1.0


def render(comparisons: Sequence[Comparison]) -> str:
    """Return a table of comparisons."""
    titles = ("traced ms", "predicted", "measured")
    columns = " ".join(f"{title:>10}" for title in titles)
    lines = [f"{'model':<10} {'from':>5} {'to':>5} {columns} {'error':>7} {'noise':>6}"]
    for row in comparisons:
        times = " ".join(f"{us / 1e3:>10.1f}" for us in (row.traced_us, row.predicted_us, row.measured_us))
        lines.append(f"{row.model:<10} {row.source:>5} {row.target:>5} {times} {row.error:>+7.1%} {row.noise:>6.0%}")
    return "\n".join(lines)
