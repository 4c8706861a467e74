"""Shapes to measure: read from ``profiling/sweeps/*.yaml``, space-filling over the models that people train.

Models are drawn from a Halton sequence over the sweep's ranges and become shapes through the catalogue, so a shape is
always one that some model has. The first third of a sweep are its corners: each next shape is the one farthest, in
logarithms, from all that are chosen. The others follow the sequence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from hashlib import sha256
from math import gcd, log
from pathlib import Path
from random import Random
from typing import Annotated, TypeVar

from pydantic import Field, model_validator

from microbench.errors import MeasureError
from microbench.kernels import kernel, of_recommenders
from microbench.provenance import Closed
from microbench.recommender_call import DENSE_FEATURES, RecommenderCall
from microbench.timing import Policy
from predictor.core.base.errors import nearest
from predictor.core.base.files import write_whole
from predictor.core.base.read_yaml import read_valid
from predictor.core.base.sizes import LARGEST
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import BOTH, Operator, Shape
from predictor.core.costs.streams import PARAMETER_LIST

SWEEPS = Path(__file__).resolve().parent.parent / "sweeps"
PREPARED = SWEEPS / "prepared"  # of a kit, made where it was built: 50 operators' shapes take a slow host half a minute
CANDIDATES = 4000
CORNER_SHARE = 3
HALTON_BASES = (2, 3, 5, 7, 11, 13, 17)
ROUND_TO = 64
SEED = 20240611
# Shares of a recommender's layers: of round widths, after the dense features, and before the loss.
ROUNDED, FIRST_LAYERS, LAST_LAYERS = 0.75, 0.1, 0.1
Choice = TypeVar("Choice")


class Range(Closed):
    """A range of sizes, both ends included."""

    low: int = Field(gt=0)
    high: int = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, above high, {self.high}")
        return self

    def at(self, share: float, multiple: int = 1) -> int:
        """Return the size at a share of the logarithmic range, rounded to a multiple."""
        size = float(self.low * (self.high / self.low) ** share)
        return max(self.low, min(self.high, round(size / multiple) * multiple))


class Models(Closed):
    """Ranges of the models whose operators are measured, and of what one rank holds of them."""

    hidden_size: Range
    head_dim: tuple[int, ...]
    ffn_multiple: tuple[float, ...] = Field(description="ffn_hidden_size / hidden_size")
    sequence_length: Range
    micro_batch_size: Range
    vocab_size: Range
    tensor_parallel_size: tuple[int, ...]
    causal: tuple[bool, ...]
    queries_per_key_value_head: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(1,), description="query heads that share a key-value head; 1: none do"
    )
    sliding_window: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(0,), description="tokens that a query of a causal model sees; 0: all"
    )
    gated: tuple[bool, ...] = Field(default=(False,), description="the FFN's first matrix makes a gate as well")
    parameters: Range = Field(description="of one rank's list of tensors, for optimizer and clipping")
    tensors: Range = Field(description="how many tensors that list has")


class Recommenders(Closed):
    """Ranges of the recommenders whose operators are measured, of what one rank computes."""

    batch_size: Range
    slots: Range = Field(description="categorical features of a sample")
    hotness: tuple[Annotated[int, Field(ge=1)], ...] = Field(description="lookups of each sample and slot")
    table_rows: Range = Field(description="keys of each slot")
    key_exponent: tuple[Annotated[float, Field(ge=0)], ...] = Field(description="of the keys' power law; 0: uniform")
    embedding_width: tuple[Annotated[int, Field(ge=1)], ...]
    layer_width: Range = Field(description="inputs and outputs of a fully connected layer")
    states: tuple[Annotated[int, Field(ge=0, le=2)], ...] = Field(
        default=(0, 1, 2), description="that the optimizer of the tables keeps per weight"
    )


class Sweep(Closed):
    """One file of ``profiling/sweeps``."""

    description: str
    operators: tuple[str, ...] = Field(
        default=(), description="that « all » names beside recommenders' own; none: every operator"
    )
    shapes_per_operator: int = Field(gt=0, le=100_000)
    shapes_per_linear: int = Field(gt=0, le=100_000, description="linear layers share one regressor")
    largest_call_gflop: float = Field(gt=0, description="shapes with more FLOPs in their larger direction are left out")
    largest_call_mb: float = Field(gt=0, description="the same for bytes, 1 MB = 10⁶ B; not of lists of parameters")
    models: Models
    recommenders: Recommenders | None = Field(default=None, description="none: their operators are not measured")
    timing: Policy

    @model_validator(mode="after")
    def _sizes_in_bounds(self) -> Sweep:
        for name, limit in LARGEST.items():
            given = getattr(self.models, name, None)
            if isinstance(given, Range) and given.high > limit:
                raise ValueError(f"models.{name}.high is {given.high}; more than {limit:,} overflows or is a slip")
        if self.models.parameters.high > 10**12:
            raise ValueError(f"models.parameters.high is {self.models.parameters.high}; more than 10¹² is a slip")
        return self

    @property
    def config_hash(self) -> str:
        """Return the SHA-256 of everything that decides which rows there are and how each is taken."""
        return sha256(self.model_dump_json().encode()).hexdigest()


def sweep_names() -> list[str]:
    """Return the sweeps that come with the project."""
    return sorted(path.stem for path in SWEEPS.glob("*.yaml"))


def read_sweep(name: str) -> Sweep:
    """Read a sweep by name or by path.

    Raises:
        MeasureError: there is none, it is not YAML, or a value is not allowed.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else SWEEPS / f"{name}.yaml"
    if not path.is_file():
        known = sweep_names()
        raise MeasureError(
            f"{name} is not a sweep.{nearest(name, known)} There are {', '.join(known)}, or give a .yaml file"
        )
    return read_valid(path, Sweep, MeasureError)


