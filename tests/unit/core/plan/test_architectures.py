"""What sets today's models and layouts apart: grouped queries, gates, windows, experts, sharding, groups of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.core.blocks.mixers import Mixer
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import Topology
from predictor.core.costs.operator import Direction
from predictor.core.step.stages import time_pass
from predictor.core.workload.accumulation import gradient_accumulation
from predictor.core.workload.edges import edge_block, message_tasks
from predictor.core.workload.layout import Layout
from predictor.core.workload.parallelism_keys import ZeroStage
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.stage_end import stage_end
from predictor.core.workload.step_tasks import EndTasks
from predictor.core.workload.switches import Ffn, QkNorm
from predictor.core.workload.tasks import TRAFFIC, Overlap, Part, PassTasks, Task
from predictor.core.workload.transformer import (
    Activation,
    Biases,
    LayerKind,
    MixtureOfExperts,
    Normalization,
    Transformer,
)
from predictor.core.workload.transformer_step import layer_block
from tests.layers import backward_pass, forward_pass, parameters_of
from tests.unit.core.step.test_step_time import unit_system

DENSE = LayerKind()
WINDOWED = LayerKind(mixer=Mixer.SLIDING)
SPARSE = LayerKind(ffn=Ffn.EXPERTS)
LLAMA = Transformer(
    num_layers=8,
    hidden_size=1024,
    num_attention_heads=16,
    num_key_value_heads=4,
    ffn_hidden_size=2816,
    activation=Activation.SWIGLU,
    sequence_length=2048,
    vocab_size=32000,
    fused_side_kernels=True,
)
EXPERTS = MixtureOfExperts(num_experts=8, experts_per_token=2, expert_ffn_hidden_size=512, load_imbalance=1.0)
RUN = TrainingRun(
    model=LLAMA,
    layout=Layout(2, 2, 4, gpus_per_node=4),
    layers_per_stage=(4, 4),
    micro_batch_size=1,
    num_micro_batches=4,
    precision="bf16",
    recompute=Recompute.NONE,
    schedule="1f1b",
    zero_stage=1,
    gradient_bucket_elements=10_000_000,
)


def end_of(run: TrainingRun) -> EndTasks:
    """What the first stage runs after its last micro-batch."""
    return stage_end(run, 0, run.rank_parameters(0))


def sizes(tasks: list[Task], part: Part) -> dict[str, float]:
    """Return the bytes that every collective of a kind moves, all its calls together."""
    found: dict[str, float] = {}
    for task in tasks:
        if task.part is part and task.operator.dimensions[0] == "size_bytes":
            found[task.name] = found.get(task.name, 0.0) + task.shape[0] * task.times
    return found


def shape(passes: PassTasks, name: str) -> tuple[int, ...]:
    return next(task.shape for task in passes.calls() if task.name == name)


def test_grouped_queries_narrow_the_projection_and_name_their_own_kernel() -> None:
    forward = forward_pass(RUN, DENSE)
    assert shape(forward, "qkv_projection") == (2048, 1024, (16 + 2 * 4) * 64 // 2)
    assert shape(forward, "attention_output") == (2048, 16 * 64 // 2, 1024)
    assert shape(forward, "grouped_query_attention") == (1, 2048, 8, 2, 64, 1, 0)
    everybody = replace(RUN, model=replace(LLAMA, num_key_value_heads=16))
    assert shape(forward_pass(everybody, DENSE), "flash_attention") == (1, 2048, 8, 64, 1)


def test_a_gate_doubles_the_first_matrix() -> None:
    assert shape(forward_pass(RUN, DENSE), "ffn_up") == (2048, 1024, 2816)
    assert shape(forward_pass(RUN, DENSE), "ffn_down") == (2048, 1408, 1024)
    plain = replace(RUN, model=replace(LLAMA, activation=Activation.GELU))
    assert shape(forward_pass(plain, DENSE), "ffn_up") == (2048, 1024, 1408)


def test_parameters_count_what_the_architecture_has() -> None:
    attention = 1024 * 64 * (2 * 16 + 2 * 4)
    assert parameters_of(LLAMA).total == attention + 3 * 1024 * 2816 + 2 * 1024
    more = replace(LLAMA, biases=Biases.QKV, qk_norm=QkNorm.PER_HEAD, post_norms=True)
    assert parameters_of(more).total - parameters_of(LLAMA).total == 64 * (16 + 8) + 2 * 64 + 2 * 1024
    sparse = replace(LLAMA, experts=replace(EXPERTS, shared_expert_ffn_hidden_size=256, shared_expert_gate=True))
    assert parameters_of(sparse, SPARSE).dense == attention + 3 * 1024 * 256 + 1024 * 9 + 2 * 1024
    routed = 8 * 8 * 3 * 1024 * 512
    assert sparse.num_parameters() - sparse.num_parameters(active=True) == routed * 6 // 8


def test_key_value_heads_are_copied_where_ranks_outnumber_them() -> None:
    attention = parameters_of(LLAMA, LayerKind(ffn=Ffn.NONE), 8).total - 1024  # one norm
    assert attention == 1024 * 64 * (2 * 2 + 2 * 1)


def test_a_window_is_cheaper_and_only_its_layers_have_it() -> None:
    model = replace(LLAMA, sliding_window=512, sliding_window_layers=2)
    assert [model.kind(layer).mixer is Mixer.SLIDING for layer in range(8)].count(True) == 2
    run = replace(RUN, model=model)
    whole, window = (
        shape(forward_pass(run, DENSE), "grouped_query_attention"),
        shape(forward_pass(run, WINDOWED), "grouped_query_attention"),
    )
    assert (whole[-1], window[-1]) == (0, 512)
    attention = catalogue()["grouped_query_attention"]
    for direction in Direction:
        assert attention.work(window, direction, 108).flops < attention.work(whole, direction, 108).flops / 2
    beyond = (*window[:-1], 4096)
    assert attention.work(beyond, Direction.FORWARD, 108).flops == attention.work(whole, Direction.FORWARD, 108).flops


def test_equal_heads_and_no_window_are_plain_flash_attention() -> None:
    grouped, plain = catalogue()["grouped_query_attention"], catalogue()["flash_attention"]
    for direction in Direction:
        for causal in (0, 1):
            one = grouped.work((2, 1000, 8, 8, 64, causal, 0), direction, 108)
            other = plain.work((2, 1000, 8, 64, causal), direction, 108)
            assert one.extras == pytest.approx(other.extras)
            assert one.size_bytes == other.size_bytes
            assert one.flops == pytest.approx(other.flops, rel=1e-3)  # the diagonal, which plain counts as half


def test_fused_kernels_leave_their_operators_out() -> None:
    names = {task.name for task in forward_pass(RUN, DENSE).tasks}
    assert {"fused_gate", "rope", "rms_norm"} <= names
    assert "swiglu" not in names
    fused = replace(LLAMA, fused_rope=True, normalization=Normalization.FUSED_RMS_NORM)
    tasks = {task.name: task.operator.name for task in forward_pass(replace(RUN, model=fused), DENSE).tasks}
    assert tasks["rope"] == "residual_add"  # by its bytes
    assert tasks["layer_norm"] == "layer_norm"
    assert fused.norm_parameters(1) == 1024
    apart = forward_pass(replace(RUN, model=replace(LLAMA, fused_side_kernels=False)), DENSE)
    assert "swiglu" in {task.name for task in apart.tasks}


def test_sequence_parallelism_moves_the_same_bytes_and_halves_the_norms() -> None:
    split = replace(RUN, sequence_parallel=True)
    shard = 2048 * 1024 * 2 // 2
    assert sizes(forward_pass(RUN, DENSE).tasks, Part.TENSOR_PARALLEL) == {"all_reduce": 2 * 2 * shard}
    assert sizes(forward_pass(split, DENSE).tasks, Part.TENSOR_PARALLEL) == {
        "all_gather": 2 * shard,
        "reduce_scatter": 2 * shard,
    }
    # Backward, the inputs of both column-parallel products are gathered again.
    assert sizes(backward_pass(split, DENSE).tasks, Part.TENSOR_PARALLEL)["all_gather"] == 4 * shard
    assert shape(forward_pass(split, DENSE), "rms_norm") == (1024, 1024)
    assert shape(forward_pass(split, DENSE), "qkv_projection")[0] == 2048
    assert not sizes(edge_block(split, is_first=False, is_last=True).forward.tasks, Part.PIPELINE_PARALLEL)


def test_overlapped_tensor_parallel_traffic_is_the_same_traffic() -> None:
    for parallel in (False, True):
        run = replace(RUN, sequence_parallel=parallel)
        apart = backward_pass(run, DENSE)
        beside = backward_pass(replace(run, overlap_tensor_parallel=True), DENSE)
        assert sizes(beside.calls(), Part.TENSOR_PARALLEL) == sizes(apart.tasks, Part.TENSOR_PARALLEL)
        assert beside.overlaps
        assert not apart.overlaps


def test_context_parallel_attention_is_all_of_it_shared_out() -> None:
    ring = replace(RUN, layout=replace(RUN.layout, context_parallel_size=4))
    attention = catalogue()["grouped_query_attention"]

    def flops(run: TrainingRun, direction: Direction) -> float:
        passes = forward_pass(run, DENSE) if direction is Direction.FORWARD else backward_pass(run, DENSE)
        return sum(
            attention.work(task.shape, direction, 108).flops * task.times
            for task in passes.tasks
            if task.name == "grouped_query_attention"
        )

    for direction in Direction:
        assert flops(ring, direction) == pytest.approx(flops(RUN, direction) / 4, rel=2e-3)
    key_and_value = 2 * 512 * 2 * 64 * 2
    assert sizes(forward_pass(ring, DENSE).calls(), Part.CONTEXT_PARALLEL) == {"point_to_point": 3 * key_and_value}
    assert sizes(backward_pass(ring, DENSE).calls(), Part.CONTEXT_PARALLEL) == {"point_to_point": 7 * key_and_value}
    assert message_tasks(ring)[0].shape[0] * 4 == message_tasks(RUN)[0].shape[0]


def test_experts_see_every_token_once_per_choice() -> None:
    layout = Layout(1, 1, 8, gpus_per_node=4, expert_parallel_size=4)
    run = replace(RUN, model=replace(LLAMA, experts=EXPERTS), layout=layout, layers_per_stage=(8,))
    forward = forward_pass(run, SPARSE)
    experts = [task for task in forward.tasks if task.name == "expert_up"]
    assert [(task.shape, task.times) for task in experts] == [((2048 * 2 // 2, 1024, 1024), 2)]
    exchange = sizes(forward.tasks, Part.EXPERT_PARALLEL)
    assert exchange == {"all_to_all": 2 * 2048 * 2 * 1024 * 2}
    busy = replace(run, model=replace(LLAMA, experts=replace(EXPERTS, load_imbalance=1.5)))
    assert sizes(forward_pass(busy, SPARSE).tasks, Part.EXPERT_PARALLEL)["all_to_all"] == 1.5 * exchange["all_to_all"]
    assert not sizes(
        forward_pass(replace(run, layout=Layout(1, 1, 8, gpus_per_node=4)), SPARSE).tasks, Part.EXPERT_PARALLEL
    )


def test_dense_layers_come_before_those_with_experts() -> None:
    model = replace(LLAMA, experts=replace(EXPERTS, num_dense_layers=3))
    run = replace(RUN, model=model, virtual_pipeline_parallel_size=2)
    assert [dict(run.layer_kinds(0, chunk)) for chunk in (0, 1)] == [{DENSE: 2}, {SPARSE: 2}]
    assert [dict(run.layer_kinds(1, chunk)) for chunk in (0, 1)] == [{DENSE: 1, SPARSE: 1}, {SPARSE: 2}]


def test_experts_are_summed_over_the_ranks_that_hold_them() -> None:
    layout = Layout(1, 1, 8, gpus_per_node=4, expert_parallel_size=4)
    run = replace(RUN, model=replace(LLAMA, experts=EXPERTS), layout=layout, layers_per_stage=(8,), zero_stage=0)
    reduced = [task for task in end_of(run).reduction if task.name == "all_reduce"]
    elements: dict[tuple[int, ...], float] = {}
    for task in reduced:
        elements[task.shape[1:]] = elements.get(task.shape[1:], 0.0) + task.shape[0] / 2 * task.times
    parameters = run.rank_parameters(0)
    assert elements == {(2, 4): parameters.dense, (2, 1): parameters.routed}
    assert parameters.routed == 8 * 2 * 3 * 1024 * 512


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_sharing_out_more_moves_more_often(zero_stage: ZeroStage) -> None:
    run = replace(RUN, layout=Layout(1, 1, 8, gpus_per_node=4), layers_per_stage=(8,), zero_stage=zero_stage)
    block, end = layer_block(run, DENSE), end_of(run)
    per_rank = parameters_of(LLAMA).total * 2 // 8
    assert sizes(block.forward.tasks, Part.DATA_PARALLEL) == ({"all_gather": per_rank} if zero_stage == 3 else {})
    backward = sizes(block.backward.tasks, Part.DATA_PARALLEL)
    assert backward.get("reduce_scatter", 0) == (per_rank if zero_stage >= 2 else 0)
    assert bool(end.reduction) == (zero_stage < 2)
    assert bool(end.gather) == (zero_stage in (1, 2))
    assert end.optimizer[0].shape[0] == -(-run.stage_parameters(0) // (8 if zero_stage else 1))


def test_fp32_gradients_double_the_reduction() -> None:
    def moved(run: TrainingRun) -> float:
        return sizes(end_of(run).reduction, Part.DATA_PARALLEL)["all_reduce"]

    assert moved(replace(RUN, fp32_gradients=True)) == 2 * moved(RUN)


def test_weight_gradients_are_part_of_the_backward_pass() -> None:
    block = layer_block(replace(RUN, schedule="zero_bubble_h1"), DENSE)
    linear = sum(task.times for task in block.backward.tasks if task.operator.family == "linear")
    assert sum(task.times for task in block.weight if task.operator.family == "linear") == linear / 2
    assert {task.name for task in block.weight} >= {"ffn_up", "gradient_accumulation"}
    assert layer_block(RUN, DENSE).weight == []


def test_rank_order_decides_what_a_group_spans() -> None:
    layout = Layout(2, 2, 4, gpus_per_node=4)
    assert layout.tensor_group() == Topology(1, 2)
    assert layout.gradient_group() == Topology(2, 2)
    assert layout.pipeline_hop() == Topology(2, 4)
    inner_pipeline = replace(layout, rank_order=("tp", "pp", "cp", "dp"))
    assert inner_pipeline.gradient_group() == Topology(4, 1)
    assert inner_pipeline.pipeline_hop() == Topology(1, 2)
    ring = Layout(1, 1, 4, gpus_per_node=4, context_parallel_size=2)
    assert ring.context_hop() == Topology(1, 2)
    assert ring.gradient_group() == Topology(2, 4)
    assert ring.num_gpus == 8


def test_expert_groups_are_neighbours() -> None:
    layout = Layout(1, 1, 8, gpus_per_node=4, expert_parallel_size=4)
    assert layout.expert_group() == Topology(1, 4)
    assert layout.expert_gradient_group() == Topology(2, 1)
    spread = Layout(2, 1, 4, gpus_per_node=4, context_parallel_size=2, expert_parallel_size=4)
    assert spread.expert_group() == Topology(2, 2)
    assert spread.expert_gradient_group() == Topology(2, 1)


def test_traffic_hides_once_and_behind_no_other_traffic() -> None:
    run = replace(
        RUN,
        layout=Layout(2, 1, 8, gpus_per_node=4),
        layers_per_stage=(8,),
        zero_stage=3,
        gradient_reduction="reduce_scatter",
        overlap_gradient_reduction=True,
        overlap_parameter_gather=True,
    )
    system = unit_system()
    for passes in (layer_block(run, DENSE).forward, layer_block(run, DENSE).backward):
        timed = time_pass(system, passes.tasks, passes.overlaps)
        computing = sum(10.0 * task.times for task in passes.tasks if task.part not in TRAFFIC)
        traffic = sum(10.0 * task.times for task in passes.calls() if task.part is Part.DATA_PARALLEL)
        hidden = sum(cost.us for cost in timed.hidden.values())
        assert 0.0 < hidden <= computing
        shown = timed.traffic[Part.DATA_PARALLEL].us if Part.DATA_PARALLEL in timed.traffic else 0.0
        assert hidden + shown == pytest.approx(traffic)


def test_hidden_traffic_leaves_less_to_hide_behind() -> None:
    tasks = [task for task in forward_pass(RUN, DENSE).tasks if task.name == "ffn_up"]
    gather = end_of(RUN).gather
    one, both = (
        time_pass(unit_system(), tasks, [Overlap(gather, tasks)] * count).traffic.get(Part.DATA_PARALLEL)
        for count in (1, 2)
    )
    assert one is not None
    assert both is not None
    assert one.us == 0.0  # as long as the product
    assert both.us == 10.0


def test_gradients_of_shares_are_added_up_by_their_owners() -> None:
    def added(zero_stage: ZeroStage) -> float:
        run = replace(RUN, layout=Layout(1, 1, 8, gpus_per_node=4), layers_per_stage=(8,), zero_stage=zero_stage)
        task = gradient_accumulation(run, DENSE)
        return task.shape[0] * task.times

    assert added(1) == pytest.approx(8 * added(2), rel=1e-3)


def test_experts_with_tensor_parallelism_gather_again_only_what_linear_layers_saved() -> None:
    layout = Layout(2, 1, 8, gpus_per_node=4, expert_parallel_size=4)
    run = replace(
        RUN, model=replace(LLAMA, experts=EXPERTS), layout=layout, layers_per_stage=(8,), sequence_parallel=True
    )
    shard = 2048 * 1024 * 2 // 2
    # Attention's, and that of the routed tokens (two per token); attention's input once more.
    assert sizes(forward_pass(run, SPARSE).tasks, Part.TENSOR_PARALLEL)["all_gather"] == (1 + 2) * shard
    assert sizes(backward_pass(run, SPARSE).tasks, Part.TENSOR_PARALLEL)["all_gather"] == (1 + 2 + 1) * shard
    beside = backward_pass(replace(run, overlap_tensor_parallel=True), SPARSE)
    hidden = [task for overlap in beside.overlaps for task in overlap.traffic]
    assert sizes(hidden, Part.TENSOR_PARALLEL) == {"all_gather": shard, "reduce_scatter": shard}
    shared = replace(run, model=replace(LLAMA, experts=replace(EXPERTS, shared_expert_ffn_hidden_size=512)))
    assert sizes(forward_pass(shared, SPARSE).tasks, Part.TENSOR_PARALLEL)["all_gather"] == (2 + 2) * shard


def test_no_rank_is_busier_where_all_have_all_experts() -> None:
    model = replace(LLAMA, experts=replace(EXPERTS, load_imbalance=2.0))
    alone = replace(RUN, model=model, layout=Layout(1, 1, 8, gpus_per_node=4), layers_per_stage=(8,))
    even = replace(alone, model=replace(LLAMA, experts=EXPERTS))
    assert forward_pass(alone, SPARSE) == forward_pass(even, SPARSE)


def test_traffic_cannot_hide_behind_weight_gradients_that_run_later() -> None:
    run = replace(RUN, overlap_tensor_parallel=True)
    assert backward_pass(run, DENSE).overlaps
    assert not backward_pass(replace(run, schedule="zero_bubble_h1"), DENSE).overlaps


def test_biases_of_experts_are_theirs() -> None:
    model = replace(LLAMA, biases=Biases.ALL, experts=EXPERTS)
    without = replace(LLAMA, experts=EXPERTS)
    attention = (16 + 2 * 4) * 64 + 1024
    ours, theirs = parameters_of(model, SPARSE), parameters_of(without, SPARSE)
    assert ours.dense - theirs.dense == attention
    assert ours.routed - theirs.routed == 8 * (2 * 512 + 1024)
