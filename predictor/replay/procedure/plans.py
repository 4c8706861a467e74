"""``fastest_plan``: the fastest plan of precisions, the fastest within a memory limit, and the greedy method's."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from predictor.core.base.command_line import Parser
from predictor.core.base.errors import ConfigError
from predictor.core.base.quantities import duration
from predictor.replay.precision.greedy import greedy_plan
from predictor.replay.precision.indicator import indicator, indicator_without_statistics, read_statistics
from predictor.replay.precision.memory import MemoryModel
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Plan, Precision
from predictor.replay.precision.plan_time import plan_time, propagate
from predictor.replay.precision.plans import Sensitivities, fastest_plan, fastest_plan_under, sensitivity_of
from predictor.replay.procedure.arguments import TraceParser, add_trace, trace_name
from predictor.replay.procedure.blocks import Block, blocks
from predictor.replay.procedure.command import folders_of, new_parser
from predictor.replay.procedure.folders import Folders
from predictor.replay.procedure.kernels import add_config, config_of
from predictor.replay.procedure.memory_of_step import memory_bytes, memory_model, told
from predictor.replay.procedure.predicted import JobTrace, open_job, predict_plans
from predictor.replay.procedure.rank_costs import RankCosts

GVAR, UNIT = "gvar", "unit"
INDICATORS = (GVAR, UNIT)  # the first is the usual one


def statistics_path(folders: Folders, model: str) -> Path:
    """Return where the statistics of a model's tensors lie."""
    return folders.root / "input_data" / f"{model}.statistics.json"


def indicator_of(kind: str, folders: Folders, model: str, graph: OperatorGraph) -> tuple[Sensitivities, str]:
    """Return the sensitivity of operators by label and precision, and a note on what it rests on.

    ``gvar`` is QSync's: the variance that rounding adds to gradients, from statistics of the model's tensors. ``unit``
    knows no tensors and orders operators by size and depth; it stands in for ``gvar`` where there are no statistics.

    Raises:
        RecordError: the statistics are damaged.
    """
    path = statistics_path(folders, model)
    if kind == GVAR and path.is_file():
        statistics = read_statistics(path)
        return indicator(graph, statistics), f"sensitivity by {path.name}, means over {statistics.steps} steps"
    if kind == GVAR:
        return indicator_without_statistics(graph), f"no {path}: sensitivity by size and depth of operators alone"
    return indicator_without_statistics(graph), "sensitivity by size and depth of operators alone"


Choices = tuple[tuple[str, Precision], ...]  # operator and precision, of one repetition of a block


def plan_text(graph: OperatorGraph, plan: Plan) -> Iterator[str]:
    """Yield a plan block by block: one line of an operator, or of several of the same name and precision in a row.

    Repetitions of a block that have the same precisions are told together, those that differ apart.
    """
    number = 0
    for block in blocks(graph):
        repeats = [_choices(graph, plan, block, repeat) for repeat in range(block.repeats)]
        for choices, same in groupby(enumerate(repeats), key=lambda pair: pair[1]):
            members = [repeat for repeat, _ in same]
            if not choices:
                continue
            number += 1
            first = graph.nodes[block.start + members[0] * block.length]
            times = f" ×{len(members)}" if len(members) > 1 else ""
            yield f"block {number}{times}, depth {first.depth}: {block.length} operators, from {first.label}"
            yield from _lines(choices)


def uniform(graph: OperatorGraph, plan: Plan) -> Precision | None:
    """Return the precision of a plan that has only one, of operators that can choose it; otherwise None."""
    chosen = {plan[node.label] for node in graph.nodes if len(node.choices) > 1 and node.label in plan}
    return next(iter(chosen)) if len(chosen) == 1 else None


def counts(graph: OperatorGraph, plan: Plan) -> str:
    """Return how many operators with a choice compute in what."""
    nodes = [node for node in graph.nodes if len(node.choices) > 1]
    chosen = [_precision(node, plan) for node in nodes]
    order = sorted(set(chosen), key=lambda precision: (-chosen.count(precision), precision))
    return ", ".join(f"{chosen.count(precision)} in {precision}" for precision in order) or "none has a choice"


def _choices(graph: OperatorGraph, plan: Plan, block: Block, repeat: int) -> Choices:
    start = block.start + repeat * block.length
    nodes = graph.nodes[start : start + block.length]
    return tuple((node.name, _precision(node, plan)) for node in nodes if len(node.choices) > 1)


def _precision(node: OperatorNode, plan: Plan) -> Precision:
    return plan.get(node.label, node.traced)


def _lines(choices: Sequence[tuple[str, Precision]]) -> Iterator[str]:
    for (operator, precision), calls in groupby(choices):
        count = len(list(calls))
        yield f"  {precision:5} {operator}{f' ×{count}' if count > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A plan that a method chose.

    Attributes:
        method: that chose it.
        plan: precision by label.
        note: how good it is.
    """

    method: str
    plan: Plan
    note: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What plans are chosen for: the first rank's operators.

    Attributes:
        job: all ranks.
        costs: of the first rank's operators, which choose between precisions of known cost.
        memory: of its operators.
        indicator: sensitivity by label and precision.
        notes: what these rest on.
    """

    job: JobTrace
    costs: RankCosts
    memory: MemoryModel
    indicator: Sensitivities
    notes: tuple[str, ...]


def parser() -> Parser:
    """Return the command line's parser of ``fastest_plan``."""
    return _parser("fastest_plan", "Derive the fastest plan of precisions, and the fastest within a memory limit.")


