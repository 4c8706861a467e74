"""Tasks of the embeddings on one rank: the input's way to its owners, lookup, exchange, and update of rows.

The exchange is TorchRec's (distributed/dist_data.py): three all-to-alls for the keys, splits, lengths and values; then
an all-to-all of pooled vectors of table- and column-wise tables, a reduce-scatter of the partial sums of row-wise ones.
Gradients go back by an all-to-all and an all-gather. Lookups read fp32 rows and write pooled vectors in the precision
of the exchange, as HugeCTR's and FBGEMM's kernels do.
"""

from __future__ import annotations

from predictor.core.costs.operators.embedding_update import SORT_BYTES
from predictor.core.costs.streams import ADAM_BYTES
from predictor.core.workload.tasks import BACKWARD, FORWARD, Part, Task, collective_task, shaped_task
from predictor.recommender.workload.dense_tasks import streamed_bytes
from predictor.recommender.workload.optimizer import Optimizer
from predictor.recommender.workload.plan import Sharding
from predictor.recommender.workload.run import Engine, RecommenderRun
from predictor.recommender.workload.traffic import Exchange, Lookups, RankTraffic

FP32_BYTES, LENGTH_BYTES, SPLIT_BYTES = 4, 4, 8
# HugeCTR's kernels of keys, each as long as a stream of so many bytes per key. Per step of DLRM-DCNv2 on eight B200, of
# 1.48 million keys a GPU, label_and_count_keys and swizzle_keys take 0.13 and 0.04 ms, the radix sort 0.18 ms; a stream
# moves 7.1 TB in a second. Source: github.com/chriscai-amd/training_results_v5.1, NVIDIA/benchmarks/dlrm_dcnv2,
# README-b200-1x8.md, "Top kernels in the training window", trace with the plan "auto". What ``embedding_update`` counts
# for sorting itself is taken off.
OWNED_KEY_BYTES = 0.17e-3 * 7.1e12 / 1.48e6
SORTED_KEY_BYTES = 0.18e-3 * 7.1e12 / 1.48e6 - SORT_BYTES


def _whole(value: float) -> int:
    return max(1, round(value))


def optimizer_task(run: RecommenderRun, optimizer: Optimizer, parameters: float, tensors: int, part: Part) -> Task:
    """Return an optimizer's step over fp32 weights: weights, gradients, states read, weights and states written.

    HugeCTR updates a buffer of all weights in one kernel, which is timed by its bytes. PyTorch goes from tensor to
    tensor; that is Adam's measured step, in proportion to the bytes.
    """
    moved = FP32_BYTES * (3 + 2 * optimizer.kind.num_states)
    name = f"{optimizer.kind.lower()}_step"
    if run.engine is Engine.HUGECTR:
        return streamed_bytes(name, moved * parameters, run, part)
    task = shaped_task("optimizer_step", (_whole(parameters), max(1, tensors)), FORWARD, moved / ADAM_BYTES)
    return task._replace(name="optimizer_step" if moved == ADAM_BYTES else name, part=part, launches=1)


def key_index_tasks(run: RecommenderRun, traffic: RankTraffic, backward: bool) -> list[Task]:
    """Return what HugeCTR does with keys alone: their owners, their order there, and before the update their sorting.

    They are too irregular for the rate of a stream, so they are timed by what a trace of them says. TorchRec's keys are
    permuted on their way (``key_tasks``).
    """
    if run.engine is not Engine.HUGECTR:
        return []
    if backward:
        name, keys, size, part = "key_sort", traffic.lookups, SORTED_KEY_BYTES, Part.EMBEDDING_UPDATE
    else:
        name, size, part = "key_owners", OWNED_KEY_BYTES, Part.EMBEDDING_LOOKUP
        keys = run.batch_per_gpu * sum(sum(layer.hotness) for layer in run.model.embeddings)
    return [streamed_bytes(name, keys * size, run, part)] if keys else []


def lookup_tasks(traffic: RankTraffic) -> list[Task]:
    """Return the lookups of one rank, a kernel per group of tables."""
    return [
        shaped_task(
            "embedding_bag",
            (_whole(group.bags), _whole(group.lookups), _whole(group.touched), group.width),
            FORWARD,
        )._replace(part=Part.EMBEDDING_LOOKUP)
        for group in traffic.groups
    ]


def _update(run: RecommenderRun, group: Lookups) -> list[Task]:
    """Return what a group's gradients run into.

    Rows that the batch touched; or, where moments of all rows decay, gradients by row and then a step over all rows. A
    data-parallel table's gradients are added up like the dense network's, and its step follows there.
    """
    optimizer = group.optimizer
    if optimizer is None:
        return []
    dense = group.updates_all_rows or group.sharding is Sharding.DATA_PARALLEL
    states = 0 if dense else optimizer.kind.num_states
    shape = (_whole(group.lookups), _whole(group.touched), group.width, states)
    tasks = [shaped_task("embedding_update", shape, FORWARD)._replace(part=Part.EMBEDDING_UPDATE)]
    if group.updates_all_rows and group.sharding is not Sharding.DATA_PARALLEL:
        tasks.append(optimizer_task(run, optimizer, group.parameters, group.tables, Part.EMBEDDING_UPDATE))
    return tasks


