"""Predict a job's step from its trace: replayed unchanged, or with its operators in another precision."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace

from predictor.core.base.errors import ConfigError
from predictor.core.base.quantities import duration
from predictor.core.base.words import counted
from predictor.core.costs.cost import Cost, Source
from predictor.replay.answer import ReplayAnswer, replayed
from predictor.replay.critical import moved
from predictor.replay.graph.global_graph import GlobalGraph, global_graph
from predictor.replay.precision.cost_sources import TracedTimes
from predictor.replay.precision.forward_graph import operator_graph
from predictor.replay.precision.operator_config import OperatorConfig
from predictor.replay.precision.operator_graph import Plan, Precision
from predictor.replay.precision.plan_changes import PlanChanges, plan_changes
from predictor.replay.precision.plan_time import uniform_plan
from predictor.replay.procedure.arguments import precision_of
from predictor.replay.procedure.documents import NodeData, read_document
from predictor.replay.procedure.folders import Folders
from predictor.replay.procedure.mapping import precision_of_step, times_of, traced_device
from predictor.replay.procedure.memory_of_step import memory_model, memory_text
from predictor.replay.procedure.opened import OpenedStep, open_ranks
from predictor.replay.procedure.rank_costs import RankCosts, execution_trace_of, rank_costs
from predictor.replay.text import render
from predictor.replay.whatif.changes import Applied
from predictor.replay.whatif.setting import Touched
from predictor.replay.whatif.traced_step import TracedStep, joined
from predictor.replay.whatif.traffic import with_costs


@dataclass(frozen=True, slots=True)
class JobTrace:
    """One step of all traced ranks of a job.

    Attributes:
        model: folder of its trace.
        name: of its trace.
        ranks: in the order of the graph's.
        graph: of all ranks.
        costs: of every rank's operators, with their graphs.
        precision: that the step computes in, or the most of it.
        notes: on what could not be read.
    """

    model: str
    name: str
    ranks: Sequence[OpenedStep]
    graph: GlobalGraph
    costs: Sequence[RankCosts]
    precision: Precision
    notes: Sequence[str]

    @property
    def measured_us(self) -> float:
        """Return the step as measured, from the first rank's start to the last one's end."""
        return joined(self.graph).measured_us

    def knowing(self, others: Sequence[TracedTimes]) -> JobTrace:
        """Return the job with costs that traces in other precisions tell."""
        return replace(self, costs=[costs.knowing(others) for costs in self.costs])


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted step.

    Attributes:
        answer: as ``python -m predictor replay`` has it.
        precision: that was asked for.
        plan: of the first rank's operators; empty where the step is replayed unchanged.
    """

    answer: ReplayAnswer
    precision: Precision
    plan: Plan

    @property
    def step_us(self) -> float:
        """Return the predicted step."""
        return self.answer.shown.step_us

    @property
    def source(self) -> Source:
        """Return the weakest source of its times."""
        return self.answer.shown.source


def open_job(
    folders: Folders,
    model: str,
    name: str,
    index: int,
    config: OperatorConfig,
    device_name: str = "",
    *,
    reads_node_data: bool = False,
) -> JobTrace:
    """Open one step of all ranks of a trace.

    Args:
        folders: with traces and measured costs.
        model: folder of the trace.
        name: of the trace.
        index: of the step.
        config: what is known of operators.
        device_name: names measured costs that come first.
        reads_node_data: costs may be those of the model's other traces on the same device, as analysed.

    Raises:
        ConfigError: there is no such trace or step, or it cannot be tracked.
    """
    ranks = open_ranks(folders.traces(model, name), index)
    graph = global_graph([step.local for step in ranks])
    execution = execution_trace_of(folders, model, name)
    is_sample = folders.is_sample(ranks[0].path)
    others = other_times(folders, model, name, traced_device(graph.ranks[0])) if reads_node_data else ()
    costs = [
        rank_costs(folders, local, operator_graph(local, execution, config), config, device_name, others, is_sample)
        for local in graph.ranks
    ]
    precision = precision_of_step(costs[0].graph, graph.ranks[0])
    notes = dict.fromkeys([*(note for step in ranks for note in step.notes), *graph.notes])
    return JobTrace(model, name, ranks, graph, costs, precision, tuple(notes))


