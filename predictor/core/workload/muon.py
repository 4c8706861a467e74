"""Muon: momentum of a weight matrix is orthogonalised by five Newton-Schulz iterations before it updates the weight.

Matrices of layers are Muon's; embeddings, norms, biases and the output projection are Adam's. X is a matrix, or its
transpose, of so many rows m and no fewer columns n, in 16 bits: an iteration multiplies X Xᵀ, its square, and the sum
of both with X, 4 m² n + 2 m³ FLOPs. The products are timed as linear layers of their shapes. Tensor-parallel ranks
orthogonalise their own part (blockwise).

Where states are shared out (ZeRO-1 and 2), a rank updates whole matrices: as even a share of all as the largest one
allows (Megatron-LM's layer-wise optimizer). Shards of FSDP are DTensors: ranks that hold rows of X gather X for two of
the products, and the square's factor; ranks that hold columns sum X Xᵀ and square it each.

DeepSpeed iterates on X Xᵀ instead (Gram Newton-Schulz) where X is not square: it, and what multiplies X, is computed
twice, beside 14 products of m x m.

Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; Liu et al. 2025, arXiv:2502.16982; PyTorch
torch/optim/_muon.py (_zeropower_via_newtonschulz), torch/distributed/tensor/_ops/_matrix_ops.py; Megatron-LM core
v0.19.2, megatron/core/optimizer/emerging_optimizers.py and layer_wise_optimizer.py; DeepSpeed 0.19.8,
runtime/zero/muon/original_muon.py (zeropower_via_gram_newtonschulz) and runtime/zero/stage_1_and_2.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import Topology
from predictor.core.costs.work import ELEMENT_BYTES
from predictor.core.rows import Kind, Matrix
from predictor.core.workload.layer_table import kept_rows
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.software import ON_DEEPSPEED, ON_MEGATRON_CORE
from predictor.core.workload.tasks import FORWARD, Part, Task, collective_task, parameter_stream_task

ITERATIONS = 5
# Of Gram Newton-Schulz, which restarts after two iterations: of X Xᵀ and with X, and of m x m.
GRAM_PRODUCTS, GRAM_SQUARES = 2, 14
# Beside the products, per parameter: the fp32 momentum and the gradient are read, that is written (12) and Nesterov's
# step from both (12), which is narrowed (6), normalised by its norm (2 + 4), and added to the decayed fp32 weight
# (8 + 10).
MOMENTUM_BYTES = 54
# Launches of a matrix beside its products: a kernel each for momentum (2), narrowing, norm (2), division,
# scaling, decay and update.
LAUNCHES = 9
OPERATOR = "attention_output"  # any linear layer; all are one family


class Matrices(NamedTuple):
    """Equal matrices of a stage on one tensor-parallel rank: fewer rows than columns, or as many.

    Attributes:
        is_transposed: rows of the weight, which FSDP shards, are their columns.
        routed: of experts.
        is_gram: iterations are on its square.
    """

    rows: int
    columns: int
    number: float
    is_transposed: bool
    routed: bool
    is_gram: bool = False

    @property
    def products(self) -> tuple[int, int]:
        """Return how many products of one have a dimension of columns, half of each shape, and how many have not."""
        if self.is_gram and self.rows < self.columns:
            return 2 * GRAM_PRODUCTS, GRAM_SQUARES
        return 2 * ITERATIONS, ITERATIONS

    @property
    def flops(self) -> float:
        """Return the FLOPs of one's orthogonalisation."""
        oblong, square = self.products
        return 2.0 * self.rows**2 * (oblong * self.columns + square * self.rows)


def matrices(run: TrainingRun, stage: int) -> Iterator[Matrices]:
    """Return the matrices of a stage's layers; Megatron-LM splits queries, keys and values, and joins gate and up."""
    is_gram = run.framework in ON_DEEPSPEED
    for kind, layers in run.stage_kinds(stage).items():
        for row in kept_rows(run, kind):
            if row.kind is not Kind.PRODUCT or not row.trains or not row.weights or row.forward is None:
                continue
            *_, inputs, outputs = row.forward.shape
            count = float(layers * max(1, int(row.weights) // (inputs * outputs)))
            joined = run.framework in ON_MEGATRON_CORE and row.matrix is not Matrix.QKV
            for share in (1.0,) if joined else row.parts:
                part = round(outputs * share)
                yield Matrices(min(part, inputs), max(part, inputs), count, part > inputs, row.routed, is_gram)


def _product(shape: tuple[int, int, int], times: float) -> Task:
    return Task("newton_schulz", catalogue()[OPERATOR], FORWARD, shape, times, Part.OPTIMIZER, 0)


def _whole(one: Matrices, share: float) -> list[Task]:
    """Return the products of whole matrices, of which a rank has a share."""
    m, n, times = one.rows, one.columns, one.number * share
    oblong, square = (each * times for each in one.products)
    return [_product((m, n, m), oblong / 2), _product((m, m, m), square), _product((m, m, n), oblong / 2)]


def _sharded(one: Matrices, group: Topology) -> list[Task]:
    """Return the products of matrices whose weights' rows are shared out, with the traffic between them."""
    ranks, times = group.ranks, ITERATIONS * one.number
    m, n = one.rows, one.columns
    if one.is_transposed:
        each = -(-n // ranks)
        summed = collective_task("all_reduce", m * m * ELEMENT_BYTES, group, Part.DATA_PARALLEL, times)
        return [_product((m, each, m), times), *summed, _product((m, m, m), times), _product((m, m, each), times)]
    each = -(-m // ranks)
    products = [_product((each, n, m), times), _product((each, m, m), times), _product((each, m, n), times)]
    gathers = collective_task("all_gather", each * n * ELEMENT_BYTES, group, Part.DATA_PARALLEL, 2 * times)
    return [
        *products,
        *gathers,
        *collective_task("all_gather", each * m * ELEMENT_BYTES, group, Part.DATA_PARALLEL, times),
    ]


class MuonUpdate(NamedTuple):
    """What Muon runs on a rank, and the launches of it."""

    tasks: list[Task]
    launches: float


def muon_update(run: TrainingRun, stage: int, parameters: float) -> MuonUpdate:
    """Return the update of a stage's matrices, so many parameters of which are a rank's own."""
    layout, size = run.layout, run.zero_ranks
    found = list(matrices(run, stage))
    tasks = [parameter_stream_task("muon_momentum", parameters * MOMENTUM_BYTES, run.call(), Part.OPTIMIZER)]
    launches = 0.0
    for routed in (False, True):
        alike = [one for one in found if one.routed is routed]
        group = layout.expert_sharing_group(size) if routed else layout.sharing_group(size)
        total = sum(one.flops * one.number for one in alike)
        if not total:
            continue
        share = 1.0
        if run.zero_stage in (1, 2):
            share = max(1.0 / group.ranks, max(one.flops for one in alike) / total)
        for one in alike:
            tasks += _sharded(one, group) if run.zero_stage >= 3 and group.ranks > 1 else _whole(one, share)
            launches += one.number * share * (sum(one.products) + LAUNCHES)
    return MuonUpdate(tasks, launches)
