"""What a run consists of: parameter counts, tasks of a layer, groups and the nodes they span."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES, Topology, collective_shape, topology_of
from predictor.core.costs.operator import Direction
from predictor.core.workload.edges import edge_block, message_tasks
from predictor.core.workload.layout import Layout
from predictor.core.workload.parallelism_keys import ZeroStage
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.stage_end import stage_end
from predictor.core.workload.tasks import Part, PassTasks
from predictor.core.workload.training_keys import Precision
from predictor.core.workload.transformer import Attention, Biases, LayerKind, Normalization, Transformer
from predictor.core.workload.transformer_step import layer_block
from tests.layers import parameters_of, times

GPT = Transformer(
    num_layers=4,
    hidden_size=1024,
    num_attention_heads=16,
    ffn_hidden_size=4096,
    sequence_length=512,
    vocab_size=50257,
    normalization=Normalization.LAYER_NORM,
    attention=Attention.FUSED_SOFTMAX,
    rotary_fraction=0.0,
    biases=Biases.ALL,
    tied_embeddings=True,
)
RUN = TrainingRun(
    model=GPT,
    layout=Layout(2, 2, 2, gpus_per_node=4),
    layers_per_stage=(2, 2),
    micro_batch_size=1,
    num_micro_batches=4,
    precision="fp16",
    recompute=Recompute.FULL,
    schedule="1f1b",
    zero_stage=1,
    gradient_bucket_elements=10_000_000,
)


DENSE = LayerKind()


@pytest.mark.parametrize("name", [name for name, operator in catalogue().items() if operator.layer_shape])
def test_a_layer_calls_an_operator_with_all_its_dimensions(name: str) -> None:
    operator = catalogue()[name]
    shape = operator.shape_in(RUN.call())
    assert len(shape) == len(operator.dimensions)
    assert all(size >= 0 for size in shape)


def names(tasks: PassTasks) -> list[str]:
    return [task.name for task in tasks.calls()]


def test_parameters_of_gpt2_medium_equal_the_published_count() -> None:
    # OpenAI's 345M model: 24 layers, hidden 1024, 1024 positions, vocabulary 50257: 354,823,168 parameters.
    model = replace(GPT, num_layers=24, sequence_length=1024)
    embedding = 50257 * 1024
    total = 24 * parameters_of(model).total + embedding + model.position_parameters() + model.norm_parameters(1)
    assert total == model.num_parameters() == 354_823_168


def test_layer_runs_every_operator_forward_and_backward() -> None:
    block = layer_block(RUN, DENSE)
    for tasks in (block.forward, block.recompute, block.backward):
        assert {"layer_norm", "qkv_projection", "causal_softmax", "ffn_up", "gelu", "ffn_down"} <= set(names(tasks))
    assert "gradient_accumulation" in names(block.backward)
    assert "gradient_accumulation" not in names(block.forward)


def test_selective_recomputation_repeats_only_attention() -> None:
    block = layer_block(replace(RUN, recompute=Recompute.SELECTIVE), DENSE)
    assert names(block.recompute) == ["attention_scores", "causal_softmax", "attention_values"]
    assert layer_block(replace(RUN, recompute=Recompute.NONE), DENSE).recompute.tasks == []


def test_parallel_residual_needs_one_all_reduce_a_layer_forward() -> None:
    def syncs(run: TrainingRun) -> tuple[float, ...]:
        block = layer_block(run, DENSE)
        return tuple(
            sum(task.times for task in tasks.tasks if task.part is Part.TENSOR_PARALLEL)
            for tasks in (block.forward, block.backward)
        )

    assert syncs(RUN) == (2, 2)
    assert syncs(replace(RUN, model=replace(GPT, parallel_residual=True))) == (1, 2)


def test_listed_operators_replace_the_default_operators() -> None:
    listed = replace(RUN, model=replace(GPT, layer_operators=("layer_norm", "gelu", "gelu")))
    operators = [task for task in layer_block(listed, DENSE).forward.tasks if task.part is Part.OPERATORS]
    assert times(PassTasks(operators, [])) == {"layer_norm": 1, "gelu": 2}


def test_edges_hold_embedding_and_loss() -> None:
    assert "embedding" in names(edge_block(RUN, is_first=True, is_last=False).forward)
    assert {"lm_head", "cross_entropy", "logits_to_fp32"} <= set(
        names(edge_block(RUN, is_first=False, is_last=True).backward)
    )
    alone = edge_block(
        replace(RUN, layout=Layout(1, 1, 1, gpus_per_node=4), layers_per_stage=(4,)), is_first=True, is_last=True
    )
    assert {"embedding", "lm_head"} <= set(names(alone.forward))


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_loss_is_one_call_on_fp32_logits(precision: Precision) -> None:
    end = edge_block(replace(RUN, precision=precision), is_first=False, is_last=True)
    for tasks in (end.forward.tasks, end.backward.tasks):
        (loss,) = [task for task in tasks if task.name == "cross_entropy"]
        assert (loss.shape, loss.times) == ((512, 25216, 4), 1.0)
        assert ("logits_to_fp32" in [task.name for task in tasks]) is (precision == "fp16")


def test_one_of_each_group_sends_nothing() -> None:
    alone = replace(RUN, layout=Layout(1, 1, 1, gpus_per_node=4), layers_per_stage=(4,))
    assert message_tasks(alone) == []
    end = stage_end(alone, 0, alone.rank_parameters(0))
    assert end.reduction == end.gather == end.tied == []
    assert all(task.part is not Part.TENSOR_PARALLEL for task in layer_block(alone, DENSE).forward.tasks)


def test_gradients_are_reduced_in_buckets_that_add_up() -> None:
    tasks = [task for task in stage_end(RUN, 0, RUN.rank_parameters(0)).reduction if task.name == "all_reduce"]
    elements = sum(task.shape[0] // 2 * task.times for task in tasks)
    assert elements == RUN.stage_parameters(0)
    assert max(task.shape[0] // 2 for task in tasks) == RUN.gradient_bucket_elements


def test_zero_shards_the_optimizer() -> None:
    def owned(zero_stage: ZeroStage) -> int:
        return stage_end(replace(RUN, zero_stage=zero_stage), 0, RUN.rank_parameters(0)).optimizer[0].shape[0]

    assert owned(0) == RUN.stage_parameters(0)
    assert owned(1) == -(-RUN.stage_parameters(0) // 2)
    assert stage_end(replace(RUN, zero_stage=0), 0, RUN.rank_parameters(0)).gather == []


@pytest.mark.parametrize(
    ("size", "stride", "gpus_per_node", "topology"),
    [
        (2, 1, 4, Topology(1, 2)),
        (8, 1, 4, Topology(2, 4)),
        (8, 4, 4, Topology(8, 1)),
        (2, 2, 4, Topology(1, 2)),
        (4, 2, 4, Topology(2, 2)),
        (2, 1, 1, Topology(2, 1)),
        (12, 1, 8, Topology(2, 6)),
        (3, 1, 4, Topology(2, 2, size=3)),
        (6, 1, 4, Topology(2, 3)),
        (3, 4, 8, Topology(2, 2, size=3)),
    ],
)
def test_groups_fill_nodes_in_order(size: int, stride: int, gpus_per_node: int, topology: Topology) -> None:
    assert topology_of(((size, stride),), gpus_per_node) == topology


def test_a_group_alone_starts_where_a_node_does() -> None:
    assert topology_of(((3, 1),), 4, num_gpus=3) == Topology(1, 3)
    assert topology_of(((3, 1),), 4, num_gpus=6) == Topology(2, 2, size=3)
    assert Layout(1, 8, 3, gpus_per_node=4).gradient_group().ranks == 3


def test_shards_of_an_uneven_group_add_up() -> None:
    group = Topology(2, 2, size=3)
    size_bytes, nodes, gpus = collective_shape("all_gather", 3_000_000, group)
    assert (nodes, gpus) == (2, 2)
    assert size_bytes * (nodes * gpus - 1) == 3_000_000 * (group.ranks - 1)
    assert collective_shape("all_reduce", 3_000_000, group) == (3_000_000, 2, 2)


def test_neighbouring_stages_inside_a_node_stay_inside() -> None:
    assert Layout(1, 4, 1, gpus_per_node=4).pipeline_hop() == Topology(1, 2)
    assert Layout(2, 4, 1, gpus_per_node=4).pipeline_hop() == Topology(2, 2)
    assert Layout(2, 4, 8, gpus_per_node=4).pipeline_hop() == Topology(2, 4)
    assert Layout(2, 4, 8, gpus_per_node=4).first_and_last_stage() == Topology(2, 1)


def test_messages_that_leave_a_node_together_share_its_host() -> None:
    work = COLLECTIVES["point_to_point"].work
    alone, together = (work((1_000_000, 2, gpus), Direction.FORWARD, 1) for gpus in (1, 4))
    assert together.extras[1] == alone.extras[1]
    assert together.extras[2] == 4 * alone.extras[2]


def test_a_switch_lets_a_pair_use_all_links() -> None:
    # Each rank of a pair sends S; among four it would send 1.5 S, so two thirds of S load the links alike.
    assert collective_shape("all_reduce", 3_000_000, Topology(1, 2, switched_as=4)) == (2_000_000, 1, 4)
    assert collective_shape("point_to_point", 3_000_000, Topology(1, 2, switched_as=4)) == (1_000_000, 1, 2)
    assert collective_shape("all_reduce", 3_000_000, Topology(2, 1, switched_as=4)) == (3_000_000, 2, 1)


def test_recomputation_that_stops_early_leaves_out_what_follows_the_last_saved_activation() -> None:
    run = replace(RUN, layout=Layout(2, 1, 1, gpus_per_node=4), layers_per_stage=(4,))
    whole, early = (
        times(layer_block(replace(run, recompute_stops_early=stops), DENSE).recompute) for stops in (False, True)
    )
    assert "ffn_down" in whole
    assert "ffn_down" not in early
    assert {name: early[name] for name in ("residual_add", "all_reduce", "bias_additions")} == {
        name: whole[name] / 2 for name in ("residual_add", "all_reduce", "bias_additions")
    }
    dropped = layer_block(replace(run, recompute_stops_early=True, model=replace(GPT, hidden_dropout=0.1)), DENSE)
    assert "ffn_down" in {task.name for task in dropped.recompute.tasks}, "the mask of the dropout behind it is saved"
    rest = whole.keys() - {"ffn_down", "residual_add", "all_reduce", "bias_additions"}
    assert {name: early[name] for name in rest} == {name: whole[name] for name in rest}
