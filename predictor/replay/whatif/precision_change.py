"""Another precision of some operators, with their backward and with the casts that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.words import counted
from predictor.core.costs.cost import ZERO, Cost
from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph
from predictor.replay.precision.cost_sources import TracedTimes
from predictor.replay.precision.forward_graph import operator_graph, traced_times
from predictor.replay.precision.nesting import Inside
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision
from predictor.replay.precision.plan_time import Cast, Costs, casts_of, propagate
from predictor.replay.whatif.scaling import matches, nothing_matches
from predictor.replay.whatif.setting import Changed, Setting, Touched
from predictor.replay.whatif.traced_step import TracedStep, product
from predictor.replay.whatif.traffic import with_costs

# Costs of a rank's operators in precisions, from its graph and the times of the graph's operators as traced.
CostsOf = Callable[[LocalGraph, TracedTimes], Costs]


def change_precision(step: TracedStep, setting: Setting, costs_of: CostsOf) -> Changed:
    """Let operators compute in another precision, forward and backward.

    Operators without a choice of their own compute as their inputs are, in their traced time where no other is known.
    Casts inside of the changed operators are replaced by those that their new precision needs.

    Raises:
        ConfigError: no such precision, no operator that matches can compute in it, or a cost in it is not known.
    """
    if setting.multiplies or setting.value not in list(Precision):
        raise ConfigError(
            f"--set {setting.text}: {setting.value} is no precision.{nearest(setting.value, list(Precision))} "
            f"Precisions: {', '.join(Precision)}"
        )
    precision = Precision(setting.value)
    places = step.places()
    costs: dict[int, Cost] = {}
    changed = cast = 0
    kept: set[str] = set()
    for rank, local in enumerate(step.ranks):
        graph = operator_graph(local, precisions=tuple(Precision))
        plan = {node.label: precision for node in _chosen(local, graph, setting, precision)}
        rank_costs = _RankCosts(step, rank, places[rank], graph, costs_of)
        try:
            rank_costs.apply(propagate(graph, {}), propagate(graph, plan))
        except ConfigError as error:
            raise ConfigError(f"--set {setting.text}: {error}") from None
        costs |= rank_costs.costs
        changed += rank_costs.changed
        cast += rank_costs.casts
        kept |= rank_costs.kept
    if not changed:
        raise ConfigError(f"--set {setting.text}: what matches {setting.pattern} computes in {precision} already")
    before = sum(step.tasks[position].duration_us for position in costs)
    if not before:
        raise ConfigError(f"--set {setting.text}: what matches {setting.pattern} took no time on the device")
    after = sum(cost.us for cost in costs.values())
    sources = ", ".join(source.label for source in sorted({cost.source for cost in costs.values()}))
    note = f"Times in {precision} are {sources}; {counted(cast, 'cast')} between precisions included."
    notes = [f"{', '.join(sorted(kept))} follow in {precision} with their time as traced."] if kept else []
    what = f"{counted(changed, 'call')}, forward and backward"
    return Changed(with_costs(step, costs), Touched(what, before, after, (note, *notes)))


def _chosen(local: LocalGraph, graph: OperatorGraph, setting: Setting, precision: Precision) -> Iterator[OperatorNode]:
    """Yield the operators of a pattern (name, label, or what is around them) that can compute in a precision.

    Raises:
        ConfigError: nothing matches, or nothing of it can.
    """
    meant = [node for node in graph.nodes if _matches(setting.pattern, local, node)]
    if not meant:
        raise nothing_matches(setting, "operator of a forward pass", {node.name for node in graph.nodes})
    able = [node for node in meant if precision in node.choices]
    if not able:
        choices = {choice for node in meant for choice in node.choices}
        listed = f"its choices are {', '.join(sorted(choices))}" if choices else "it computes as its inputs are"
        raise ConfigError(f"--set {setting.text}: {meant[0].name} cannot compute in {precision}; {listed}")
    yield from able


def _matches(pattern: str, local: LocalGraph, node: OperatorNode) -> bool:
    if fnmatchcase(node.label, pattern):
        return True
    at = node.forward
    while at != NO_OPERATOR:
        if matches(pattern, local.operators[at]):
            return True
        at = local.operators[at].parent
    return False


class _RankCosts:
    """Costs of the tasks of one rank whose operators change, by position in the replay."""

    def __init__(
        self, step: TracedStep, rank: int, places: dict[int, int], graph: OperatorGraph, costs_of: CostsOf
    ) -> None:
        """Read the graph; nothing is changed yet."""
        self._step, self._places, self._graph = step, places, graph
        self._local = step.ranks[rank]
        self._inside = Inside.of(self._local)
        self._times = traced_times(self._local, graph)
        self._costs_of = costs_of(self._local, self._times)
        self.costs: dict[int, Cost] = {}
        self.changed = 0
        self.casts = 0
        self.kept: set[str] = set()

    def apply(self, before: Sequence[Precision], after: Sequence[Precision]) -> None:
        """Change the operators whose precision differs, and add the casts between.

        Raises:
            ConfigError: a cost is not known.
        """
        different = {at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old is not new}
        for at in sorted(different):
            node = self._graph.nodes[at]
            self.changed += 1
            try:
                factors = self._factors(node, after[at])
            except ConfigError:
                if node.choices:
                    raise
                self.kept.add(node.name)  # was not asked for: it only follows its inputs
                continue
            for operators, factor in factors:
                self._scale(operators, factor)
        known = set(casts_of(self._graph, before))
        for cast in casts_of(self._graph, after):
            reads_anew = not different.isdisjoint((*cast.consumers, *([cast.producer] if cast.is_weight else [])))
            if reads_anew or cast not in known:
                self._add(cast)

    def _factors(self, node: OperatorNode, precision: Precision) -> list[tuple[Sequence[int], Cost]]:
        """Return the operators of both passes, each with its new cost over its traced time."""
        passes = (
            ((node.forward,), self._times.us(node.label, "forward"), self._costs_of.forward),
            (node.backward, self._times.us(node.label, "backward"), self._costs_of.backward),
        )
        return [(operators, cost(node, precision) * (1.0 / us)) for operators, us, cost in passes if us]

    def _scale(self, operators: Sequence[int], factor: Cost) -> None:
        """Give the computing tasks of operators their share of a new cost; casts inside of them take no time."""
        casts = {
            task for cast in self._inside.casts(self._local, operators) for task in self._local.operators[cast].tasks
        }
        for operator in operators:
            for task in self._computing(operator):
                position = self._places[task]
                self.costs[position] = ZERO if task in casts else product(factor, self._step.cost(position))

    def _computing(self, operator: int) -> list[int]:
        tasks = self._local.operators[operator].tasks
        return [task for task in tasks if self._step.roles[self._places[task]].computes]

    def _add(self, cast: Cast) -> None:
        """Add a cast's time where it runs: before its first reader, or behind that reader's backward."""
        readers: Iterable[int] = [cast.producer] if cast.is_weight else cast.consumers
        for reader in readers:
            node = self._graph.nodes[reader]
            operators = [node.forward] if cast.step_pass == "forward" else node.backward
            tasks = [task for operator in operators for task in self._computing(operator)]
            if tasks:
                position = self._places[tasks[0] if cast.step_pass == "forward" else tasks[-1]]
                now = self.costs.get(position) or self._step.cost(position)
                self.costs[position] = now + self._costs_of.cast(cast.cast_from, cast.cast_to, cast.numel)
                self.casts += 1
                return
