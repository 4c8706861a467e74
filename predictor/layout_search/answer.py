"""Answer a search question: the fastest layouts, each with its whole prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from predictor.core.base.errors import NoLayoutError
from predictor.core.costs.published import PublishedSystem
from predictor.core.hardware.host_memory import host_memory_gb_per_s
from predictor.core.plan.of_training import HOST_UPDATE
from predictor.core.schema.merging import merged
from predictor.core.schema.sections import NO_BUDGET, BudgetSection
from predictor.core.step.breakdown import StageParts, stage_parts
from predictor.core.step.memory_verdict import MEMORY_ERROR, MemoryVerdict, memory_verdict
from predictor.core.step.prediction import Prediction, predict
from predictor.core.workload.partition import uniform
from predictor.core.workload.run_choices import Recompute
from predictor.layout_search.candidate import Plan
from predictor.layout_search.near_duplicates import Ranked
from predictor.layout_search.question import SearchProblem
from predictor.layout_search.rank import Ranking, rank
from predictor.layout_search.shared_parts import SharedParts
from predictor.layout_search.space import Space


@dataclass(frozen=True, slots=True)
class Winner:
    """One of the fastest layouts with its whole prediction.

    Attributes:
        parts: of the step, on the stage that waits least for the others.
        near_duplicates: layouts that differ in switches and are as fast.
    """

    ranked: Ranked
    prediction: Prediction
    parts: StageParts
    near_duplicates: tuple[Ranked, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """A search with its answers.

    Attributes:
        winners: the fastest layouts that fit for certain, the fastest first; those that may fit where none is certain.
        pareto: those that no other beats in both time and memory, the leanest first.
        unsure: those that may not fit and are faster than the first winner, which fits for certain.
    """

    space: Space
    system: PublishedSystem
    memory_gib: float | None
    ranking: Ranking
    winners: list[Winner]
    pareto: list[Winner]
    notes: tuple[str, ...]
    content: dict[str, Any]
    unsure: list[Winner]
    budget: BudgetSection = NO_BUDGET

    def verdict(self, winner: Winner) -> MemoryVerdict | None:
        """Return whether a layout fits into a GPU's memory; None where that is unlimited."""
        return memory_verdict(winner.ranked.memory_bytes, self.memory_gib)


def _winner(
    space: Space, system: PublishedSystem, ranked: Ranked, near_duplicates: list[Ranked] | None = None
) -> Winner:
    prediction = predict(space.run(ranked.plan), system)
    # The stage whose end ends the step may have the fewest layers, and then waits for the others most of the step.
    busiest = min(stage_parts(prediction), key=lambda parts: parts.bubble_us + parts.waiting_us)
    return Winner(ranked, prediction, busiest, tuple(near_duplicates or ()))


def search(
    problem: SearchProblem,
    top: int,
    pareto: bool = False,
    best_only: bool = False,
    parts: SharedParts | None = None,
) -> SearchAnswer:
    """Answer a search problem; near-duplicates of a faster layout are counted with it.

    Where nothing fits, a framework that can keep the optimizer's states in host memory does so, and a note says it.
    Where the fastest computes whole layers again, layouts that keep activations in host memory compete as well.

    Args:
        problem: the space, its system and the memory of a GPU.
        top: layouts to return.
        pareto: look for the Pareto front of time and memory as well.
        best_only: look neither for near-duplicates nor for faster layouts that may not fit.
        parts: shared with other searches.

    Raises:
        NoLayoutError: no layout multiplies to the GPUs, or none fits.
    """

    def ranked(asked: SearchProblem) -> Ranking:
        return rank(asked.space, asked.system, asked.memory_gib, top, pareto, not best_only, not best_only, parts)

    try:
        ranking = ranked(problem)
    except NoLayoutError as error:
        offloaded = _offloaded(problem) if error.divides else None
        if offloaded is None:
            raise
        problem = offloaded
        ranking = ranked(problem)
    if ranking.best[0].plan.recompute is Recompute.FULL and _offloads_activations(problem):
        problem = replace(problem, space=replace(problem.space, offloads=True))
        ranking = ranked(problem)
    winners = [
        _winner(problem.space, problem.system, ranked, near_duplicates)
        for ranked, near_duplicates in zip_longest(ranking.best, ranking.near_duplicates)
    ]
    front, unsure = (
        [_winner(problem.space, problem.system, ranked) for ranked in found]
        for found in (ranking.pareto, ranking.unsure)
    )
    notes = (*problem.notes, *_near_the_limit(ranking, problem), *_beside_host(ranking))
    return SearchAnswer(
        space=problem.space,
        system=problem.system,
        memory_gib=problem.memory_gib,
        ranking=ranking,
        winners=winners,
        pareto=front,
        notes=notes,
        content=problem.content,
        unsure=unsure,
        budget=problem.budget,
    )


