"""Bytes on one GPU: rows and their optimizer states, the dense replica, activations, and buffers.

Buffers hold the input, what is exchanged, and rows that are fetched from the host.
Every tensor of the dense network is kept from its forward to its backward pass; gradients of activations are written
over them, as in HugeCTR, but for the largest layer's, which exist beside.
"""

from __future__ import annotations

from predictor.core.workload.step_tasks import BlockMemory, StageStates
from predictor.recommender.workload.cache_tasks import missed_bytes
from predictor.recommender.workload.embedding_tasks import input_bytes
from predictor.recommender.workload.layers import LossLayer
from predictor.recommender.workload.plan import Sharding
from predictor.recommender.workload.run import RecommenderRun
from predictor.recommender.workload.traffic import Exchange, Lookups, RankTraffic

FP32_BYTES = 4
# That trains, whose keys travel, that is copied. Source: TorchRec, train_pipelines.py, TrainPipelineSparseDist.
BATCHES_READ = 3


def _states(group: Lookups) -> int:
    return 0 if group.optimizer is None else group.optimizer.kind.num_states


def held(run: RecommenderRun, group: Lookups) -> float:
    """Return the weights of a group that lie in device memory."""
    return group.parameters * (1.0 if group.sharding is Sharding.DATA_PARALLEL else run.cached_share)


def _row_gradients(group: Lookups) -> float:
    """Return the weights that a group's gradients cover: all rows where all are updated, else touched ones."""
    if group.updates_all_rows or group.sharding is Sharding.DATA_PARALLEL:
        return group.parameters
    return group.touched * group.width


def embedding_bytes(run: RecommenderRun, traffic: RankTraffic) -> float:
    """Return the bytes of a rank's rows, their optimizer states and their gradients.

    Rows that a step fetches from the host, all that are not there where all are updated, need room with their states.
    """
    kept = sum(held(run, group) * (1 + _states(group)) + _row_gradients(group) for group in traffic.groups)
    return FP32_BYTES * kept + missed_bytes(run, traffic.rank)


def fullest(run: RecommenderRun, traffic: tuple[RankTraffic, ...]) -> RankTraffic:
    """Return the rank with the most bytes of embeddings."""
    return max(traffic, key=lambda rank: embedding_bytes(run, rank))


def states_of(run: RecommenderRun, traffic: RankTraffic, sent: Exchange) -> StageStates:
    """Return what a rank holds throughout the step."""
    dense = run.model.dense_parameters
    dense_states = 0 if run.model.optimizer is None else run.model.optimizer.kind.num_states
    copies = run.element_bytes if run.is_mixed else 0  # of the weights, for products
    pooled = max(sent.pooled, traffic.pooled) + sent.partial * run.num_gpus
    exchanged = 2 * pooled * run.element_bytes if run.num_gpus > 1 else 0.0  # sent and received
    read = BATCHES_READ if run.overlap_input else 1
    buffers = exchanged + read * (input_bytes(run) + traffic.lookups * run.key_bytes) + missed_bytes(run, traffic.rank)
    return StageStates(
        weights=FP32_BYTES * sum(held(run, group) for group in traffic.groups) + (FP32_BYTES + copies) * dense,
        gradients=FP32_BYTES * sum(map(_row_gradients, traffic.groups)) + run.gradient_bytes * dense,
        optimizer=FP32_BYTES
        * (sum(_states(group) * held(run, group) for group in traffic.groups) + dense_states * dense),
        buffers=buffers,
    )


def activations(run: RecommenderRun) -> BlockMemory:
    """Return the tensors of one rank's share of a batch: all outputs, and the largest layer's gradients."""
    model, samples = run.model, run.batch_per_gpu
    layers = [layer for layer in model.layers if not isinstance(layer, LossLayer)]
    sizes = {name: model.shapes[name].elements for layer in layers for name in layer.outputs}
    sizes |= {embedding.output: model.shapes[embedding.output].elements for embedding in model.embeddings}
    width = run.element_bytes * samples
    return BlockMemory(kept=width * sum(sizes.values()), working=width * max(sizes.values(), default=0))
