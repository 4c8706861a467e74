"""``search``: the fastest layouts of a model on a given number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.quantities import HOURS_PER_DAY
from predictor.core.base.sizes import whole
from predictor.core.costs.cost import Cost
from predictor.core.plan.framework_rules import NAMES
from predictor.core.predict.inputs import Config, Hardware, change_texts, file_values
from predictor.core.predict.prediction import USUAL_WIDTH
from predictor.core.predict.system import LoadedSystem, system_name
from predictor.core.schema.foreign import readers, writers
from predictor.core.schema.input_kind import HUGECTR, is_hugectr
from predictor.core.step.breakdown import StageParts
from predictor.core.step.memory import GIB
from predictor.core.step.memory_verdict import MemoryVerdict
from predictor.layout_search import answer
from predictor.layout_search.checks import LARGEST_LIMIT, check_limits, checked_price, chosen, limits, positive
from predictor.layout_search.gpu_counts import MOST_GPUS, Hunt, fewest
from predictor.layout_search.question import SearchQuestion, search_problem
from predictor.layout_search.report import gpu_counts, ranking
from predictor.layout_search.report.gpu_counts import Tried
from predictor.layout_search.report.search_bill import Limits, Training, training_of, within
from predictor.layout_search.space import SEARCHED, ZERO_ALONE

MOST_SHOWN = 1000


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
        training: of the whole training, failures included; None without ``train_tokens``.
        twins: near-duplicates, as keys of a configuration.
    """

    step: Cost
    memory_gib: float
    fit: MemoryVerdict | None
    mfu: float
    tokens_per_second: float
    layout: dict[str, Any]
    parts: StageParts
    configuration: dict[str, Any]
    training: Training | None
    twins: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SearchResult:
    """The layouts of a search.

    Attributes:
        layouts: the fastest ones that fit for certain, the fastest first; those that may fit where none is certain.
        pareto: layouts on the Pareto front of time and memory, the least memory first; empty without ``pareto=True``.
        unsure: up to three that are faster than the first of ``layouts``, but may not fit.
        details: problem, ranking and predictions of the search.
        counts: numbers of GPUs that were tried for a deadline or a budget, in order.
    """

    layouts: tuple[RankedLayout, ...]
    pareto: tuple[RankedLayout, ...]
    unsure: tuple[RankedLayout, ...]
    details: answer.SearchAnswer
    counts: tuple[Tried, ...] = ()

    @property
    def num_gpus(self) -> int:
        """Return the GPUs that every layout uses."""
        return self.details.space.num_gpus

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
        return ranking.notes(self.details)

    def arguments(self, number: int = 1, version: str | None = None) -> str:
        """Return a layout as its framework's own arguments: a script, a TOML or a JSON file.

        Args:
            number: of the layout, from 1.
            version: of the framework; the newest that is known without one.

        Raises:
            ValueError: the search named no framework, or that has no arguments for a part of the configuration.
        """
        return writers().written(self.layouts[number - 1].configuration, self._framework(), Path.cwd(), version)

    def job(self, arguments: str, number: int = 1) -> str:
        """Return a layout as an experiment of model_training_framework, which submits and resumes it.

        Args:
            arguments: path of the file that has the layout's ``arguments``.
            number: of the layout, from 1.

        Raises:
            ValueError: the search named no framework.
        """
        from predictor.core.schema.sections import validate

        content, training = self.layouts[number - 1].configuration, self.layouts[number - 1].training
        gpus = self.num_gpus, self.details.space.base.layout.gpus_per_node
        steps = None if training is None else training.steps
        return writers().launch_job(content, validate(content), self._framework(), arguments, gpus, steps)

    def _framework(self) -> str:
        rules = self.details.space.rules
        if rules is None:
            raise ConfigError(f"--write-arguments needs --framework: {', '.join(NAMES)}")
        return rules.name

    def to_dict(self) -> dict[str, Any]:
        """Return what ``search --json`` prints."""
        tried = {"gpu_counts": gpu_counts.to_json(self.counts)} if self.counts else {}
        return ranking.to_json(self.details) | tried

    def to_csv(self) -> str:
        """Return the fastest layouts as ``search --csv`` writes them."""
        return ranking.to_csv(self.details)

    def text(self, width: int = USUAL_WIDTH) -> str:
        """Return the page that ``search`` prints, its sentences wrapped at ``width`` columns."""
        page = ranking.render(self.details, width)
        return "\n".join([*gpu_counts.table(self.counts), "", page]) if self.counts else page

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
        fit=details.verdict(winner),
        mfu=winner.prediction.mfu,
        tokens_per_second=winner.prediction.tokens_per_second,
        layout=answer.layout_fields(winner.ranked.plan),
        parts=winner.parts,
        configuration=answer.configuration(details, winner),
        training=training_of(details, winner),
        twins=tuple(answer.layout_fields(near.plan) for near in winner.near_duplicates),
    )