def measured_by(sweep: Sweep) -> list[str]:
    """Return the operators that a sweep measures where all are asked for."""
    listed, has_recommenders = sweep.operators or catalogue(), sweep.recommenders is not None
    return [name for name in catalogue() if (has_recommenders if of_recommenders(name) else name in listed)]


def _halton(index: int, base: int) -> float:
    """Return one coordinate of the Halton sequence. Halton 1960, doi:10.1007/BF01386213."""
    result, share = 0.0, 1.0
    while index:
        share /= base
        index, digit = divmod(index, base)
        result += digit * share
    return result


def _pick(values: tuple[Choice, ...], share: float) -> Choice:
    return values[min(int(share * len(values)), len(values) - 1)]


@cache
def _layer_calls(models: Models) -> list[LayerCall]:
    """Return the calls of all models drawn; every operator of a sweep takes its shapes from the same."""
    random = Random(SEED)
    return [_layer_call(models, index, random) for index in range(1, CANDIDATES + 1)]


def _layer_call(models: Models, index: int, random: Random) -> LayerCall:
    """Return one model's call: ranges from the Halton sequence, choices at random."""
    at = [_halton(index, base) for base in HALTON_BASES]
    head_dim = _pick(models.head_dim, random.random())
    tp = _pick(models.tensor_parallel_size, random.random())
    queries = _pick(models.queries_per_key_value_head, at[4])
    # Every rank has two heads at least, and whole groups of queries where the model is wide enough.
    step = head_dim * tp * (max(queries, 2) if head_dim * tp * queries <= models.hidden_size.at(at[0]) else 2)
    hidden = max(step, models.hidden_size.at(at[0], step) // step * step)
    ffn = round(hidden * _pick(models.ffn_multiple, random.random()) / (ROUND_TO * tp)) * ROUND_TO * tp
    heads, causal = hidden // head_dim, _pick(models.causal, random.random())
    group = gcd(heads // tp, queries)
    return LayerCall(
        micro_batch_size=models.micro_batch_size.at(at[1]),
        sequence_length=models.sequence_length.at(at[2], ROUND_TO),
        hidden_size=hidden,
        num_attention_heads=heads,
        ffn_hidden_size=max(ffn, ROUND_TO * tp),
        vocab_size=models.vocab_size.at(at[3]),
        tensor_parallel_size=tp,
        causal=causal,
        num_key_value_heads=heads // group,
        window=_pick(models.sliding_window, at[5]) if causal else 0,
        gated=_pick(models.gated, at[6]),
    )


@cache
def _recommender_calls(ranges: Recommenders) -> list[RecommenderCall]:
    """Return all recommenders drawn."""
    random = Random(SEED)
    return [_recommender_call(ranges, index, random) for index in range(1, CANDIDATES + 1)]


def _recommender_call(ranges: Recommenders, index: int, random: Random) -> RecommenderCall:
    """Return one recommender: ranges from the Halton sequence, choices at random."""
    at = [_halton(index, base) for base in HALTON_BASES]
    widths = [ranges.layer_width.at(share, ROUND_TO if random.random() < ROUNDED else 1) for share in at[3:5]]
    fan_in = DENSE_FEATURES if random.random() < FIRST_LAYERS else widths[0]
    return RecommenderCall(
        batch_size=ranges.batch_size.at(at[0], ROUND_TO),
        slots=ranges.slots.at(at[1]),
        hotness=_pick(ranges.hotness, random.random()),
        table_rows=ranges.table_rows.at(at[2]),
        key_exponent=_pick(ranges.key_exponent, random.random()),
        width=_pick(ranges.embedding_width, at[5]),
        fan_in=fan_in,
        fan_out=1 if random.random() < LAST_LAYERS else widths[1],
        states=_pick(ranges.states, at[6]),
        key_bytes=_pick((4, 8), random.random()),
    )


def _without_layer(operator: Operator, models: Models, index: int) -> Shape:
    """Return a shape of an operator that no layer calls, from the names of its dimensions."""
    ranges = {"parameters": models.parameters, "tensors": models.tensors, "elements": models.parameters}
    sizes = [
        ranges[name].at(_halton(index, base)) for name, base in zip(operator.dimensions, HALTON_BASES, strict=False)
    ]
    if operator.dimensions == PARAMETER_LIST:
        return sizes[0], min(sizes[1], max(1, sizes[0] // 1024))
    return tuple(sizes)


def _candidates(operator: Operator, sweep: Sweep) -> Iterator[Shape]:
    module = kernel(operator.name)
    if of_recommenders(operator.name):
        assert sweep.recommenders is not None
        return map(module.of_recommender, _recommender_calls(sweep.recommenders))
    draw: Callable[[LayerCall], Shape | None] | None = getattr(module, "drawn", operator.layer_shape)
    if draw is not None:
        return (shape for call in _layer_calls(sweep.models) if (shape := draw(call)) is not None)
    return (_without_layer(operator, sweep.models, index) for index in range(1, CANDIDATES + 1))


def _fits(operator: Operator, shape: Shape, sweep: Sweep, precision: str) -> bool:
    works = [operator.work(shape, direction, 1) for direction in operator.directions]
    if operator.dimensions == PARAMETER_LIST:  # bounded by the sweep's own ranges of it
        return True
    scale = operator.byte_scale(precision)
    return (
        operator.takes(shape, precision)
        and max(work.flops for work in works) <= sweep.largest_call_gflop * 1e9
        and max(work.size_bytes for work in works) * scale <= sweep.largest_call_mb * 1e6
    )


def farthest_first(points: list[tuple[float, ...]], count: int) -> list[int]:
    """Return indices, each next one the farthest from those before it; the first is the smallest point."""
    chosen = [min(range(len(points)), key=lambda i: sum(points[i]))]
    distance = [_squared(point, points[chosen[0]]) for point in points]
    while len(chosen) < min(count, len(points)):
        index = max(range(len(points)), key=distance.__getitem__)
        chosen.append(index)
        distance = [min(d, _squared(point, points[index])) for d, point in zip(distance, points, strict=True)]
    return chosen


def _squared(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def _coordinates(operator: Operator, shape: Shape) -> tuple[float, ...]:
    """Return the logarithms of a shape's sizes and of its work."""
    work = operator.work(shape, BOTH[0], 1)
    return (*(log(size + 1.0) for size in shape), log((work.flops or work.size_bytes) + 1.0))


def prepare_shapes(sweep: Sweep, precisions: Iterable[str], folder: Path) -> Path:
    """Compute a sweep's shapes into a file named after its hash; ``shapes_of`` reads it from ``PREPARED``."""
    shapes = {
        precision: {
            name: _computed(name, sweep, precision)
            for name in measured_by(sweep)
            if precision in catalogue()[name].precisions
        }
        for precision in precisions
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{sweep.config_hash}.json"
    write_whole(path, json.dumps(shapes, separators=(",", ":")) + "\n")
    return path


@cache
def _prepared(path: Path) -> dict[str, dict[str, list[Shape]]]:
    if not path.is_file():
        return {}
    return {
        precision: {name: [tuple(shape) for shape in shapes] for name, shapes in operators.items()}
        for precision, operators in json.loads(path.read_bytes()).items()
    }


def shapes_of(name: str, sweep: Sweep, precision: str) -> list[Shape]:
    """Return an operator's shapes in the order in which they are measured: shuffled, so that drift is no trend in size.

    Raises:
        MeasureError: no candidate is small enough for the sweep's limits, or it has no recommenders.
    """
    prepared = _prepared(PREPARED / f"{sweep.config_hash}.json").get(precision, {}).get(name)
    return _computed(name, sweep, precision) if prepared is None else list(prepared)


def _computed(name: str, sweep: Sweep, precision: str) -> list[Shape]:
    operator = catalogue()[name]
    if of_recommenders(name) and sweep.recommenders is None:
        raise MeasureError(f"{name}: the sweep has no section recommenders, whose operator it is; see standard.yaml")
    pool = [shape for shape in dict.fromkeys(_candidates(operator, sweep)) if _fits(operator, shape, sweep, precision)]
    if not pool:
        raise MeasureError(f"{name}: no shape of the sweep is below largest_call_gflop and largest_call_mb")
    count = sweep.shapes_per_linear if operator.family == "linear" else sweep.shapes_per_operator
    corners = farthest_first([_coordinates(operator, shape) for shape in pool], max(2, count // CORNER_SHARE))
    ordered = dict.fromkeys([*(pool[i] for i in corners), *pool])
    chosen = list(ordered)[: max(count, len(corners))]
    Random(SEED).shuffle(chosen)
    return chosen
