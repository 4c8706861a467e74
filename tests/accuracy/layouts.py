"""How well predictions rank layouts: Kendall's tau-b and regret over published jobs that differ in layout alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from scipy.stats import kendalltau

from tests.accuracy.groups import Row
from tests.accuracy.tables import Table, percent

FEWEST_LAYOUTS = 3
LAYOUT_KEYS = ("micro_batch_size", "num_micro_batches", "global_batch_size", "recompute")  # of training; by beginning
UNLIKE_JOBS = "vTrain, one node"  # half of all rows, 32 layer shapes: shown apart
HEAD = ("group", "jobs", "layouts", "tau", "fastest found %", "rank of the fastest", "regret %", "worst %")


class Ranking(NamedTuple):
    """A job's layouts in the order of prediction and in that of measurement.

    Attributes:
        tau: Kendall's tau-b.
        is_found: the layout that is predicted to be the fastest is.
        regret: its measured time over that of the fastest, minus one.
        rank: of the fastest among predictions, from 1; behind those that are predicted alike.
    """

    tau: float
    is_found: bool
    regret: float
    rank: int


class Timed(NamedTuple):
    """A layout: predicted and measured time, of a step or of a sample."""

    predicted: float
    measured: float


def ranking(layouts: Sequence[Timed]) -> Ranking:
    """Return how predictions rank at least two layouts.

    Where all are predicted alike tau is 0; of several that are predicted to be the fastest the slowest is chosen.
    """
    predicted, measured = zip(*layouts, strict=True)
    fastest, chosen = min(measured), max(each.measured for each in layouts if each.predicted == min(predicted))
    tau = 0.0 if len(set(predicted)) == 1 else float(kendalltau(predicted, measured).statistic)
    of_fastest = min(each.predicted for each in layouts if each.measured == fastest)
    return Ranking(tau, chosen == fastest, chosen / fastest - 1.0, sum(each <= of_fastest for each in predicted))


def job_of(row: Row, batch: object) -> str:
    """Return what layouts of one job have in common."""
    step = row.compared.step
    training = {key: value for key, value in step.config["training"].items() if not key.startswith(LAYOUT_KEYS)}
    job = (step.groups[0], step.config["system"], step.config.get("cluster"), step.config["model"], training, batch)
    return repr((*job, step.num_gpus))


def jobs(rows: Iterable[Row], free_batch: bool = False) -> dict[str, list[list[Timed]]]:
    """Return jobs with enough layouts by group; a layout that was measured more than once counts once.

    Args:
        rows: published steps.
        free_batch: the global batch is part of the layout, and the time is that of a sample.
    """
    measured: dict[tuple[str, str], dict[str, list[Timed]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        run, step = row.compared.prediction.run, row.compared.step
        samples = run.micro_batch_size * run.num_micro_batches * run.layout.data_parallel_size
        each = samples if free_batch else 1
        timed = Timed(row.compared.seconds / each, step.seconds / each)
        job = step.groups[0], job_of(row, None if free_batch else samples)
        measured[job][repr(step.config)].append(timed)
    found: dict[str, list[list[Timed]]] = defaultdict(list)
    for (group, _), layouts in measured.items():
        if len(layouts) >= FEWEST_LAYOUTS:
            found[group].append([_mean(times) for times in layouts.values()])
    return dict(sorted(found.items()))


def _mean(times: Sequence[Timed]) -> Timed:
    return Timed(*(fmean(each) for each in zip(*times, strict=True)))


def _line(name: str, listed: Sequence[Sequence[Timed]]) -> list[str]:
    ranked = [ranking(layouts) for layouts in listed]
    return [
        name,
        str(len(listed)),
        str(sum(map(len, listed))),
        f"{fmean(each.tau for each in ranked):.2f}",
        percent(100 * fmean(each.is_found for each in ranked)),
        f"{fmean(each.rank for each in ranked):.1f}",
        percent(100 * fmean(each.regret for each in ranked), 1),
        percent(100 * max(each.regret for each in ranked), 1),
    ]


def _lines(found: Mapping[str, Sequence[Sequence[Timed]]]) -> Iterator[list[str]]:
    for name, listed in found.items():
        yield _line(name, listed)
    others = [job for name, listed in found.items() if name != UNLIKE_JOBS for job in listed]
    every = [job for listed in found.values() for job in listed]
    if others and len(others) < len(every):
        yield _line(f"all but {UNLIKE_JOBS}", others)
    if every:
        yield _line("all", every)


def layout_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the table of steps of one global batch, then that of samples, the batch part of the layout."""
    kinds = ((False, "layouts", "one global batch"), (True, "samples", "time of a sample, any global batch"))
    for free_batch, name, of in kinds:
        title = f"Layouts of a job ({of}; {FEWEST_LAYOUTS} and more): Kendall's tau-b, regret of the predicted fastest"
        yield Table(name, title, HEAD, list(_lines(jobs(rows, free_batch))))
