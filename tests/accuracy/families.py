"""Errors of published steps by software family: ``python -m tests.accuracy.families``.

``--store`` writes ``predictor/core/step/published_runs.yaml``, of which intervals are made. The coverage that it prints
is of rows whose configurations took no part.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, exp, log, sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from typing import NamedTuple

import yaml

from predictor.core.base.bundled import REGRESSORS_FOLDER, systems
from predictor.core.base.errors import ConfigError, PublishedError
from predictor.core.costs.cost import Cost
from predictor.core.costs.folder import read_hardware, read_manifest
from predictor.core.plan.loading import prepare
from predictor.core.step.calibrated import TWO_SIDED_90
from predictor.core.step.composition import StepTime, step_in
from predictor.core.step.families import DATA, WIDE, Family, Kind, interval_of, kind_of, with_sure_update
from predictor.core.workload.software import Framework
from predictor.core.workload.transformer_step import transformer_step
from predictor.evidence.published.tables import published_tables
from tests.conftest import SHARED

# Configurations that the pooled spread within families counts for, beside a family's own.
KNOWN_AS = 3.0
FEWEST_CONFIGURATIONS = 3
FEWEST_FRAMEWORKS = 2  # of a family of all frameworks
FEWEST_WIDE = 8  # of wide tensor parallelism, to be told apart from the rest of its family
TAMED_BEYOND = 4.0
LEAST_DEVIATION = 0.02  # of a family's misses: the noise of a measured step
GENERATIONS = (
    ("NVIDIAV100", "Tesla"),
    ("NVIDIAA100",),
    ("NVIDIAH100", "NVIDIAH200", "NVIDIAGH200"),
    ("NVIDIAB200", "NVIDIAB300", "NVIDIAGB200", "NVIDIAGB300"),
)
HEAD = """\
# Errors of published steps by software family, kind of products and generation of GPUs: logs of measured over predicted
# time. python -m tests.accuracy.families --store writes this file from tables of steps that others published; the
# sources of the rows are in predictor/evidence/published. Nothing but intervals follows from it.

"""


class PublishedStep(NamedTuple):
    """A published step.

    Attributes:
        groups: of reports.
        wide: its tensor parallelism fills a node of eight.
        gpu: that it ran on, as its system names it.
        same_as: equal for rows of one configuration.
        miss: log of measured over predicted time.
        step: predicted, its interval as operators and machines make it around a sure update.
        num_gpus: that it ran on.
        host_share: of the step, predicted to be spent in waiting for the host.
    """

    groups: tuple[str, ...]
    framework: Framework
    kind: Kind
    wide: bool
    gpu: str
    same_as: str
    miss: float
    step: Cost
    num_gpus: int
    host_share: float


Key = tuple[Framework | None, Kind, tuple[str, ...], bool]  # framework, kind, GPUs, wide tensor parallelism


def judged_rows(folder: Path) -> Iterator[PublishedStep]:
    """Yield every published step that can be predicted."""
    for step in published_tables(folder).steps:
        try:
            loaded = prepare(step.config, Path.cwd())
            timed = step_in(loaded.run.precision, transformer_step(loaded.run), loaded.system)
        except (ConfigError, PublishedError):
            continue
        cost = with_sure_update(timed["step"], timed["closing"])
        framework = loaded.run.framework
        assert framework is not None, f"{step.name}: every converter names the software"
        miss = log(step.seconds * 1e6 / cost.us)
        wide = loaded.run.layout.tensor_parallel_size >= WIDE
        kind = kind_of(loaded.run)
        yield PublishedStep(
            groups=step.groups,
            framework=framework,
            kind=kind,
            wide=wide,
            gpu=loaded.system.gpu,
            same_as=repr(step.config),
            miss=miss,
            step=cost,
            num_gpus=loaded.run.layout.num_gpus,
            host_share=StepTime(**timed).host_share,
        )


def generation(gpu: str, gpus: Iterable[str]) -> tuple[str, ...]:
    """Return the GPUs of the same generation."""
    for names in GENERATIONS:
        if gpu.startswith(names):
            return tuple(sorted({each for each in gpus if each.startswith(names)}))
    return (gpu,)


def known_gpus() -> list[str]:
    """Return the GPUs of all published systems."""
    folders = [REGRESSORS_FOLDER / name for name in systems()]
    return sorted({read_hardware(folder, read_manifest(folder)).gpu.name for folder in folders})


def _keys(row: PublishedStep, gpus: Sequence[str]) -> tuple[Key, ...]:
    own = generation(row.gpu, gpus)
    return (
        *([(row.framework, row.kind, own, True)] if row.wide else []),
        (row.framework, row.kind, own, False),
        (row.framework, row.kind, (), False),
        (None, row.kind, own, False),
        (None, row.kind, (), False),
    )


def _means(rows: Sequence[PublishedStep]) -> dict[str, list[float]]:
    """Return the mean miss of every configuration by framework: rows of one configuration repeat its error."""
    by: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        by[row.framework, row.same_as].append(row.miss)
    means: dict[str, list[float]] = defaultdict(list)
    for (framework, _), misses in by.items():
        means[framework].append(fmean(misses))
    return means


def _all(means: Mapping[str, Sequence[float]]) -> list[float]:
    return [each for own in means.values() for each in own]


class Pooled(NamedTuple):
    """Spread of configurations within families, and of families' means, as standard deviations of logs."""

    within: float
    between: float


