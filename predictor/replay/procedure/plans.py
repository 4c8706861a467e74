"""``fastest_plan``: the fastest plan of precisions, the fastest within a memory limit, and the greedy method's."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from predictor.base.command_line import Parser
from predictor.precision.greedy import greedy_plan
from predictor.precision.operator_graph import OperatorGraph, Plan
from predictor.precision.plan_time import plan_time, propagate
from predictor.precision.plans import Sensitivities, fastest_plan, fastest_plan_under, sensitivity_of
from predictor.replay.procedure.arguments import add_trace, trace_name
from predictor.replay.procedure.command import folders_of, new_parser
from predictor.replay.procedure.kernels import add_config, config_of
from predictor.replay.procedure.plan_text import counts, plan_text
from predictor.replay.procedure.predicted import JobTrace, open_job, predict_plans
from predictor.replay.procedure.rank_costs import RankCosts
from predictor.replay.procedure.sensitivity import INDICATORS, indicator_of
from predictor.replay.procedure.sizes import memory_bytes, told
from predictor.report.text import duration


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


def parser() -> Parser:
    """Return the command line's parser of ``fastest_plan``."""
    return _parser("fastest_plan", "Derive the fastest plan of precisions, and the fastest within a memory limit.")


def greedy_parser() -> Parser:
    """Return the command line's parser of ``algos``."""
    return _parser(
        "algos", "Search a plan by the greedy method: start fast, give precision back where it matters most."
    )


def answer(arguments: argparse.Namespace) -> str:
    """Return the plans of all methods, the fastest one block by block.

    Raises:
        ConfigError: there is no such trace or step, a cost is not known, or no plan fits the memory.
    """
    return _answer(arguments, greedy_only=False)


def greedy_answer(arguments: argparse.Namespace) -> str:
    """Return the plan of the greedy method, block by block; raises as ``answer``."""
    return _answer(arguments, greedy_only=True)


def _parser(module: str, description: str) -> Parser:
    from predictor.replay.procedure.arguments import TraceParser

    result = new_parser(module, description, TraceParser)
    add_trace(result)
    add_config(result)
    result.add_argument(
        "--indicator_type", "--indicator-type", choices=tuple(INDICATORS), default=next(iter(INDICATORS)),
        help=f"of sensitivity, for the greedy method ({next(iter(INDICATORS))})",
    )  # fmt: skip
    result.add_argument(
        "--mem_limit", "--mem-limit", metavar="GIB", help="of weights, gradients, optimizer and activations: 16, 800MiB"
    )
    return result


def _answer(arguments: argparse.Namespace, greedy_only: bool) -> str:
    folders = folders_of(arguments)
    limit = None if arguments.mem_limit is None else memory_bytes("--mem_limit", arguments.mem_limit)
    name = trace_name(folders, arguments.model_name, arguments.file_name, arguments.bit)
    config = config_of(folders, arguments)
    job = open_job(folders, arguments.model_name, name, arguments.target_trace_idx, config, arguments.device_name)
    costs = job.costs[0].with_known_choices()
    indicator = indicator_of(arguments.indicator_type, costs)
    chosen = list(_chosen(costs, indicator, limit, greedy_only))
    shown = chosen[-1] if greedy_only else chosen[0]
    lines = [
        *_heading(job, costs.graph),
        *_table(job, costs, indicator, chosen),
        "",
        f"{shown.method}, block by block:",
    ]
    return "\n".join([*lines, *plan_text(costs.graph, shown.plan)])


def _chosen(costs: RankCosts, indicator: Sensitivities, limit: float | None, greedy_only: bool) -> Iterator[Chosen]:
    graph = costs.graph
    yield Chosen("as traced", {}, "")
    if not greedy_only:
        best = fastest_plan(graph, costs.costs)
        yield Chosen("fastest", best.plan, _exactness(best.is_exact, best.us, best.lower_bound))
        if limit is not None:
            under = fastest_plan_under(graph, costs.costs, memory_bytes=costs.plan_bytes(limit), memory=costs.memory)
            yield Chosen(
                f"fastest in {told(limit)}", under.plan, _exactness(under.is_exact, under.us, under.lower_bound)
            )
    within = None if limit is None else costs.plan_bytes(limit)
    greedy = greedy_plan(graph, costs.costs, indicator, memory_bytes=within, memory=costs.memory)
    yield Chosen("greedy", greedy.plan, f"{len(greedy.steps)} of {greedy.tried} steps taken")


def _exactness(is_exact: bool, us: float, bound: float) -> str:
    return "exact" if is_exact else f"at most {us / bound - 1.0:.1%} from the best" if bound > 0.0 else "not exact"


def _heading(job: JobTrace, graph: OperatorGraph) -> Iterator[str]:
    free = sum(len(node.choices) > 1 for node in graph.nodes)
    yield f"{job.model}, {job.name}, {job.graph.ranks[0].label}: {len(graph.nodes)} operators, {free} with a choice"
    yield from (f"note: {note}" for note in job.notes)
    yield ""


def _table(job: JobTrace, costs: RankCosts, indicator: Sensitivities, chosen: Sequence[Chosen]) -> Iterator[str]:
    sensitivity = sensitivity_of(indicator)
    yield f"{'plan':22} {'operators':>10} {'casts':>10} {'step':>10} {'memory':>11} {'sensitivity':>12}  precisions"
    for choice in chosen:
        graph = costs.graph
        time = plan_time(graph, choice.plan, costs.costs)
        precisions = propagate(graph, choice.plan)
        total = sum(sensitivity(node, precision) for node, precision in zip(graph.nodes, precisions, strict=True))
        step_us = (
            predict_plans(job, [choice.plan] * len(job.costs), job.precision).step_us
            if choice.plan
            else job.measured_us
        )
        yield (
            f"{choice.method:22} {duration(time.forward.us + time.backward.us):>10} {duration(time.casts.us):>10} "
            f"{duration(step_us):>10} {told(costs.total_bytes(precisions)):>11} {total:12.4g}  "
            f"{counts(graph, choice.plan)}{f' ({choice.note})' if choice.note else ''}"
        )
