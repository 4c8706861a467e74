"""``search``: the fastest layouts of a model on a given number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from predictor.base.errors import ConfigError
from predictor.base.sizes import whole
from predictor.configuration.hugectr.telling import is_hugectr
from predictor.configuration.readers import HUGECTR, detect
from predictor.costs.cost import Cost
from predictor.interface.inputs import Config, plain
from predictor.interface.prediction import USUAL_WIDTH
from predictor.interface.system import LoadedSystem, system_name
from predictor.report import ranking
from predictor.search import answer
from predictor.search.question import SearchQuestion, search_problem
from predictor.search.space import ZERO_ALONE
from predictor.step.breakdown import StageParts
from predictor.step.fit import Fit
from predictor.step.memory import GIB
from predictor.timeline.schedules import SCHEDULES

MOST_SHOWN = 1000
LARGEST_LIMIT = 10**9


@dataclass(frozen=True, slots=True)
class RankedLayout:
    """One layout of a search.

    Attributes:
        step: the time of its step with the 90 % interval, in microseconds.
        memory_gib: of the fullest GPU, in GiB (2³⁰ bytes).
        fit: whether that fits, or may not; None where the GPU's memory is not known.
        mfu: model FLOP/s utilisation, between 0 and 1.
        tokens_per_second: of the whole run.
        layout: as keys of a configuration.
        parts: breakdown of the critical stage, in microseconds.
        configuration: complete, for ``predict``.
    """

    step: Cost
    memory_gib: float
    fit: Fit | None
    mfu: float
    tokens_per_second: float
    layout: dict[str, Any]
    parts: StageParts
    configuration: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SearchResult:
    """The layouts of a search.

    Attributes:
        layouts: the fastest ones, the fastest first.
        pareto: layouts on the Pareto front of time and memory, the least memory first; empty without ``pareto=True``.
        details: problem, ranking and predictions of the search.
    """

    layouts: tuple[RankedLayout, ...]
    pareto: tuple[RankedLayout, ...]
    details: answer.SearchAnswer

    @property
    def why(self) -> str:
        """Return why the fastest layout is faster than the next layout of other parallel sizes."""
        return ranking.why(self.details)

    @property
    def bottleneck(self) -> str:
        """Return the largest part of the fastest layout's step beside computation, and its remedy."""
        return ranking.bottleneck(self.details.winners[0])

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the caveats of the ranking, a sentence each."""
        return self.details.notes

    def to_dict(self) -> dict[str, Any]:
        """Return what ``search --json`` prints."""
        return ranking.to_json(self.details)

    def to_csv(self) -> str:
        """Return the fastest layouts as ``search --csv`` writes them."""
        return ranking.to_csv(self.details)

    def text(self, width: int = USUAL_WIDTH) -> str:
        """Return the page that ``search`` prints, its sentences wrapped at ``width`` columns."""
        return ranking.render(self.details, width)

    def __str__(self) -> str:
        """Return the page."""
        return self.text()

    def __repr__(self) -> str:
        """Return size and fastest step in a line."""
        return (
            f"<{len(self.layouts)} layouts on {self.details.system.name}, the fastest {self.layouts[0].step.us:.6g} us>"
        )


def _ranked(details: answer.SearchAnswer, winner: answer.Winner) -> RankedLayout:
    return RankedLayout(
        step=winner.prediction.step,
        memory_gib=winner.ranked.memory_bytes / GIB,
        fit=details.fit(winner),
        mfu=winner.prediction.mfu,
        tokens_per_second=winner.prediction.tokens_per_second,
        layout=answer.layout_fields(winner.ranked.plan),
        parts=winner.parts,
        configuration=answer.configuration(details, winner),
    )


def _limits(**given: int | None) -> dict[str, int]:
    """Return the limits that were given, checked."""
    return {
        key: whole(f"--{key.replace('_', '-')}", value, largest=LARGEST_LIMIT)
        for key, value in given.items()
        if value is not None
    }


def _chosen(option: str, given: Any, legal: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values of an option, one or several; all legal values where it is not given."""
    if given is None:
        return tuple(legal)
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    for value in values:
        if value not in legal:
            raise ConfigError(f"{option} is {value}; expected {', '.join(map(str, legal))}")
    return values or tuple(legal)