def pooled(groups: Iterable[Sequence[PublishedStep]]) -> Pooled:
    """Return the spreads over families with enough configurations, every family counted once."""
    means = [each for each in (_all(_means(group)) for group in groups) if len(each) >= FEWEST_CONFIGURATIONS]
    within = sqrt(fmean(stdev(each) ** 2 for each in means))
    return Pooled(within, sqrt(fmean(fmean(each) ** 2 for each in means)))


class Errors(NamedTuple):
    """Mean and standard deviation of a family's misses, and the interval of those to come."""

    mean: float
    deviation: float
    middle: float
    half: float


def _tamed(means: Sequence[float]) -> list[float]:
    """Return misses with those beyond four robust standard deviations drawn in: one of twenty may lie outside."""
    middle = median(means)
    deviation = 1.4826 * median(abs(each - middle) for each in means)
    reach = TAMED_BEYOND * max(deviation, LEAST_DEVIATION)
    return [min(max(each, middle - reach), middle + reach) for each in means]


def _of_one_framework(means: Sequence[float], spreads: Pooled) -> Errors:
    """Return a family's own errors, drawn towards the pooled spreads where it has few configurations."""
    means = _tamed(means)
    count, own = len(means), stdev(means)
    variance = (KNOWN_AS * spreads.within**2 + (count - 1) * own**2) / (KNOWN_AS + count - 1)
    of_mean = 1.0 / (spreads.between**-2 + count / variance)
    middle = fmean(means) * (count / variance) * of_mean
    return Errors(fmean(means), own, middle, TWO_SIDED_90 * sqrt(variance + of_mean))


def _of_any_framework(means: Mapping[str, Sequence[float]], spreads: Pooled) -> Errors:
    """Return what a run of an unknown framework may miss: every framework counts once, whatever its rows."""
    centres = [fmean(own) for own in means.values()]
    within = [stdev(own) if len(own) >= FEWEST_CONFIGURATIONS else spreads.within for own in means.values()]
    middle = fmean(centres)
    between = stdev(centres) if len(centres) > 1 else spreads.between
    variance = fmean(each**2 for each in within) + between**2
    return Errors(middle, sqrt(variance), middle, TWO_SIDED_90 * sqrt(variance))


def _widest_of_ten(rows: Sequence[PublishedStep]) -> float:
    """Return the half width, as a log, that nine of ten rows' intervals do not exceed."""
    widths = sorted(log(row.step.high_us / row.step.low_us) / 2.0 for row in rows)
    return widths[int(0.9 * (len(widths) - 1))]


def family(key: Key, rows: Sequence[PublishedStep], spreads: Pooled) -> Family:
    """Return the errors of a family."""
    framework, kind, gpus, wide = key
    means = _means(rows)
    errors = _of_any_framework(means, spreads) if framework is None else _of_one_framework(_all(means), spreads)
    return Family(
        **kind._asdict(),
        framework=framework,
        gpus=gpus,
        wide=wide,
        rows=len(rows),
        configurations=len(_all(means)),
        fewest_gpus=min(row.num_gpus for row in rows),
        most_gpus=max(row.num_gpus for row in rows),
        most_host_share=ceil(1000 * max(row.host_share for row in rows)) / 1000,
        mean_log=round(errors.mean, 3),
        deviation=round(errors.deviation, 3),
        low_log=round(errors.middle - errors.half, 3),
        high_log=round(errors.middle + errors.half, 3),
        operator_log_error=round(_widest_of_ten(rows), 3),
    )


