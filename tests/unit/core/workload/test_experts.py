"""What a layer with experts runs: the exchange of tokens, copies, biases, fused kernels, and the host's launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.blocks.experts import KEPT_PER_EXPERT
from predictor.core.blocks.mixers import LayerKind
from predictor.core.costs import scalar_kernels
from predictor.core.costs.operator import Direction
from predictor.core.plan.loading import prepare
from predictor.core.rows import Kind
from predictor.core.step.stages import time_block
from predictor.core.workload.expert_exchange import ExpertDispatcher, visited
from predictor.core.workload.host_stack import experts_work, layer_work, slowdown, stack_of
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import GemmRecipe, GraphModule, RecomputeModule
from predictor.core.workload.switches import Ffn
from predictor.core.workload.tasks import Part, PassTasks
from predictor.core.workload.transformer import Biases, MixtureOfExperts
from predictor.core.workload.transformer_step import layer_block, layer_launches
from predictor.evidence.published.nemo import megatron_core
from predictor.evidence.published.row import Row, UnexpressedError
from tests.layers import backward_pass, forward_pass, rows_of
from tests.unit.core.step.test_step_time import unit_system

SPARSE, DENSE = LayerKind(ffn=Ffn.EXPERTS), LayerKind()
TOKENS, HIDDEN, WIDTH, EXPERTS, TOP_K, RANKS = 4096, 2048, 768, 64, 6, 8
HELD = EXPERTS // RANKS
ROW_BYTES = HIDDEN * 2


def content(**sections: dict[str, Any]) -> dict[str, Any]:
    moe = {"num_experts": EXPERTS, "experts_per_token": TOP_K, "expert_ffn_hidden_size": WIDTH, "load_imbalance": 1.0}
    model = {
        "num_layers": 4,
        "hidden_size": HIDDEN,
        "num_attention_heads": 16,
        "sequence_length": TOKENS,
        "activation": "swiglu",
        "fused_side_kernels": True,
        "moe": moe,
        **sections.get("model", {}),
    }
    parallelism = {"data_parallel_size": RANKS, "expert_parallel_size": RANKS, **sections.get("parallelism", {})}
    training = {
        "micro_batch_size": 1,
        "num_micro_batches": 8,
        "precision": "bf16",
        **sections.get("training", {}),
    }
    return {"system": "B200", "model": model, "parallelism": parallelism, "training": training}


def run(**sections: dict[str, Any]) -> TrainingRun:
    return prepare(content(**sections), Path()).run


RUN = run()


def sent(layer_pass: PassTasks) -> float:
    """Return the bytes that a pass sends to experts on other ranks, hidden or not."""
    return sum(task.shape[0] * task.times for task in layer_pass.calls() if task.part is Part.EXPERT_PARALLEL)


def streamed(layer_pass: PassTasks, name: str) -> float:
    """Return the bytes of a kernel that is timed by them."""
    return sum(task.shape[0] * task.shape[1] * task.times * 3 * 2 for task in layer_pass.tasks if task.name == name)


def test_ranks_that_a_token_visits_are_counted_over_all_choices() -> None:
    few = MixtureOfExperts(num_experts=8, experts_per_token=3, expert_ffn_hidden_size=1)
    for groups in (1, 2, 4, 8):
        held = 8 // groups
        choices = [len({expert // held for expert in chosen}) for chosen in combinations(range(8), 3)]
        assert visited(few, groups) == pytest.approx(sum(choices) / len(choices))


@pytest.mark.parametrize("dispatcher", [ExpertDispatcher.DEEPEP, ExpertDispatcher.HYBRIDEP])
def test_one_copy_travels_to_a_rank_and_between_nodes_to_a_node(dispatcher: ExpertDispatcher) -> None:
    experts = RUN.model.experts
    assert experts is not None
    one = replace(RUN, expert_dispatcher=dispatcher)
    assert sent(forward_pass(RUN, SPARSE)) == pytest.approx(2 * TOKENS * TOP_K * ROW_BYTES)
    assert sent(forward_pass(one, SPARSE)) == pytest.approx(2 * TOKENS * visited(experts, RANKS) * ROW_BYTES, rel=1e-6)
    wide = {"parallelism": {"data_parallel_size": 32, "expert_parallel_size": 32, "expert_dispatcher": dispatcher}}
    assert sent(forward_pass(run(**wide), SPARSE)) == pytest.approx(
        2 * TOKENS * visited(experts, 4) * ROW_BYTES, rel=1e-6
    )


def test_a_gather_brings_all_tokens_to_all_ranks() -> None:
    gathered = forward_pass(replace(RUN, expert_dispatcher=ExpertDispatcher.ALL_GATHER), SPARSE)
    calls = [(task.name, task.shape[0]) for task in gathered.calls() if task.part is Part.EXPERT_PARALLEL]
    assert calls == [("all_gather", TOKENS * ROW_BYTES), ("reduce_scatter", TOKENS * ROW_BYTES)]
    # a copy of every row that has an expert here, out of all tokens, and back
    assert streamed(gathered, "token_permutation") == pytest.approx(2 * TOKENS * (RANKS + TOP_K) * ROW_BYTES)


def test_rows_are_sorted_where_they_arrive_and_padded_for_few_bits() -> None:
    experts = RUN.model.experts
    assert experts is not None
    routed = TOKENS * TOP_K
    out_and_back = 2 * (TOKENS + routed)
    assert streamed(forward_pass(RUN, SPARSE), "token_permutation") == pytest.approx(
        (out_and_back + 4 * routed) * ROW_BYTES
    )
    alone = run(parallelism={"data_parallel_size": EXPERTS, "expert_parallel_size": EXPERTS})
    assert streamed(forward_pass(alone, SPARSE), "token_permutation") == pytest.approx(out_and_back * ROW_BYTES)
    low = replace(RUN, gemm_recipe=GemmRecipe.MXFP8)
    padded = streamed(forward_pass(low, SPARSE), "token_permutation")
    assert padded == pytest.approx((out_and_back + 8 * routed) * ROW_BYTES)
    hybrid = replace(low, expert_dispatcher=ExpertDispatcher.HYBRIDEP)
    arrived = TOKENS * visited(experts, RANKS)
    assert streamed(forward_pass(hybrid, SPARSE), "token_permutation") == pytest.approx(
        2 * (arrived + routed) * ROW_BYTES
    )


def test_overlapped_traffic_leaves_what_warms_the_pipeline_up() -> None:
    hidden = forward_pass(replace(RUN, overlap_expert_parallel=True), SPARSE)
    assert sent(hidden) == pytest.approx(sent(forward_pass(RUN, SPARSE)))
    exposed = sent(PassTasks(hidden.tasks, []))
    assert exposed == pytest.approx(sent(hidden) / RUN.num_micro_batches)
    (overlap,) = hidden.overlaps
    assert overlap.slows
    assert {"expert_up", "expert_down", "qkv_projection"} <= {task.name for task in overlap.behind}
    alone = forward_pass(replace(RUN, overlap_expert_parallel=True, num_micro_batches=1), SPARSE)
    assert not alone.overlaps


@pytest.mark.parametrize(
    ("each", "biases", "clamps"), [(forward_pass, (14, 2, 14), (8, 2, 8)), (backward_pass, (18, 3, 22), (11, 5, 19))]
)
def test_biases_and_clamps_of_experts_are_kernels_of_their_own(
    each: Callable[[TrainingRun, LayerKind], PassTasks], biases: tuple[int, int, int], clamps: tuple[int, int, int]
) -> None:
    """Each has bytes of kernels that load vectors; kernels that load one number at a time, and their bytes."""
    experts = RUN.model.experts
    assert experts is not None
    model = replace(RUN.model, biases=Biases.ALL, experts=replace(experts, activation_clamp=7.0))
    layer_pass = each(replace(RUN, model=model), SPARSE)
    routed = TOKENS * TOP_K
    for name, width, expected in (("expert_biases", HIDDEN, biases), ("activation_clamp", WIDTH, clamps)):
        (scalar,) = (t for t in layer_pass.tasks if t.name == name and t.operator is scalar_kernels.OPERATOR)
        rest = PassTasks([task for task in layer_pass.tasks if task is not scalar], [])
        found = streamed(rest, name), scalar.times, scalar.shape[1] * scalar.times
        size_bytes, kernels, scalar_bytes = expected
        elements = routed * width
        assert found == pytest.approx((elements * size_bytes, kernels, elements * scalar_bytes))
        assert scalar.shape[0] == elements
    names = {task.name for task in each(RUN, SPARSE).tasks}
    assert not names & {"expert_biases", "activation_clamp"}


def test_a_recomputed_gate_is_clamped_again() -> None:
    clamped = run(
        model={"moe": {**content()["model"]["moe"], "activation_clamp": 7.0}},
        training={"recompute": "selective", "recompute_modules": ["moe_act"]},
    )
    assert RecomputeModule.MOE_ACTIVATION in clamped.recompute_modules
    again = layer_block(clamped, SPARSE).recompute.tasks
    assert [task.name for task in again] == ["fused_gate", "activation_clamp", "activation_clamp"]


def test_fused_experts_are_two_kernels_without_gate_and_inner_casts() -> None:
    fused = run(training={"gemm_recipe": "mxfp8", "fused_experts": True})
    plain = replace(fused, fused_experts=False)
    for each in (forward_pass, backward_pass):
        names = [task.name for task in each(fused, SPARSE).tasks]
        assert "fused_gate" not in names
        assert (
            names.count("expert_casts"),
            [task.name for task in each(plain, SPARSE).tasks].count("expert_casts"),
        ) == (1, 2)
        products, alone = (
            {task.name: task for task in each(one, SPARSE).tasks if task.name.startswith("expert_")}
            for one in (fused, plain)
        )
        for name in ("expert_up", "expert_down"):
            assert (products[name].shape, products[name].times) == (alone[name].shape, alone[name].times)
            assert products[name].launches < alone[name].launches


@pytest.mark.parametrize(("recipe", "kernels"), [("fp8_delayed", 1), ("fp8_tensorwise", 3 * HELD), ("mxfp8", HELD)])
def test_casts_are_kernels_of_every_expert_but_with_delayed_scaling(recipe: str, kernels: int) -> None:
    low = run(training={"gemm_recipe": recipe})
    casts = [row.task(Direction.FORWARD) for row in rows_of(low, SPARSE) if row.kind is Kind.CAST]
    assert [cast.launches for cast in casts if cast and cast.name == "expert_casts"] == [kernels, kernels]


def test_the_host_launches_experts_once_it_has_counted_their_tokens() -> None:
    block = layer_block(RUN, SPARSE)
    assert block.host is not None
    assert [task.name for task in block.host.counted] == ["expert_up", "expert_down"]
    assert block.host.counted_launches == pytest.approx(slowdown(RUN) * 2 * HELD * (1 + KEPT_PER_EXPERT[0]))
    counted_us = 10.0 * sum(task.times for task in block.host.counted)  # a call takes 10 µs there
    system = unit_system(launch_forward_us=(counted_us + 25.0) / block.host.counted_launches)
    # The pass as a whole is longer than its launches, the counted tasks are shorter than theirs.
    few = block.host._replace(forward=block.host.counted_launches)
    assert time_block(system, replace(block, host=few)).forward.host.us == pytest.approx(25.0)
    assert time_block(system, replace(block, host=few._replace(counted=()))).forward.host.us == 0


def test_a_capacity_needs_no_count() -> None:
    experts = RUN.model.experts
    assert experts is not None
    capped = replace(RUN, model=replace(RUN.model, experts=replace(experts, capacity_factor=1.0)))
    host = layer_block(capped, SPARSE).host
    assert host is not None
    assert host.counted == ()


def test_graphs_of_modules_launch_what_they_hold() -> None:
    def launches(kind: LayerKind, *modules: GraphModule) -> float:
        captured = replace(RUN, cuda_graphs=modules)
        return layer_launches(captured, kind, forward_pass(captured, kind))

    forward = forward_pass(RUN, SPARSE)
    slow, (own, _), stack = slowdown(RUN), layer_work(RUN), stack_of(RUN)
    eager, router = launches(SPARSE), launches(SPARSE, GraphModule.MOE_ROUTER)
    held = sum(task.launches for task in forward.tasks if task.name in ("router", "router_projection"))
    assert router == pytest.approx(eager - slow * (held + stack.router[0] - 1))
    most = launches(SPARSE, GraphModule.ATTENTION, GraphModule.MOE_ROUTER, GraphModule.MOE_PREPROCESS)
    experts = sum(
        task.launches for task in forward.tasks if task.name.startswith("expert_") or task.name == "fused_gate"
    )
    traffic = sum(task.launches for task in forward.tasks if task.part is Part.EXPERT_PARALLEL)
    assert most == pytest.approx(slow * (experts + traffic + own / 2 + stack.dispatcher[0] + 2))
    assert layer_block(replace(RUN, cuda_graphs=True), SPARSE).host is None
    assert launches(DENSE, GraphModule.MOE) == launches(DENSE)
    assert experts_work(RUN)[0] == stack.router[0] + stack.dispatcher[0] > 0.0
    assert experts_work(replace(RUN, cuda_graphs=(GraphModule.MOE,))) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"model": {"moe": None}, "parallelism": {"expert_dispatcher": "deepep", "expert_parallel_size": 1}},
            "no experts",
        ),
        ({"training": {"fused_experts": True}}, "multiply in mxfp8"),
        ({"training": {"cuda_graphs": ["attention"]}}, "list of modules: attn, mlp"),
        ({"parallelism": {"expert_dispatcher": "nccl"}}, "expert_dispatcher"),
    ],
)
def test_keys_that_cannot_be_are_refused(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(**sections)


CELLS = {
    "group": "mbridge_pretrain",
    "gpu": "GB200",
    "n_gpus": "64",
    "gpus_per_node": "4",
    "gpus_per_domain": "72",
    "framework": "Megatron-Bridge v0.6.0",
    "model": "GPT OSS 120B",
    "layers": "36",
    "hidden": "2880",
    "heads": "64",
    "kv_heads": "8",
    "head_dim": "64",
    "ffn": "2880",
    "vocab": "201088",
    "seq": "4096",
    "dp": "64",
    "ep": "64",
    "micro_batch": "4",
    "grad_accum": "5",
    "precision": "mxfp8",
    "moe_experts": "128",
    "moe_topk": "4",
    "moe_ffn": "2880",
}


def test_a_row_says_how_its_experts_run() -> None:
    row = {**CELLS, "dispatcher": "hybridep", "a2a_overlap": "yes", "cuda_graphs": "full_iteration"}
    given = megatron_core(Row(row))
    assert given["parallelism"]["expert_dispatcher"] == "hybridep"
    assert given["parallelism"]["overlap_expert_parallel"] is True
    assert given["training"]["cuda_graphs"] is True
    assert given["training"]["fused_experts"] is True
    assert given["model"]["moe"]["activation_clamp"] == 7.0
    assert not given["model"]["fused_rope"]
    older = {
        **CELLS,
        "dispatcher": "alltoall",
        "a2a_overlap": "no",
        "cuda_graphs": "transformer_engine:attn+moe_router",
    }
    given = megatron_core(Row(older))
    assert given["training"]["cuda_graphs"] == ["attn", "moe_router"]
    assert "fused_experts" not in given["training"]
    assert "overlap_expert_parallel" not in given["parallelism"]
    assert prepare(given, Path()).run.graph_modules == (GraphModule.ATTENTION, GraphModule.MOE_ROUTER)


def test_experts_on_more_ranks_than_see_other_tokens_are_left_whole() -> None:
    sizes = {"tp": "2", "dp": "4", "cp": "1"}
    folded = megatron_core(Row({**CELLS, **sizes, "ep": "8"}))["parallelism"]
    assert folded["expert_tensor_parallel_size"] == 1
    assert "expert_tensor_parallel_size" not in megatron_core(Row({**CELLS, **sizes, "ep": "4"}))["parallelism"]
    given = megatron_core(Row({**CELLS, **sizes, "ep": "4", "etp": "1"}))["parallelism"]
    assert given["expert_tensor_parallel_size"] == 1


def test_a_row_whose_kernels_were_broken_is_not_predicted() -> None:
    with pytest.raises(UnexpressedError, match="broken"):
        megatron_core(Row({**CELLS, "notes": "table note: known cuDNN regression in this container"}))
