"""Published regressors: physics × residual, read from JSON and evaluated without numpy.

Format ``estimate-train-time/regressor/1``, one file per operator family and precision. A tree of the residual is a
complete binary tree of depth three in 22 numbers: 7 feature indices (heap order), 7 thresholds (left if ≤), 8 leaves.
"""

from __future__ import annotations

from math import exp, hypot, log
from typing import Annotated, Literal, NamedTuple, Protocol, cast

from pydantic import BaseModel, ConfigDict, Field

from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.features import feature_count, hull_coordinates, physics_terms, physics_us, residual_features
from predictor.core.costs.operator import Direction, Operator, Shape

FORMAT = "estimate-train-time/regressor/1"
# An interval widens in proportion to the distance from the hull up to this multiple of the calibrated distance.
FAR_OUT = 2.0
TREE_NODES = 7
TREE_LEAVES = 8
HULL_TOLERANCE = 1e-9
TREE_SIZE = 2 * TREE_NODES + TREE_LEAVES

# fmt: off
FlatTree = tuple[
    int, int, int, int, int, int, int,
    float, float, float, float, float, float, float,
    float, float, float, float, float, float, float, float,
]
# fmt: on


class Published(BaseModel):
    """Base of everything read from a published folder: closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Interval(Published):
    """Calibrated 90 % interval of log(measured / predicted)."""

    inside: tuple[float, float] = Field(description="5 % and 95 % quantiles on held-out rows inside the hull")
    outside: float = Field(ge=0, description="95 % quantile of |log error| on nested extrapolation splits")
    outside_distance: float = Field(gt=0, description="median log distance from the hull in those splits")
    measured: tuple[float, float] | None = Field(
        default=None, description="a topology's own range of message sizes, as the first hull coordinate"
    )
    transfer_error: float = Field(
        default=0.0, ge=0, description="quantile of |log error| of a transfer to other hardware, wherever the call lies"
    )

    def beyond(self, coordinate: float) -> float:
        """Return the distance of the first hull coordinate from this part's own measured range; 0 inside."""
        low, high = self.measured or (coordinate, coordinate)
        return max(0.0, low - coordinate - HULL_TOLERANCE, coordinate - high - HULL_TOLERANCE)

    @property
    def widest(self) -> float:
        """Return the calibrated half width outside the hull, as a log; never narrower than inside."""
        return hypot(self._calibrated, self.transfer_error)

    @property
    def _calibrated(self) -> float:
        low, high = self.inside
        return max(self.outside, -low, high)

    def bounds(self, distance: float) -> tuple[float, float]:
        """Return the interval's ends as logs: as calibrated inside the hull, and outside up to the calibrated distance.

        Farther out it widens in proportion to the distance, beyond FAR_OUT times the calibrated distance with its
        logarithm, since the error of the physics grows more slowly than the distance. The error of a transfer does not
        depend on the distance.
        """
        low, high = self.inside
        if distance > 0.0:
            farther = max(1.0, distance / self.outside_distance)
            growth = farther if farther <= FAR_OUT else FAR_OUT * (1.0 + log(farther / FAR_OUT))
            high = self._calibrated * growth
            low = -high
        return (
            (-hypot(low, self.transfer_error), hypot(high, self.transfer_error)) if self.transfer_error else (low, high)
        )


class Curve(Published):
    """A line over the logarithm of a collective's message size, constant beyond its ends: part of the log residual."""

    low: float = Field(description="first knot")
    step: float = Field(gt=0, description="from knot to knot")
    values: tuple[float, ...] = Field(min_length=2, description="at the knots")

    def at(self, x: float) -> float:
        """Return the value at a logarithm of the size."""
        place = (x - self.low) / self.step
        if place <= 0.0:
            return self.values[0]
        last = len(self.values) - 1
        if place >= last:
            return self.values[last]
        knot = int(place)
        return self.values[knot] + (place - knot) * (self.values[knot + 1] - self.values[knot])


