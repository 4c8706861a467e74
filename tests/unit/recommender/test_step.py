"""The tasks of a recommender's step: which kernels, in which order, beside what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from predictor.core.workload.step_tasks import BlockTasks, EndTasks
from predictor.core.workload.tasks import BACKWARD, Part, Task
from predictor.recommender.hugectr.dense_layers import dense_layer
from predictor.recommender.workload.dense_tasks import LayerCall, layer_tasks
from predictor.recommender.workload.embedding_tasks import pooled_exchange
from predictor.recommender.workload.layers import LAYER_TYPES, TensorShape
from predictor.recommender.workload.network import network_tasks
from predictor.recommender.workload.optimizer import UpdateType
from predictor.recommender.workload.plan import Sharding
from predictor.recommender.workload.run import Engine, RecommenderRun
from predictor.recommender.workload.step import recommender_step
from predictor.recommender.workload.traffic import all_traffic, exchange
from tests.unit.recommender_examples import dcn, dlrm, loaded

SAMPLES = 2048
OPTIONS: dict[str, dict[str, Any]] = {
    "FmOrder2": {"out_dim": 4},
    "InnerProduct": {"fc_param": {"num_output": 8}},
    "FusedInnerProduct": {"fc_param": {"num_output": 8}},
    "MultiCross": {"mc_param": {"num_layers": 2}},
    "MultiCrossEntropyLoss": {"target_weight": [1.0] * 16},
    "Slice": {"ranges": [[0, 16]]},
    "WeightMultiply": {"weight_dims": [16, 2]},
}
TWO_INPUTS = ("Add", "DotProduct", "MultiCrossEntropyLoss")


def block_of(run: RecommenderRun) -> tuple[BlockTasks, EndTasks]:
    """Return the one block of a step and its end."""
    (stage,) = recommender_step(run).stages
    ((block, _),) = stage.chunks[0].blocks
    return block, stage.end


def named(tasks: list[Task]) -> list[str]:
    """Return what runs, in order."""
    return [task.name for task in tasks]


def torch_run(content: dict[str, Any]) -> RecommenderRun:
    """Return a run of the trainer on torch, whose backward products are measured ones."""
    return replace(loaded(content).run, engine=Engine.TORCHREC, cuda_graphs=False)


def call(kind: str, run: RecommenderRun, needs_gradient: bool) -> tuple[list[Task], list[Task]]:
    """Return forward and backward tasks of a layer of 16 columns."""
    inputs = (TensorShape(1, 16),) * (2 if kind in TWO_INPUTS else 1)
    if kind in ("BinaryCrossEntropyLoss", "CrossEntropyLoss"):
        inputs = (TensorShape(1, 2 if kind == "CrossEntropyLoss" else 1), TensorShape(1, 1))
    if kind == "Interaction":
        inputs = (TensorShape(1, 16), TensorShape(3, 16, is_3d=True))
    bottom = [f"in{number}" for number in range(len(inputs))]
    layer = dense_layer({"name": "it", "type": kind, "bottom": bottom, "top": "out", **OPTIONS.get(kind, {})})
    return layer_tasks(layer, LayerCall(run, SAMPLES, inputs, layer.shapes(inputs), needs_gradient))


@pytest.mark.parametrize("kind", sorted(LAYER_TYPES))
def test_every_layer_type_has_tasks(kind: str) -> None:
    forward, _ = call(kind, loaded(dcn()).run, needs_gradient=True)
    assert (len(forward) > 0) is (kind != "Reshape")  # a view runs nothing
    for task in forward:
        assert all(size == int(size) and size > 0 for size in task.shape)


@pytest.mark.parametrize("kind", ["ReLU", "Concat", "Add", "Slice", "ReduceSum", "Cast"])
def test_layer_on_data_alone_has_no_backward_pass(kind: str) -> None:
    run = loaded(dcn()).run
    assert call(kind, run, needs_gradient=True)[1]
    assert not call(kind, run, needs_gradient=False)[1]


def test_first_layer_has_no_data_gradient() -> None:
    graphs, eager = loaded(dcn()).run, torch_run(dcn())
    whole, first = (call("InnerProduct", graphs, needs)[1] for needs in (True, False))
    assert [task.shape for task in whole] == [(SAMPLES, 16, 8), (SAMPLES, 8, 16)]
    assert [task.shape for task in first] == [(SAMPLES, 16, 8)]
    (half,) = call("InnerProduct", eager, False)[1]
    assert (half.direction, half.times) == (BACKWARD, 0.5)


def test_cross_layers_with_a_projection_are_products() -> None:
    run = torch_run(dcn(projection_dim=24))
    products = [task for task in network_tasks(run).after.forward if task.operator.name == "mlp_linear"]
    assert [(task.shape, task.times) for task in products[:2]] == [
        ((SAMPLES, 141, 24), 3.0),
        ((SAMPLES, 24, 141), 3.0),
    ]
    assert "cross_layer" in named(network_tasks(torch_run(dcn())).after.forward)


def test_bottom_network_is_what_needs_no_embedding() -> None:
    before, after = network_tasks(loaded(dlrm()).run)
    assert named(before.forward) == ["mlp_linear", "relu"] * 2
    assert named(after.forward)[0] == "dot_interaction"
    assert named(after.backward)[-1] == "dot_interaction"


def test_exchange_runs_beside_the_bottom_network() -> None:
    block, _ = block_of(loaded(dlrm()).run)
    exchanges = [overlap for overlap in block.forward.overlaps if overlap.traffic[0].part is Part.EMBEDDING_EXCHANGE]
    (overlap,) = exchanges
    assert named(overlap.traffic) == ["all_to_all"]
    assert named(overlap.behind) == ["mlp_linear", "relu"] * 2
    assert all(task.part is not Part.EMBEDDING_EXCHANGE for task in block.forward.tasks)


def test_without_overlaps_all_traffic_is_in_turn() -> None:
    run = replace(loaded(dlrm()).run, overlap_input=False, overlap_embeddings=False, overlap_gradients=False)
    block, end = block_of(run)
    assert not block.forward.overlaps
    assert not block.backward.overlaps
    parts = {task.part for task in block.forward.tasks}
    assert {Part.INPUT, Part.EMBEDDING_EXCHANGE} <= parts
    assert named(end.reduction) == ["all_reduce"]


def test_row_wise_tables_scatter_and_gather() -> None:
    run = replace(loaded(dcn()).run, overlap_embeddings=False)
    block, _ = block_of(run)
    forward = [task.name for task in block.forward.tasks if task.part is Part.EMBEDDING_EXCHANGE]
    backward = [task.name for task in block.backward.tasks if task.part is Part.EMBEDDING_EXCHANGE]
    assert (forward, backward) == (["reduce_scatter"], ["all_gather"])


def test_keys_travel_in_three_all_to_alls() -> None:
    run = replace(loaded(dlrm()).run, overlap_input=False)
    inputs = [task.name for task in block_of(run)[0].forward.tasks if task.part is Part.INPUT]
    assert inputs == ["host_to_device", "kjt_permute", *["all_to_all"] * 3, "kjt_permute"]


def test_one_rank_sends_nothing() -> None:
    block, end = block_of(loaded(dlrm(), gpus=1).run)
    collectives = {"all_to_all", "all_reduce", "reduce_scatter", "all_gather"}
    assert not collectives & {task.name for task in [*block.calls(), *end.calls()]}


def test_global_adam_updates_all_rows() -> None:
    run = loaded(dcn()).run
    updates = [task for task in block_of(run)[0].backward.tasks if task.part is Part.EMBEDDING_UPDATE]
    keys, merged, stepped = updates
    assert keys.name == "key_sort"
    assert merged.shape[-1] == 0  # gradients by row alone
    assert stepped.name == "adam_step"
    assert stepped.shape[0] * 2 * run.element_bytes == pytest.approx(28 * 50_000 * 16)
    eager = [task for task in block_of(torch_run(dcn()))[0].backward.tasks if task.part is Part.EMBEDDING_UPDATE]
    assert (eager[1].operator.name, eager[1].shape, eager[1].times) == ("optimizer_step", (50_000 * 16, 1), 1.0)


@pytest.mark.parametrize("update", ["Local", "LazyGlobal"])
def test_local_update_touches_looked_up_rows(update: str) -> None:
    run = loaded(dcn(optimizer={"update_type": update})).run
    assert run.model.optimizer is not None
    assert run.model.optimizer.update is UpdateType(update)
    keys, merged = [task for task in block_of(run)[0].backward.tasks if task.part is Part.EMBEDDING_UPDATE]
    assert keys.name == "key_sort"
    assert merged.operator.name == "embedding_update"
    assert merged.shape[-1] == 2


def test_mixed_precision_halves_what_travels_and_keeps_rows() -> None:
    full, mixed = (block_of(replace(loaded(dlrm(), precision=name).run, overlap_embeddings=False)) for name in
                   ("fp32", "fp16"))  # fmt: skip
    sizes = [
        [task.shape[0] for task in block.forward.tasks if task.part is Part.EMBEDDING_EXCHANGE]
        for block, _ in (full, mixed)
    ]
    assert sizes[0] == [2 * size for size in sizes[1]]
    lookups = [[task.shape for task in block.forward.tasks if task.operator.name == "embedding_bag"]
               for block, _ in (full, mixed)]  # fmt: skip
    assert lookups[0] == lookups[1]
    assert "mixed_precision" in named(mixed[1].optimizer)
    assert "mixed_precision" not in named(full[1].optimizer)


def test_last_bucket_travels_beside_the_update() -> None:
    content = dlrm()
    content["layers"][5]["fc_param"] = {"num_output": 600_000}  # 26 million weights and more: several buckets
    block, _ = block_of(torch_run(content))
    last, others = [overlap for overlap in block.backward.overlaps if overlap.traffic[0].part is Part.DATA_PARALLEL]
    assert named(last.behind) == ["embedding_update"]
    assert last.traffic[0].times == pytest.approx(1.0)
    assert others.traffic[0].times >= 1.0
    assert others.traffic[0].shape == last.traffic[0].shape


def test_gradients_of_several_nodes_are_summed_in_steps() -> None:
    run = replace(loaded(dlrm(), gpus=4).run, gpus_per_node=2)
    block, _ = block_of(run)
    (whole,) = [overlap for overlap in block.backward.overlaps if overlap.traffic[0].part is Part.DATA_PARALLEL]
    assert named(whole.traffic) == ["reduce_scatter", "all_reduce", "all_gather"]
    assert [task.shape[1:] for task in whole.traffic] == [(1, 2), (run.num_gpus // 2, 1), (1, 2)]


def test_partial_sums_of_a_node_are_added_before_they_cross_the_network() -> None:
    run = replace(loaded(dlrm(), gpus=4).run, gpus_per_node=2)
    nodes = run.num_gpus // 2
    tables = tuple(
        replace(entry, sharding=Sharding.TABLE_ROW_WISE, ranks=(number % nodes * 2, number % nodes * 2 + 1))
        for number, entry in enumerate(run.plan.tables)
    )
    plan = replace(run.plan, tables=tables)
    plan.check()
    run = replace(run, plan=plan)
    tasks = pooled_exchange(run, exchange(run, all_traffic(run)), backward=False)
    on_one = tuple(replace(entry, sharding=Sharding.TABLE_WISE, ranks=entry.ranks[:1]) for entry in tables)
    whole = replace(run, plan=replace(plan, tables=on_one))
    apart = pooled_exchange(whole, exchange(whole, all_traffic(whole)), backward=False)
    assert named(tasks) == ["all_to_all", "reduce_scatter"]
    assert tasks[0].shape == (apart[0].shape[0] // 2, nodes, 1)
    assert tasks[1].shape[1:] == (1, 2)


@pytest.mark.parametrize(("precision", "moved"), [("fp32", (16, 24)), ("fp16", (18, 34))])
def test_sok_exchanges_the_row_of_every_key(precision: str, moved: tuple[int, int]) -> None:
    # Bytes per element of a row: put in order 8, cast 6 in mixed precision, concatenated 8 or 4; backward unscaled 8 in
    # mixed precision, and added up 8.
    run = replace(loaded(dlrm(), precision=precision).run, engine=Engine.SOK, cuda_graphs=False)
    block, _ = block_of(run)
    elements = run.batch_per_gpu * sum(sum(layer.hotness) * layer.width for layer in run.model.embeddings)
    for step_pass, size in zip((block.forward, block.backward), moved, strict=True):
        sent = [task for task in step_pass.calls() if task.part is Part.EMBEDDING_EXCHANGE]
        assert [(task.name, task.shape[0]) for task in sent] == [("all_to_all", elements * 4)]
        (rows,) = [task for task in step_pass.tasks if task.name == "sok_rows"]
        assert rows.shape[0] * 2 * run.element_bytes == pytest.approx(elements * size)


def test_graphs_are_one_launch_per_pass() -> None:
    run = loaded(dcn()).run
    graph, eager = block_of(run)[0].host, block_of(replace(run, cuda_graphs=False))[0].host
    assert graph is not None
    assert eager is not None
    assert (graph.forward, graph.backward) == (1.0, 1.0)
    assert eager.forward > 20.0


def test_gradients_of_a_tensor_with_two_readers_are_added() -> None:
    content = dlrm()
    content["layers"].insert(5, {"name": "again", "type": "Concat", "bottom": ["pairs", "dense2"], "top": "pairs2"})
    content["layers"][6]["bottom"] = "pairs2"
    before, after = network_tasks(loaded(content).run)
    (bottom,) = [task for task in before.backward if task.name == "residual_add"]
    assert "residual_add" not in named(after.backward)
    assert (bottom.shape, bottom.times) == ((SAMPLES, 32), 1)
    assert named(before.backward)[0] == "residual_add"


def test_torch_takes_slices_as_views_and_pads_their_gradients() -> None:
    forward, backward = network_tasks(torch_run(dcn())).after
    copied = network_tasks(loaded(dcn()).run).after
    width = 8 * 16 + 13
    assert named(copied.forward)[:2] == ["tensor_copy", "tensor_copy"]  # joined and sliced
    assert named(forward)[0] == "tensor_copy"
    assert named(forward)[1] != "tensor_copy"
    padded = [task for task in backward if task.shape == (3 * SAMPLES * width,)]  # two of zeros, two copied slices
    assert named(padded) == ["tensor_copy"]


def test_hugectr_sums_all_gradients_at_once() -> None:
    block, _ = block_of(loaded(dlrm()).run)
    (reduction,) = [overlap for overlap in block.backward.overlaps if overlap.traffic[0].part is Part.DATA_PARALLEL]
    assert [(task.name, task.times) for task in reduction.traffic] == [("all_reduce", 1)]
    assert named(reduction.behind) == ["key_sort", "embedding_update"]


def test_a_processor_copies_no_input() -> None:
    for overlap in (False, True):
        run = replace(loaded(dlrm()).run, overlap_input=overlap, copies_input=False)
        block, _ = block_of(run)
        assert all(
            task.name != "host_to_device" for step_pass in (block.forward, block.backward) for task in step_pass.calls()
        )


def test_the_trainer_sends_keys_within_their_own_step() -> None:
    assert loaded(dlrm()).run.overlap_input
    assert not loaded(dlrm(prediction={"engine": "torchrec"})).run.overlap_input
    assert loaded(dlrm(prediction={"engine": "torchrec", "overlap_input": True})).run.overlap_input
