"""Another precision of some operators: what they take in it is asked of a function, with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from predictor.base.errors import ConfigError, nearest
from predictor.costs.cost import Cost
from predictor.precision.operator_graph import Precision
from predictor.replay.scaling import MOST_NAMES, matching
from predictor.replay.setting import Changed, Setting, Touched, counted
from predictor.replay.traced_step import TracedStep
from predictor.replay.traffic import with_costs
from predictor.traces.local_graph import LocalGraph, TaskKind, TracedOperator

# What one call takes in a precision, kernels on a GPU or the thread on a CPU; None: not known.
PrecisionCosts = Callable[[LocalGraph, TracedOperator, Precision], Cost | None]


def no_costs(local: LocalGraph, traced: TracedOperator, precision: Precision) -> Cost | None:
    """Know no operator in another precision."""
    return None


def _outermost(step: TracedStep, setting: Setting) -> Iterator[tuple[int, int, TracedOperator]]:
    """Yield the operators of a pattern that lie in no other one of it, and take time."""
    selected = {(rank, position): operator for rank, position, operator in matching(step, setting)}
    for (rank, position), operator in selected.items():
        if operator.us > 0.0 and (rank, operator.parent) not in selected:
            yield rank, position, operator


def _children(local: LocalGraph) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for position, operator in enumerate(local.operators):
        children.setdefault(operator.parent, []).append(position)
    return children


def change_precision(step: TracedStep, setting: Setting, costs_of: PrecisionCosts) -> Changed:
    """Let operators compute in another precision, forward and backward; casts between them are not added.

    An operator without a cost is asked for by the operators inside it.

    Raises:
        ConfigError: no such precision, or operators that take time have no cost in it; the message names them.
    """
    if setting.multiplies or setting.value not in list(Precision):
        raise ConfigError(
            f"--set {setting.text}: {setting.value} is no precision;{nearest(setting.value, list(Precision))} "
            f"expected {', '.join(Precision)}"
        )
    precision = Precision(setting.value)
    children = [_children(local) for local in step.ranks]
    places = step.places()
    costs: dict[int, Cost] = {}
    missing: dict[str, float] = {}
    asked = list(_outermost(step, setting))
    timed = 0
    while asked:
        rank, position, operator = asked.pop()
        local = step.ranks[rank]
        cost = costs_of(local, operator, precision)
        if cost is not None:
            timed += 1
            factor = cost * (1.0 / operator.us)
            costs |= _scaled_by(step, [places[rank][task] for task in operator.tasks], factor)
            continue
        inside = [(rank, at, local.operators[at]) for at in children[rank].get(position, ())]
        inside = [child for child in inside if child[2].us > 0.0]
        if not inside:
            missing[operator.name] = missing.get(operator.name, 0.0) + operator.us
        asked += inside
    if missing:
        listed = ", ".join(sorted(missing, key=lambda name: -missing[name])[:MOST_NAMES])
        raise ConfigError(
            f"--set {setting.text}: no cost in {precision} is known for {listed}"
            f"{' …' if len(missing) > MOST_NAMES else ''}; give costs measured in it with --costs, or choose other "
            "operators"
        )
    if not costs:
        raise ConfigError(f"--set {setting.text}: what matches {setting.pattern} takes no time")
    before = sum(step.tasks[position].duration_us for position in costs)
    after = sum(cost.us for cost in costs.values())
    sources = sorted({cost.source for cost in costs.values()})
    told = ", ".join(source.label for source in sources)
    note = f"Times in {precision} are {told}; casts between precisions are not added."
    return Changed(with_costs(step, costs), Touched(counted(timed, "call"), before, after, (note,)))


def _scaled_by(step: TracedStep, positions: list[int], factor: Cost) -> dict[int, Cost]:
    """Return the costs of an operator's computing tasks, each with its share of the operator's time."""
    return {
        position: factor * step.tasks[position].duration_us
        for position in positions
        if step.roles[position].computes and step.roles[position].kind is not TaskKind.COPY
    }