def update_tasks(run: RecommenderRun, traffic: RankTraffic) -> list[Task]:
    """Return the update of one rank's rows."""
    return [task for group in traffic.groups for task in _update(run, group)]


def replica_steps(run: RecommenderRun, traffic: RankTraffic) -> list[Task]:
    """Return the optimizer's steps over data-parallel tables, which run behind the sum of their gradients."""
    return [
        optimizer_task(run, group.optimizer, group.parameters, group.tables, Part.OPTIMIZER)
        for group in traffic.groups
        if group.sharding is Sharding.DATA_PARALLEL and group.optimizer is not None
    ]


def pooled_exchange(run: RecommenderRun, sent: Exchange, backward: bool) -> list[Task]:
    """Return the exchange of pooled vectors, or of their gradients; with SOK that of every key's row."""
    group, width = run.group(), run.element_bytes
    if run.engine is Engine.SOK:
        return collective_task("all_to_all", row_elements(run) * FP32_BYTES, group, Part.EMBEDDING_EXCHANGE)
    sums = "all_gather" if backward else "reduce_scatter"
    # What a node's ranks added up is at the rank that sends it on along its rail (TorchRec, twrw_sharding.py).
    across = run.rail() if sent.within else group
    tasks = collective_task("all_to_all", sent.pooled * width, across, Part.EMBEDDING_EXCHANGE)
    tasks += collective_task(sums, sent.within * width, run.node(), Part.EMBEDDING_EXCHANGE)
    return tasks + collective_task(sums, sent.partial * width, group, Part.EMBEDDING_EXCHANGE)


def row_elements(run: RecommenderRun) -> float:
    """Return the elements of the rows that one rank's share of a batch names."""
    return run.batch_per_gpu * sum(sum(layer.hotness) * layer.width for layer in run.model.embeddings)


def _sok_rows(run: RecommenderRun, backward: bool) -> list[Task]:
    """Return what TensorFlow does with exchanged fp32 rows, a read and a write each.

    Forward they are put in the order of keys, cast in mixed precision, and concatenated with the dense vector.
    Backward the same; then gradients are unscaled in mixed precision, and those of one row added up.

    Source: HugeCTR, SOK's DLRM_Benchmark, model.py and trainer.py; tf.keras.mixed_precision (casts of inputs).
    """
    number = run.element_bytes
    moved = 2 * FP32_BYTES + (FP32_BYTES + number if run.is_mixed else 0) + 2 * number
    if backward:
        moved += 2 * FP32_BYTES * (2 if run.is_mixed else 1)
    return [streamed_bytes("sok_rows", row_elements(run) * moved, run, launches=4)]


def reordering(run: RecommenderRun, sent: Exchange, backward: bool) -> list[Task]:
    """Return the copy between the order of ranks, as vectors travel, and that of slots."""
    if run.engine is Engine.SOK:
        return _sok_rows(run, backward)
    if run.num_gpus == 1 or not sent.pooled:
        return []
    return [shaped_task("tensor_copy", (_whole(sent.pooled),), BACKWARD if backward else FORWARD)]


def input_bytes(run: RecommenderRun) -> float:
    """Return the bytes of one rank's share of a batch: labels, dense features and keys."""
    model = run.model
    keys = sum(sum(layer.hotness) for layer in model.embeddings)
    return run.batch_per_gpu * ((model.label_dim + model.dense_dim) * FP32_BYTES + keys * run.key_bytes)


def copy_tasks(run: RecommenderRun) -> list[Task]:
    """Return the copy of the input from the host, where there is any."""
    if not run.copies_input:
        return []
    return [shaped_task("host_to_device", (_whole(input_bytes(run)),), FORWARD)._replace(part=Part.INPUT)]


def key_tasks(run: RecommenderRun, sent: Exchange, traffic: RankTraffic) -> list[Task]:
    """Return the way of the keys to the ranks that hold their rows; none where every rank has its own."""
    if run.num_gpus == 1 or not sent.keys:
        return []
    group, features = run.group(), _whole(sent.features)
    sent_keys = shaped_task("kjt_permute", (features, _whole(sent.keys)), FORWARD)._replace(part=Part.INPUT)
    arrived = sent_keys._replace(shape=(features, _whole(traffic.keys)))
    splits = collective_task("all_to_all", 2 * SPLIT_BYTES * run.num_gpus, group, Part.INPUT)
    lengths = collective_task("all_to_all", LENGTH_BYTES * sent.lengths, group, Part.INPUT)
    values = collective_task("all_to_all", run.key_bytes * sent.keys, group, Part.INPUT)
    return [sent_keys, *splits, *lengths, *values, arrived]