def predict_job(job: JobTrace, precision: Precision | None) -> Prediction:
    """Predict the step with every operator that can in a precision; None: as it was traced.

    Raises:
        ConfigError: no operator can compute in it, or a cost is not known.
    """
    if precision is None or precision is job.precision:
        before = replayed(joined(job.graph))
        return Prediction(ReplayAnswer(before, notes=job.notes), precision or job.precision, {})
    if not any(precision in node.choices for costs in job.costs for node in costs.graph.nodes):
        raise ConfigError(
            f"no operator of {job.name} can compute in {precision}; those with a choice are in "
            "bit_width_changeable_nodes (python -m predictor.replay.config)"
        )
    plans = [uniform_plan(costs.known_graph, precision) for costs in job.costs]
    if not any(plans):
        uniform = uniform_plan(job.costs[0].graph, precision)
        plan_changes(job.graph.ranks[0], job.costs[0].graph, uniform, job.costs[0].costs)  # tells the first that fails
    return predict_plans(job, plans, precision)


def predict_plans(job: JobTrace, plans: Sequence[Plan], precision: Precision) -> Prediction:
    """Predict the step in a plan for every rank.

    Raises:
        PlanError: a rank's graph cannot have its plan.
        ConfigError: a cost is not known.
    """
    step = joined(job.graph)
    changes = [
        plan_changes(local, costs.graph, plan, costs.costs)
        for local, costs, plan in zip(job.graph.ranks, job.costs, plans, strict=True)
    ]
    before, after = replayed(step), replayed(changed_step(step, changes))
    operators = sum(change.operators for change in changes)
    us = [sum(change.before.us for change in changes), sum(change.after.us for change in changes)]
    touched = Touched(counted(operators, "operator") + " with their casts", us[0], us[1], _notes(job, precision))
    applied = [Applied(f"precision {precision}", touched)]
    answer = ReplayAnswer(before, applied, after, moved(before.path, after.path), job.notes)
    return Prediction(answer, precision, plans[0])


def changed_step(step: TracedStep, changes: Sequence[PlanChanges]) -> TracedStep:
    """Return a step with the changes of its ranks; a cast that is added lengthens the task that it runs beside."""
    places = step.places()
    costs: dict[int, Cost] = {}
    for rank, change in enumerate(changes):
        us = dict(change.durations)
        for inserted in change.inserted:
            us[inserted.at] = us.get(inserted.at, step.ranks[rank].tasks[inserted.at].duration_us) + inserted.cost.us
        after = change.after
        low, high = (after.low_us / after.us, after.high_us / after.us) if after.us > 0.0 else (1.0, 1.0)
        costs |= {places[rank][task]: Cost(t, t * low, t * high, after.source) for task, t in us.items()}
    return with_costs(step, costs)


def _notes(job: JobTrace, precision: Precision) -> tuple[str, ...]:
    """Return what the times in a precision rest on, and what is not known."""
    notes = dict.fromkeys(sources for costs in job.costs if (sources := costs.sources()))
    unknown_us = sum(costs.unknown_us(precision) for costs in job.costs)
    kept_us = sum(sum(costs.costs.kept_us.values()) for costs in job.costs)
    if unknown_us:
        notes[
            f"Operators of {duration(unknown_us)} could compute in {precision}, but their cost is not known: unchanged."
        ] = None
    if kept_us:
        notes[f"Operators of {duration(kept_us)} follow their inputs, at a cost that is not known: traced times."] = (
            None
        )
    return tuple(notes)


def other_times(folders: Folders, model: str, name: str, device: str) -> list[TracedTimes]:
    """Return the times of a model's other traces of a device, as ``analyse --generate_mapping`` wrote them."""
    written = (read_document(path, NodeData) for path in folders.outputs("node_data", model))
    return [times_of(data) for data in written if data.origin.file_name != name and data.origin.traced_device == device]


def measured_in(job: JobTrace) -> list[Precision]:
    """Return the precisions that operators were measured in on the job's device."""
    tables = [costs.measured for costs in job.costs if costs.measured is not None]
    return list(dict.fromkeys(row.precision for table in tables for row in table.operators))


def predict_step(folders: Folders, arguments: Namespace, name: str, config: OperatorConfig) -> str:
    """Return the predicted step of a trace in ``--bit`` bits as text.

    Raises:
        ConfigError: there is no such step, or a cost in that precision is not known.
    """
    model, index = arguments.model_name, arguments.target_trace_idx
    job = open_job(folders, model, name, index, config, arguments.device_name, reads_node_data=True)
    precision = precision_of(arguments.bit, [job.precision, name, *measured_in(job), *folders.trace_names(model)])
    prediction = predict_job(job, precision)
    traced = f"traced in {job.precision} on {traced_device(job.graph.ranks[0])}"
    title = f"{model}, {name}: {precision} on {arguments.device_name}, {traced}"
    graph = job.costs[0].graph
    memory, optimizer = memory_model(job.graph.ranks[0], graph, config)
    used = memory_text(memory.of_plan(graph, prediction.plan))
    return "\n".join([title, "", render(prediction.answer), "", f"Memory of a rank, {optimizer}: {used}"])