def greedy_parser() -> Parser:
    """Return the command line's parser of ``algos``."""
    return _parser("algos", "Search a plan greedily: start fast, give precision back where it matters most.")


def answer(arguments: argparse.Namespace) -> str:
    """Return the plans of all methods, the last exact one block by block.

    Raises:
        ConfigError: there is no such trace or step, a cost is not known, or no plan fits the memory.
    """
    return _answer(arguments, greedy_only=False)


def greedy_answer(arguments: argparse.Namespace) -> str:
    """Return the plan of the greedy method, block by block; raises as ``answer``."""
    return _answer(arguments, greedy_only=True)


def _parser(module: str, description: str) -> Parser:
    result = new_parser(module, description, TraceParser)
    add_trace(result)
    add_config(result)
    result.add_argument(
        "--indicator_type",
        "--indicator-type",
        choices=INDICATORS,
        default=INDICATORS[0],
        help=f"of sensitivity, for the greedy method ({INDICATORS[0]})",
    )
    result.add_argument(
        "--mem_limit", "--mem-limit", metavar="GIB", help="weights, gradients, optimizer and activations: 16, 800MiB"
    )
    return result


def _answer(arguments: argparse.Namespace, greedy_only: bool) -> str:
    limit = None if arguments.mem_limit is None else memory_bytes("--mem_limit", arguments.mem_limit)
    problem = _problem(arguments)
    chosen = list(_chosen(problem, limit, greedy_only))
    shown = [choice for choice in chosen if greedy_only or choice.method.startswith("fastest")][-1]
    lines = [*_heading(problem), *_table(problem, chosen), "", f"{shown.method}, block by block:"]
    return "\n".join([*lines, *plan_text(problem.costs.known_graph, shown.plan)])


def _problem(arguments: argparse.Namespace) -> Problem:
    folders, model = folders_of(arguments), arguments.model_name
    name = trace_name(folders, model, arguments.file_name, arguments.bit)
    config = config_of(folders, arguments)
    index = arguments.target_trace_idx
    job = open_job(folders, model, name, index, config, arguments.device_name, reads_node_data=True)
    costs = job.costs[0]
    graph = costs.known_graph
    if not any(len(node.choices) > 1 for node in graph.nodes):
        raise ConfigError(
            f"no operator of {model}, {name} has a known cost in a second precision: analyse a trace in one with "
            "--generate_mapping, or measure operators with python -m microbench traced"
        )
    memory, optimizer = memory_model(job.graph.ranks[0], graph, config)
    indicator, note = indicator_of(arguments.indicator_type, folders, model, graph)
    notes = (*job.notes, costs.sources(), f"memory with {optimizer}", note)
    return Problem(job, costs, memory, indicator, tuple(filter(None, notes)))


def _chosen(problem: Problem, limit: float | None, greedy_only: bool) -> Iterator[Chosen]:
    graph, costs, memory = problem.costs.known_graph, problem.costs.costs, problem.memory
    within = None if limit is None else limit - memory.fixed_bytes(graph)
    if limit is not None and within is not None and within <= 0.0:
        raise ConfigError(
            f"--mem_limit is {told(limit)}; weights, gradients and optimizer states alone take "
            f"{told(memory.fixed_bytes(graph))} in any plan"
        )
    yield Chosen("as traced", {}, "")
    if not greedy_only:
        best = fastest_plan(graph, costs)
        yield Chosen("fastest", best.plan, _exactness(best.is_exact, best.us, best.lower_bound))
        if limit is not None:
            under = fastest_plan_under(graph, costs, memory_bytes=within, memory=memory.bytes_of)
            note = _exactness(under.is_exact, under.us, under.lower_bound)
            yield Chosen(f"fastest in {told(limit)}", under.plan, note)
    greedy = greedy_plan(graph, costs, problem.indicator, memory_bytes=within, memory=memory.bytes_of)
    yield Chosen("greedy", greedy.plan, f"{len(greedy.steps)} of {greedy.tried} steps taken")


def _exactness(is_exact: bool, us: float, bound: float) -> str:
    if is_exact:
        return "exact"
    return f"at most {us / bound - 1.0:.1%} above the best" if bound > 0.0 else "not exact"


def _heading(problem: Problem) -> Iterator[str]:
    job, nodes = problem.job, problem.costs.known_graph.nodes
    free = sum(len(node.choices) > 1 for node in nodes)
    yield f"{job.model}, {job.name}, {job.graph.ranks[0].label}: {len(nodes)} operators, {free} with a choice"
    yield from (f"note: {note}" for note in problem.notes)
    yield ""


def _table(problem: Problem, chosen: Sequence[Chosen]) -> Iterator[str]:
    graph, costs = problem.costs.known_graph, problem.costs.costs
    sensitivity = sensitivity_of(problem.indicator)
    yield f"{'plan':22} {'operators':>10} {'casts':>10} {'step':>10} {'memory':>11} {'sensitivity':>12}  precisions"
    for choice in chosen:
        time = plan_time(graph, choice.plan, costs)
        precisions = propagate(graph, choice.plan)
        total = sum(sensitivity(node, precision) for node, precision in zip(graph.nodes, precisions, strict=True))
        job = problem.job
        step_us = predict_plans(job, [choice.plan] * len(job.costs), job.precision).step_us
        yield (
            f"{choice.method:22} {duration(time.forward.us + time.backward.us):>10} {duration(time.casts.us):>10} "
            f"{duration(step_us):>10} {told(problem.memory.of_plan(graph, choice.plan).peak):>11} {total:12.4g}  "
            f"{counts(graph, choice.plan)}{f' ({choice.note})' if choice.note else ''}"
        )