def fitted(rows: Sequence[PublishedStep]) -> dict[Key, Family]:
    """Return all families of some rows that have enough configurations."""
    gpus = known_gpus()
    by: dict[Key, list[PublishedStep]] = defaultdict(list)
    for row in rows:
        for key in dict.fromkeys(_keys(row, gpus)):
            by[key].append(row)
    known = {key: group for key, group in by.items() if _are_enough(key, _means(group))}
    return {key: family(key, group, pooled(_like(key[1].experts, known))) for key, group in known.items()}


def _are_enough(key: Key, means: Mapping[str, Sequence[float]]) -> bool:
    """Return whether a family has enough configurations; the bias of one framework says nothing about all others."""
    framework, _, _, wide = key
    fewest = FEWEST_WIDE if wide else FEWEST_CONFIGURATIONS
    return len(_all(means)) >= fewest and (framework is not None or len(means) >= FEWEST_FRAMEWORKS)


def _like(experts: bool, known: Mapping[Key, Sequence[PublishedStep]]) -> Iterator[Sequence[PublishedStep]]:
    """Yield the rows of every framework on one generation of GPUs, with experts or without."""
    for (framework, kind, gpus, wide), rows in known.items():
        if framework is not None and gpus and not wide and kind.experts is experts:
            yield rows


def left_out(rows: Sequence[PublishedStep], folds: int = 10) -> Iterator[tuple[PublishedStep, Cost]]:
    """Yield every row with the interval that the configurations of other folds make."""
    order = {same_as: i for i, same_as in enumerate(dict.fromkeys(row.same_as for row in rows))}
    gpus = known_gpus()
    for fold in range(folds):
        known = fitted([row for row in rows if order[row.same_as] % folds != fold])
        for row in rows:
            if order[row.same_as] % folds == fold:
                match = next((known[key] for key in _keys(row, gpus) if key in known), None)
                yield row, row.step if match is None else interval_of(match, row.step)


def table(rows: Sequence[PublishedStep]) -> Iterator[str]:
    """Yield a line per group: rows, rows inside, and the width of the interval."""
    yield f"{'group':44} {'rows':>5} {'mean %':>7} {'inside %':>8} {'high/low':>8}   left out; as operators make it"
    groups: dict[str, list[tuple[PublishedStep, Cost]]] = defaultdict(list)
    for row, cost in left_out(rows):
        for group in row.groups:
            groups[group].append((row, cost))
    for name, judged in sorted(groups.items()):
        inside = fmean(_is_inside(row, cost) for row, cost in judged)
        before = fmean(_is_inside(row, row.step) for row, _ in judged)
        width = median(cost.high_us / cost.low_us for _, cost in judged)
        own = median(row.step.high_us / row.step.low_us for row, _ in judged)
        mean = 100 * fmean(exp(-row.miss) - 1.0 for row, _ in judged)
        yield (
            f"{name:44} {len(judged):5} {mean:+7.1f} {100 * inside:8.0f} {width:8.2f}   "
            f"{100 * before:.0f} % inside, {own:.2f}"
        )


def _is_inside(row: PublishedStep, cost: Cost) -> bool:
    return cost.low_us <= row.step.us * exp(row.miss) <= cost.high_us


def main(given: list[str] | None = None) -> int:
    """Print coverage by group, or store the families."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy.families", description=__doc__)
    parser.add_argument("--truth", type=Path, default=SHARED / "truth", metavar="FOLDER", help="folder of the tables")
    parser.add_argument("--store", action="store_true", help="write predictor/core/step/published_runs.yaml")
    arguments = parser.parse_args(given)
    rows = list(judged_rows(arguments.truth))
    print("\n".join(table(rows)))
    if arguments.store:
        entries = [each.model_dump(mode="json") for each in fitted(rows).values()]
        entries.sort(key=lambda each: (each["framework"] or "", repr(each["gpus"]), repr(each)))
        DATA.write_text(HEAD + yaml.safe_dump({"families": entries}, sort_keys=False, width=120), encoding="utf-8")
        print(f"wrote {DATA}, {len(entries)} families")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