class Basis(Published):
    """The donor of a model's residual, whose physics and multiprocessors the residual's features are computed with."""

    physics: tuple[Annotated[float, Field(ge=0)], ...]
    num_multiprocessors: int = Field(gt=0)


class DirectionModel(Published):
    """One direction of one regressor."""

    physics: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        description="µs per launch, FLOP, byte, and per unit of each extra"
    )
    overlapped: bool = Field(description="launching overlaps running: time is the longer of both, not their sum")
    hull_low: tuple[float, ...] = Field(description="smallest measured hull coordinate, logarithms")
    hull_high: tuple[float, ...] = Field(description="largest measured hull coordinate, logarithms")
    feature_low: tuple[float, ...] = Field(description="smallest measured value of each residual feature")
    feature_high: tuple[float, ...] = Field(description="largest measured value of each residual feature")
    baseline: float = Field(description="constant part of the log residual")
    trees: tuple[tuple[float, ...], ...] = Field(description="additive log residual; see the module's docstring")
    topologies: tuple[tuple[int, int], ...] | None = Field(
        default=None, description="measured (nodes, gpus_per_node) of a collective; on others its time is physics alone"
    )
    interval: Interval
    intervals: dict[str, Interval] = Field(
        default={},
        description="where the parts of a pool differ: per operator, or per topology as <nodes>x<gpus_per_node>",
    )
    origin: Literal["measured", "analytic"] = Field(description="fitted to rows, or derived because no row was usable")
    rows: int = Field(ge=0, description="rows that the fit kept")
    curves: dict[str, Curve] | None = Field(
        default=None, description="per topology as <nodes>x<gpus_per_node>, added to the trees' log residual"
    )
    unseen_in_node: Interval | None = Field(
        default=None,
        description="interval of unmeasured groups inside a node, answered with the residual of the nearest",
    )
    basis: Basis | None = Field(default=None, description="donor of the residual, where it was transferred")


def check_lengths(model: DirectionModel, operator: Operator, members: int) -> None:
    """Check that a model has as many numbers as its operator has terms, sizes and features.

    Raises:
        ValueError: one list is too long or too short.
    """
    sizes, extras = len(operator.dimensions), len(operator.extra_kinds)
    terms = 3 + extras
    features = feature_count(operator, members)
    for name, expected in (
        ("physics", terms),
        ("hull_low", sizes + 2),
        ("hull_high", sizes + 2),
        ("feature_low", features),
        ("feature_high", features),
    ):
        length = len(getattr(model, name))
        if length != expected:
            raise ValueError(f"{name} has {length} numbers; {operator.name} needs {expected}")
    if model.basis is not None and len(model.basis.physics) != terms:
        raise ValueError(f"basis.physics has {len(model.basis.physics)} numbers; {operator.name} needs {terms}")


class RegressorFile(Published):
    """One published file."""

    format: Literal["estimate-train-time/regressor/1"]
    name: str
    gpu: str
    precision: str
    num_multiprocessors: int = Field(gt=0)
    members: tuple[str, ...] = Field(description="operators of this regressor")
    directions: dict[Direction, DirectionModel]


class Outside(NamedTuple):
    """How far a call lies outside what was measured.

    Attributes:
        dimension: the size that lies farthest out; "topology" where these nodes × GPUs per node were not measured,
            "operator" where the operator was not.
        factor: ratio to the nearest measured end, above 1; None for a topology, an operator or a switch.
        donor: the operator that the time was transferred from, where the operator itself was not measured.
    """

    dimension: str
    factor: float | None
    donor: str | None = None


class Regressor(Protocol):
    """The regressor of one direction of an operator."""

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call."""

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return how far outside what was measured a call lies; None inside."""

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of an operator's interval outside what was measured, as a log."""