def _offloads_activations(problem: SearchProblem) -> bool:
    """Return whether a framework can keep activations in host memory, whose link is known.

    Megatron-LM does so beside some CUDA graphs alone (core/transformer/transformer_config.py): beside none here.
    """
    space = problem.space
    is_known = problem.system.hardware.links.host_gb_per_s is not None
    return (
        space.rules is not None and bool(space.rules.offloads(space.model)) and is_known and not space.base.cuda_graphs
    )


def _offloaded(problem: SearchProblem) -> SearchProblem | None:
    """Return the same problem with the optimizer's states in host memory; None where the framework keeps them."""
    space, hardware = problem.space, problem.system.hardware
    is_known = None not in (hardware.links.host_gb_per_s, host_memory_gb_per_s(hardware))
    if space.rules is None or not space.rules.offloads_optimizer or not is_known or space.base.offload_optimizer:
        return None
    said = (
        "Nothing fits with the optimizer's states on the GPUs: they are kept and updated in host memory "
        "(training.offload_optimizer: 1.0)."
    )
    said_of_host = problem.content.get("training") or {}
    host = {key: said_of_host[key] for key in HOST_UPDATE if key in said_of_host}
    return replace(
        problem,
        space=replace(space, base=replace(space.base, offload_optimizer=1.0, **host)),
        content=merged(problem.content, {"training": {"offload_optimizer": 1.0}}),
        notes=(*problem.notes, said),
    )


def _near_the_limit(ranking: Ranking, problem: SearchProblem) -> list[str]:
    """Return a note where no layout fits for certain."""
    if memory_verdict(ranking.best[0].memory_bytes, problem.memory_gib) is not MemoryVerdict.MAY_NOT_FIT:
        return []
    return [f"No layout fits for certain: measured peaks are met within {MEMORY_ERROR:.0%}; more GPUs leave room."]


def _beside_host(ranking: Ranking) -> list[str]:
    """Return a note where the fastest layout keeps activations in host memory."""
    if not ranking.best[0].plan.offload_modules:
        return []
    said = (
        "Inputs of modules travel to host memory and back beside computing (training.offload_modules), since the "
        "fastest layout without it computes whole layers again."
    )
    return [said]


def layout_fields(plan: Plan) -> dict[str, Any]:
    """Return what a search chose under the names of a configuration."""
    degrees = plan.degrees
    return {
        "tensor_parallel_size": degrees.tensor,
        "sequence_parallel": plan.sequence_parallel,
        "context_parallel_size": degrees.context,
        "pipeline_parallel_size": degrees.pipeline,
        "virtual_pipeline_parallel_size": plan.num_chunks,
        "data_parallel_size": degrees.data,
        "expert_parallel_size": degrees.expert,
        "expert_tensor_parallel_size": degrees.tensor if degrees.expert_split is None else degrees.expert_split,
        "schedule": plan.schedule,
        "zero_stage": plan.zero_stage,
        "micro_batch_size": plan.micro_batch_size,
        "num_micro_batches": plan.num_micro_batches,
        "recompute": str(plan.recompute),
        "recompute_modules": [str(module) for module in plan.modules],
        **({} if plan.zero_group is None else {"zero_group_size": plan.zero_group}),
        **({} if plan.recompute_layers is None else {"recompute_num_layers": plan.recompute_layers}),
        **({"offload_modules": [str(module) for module in plan.offload_modules]} if plan.offload_modules else {}),
    }


def configuration(answer: SearchAnswer, winner: Winner) -> dict[str, Any]:
    """Return a layout as a configuration that ``predict`` takes."""
    return configuration_of(answer.space, winner.ranked.plan, answer.content)


def configuration_of(space: Space, plan: Plan, content: dict[str, Any]) -> dict[str, Any]:
    """Return a candidate as a configuration, given what all candidates share."""
    run, row = space.run(plan), layout_fields(plan)
    chosen_of_training = (
        "micro_batch_size",
        "num_micro_batches",
        "recompute",
        "recompute_num_layers",
        "offload_modules",
    )
    training = {key: row.pop(key) for key in chosen_of_training if key in row}
    if modules := row.pop("recompute_modules"):
        training["recompute_modules"] = modules
    if plan.degrees.expert_split is None:
        del row["expert_tensor_parallel_size"]
    if not run.scatters_gradients:
        row["gradient_reduction"] = "all_reduce"
    elif row["zero_stage"] == 1:
        row["gradient_reduction"] = "reduce_scatter"
    if run.layers_per_chunk is not None:
        row["layers_per_stage"] = [list(chunks) for chunks in run.layers_per_chunk]
    elif list(run.layers_per_stage) != uniform(run.model.num_layers, plan.degrees.pipeline):
        row["layers_per_stage"] = list(run.layers_per_stage)
    elif space.rules is not None and space.rules.names_split:
        row["layers_per_stage"] = "uniform"
    chosen: dict[str, Any] = {"parallelism": row | space.fields(plan), "training": training}
    if run.model.loss is not space.model.loss:
        chosen["model"] = {"loss": str(run.model.loss)}
    return merged(content, chosen)
