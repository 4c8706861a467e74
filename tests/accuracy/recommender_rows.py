"""Published steps of recommenders beside their predictions; facts and sources are in recommenders/README.md."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from predictor.core.costs.cost import Cost, Source
from predictor.recommender.hugectr.reading import parse_hugectr
from predictor.recommender.hugectr.to_run import Options, to_run
from predictor.recommender.step import predict_recommender
from predictor.recommender.workload.run import RecommenderRun
from tests.accuracy.mlperf_plans import mlperf_plan

FOLDER = Path(__file__).parent / "recommenders"
FILE = "recommender_steps.csv"
MLPERF, SOK, EBC = "mlperf41_dlrm_dcnv2", "hugectr_sok_dlrm", "torchrec_ebc"
GPUS_PER_NODE = 8
# MLPerf's rules: an evaluation of all validation samples at every twentieth of the training samples.
EVALUATED_PER_TRAINED = 89_137_319 / (0.05 * 4_195_197_692)
EVALUATION_BATCH = 1_048_576
# Horovod hands gradients to NCCL in cycles of 1 ms: the last ones wait for half of one in the mean, at most for one.
# Source: Horovod, "Tensor Fusion", HOROVOD_CYCLE_TIME.
HOROVOD_WAIT = Cost(500.0, 0.0, 1000.0, Source.ANALYTIC)
SYSTEMS = {"A100": "Selene", "V100": "V100", "H100": "H100", "H200": "H200", "B200": "B200"}


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """One row.

    Attributes:
        group: the benchmark.
        label: what distinguishes rows of a group.
        milliseconds: of one step, as published.
    """

    identity: str
    group: str
    label: str
    gpu: str
    num_gpus: int
    batch_size: int
    milliseconds: float
    is_mixed: bool


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """A row beside its prediction, with the evaluations where the published time holds them."""

    row: PublishedStep
    step: Cost

    @property
    def error(self) -> float:
        """Return predicted over measured, less one."""
        return self.step.us / 1e3 / self.row.milliseconds - 1.0

    @property
    def is_inside(self) -> bool:
        """Return whether the published time lies in the 90 % interval."""
        return self.step.low_us <= 1e3 * self.row.milliseconds <= self.step.high_us


def _gpu(text: str) -> str:
    return text.split(" ", maxsplit=1)[0]


def read_rows(path: Path) -> tuple[list[PublishedStep], dict[str, int]]:
    """Return the rows that can be expressed, and the number of others by reason."""
    steps, others = [], dict[str, int]()
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            why = _inexpressible(row)
            if why:
                others[why] = others.get(why, 0) + 1
                continue
            steps.append(
                PublishedStep(
                    identity=row["id"],
                    group=row["group"],
                    label=row["system"],
                    gpu=_gpu(row["gpu"]),
                    num_gpus=int(row["n_gpus"]),
                    batch_size=int(row["batch"]),
                    milliseconds=float(row["measured_iter_ms"] or row["derived_iter_ms"]),
                    is_mixed=not row["precision"].startswith("fp32"),
                )
            )
    return steps, others


def _inexpressible(row: dict[str, str]) -> str:
    if row["group"] == EBC:
        return "an epoch of embedding lookups alone: no step of a model"
    if row["group"] not in (MLPERF, SOK):
        return f"group {row['group']}: no configuration here"
    if _gpu(row["gpu"]) not in SYSTEMS:
        return f"{_gpu(row['gpu'])}: no published system"
    if not (row["measured_iter_ms"] or row["derived_iter_ms"]):
        return "no time"
    return ""


def _content(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return content


def _forward(run: RecommenderRun, system: Any, batch_size: int) -> Cost:
    """Return the time of a batch's forward pass."""
    timed = predict_recommender(replace(run, batch_size=batch_size), system)
    return timed.stages[0].whole.forward.cost


@cache
def _predicted(group: str, gpu: str, num_gpus: int, batch_size: int, is_mixed: bool) -> Cost:
    name = "dlrm_dcnv2.json" if group == MLPERF else f"dlrm_sok_{'amp' if is_mixed else 'fp32'}.json"
    options = Options(system=SYSTEMS[gpu], gpus=num_gpus, batch_size=batch_size)
    run, system, _, _ = to_run(parse_hugectr(_content(name)), options)
    if group != MLPERF:
        return predict_recommender(run, system).step + HOROVOD_WAIT
    run = replace(run, plan=mlperf_plan(run.model.embeddings[0], num_gpus, GPUS_PER_NODE))
    step = predict_recommender(run, system).step
    share = EVALUATED_PER_TRAINED * batch_size / EVALUATION_BATCH
    return step + _forward(run, system, EVALUATION_BATCH) * share


def compare(rows: Iterable[PublishedStep]) -> Iterator[ComparedStep]:
    """Yield rows beside their predictions."""
    for row in rows:
        yield ComparedStep(row, _predicted(row.group, row.gpu, row.num_gpus, row.batch_size, row.is_mixed))


def kinds(rows: Iterable[ComparedStep]) -> dict[str, list[ComparedStep]]:
    """Return rows by benchmark, GPU, number of GPUs, batch and precision, which one prediction answers."""
    grouped: dict[str, list[ComparedStep]] = {}
    for compared in rows:
        row = compared.row
        precision = "" if row.group == MLPERF else " amp" if row.is_mixed else " fp32"
        name = f"{row.group}: {row.num_gpus} {row.gpu}, batch {row.batch_size:,}{precision}"
        grouped.setdefault(name, []).append(compared)
    return grouped


def report(path: Path) -> Iterator[str]:
    """Return a line per kind, a line per benchmark, and the rows left out by reason."""
    rows, others = read_rows(path)
    compared = list(compare(rows))
    yield f"{'kind':52} {'rows':>4} {'measured ms':>13} {'predicted':>9} {'error':>15}  90 % interval, ms"
    for name, group in kinds(compared).items():
        times = [row.row.milliseconds for row in group]
        errors = [row.error for row in group]
        cost = group[0].step
        inside = sum(row.is_inside for row in group)
        yield (
            f"{name:52} {len(group):4} {min(times):5.2f} – {max(times):5.2f} {cost.us / 1e3:9.2f} "
            f"{min(errors):+6.1%} – {max(errors):+6.1%}  {cost.low_us / 1e3:.2f} to {cost.high_us / 1e3:.2f}, "
            f"{inside} of {len(group)} inside"
        )
    for benchmark in dict.fromkeys(row.row.group for row in compared):
        errors = [abs(row.error) for row in compared if row.row.group == benchmark]
        covered = fmean(row.is_inside for row in compared if row.row.group == benchmark)
        yield (
            f"{benchmark}: {len(errors)} rows, mean error {fmean(errors):.1%}, median {median(errors):.1%}, "
            f"largest {max(errors):.1%}, within 20 % {fmean(error <= 0.2 for error in errors):.0%}, "
            f"intervals cover {covered:.0%}"
        )
    for why, count in others.items():
        yield f"left out, {count} rows: {why}"