class DirectionRegressor:
    """The published regressor of one direction: microseconds, interval and source of a shape."""

    def __init__(self, model: DirectionModel, members: tuple[str, ...], num_multiprocessors: int) -> None:
        """Prepare for evaluation.

        Raises:
            ValueError: a tree does not have TREE_SIZE numbers or names a feature that does not exist.
        """
        self.model = model
        self.members = members
        self._num_multiprocessors = num_multiprocessors
        width = len(model.feature_low)
        self._trees: list[FlatTree] = []
        for tree in model.trees:
            features = tree[:TREE_NODES]
            if len(tree) != TREE_SIZE or min(features) < 0 or max(features) >= width:
                raise ValueError(f"a tree has {len(tree)} numbers or a feature beyond {width}; expected {TREE_SIZE}")
            self._trees.append(cast(FlatTree, (*map(int, features), *tree[TREE_NODES:])))

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call."""
        model = self.model
        work = operator.work(shape, direction, self._num_multiprocessors)
        terms = physics_terms(work)
        us = physics_us(model.physics, terms, model.overlapped)
        near = shape if self.has_measured(shape) else self._nearest(shape)
        coordinates = hull_coordinates(shape, work)
        if near is not None:
            us *= exp(self._log_ratio(operator, direction, shape, terms))
            if model.curves and (curve := model.curves.get(f"{near[1]}x{near[2]}")):
                us *= exp(curve.at(coordinates[0]))
        interval, distance = self._reach(operator, direction, shape, near, coordinates)
        low, high = interval.bounds(distance)
        if model.origin == "analytic":
            source = Source.ANALYTIC
        else:
            outside = distance > 0.0 or near is not shape
            source = Source.EXTRAPOLATED if outside else Source.INTERPOLATED
        return Cost(us, us * exp(low), us * exp(high), source)

    def _log_ratio(self, operator: Operator, direction: Direction, shape: Shape, terms: tuple[float, ...]) -> float:
        """Return log(time / physics) by baseline and trees, whose features are held to their measured ranges."""
        model = self.model
        if not self._trees:
            return model.baseline
        raw = self._features(operator, direction, shape, terms)
        x = [
            low if value < low else high if value > high else value
            for value, low, high in zip(raw, model.feature_low, model.feature_high, strict=True)
        ]
        return model.baseline + self._residual(x)

    def _nearest(self, shape: Shape) -> Shape | None:
        """Return a call of the same size on the measured group inside a node that is nearest in GPUs; None: none is."""
        model = self.model
        if model.topologies is None or model.unseen_in_node is None or shape[1] != 1:
            return None
        gpus = min((g for nodes, g in model.topologies if nodes == 1), key=lambda g: abs(log(g / shape[2])))
        return shape[0], 1, gpus

    def _reach(
        self, operator: Operator, direction: Direction, shape: Shape, near: Shape | None, coordinates: list[float]
    ) -> tuple[Interval, float]:
        """Return the interval of a call, and how far outside what it was calibrated on the call lies."""
        model = self.model
        if near is not None and near is not shape and model.unseen_in_node is not None:
            size, low, high = coordinates[0], model.hull_low[0], model.hull_high[0]
            beyond = max(0.0, low - size, size - high)
            return (model.interval, beyond) if beyond else (model.unseen_in_node, 0.0)
        interval = self._interval(operator, shape)
        distance = max(self._distance_of(operator, direction, shape, coordinates), interval.beyond(coordinates[0]))
        return interval, distance if near is not None else max(distance, model.interval.outside_distance)

    def _features(
        self, operator: Operator, direction: Direction, shape: Shape, terms: tuple[float, ...]
    ) -> list[float]:
        """Return the residual's features, computed as on the system where it was fitted."""
        basis = self.model.basis
        if basis is None:
            return residual_features(
                operator, shape, terms, self.model.physics, self.members, self._num_multiprocessors
            )
        terms = physics_terms(operator.work(shape, direction, basis.num_multiprocessors))
        return residual_features(operator, shape, terms, basis.physics, self.members, basis.num_multiprocessors)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of an operator's interval outside what was measured, as a log."""
        return self._interval(operator, shape).widest

    def has_measured(self, shape: Shape) -> bool:
        """Return whether a collective's topology was measured; true for an operator."""
        return self.model.topologies is None or shape[1:] in self.model.topologies

    def _interval(self, operator: Operator, shape: Shape) -> Interval:
        """Return the interval of the operator or of the topology, else that of the whole regressor."""
        model = self.model
        if not model.intervals:
            return model.interval
        part = operator.name if model.topologies is None else f"{shape[1]}x{shape[2]}"
        return model.intervals.get(part, model.interval)

    def _residual(self, x: list[float]) -> float:
        """Sum the leaves that ``x`` falls into.

        Written out, because a prediction spends most of its time here: features, thresholds and leaves by their places,
        so that no number is touched, and fetched from memory, that the way down does not need.
        """
        total = 0.0
        for tree in self._trees:
            if x[tree[0]] <= tree[7]:
                if x[tree[1]] <= tree[8]:
                    total += tree[14] if x[tree[3]] <= tree[10] else tree[15]
                else:
                    total += tree[16] if x[tree[4]] <= tree[11] else tree[17]
            elif x[tree[2]] <= tree[9]:
                total += tree[18] if x[tree[5]] <= tree[12] else tree[19]
            else:
                total += tree[20] if x[tree[6]] <= tree[13] else tree[21]
        return total

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return the size of a call that lies farthest outside the measured range; None if all lie inside."""
        model = self.model
        if not self.has_measured(shape):
            return Outside("topology", None)
        coordinates = hull_coordinates(shape, operator.work(shape, direction, self._num_multiprocessors))
        names = (*operator.dimensions, "flops", "bytes")
        own_low, own_high = self._interval(operator, shape).measured or (model.hull_low[0], model.hull_high[0])
        lows, highs = (own_low, *model.hull_low[1:]), (own_high, *model.hull_high[1:])
        worst, farthest = HULL_TOLERANCE, None
        for name, value, low, high in zip(names, coordinates, lows, highs, strict=True):
            beyond = max(low - value, value - high)
            if beyond > worst:
                smaller, larger = sorted((exp(value) - 1.0, exp(low if value < low else high) - 1.0))
                # A switch such as causal is 0 or 1, which have no ratio.
                worst, farthest = beyond, Outside(name, larger / smaller if smaller > 0.5 else None)
        return farthest

    def _distance_of(self, operator: Operator, direction: Direction, shape: Shape, coordinates: list[float]) -> float:
        """Return how far outside the hull a call lies; ``Operator.bookkeeping`` counts by its effect on the time."""
        if not operator.bookkeeping:
            return self._distance(coordinates)
        model, inside, nearest = self.model, list(coordinates), list(shape)
        for index, name in enumerate(operator.dimensions):
            if name in operator.bookkeeping:
                inside[index] = min(max(coordinates[index], model.hull_low[index]), model.hull_high[index])
                nearest[index] = round(exp(inside[index]) - 1.0)
        works = (operator.work(sizes, direction, self._num_multiprocessors) for sizes in (shape, tuple(nearest)))
        us, nearest_us = (physics_us(model.physics, physics_terms(work), model.overlapped) for work in works)
        return max(self._distance(inside), abs(log(us / nearest_us)))

    def _distance(self, coordinates: list[float]) -> float:
        """Return how far outside the hull a call lies, as the largest log ratio; 0 inside."""
        model = self.model
        worst = 0.0
        for value, low, high in zip(coordinates, model.hull_low, model.hull_high, strict=True):
            if value < low - HULL_TOLERANCE:
                worst = max(worst, low - value)
            elif value > high + HULL_TOLERANCE:
                worst = max(worst, value - high)
        return worst