def _is_recommender(model: str | PathLike[str] | Mapping[str, Any]) -> bool:
    """Return whether a model is a HugeCTR configuration; reads no file that cannot be one."""
    if isinstance(model, Mapping):
        return is_hugectr(model)
    path = Path(model)
    return path.suffix == ".json" and path.is_file() and detect(path) == HUGECTR


def search(
    model: Config,
    gpus: int,
    *,
    global_batch_size: int | None = None,
    system: str | PathLike[str] | LoadedSystem | None = None,
    sequence_length: int | None = None,
    precision: str | None = None,
    memory_gib: float | None = None,
    max_tensor_parallel: int | None = None,
    max_context_parallel: int | None = None,
    max_micro_batch_size: int | None = None,
    schedule: str | Sequence[str] | None = None,
    zero_stage: int | Sequence[int] | None = None,
    top: int = 10,
    pareto: bool = False,
) -> SearchResult:
    """Find the fastest layouts; arguments are those of the command ``search``.

    Args:
        model: a preset's name, the path of a configuration or of another tool's file, or a mapping with the keys of a
            configuration. A configuration's switches count, its layout does not.
        gpus: every layout uses all of them.
        global_batch_size: samples per step; required where the model does not say.
        system: a name, a folder, or what ``load_system`` returns; required where the model does not say.
        sequence_length: tokens per sample, instead of the model's.
        precision: of activations: fp16, bf16 or fp32.
        memory_gib: memory of one GPU in GiB, instead of the system's.
        max_tensor_parallel: the largest tensor-parallel size to consider.
        max_context_parallel: the largest context-parallel size.
        max_micro_batch_size: the largest micro-batch, in samples.
        schedule: only this schedule, or these.
        zero_stage: only this stage, or these.
        top: layouts to return, up to 1,000.
        pareto: also return the Pareto front of time and memory.

    Raises:
        FileNotFoundError: there is no such file.
        yaml.YAMLError: it does not parse.
        KeyError: a required key is missing.
        ValueError: an argument is not allowed, nothing multiplies to the GPUs, or nothing fits.
    """
    if not isinstance(model, str | PathLike | Mapping):
        raise ConfigError(f"--model is {model!r}; expected a preset's name, a path, or a mapping of a configuration")
    if _is_recommender(model):
        raise ConfigError("--model is a HugeCTR configuration, which has sharding plans; use predictor.search_plans")
    schedules = _chosen("--schedule", schedule, tuple(SCHEDULES))
    zero_stages = _chosen("--zero-stage", zero_stage, ZERO_ALONE)
    limits = _limits(
        max_tensor_parallel=max_tensor_parallel,
        max_context_parallel=max_context_parallel,
        max_micro_batch_size=max_micro_batch_size,
        sequence_length=sequence_length,
    )
    if memory_gib is not None and (isinstance(memory_gib, bool) or not isinstance(memory_gib, int | float)):
        raise ConfigError(f"--memory-gib is {memory_gib!r}; expected GiB of one GPU")
    question = SearchQuestion(
        model=plain(model) if isinstance(model, Mapping) else fspath(model),
        num_gpus=gpus,
        system=None if system is None else system_name(system),
        global_batch_size=global_batch_size,
        precision=precision,
        memory_gib=memory_gib,
        schedules=schedules,
        zero_stages=zero_stages,
        **limits,
    )
    details = answer.search(search_problem(question), whole("--top", top, largest=MOST_SHOWN), pareto)
    layouts, front = (
        tuple(_ranked(details, winner) for winner in winners) for winners in (details.winners, details.pareto)
    )
    return SearchResult(layouts, front, details)
