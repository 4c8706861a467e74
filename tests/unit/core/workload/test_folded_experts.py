"""Experts split over other ranks than all else: groups, nodes, parameters, traffic and memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.core.base.errors import ConfigError
from predictor.core.blocks.mixers import LayerKind
from predictor.core.costs.collectives import Topology
from predictor.core.plan.to_run import to_run
from predictor.core.schema.sections import validate
from predictor.core.step.memory import step_memory
from predictor.core.workload.layout import Layout
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.switches import Ffn
from predictor.core.workload.tasks import Part, Task
from predictor.core.workload.transformer_step import transformer_step
from tests.layers import parameters_of

POWERS = st.sampled_from((1, 2, 4, 8))


def run(**parallelism: Any) -> TrainingRun:
    """Return a run of a small Mixtral on nodes of eight."""
    content = {
        "system": "Perlmutter",
        "model": {
            "num_layers": 4,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "sequence_length": 2048,
            "vocab_size": 1024,
            "activation": "swiglu",
            "moe": {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 1024, "load_imbalance": 1.0},
        },
        "parallelism": {
            "tensor_parallel_size": 4,
            "sequence_parallel": True,
            "data_parallel_size": 4,
            "gpus_per_node": 8,
            "intra_node": "switch",
            **parallelism,
        },
        "training": {"micro_batch_size": 1, "num_micro_batches": 4},
    }
    return to_run(validate(content), gpus_per_node=8, has_switch=True)


def ranks_of(layout: Layout) -> list[tuple[int, int, int, int]]:
    """Return of every rank its place among those that split an expert, among other experts, and its stage.

    As Megatron-LM counts ranks for experts, core/parallel_state.py: order "tp-ep-dp-pp" over all ranks of a stage.
    """
    sizes = {"tp": layout.tensor_parallel_size, "cp": layout.context_parallel_size, "dp": layout.data_parallel_size}
    sizes["pp"] = layout.pipeline_parallel_size
    places = []
    for rank in range(layout.num_gpus):
        within, stage, rest, scale = 0, 0, rank, 1
        for name in layout.rank_order:
            rest, at = divmod(rest, sizes[name])
            if name == "pp":
                stage = at
            else:
                within, scale = within + at * scale, scale * sizes[name]
        etp, ep = layout.expert_split, layout.expert_parallel_size
        places.append((within % etp, within // etp % ep, within // (etp * ep), stage))
    return places


def spanned(layout: Layout, varies: int) -> tuple[int, int]:
    """Return ranks and nodes of the widest group whose members differ in one place only."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(ranks_of(layout)):
        groups.setdefault(place[:varies] + place[varies + 1 :], []).append(rank)
    nodes = max(len({rank // layout.gpus_per_node for rank in group}) for group in groups.values())
    return len(next(iter(groups.values()))), nodes


@given(POWERS, POWERS, POWERS, POWERS, POWERS, POWERS, st.sampled_from((4, 8)), st.booleans())
def test_groups_are_those_of_megatrons_ranks(
    tp: int, cp: int, dp: int, pp: int, etp: int, ep: int, gpus_per_node: int, stages_inside: bool
) -> None:
    if (tp * cp * dp) % (etp * ep) or etp == tp:
        return
    order = ("tp", "cp", "pp", "dp") if stages_inside else ("tp", "cp", "dp", "pp")
    layout = Layout(tp, pp, dp, cp, ep, etp, order, gpus_per_node=gpus_per_node)

    def found(group: Topology) -> tuple[int, int]:
        return group.ranks, group.nodes

    assert found(layout.expert_tensor_group()) == spanned(layout, 0)
    assert found(layout.expert_group()) == spanned(layout, 1)
    assert found(layout.expert_gradient_group()) == spanned(layout, 2)
    assert found(layout.expert_sharing_group(cp * dp)) == spanned(layout, 2)


def test_folding_fits_more_expert_ranks_into_a_node() -> None:
    # Liu et al. 2025, arXiv:2504.14960, figure 2: attention on TP 4 and DP 2 of a node of eight, experts on EP 8.
    folded = Layout(4, 1, 2, gpus_per_node=8, expert_parallel_size=8, expert_tensor_parallel_size=1)
    assert folded.expert_group() == Topology(1, 8)
    assert folded.expert_gradient_group().ranks == 1
    unfolded = Layout(4, 1, 8, gpus_per_node=8, expert_parallel_size=8)
    assert unfolded.expert_group().nodes == 4


def calls(found: TrainingRun, part: Part) -> list[Task]:
    """Return the collectives of a part in the step's only stage."""
    step = transformer_step(found)
    return [task for task, _ in step.calls(step.stages[0]) if task.part is part]


def flops(found: TrainingRun) -> float:
    """Return the FLOPs of a layer's forward pass on one rank."""
    (chunk,) = transformer_step(found).stages[0].chunks
    block = chunk.blocks[1][0]
    return sum(task.operator.work(task.shape, task.direction, 1).flops * task.times for task in block.forward.tasks)


def test_a_rank_multiplies_as_much_however_experts_are_split() -> None:
    unfolded, folded, whole = run(), run(expert_tensor_parallel_size=2), run(expert_tensor_parallel_size=1)
    assert flops(folded) == pytest.approx(flops(unfolded), rel=1e-2)
    assert flops(whole) == pytest.approx(flops(unfolded), rel=1e-2)


@pytest.mark.parametrize(("etp", "ep"), list(product((1, 2, 4, 8), repeat=2)))
def test_ranks_hold_the_model_together(etp: int, ep: int) -> None:
    if etp * ep > 16 or (etp == 4 and ep > 4):
        return
    found = run(expert_tensor_parallel_size=etp, expert_parallel_size=ep)
    model, ranks = found.model, found.rank_parameters(0)
    replicas = found.layout.stage_ranks // (etp * ep)
    assert model.experts is not None
    whole = model.num_layers * parameters_of(model, LayerKind(ffn=Ffn.EXPERTS)).routed
    assert ranks.routed * etp * ep == whole
    assert found.layout.expert_gradient_group().ranks == replicas
    assert found.expert_zero_ranks == replicas
    assert ranks.dense == run().rank_parameters(0).dense


def test_whole_experts_need_no_sums_of_routed_tokens() -> None:
    whole = run(expert_tensor_parallel_size=1, expert_parallel_size=4)
    halves = run(expert_tensor_parallel_size=2, expert_parallel_size=4)

    def tensor_bytes(found: TrainingRun) -> float:
        return sum(task.shape[0] * task.times for task in calls(found, Part.TENSOR_PARALLEL))

    assert tensor_bytes(whole) < tensor_bytes(halves)
    exchanged = {task.shape for task in calls(whole, Part.EXPERT_PARALLEL)}
    tokens = whole.call().unsplit_tokens * 2  # to two experts each
    assert exchanged == {(tokens * 512 * 2, 1, 4)}


def test_states_are_shared_out_over_the_ranks_that_hold_the_same_experts() -> None:
    unfolded, folded = run(expert_parallel_size=4), run(expert_parallel_size=4, expert_tensor_parallel_size=1)
    one, other = (step_memory(transformer_step(found))[0] for found in (unfolded, folded))
    # Unfolded: a quarter of each of two experts, no replicas; folded: two whole experts on each of four replicas.
    assert other.weights > one.weights
    assert other.optimizer == pytest.approx(one.optimizer, rel=1e-6)
    groups = replace(folded, zero_group_size=2)
    assert groups.expert_zero_ranks == 2
    assert groups.layout.expert_sharing_group(2).ranks == 2
    assert groups.layout.expert_replica_group(2).ranks == 2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"expert_tensor_parallel_size": 3}, "expert_tensor_parallel_size is 3; it must divide expert_ffn_hidden_size"),
        ({"expert_tensor_parallel_size": 8, "expert_parallel_size": 4}, "it must divide tensor × context × data"),
        (
            {
                "expert_tensor_parallel_size": 1,
                "expert_parallel_size": 8,
                "pipeline_parallel_size": 2,
                "data_parallel_size": 6,
            }
            | {"rank_order": ["dp", "pp", "tp", "cp"]},
            "side by side",
        ),
    ],
)
def test_impossible_foldings_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(**keys)


def test_a_model_without_experts_splits_none() -> None:
    content = {
        "system": "Perlmutter",
        "model": {"num_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "sequence_length": 2048},
        "parallelism": {"expert_tensor_parallel_size": 2},
        "training": {"micro_batch_size": 1, "num_micro_batches": 4},
    }
    with pytest.raises(ConfigError, match="the model has no experts"):
        to_run(validate(content), gpus_per_node=8)