def _limits_of(hours: float | None, days: float | None, price: float | None) -> Limits:
    """Return what a training may take; the shorter of hours and days counts."""
    times = [] if hours is None else [hours]
    times += [] if days is None else [days * HOURS_PER_DAY]
    return Limits(min(times, default=None), price)


def _kinds(framework: object, **switches: object) -> None:
    """Check that a framework is named by text, and that switches are true or false."""
    if framework is not None and not isinstance(framework, str):
        raise ConfigError(f"--framework is {framework!r}; expected {', '.join(NAMES)}")
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise ConfigError(f"--{name.replace('_', '-')} is {value!r}; expected true or false")


def _is_recommender(model: str | PathLike[str] | Mapping[str, Any]) -> bool:
    """Return whether a model is a HugeCTR configuration; reads no file that cannot be one."""
    if isinstance(model, Mapping):
        return is_hugectr(model)
    path = Path(model)
    return path.suffix == ".json" and path.is_file() and readers().detect(path) == HUGECTR


def search(
    model: Config,
    gpus: int | None = None,
    *,
    global_batch_size: int | None = None,
    global_batch_tokens: int | None = None,
    system: str | PathLike[str] | LoadedSystem | None = None,
    framework: str | None = None,
    sequence_length: int | None = None,
    precision: str | None = None,
    memory_gib: float | None = None,
    max_memory_gib: float | None = None,
    max_tensor_parallel: int | None = None,
    max_context_parallel: int | None = None,
    max_micro_batch_size: int | None = None,
    tensor_parallel_across_nodes: bool = False,
    schedule: str | Sequence[str] | None = None,
    zero_stage: int | Sequence[int] | None = None,
    train_tokens: float | None = None,
    price: float | None = None,
    max_hours: float | None = None,
    max_days: float | None = None,
    max_price: float | None = None,
    deadline_days: float | None = None,
    budget: float | None = None,
    max_gpus: int | None = None,
    changes: Hardware | None = None,
    top: int = 10,
    pareto: bool = False,
) -> SearchResult:
    """Find the fastest layouts; arguments are those of the command ``search``.

    Args:
        model: a preset's name, the path of a configuration or of another tool's file, or a mapping with the keys of a
            configuration. A configuration's switches count, its layout does not.
        gpus: every layout uses all of them; left out with ``deadline_days`` or ``budget``, which look for their number.
        global_batch_size: samples per step; required where the model does not say.
        global_batch_tokens: the same in tokens, a multiple of the sequence length.
        system: a name, a folder, or what ``load_system`` returns; required where the model does not say.
        framework: only layouts that it runs, as it runs them: megatron, megatron-bridge, torchtitan, deepspeed,
            gpt-neox or transformers.
        sequence_length: tokens per sample, instead of the model's.
        precision: of activations: fp16, bf16 or fp32.
        memory_gib: memory of one GPU in GiB, instead of the system's.
        max_memory_gib: what a layout may need of it.
        max_tensor_parallel: the largest tensor-parallel size to consider.
        max_context_parallel: the largest context-parallel size.
        max_micro_batch_size: the largest micro-batch, in samples.
        tensor_parallel_across_nodes: tensor-parallel groups may leave a node or an NVLink domain.
        schedule: only this schedule, or these.
        zero_stage: only this stage, or these.
        train_tokens: tokens of the whole training; layouts then say how long it takes, failures included.
        price: of a GPU-hour, in any currency.
        max_hours: leave out layouts that train longer.
        max_days: the same in days.
        max_price: leave out layouts whose training costs more.
        deadline_days: search for the fewest GPUs that train in so many days: a node's, doubled until they do.
        budget: the same for the price of the training.
        max_gpus: the most GPUs that such a search tries; 65,536 if absent.
        changes: of the hardware and of keys that no search decides, as ``predict`` takes them.
        top: layouts to return, up to 1,000; near-duplicates of a faster one count with it.
        pareto: also return the Pareto front of time and memory.

    Raises:
        FileNotFoundError: there is no such file.
        yaml.YAMLError: it does not parse.
        KeyError: a required key is missing.
        ValueError: an argument is not allowed, nothing multiplies to the GPUs, nothing fits, or nothing keeps a limit.
    """
    if not isinstance(model, str | PathLike | Mapping):
        raise ConfigError(f"--model is {model!r}; expected a preset's name, a path, or a mapping of a configuration")
    if _is_recommender(model):
        raise ConfigError("--model is a HugeCTR configuration, which has sharding plans; use predictor.search_plans")
    given = limits(
        max_tensor_parallel=max_tensor_parallel,
        max_context_parallel=max_context_parallel,
        max_micro_batch_size=max_micro_batch_size,
        sequence_length=sequence_length,
    )
    positive(
        train_tokens=train_tokens,
        max_hours=max_hours,
        max_days=max_days,
        max_price=max_price,
        deadline_days=deadline_days,
        budget=budget,
    )
    checked_price(price)
    for option, value in (("--memory-gib", memory_gib), ("--max-memory-gib", max_memory_gib)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{option} is {value!r}; expected GiB of one GPU")
    _kinds(framework, tensor_parallel_across_nodes=tensor_parallel_across_nodes, pareto=pareto)
    question = SearchQuestion(
        model=file_values(model) if isinstance(model, Mapping) else fspath(model),
        num_gpus=1 if gpus is None else gpus,
        system=None if system is None else system_name(system),
        global_batch_size=global_batch_size,
        global_batch_tokens=global_batch_tokens,
        framework=framework,
        precision=precision,
        memory_gib=memory_gib,
        max_memory_gib=max_memory_gib,
        tensor_parallel_across_nodes=tensor_parallel_across_nodes,
        schedules=chosen("--schedule", schedule, SEARCHED),
        zero_stages=chosen("--zero-stage", zero_stage, ZERO_ALONE),
        train_tokens=train_tokens,
        price=price,
        changes=tuple(change_texts(changes)),
        **given,
    )
    kept = _limits_of(max_hours, max_days, max_price)
    goals = _limits_of(None, deadline_days, budget)
    return _answered(question, _Request(gpus, kept, goals, max_gpus, whole("--top", top, largest=MOST_SHOWN), pareto))


@dataclass(frozen=True, slots=True)
class _Request:
    """What a search is asked beside its question."""

    gpus: int | None
    kept: Limits
    goals: Limits
    max_gpus: int | None
    top: int
    pareto: bool


def _answered(question: SearchQuestion, request: _Request) -> SearchResult:
    """Return the layouts on given GPUs, or on the fewest that meet a deadline or a budget."""
    looks_for_gpus = request.goals != Limits()
    if looks_for_gpus and request.gpus is not None:
        raise ConfigError("--gpus is given beside --deadline-days or --budget, which look for it; leave it out")
    if not looks_for_gpus and request.gpus is None:
        raise ConfigError("--gpus is missing: how many? --deadline-days or --budget look for the fewest")
    if not looks_for_gpus and request.max_gpus is not None:
        raise ConfigError("--max-gpus is for --deadline-days and --budget; --gpus are all used")
    counts: tuple[Tried, ...] = ()
    if looks_for_gpus:
        most = MOST_GPUS if request.max_gpus is None else whole("--max-gpus", request.max_gpus, largest=LARGEST_LIMIT)
        details, counts = fewest(Hunt(question, request.goals, most, request.top, request.pareto))
    else:
        problem = search_problem(question)
        check_limits(problem.budget, request.kept, question)
        details = answer.search(problem, request.top, request.pareto)
    details = within(details, request.kept)
    layouts, front, unsure = (
        tuple(_ranked(details, winner) for winner in winners)
        for winners in (details.winners, details.pareto, details.unsure)
    )
    if question.price is not None and all(layout.training is None for layout in (*layouts, *unsure)):
        raise ConfigError("--price needs --train-tokens: how many tokens does the training take?")
    return SearchResult(layouts, front, unsure, details, counts)
