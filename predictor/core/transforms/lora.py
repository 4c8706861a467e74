"""Low-rank adapters: beside a linear layer whose weights are frozen, two narrow ones train.

Base weights have no gradients and no optimizer states; the gradient of their input is computed as ever.
Source: Hu et al. 2021, arXiv:2106.09685; Megatron-Bridge, src/megatron/bridge/peft/lora.py and utils.py
(ParallelLinearAdapter: how tensor parallelism splits an adapter; share_expert_adapters).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, Field

from predictor.core.base.fields import Count, Switch, names
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import Topology
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import both, stream, traffic
from predictor.core.rows import FP32_BYTES, MASK_BYTES, OF_FFN, Kept, Kind, Module, Role, Row, Split, dropout_bytes
from predictor.core.transforms.dora import Dora, dora_rows
from predictor.core.transforms.expert_weights import merged_rows
from predictor.core.transforms.few_bits import QuantizedBase
from predictor.core.workload.tasks import ADD_PASSES, Part

# PEFT keeps adapters in fp32 (``autocast_adapter_dtype``) and widens a copy of their input, drops it out in fp32 and
# narrows it again in torch.autocast; backward the same kernels run in reverse on the gradient. Each adapter does so by
# itself: those of queries, keys and values read one activation three times. Both weights are narrowed in every pass.
# Source: huggingface/peft src/peft/tuners/lora/layer.py (Linear.forward), tuners_utils.py (cast_adapter_dtype);
# pytorch aten/src/ATen/autocast_mode.h (lower_precision_fp).
CASTS = 2
# The adapter's output is scaled, a read and a write, and added to the layer's; backward the gradient is scaled, and
# both layers' gradients of their input are added. Source: Megatron-Bridge, src/megatron/bridge/peft/lora_layers.py.
SCALE_PASSES = 2


class LoraTarget(StrEnum):
    """A linear layer that may have an adapter, in a layer's order.

    ``qkv`` is the projection of queries, keys and values in one (Megatron-LM's linear_qkv), ``q``, ``k`` and ``v`` are
    its parts with an adapter each (PEFT's q_proj, k_proj, v_proj); so are ``ffn_up`` and its parts ``gate`` and ``up``.
    ``q_down`` to ``kv_up`` are latent attention's, ``in_projection`` and ``out_projection`` those of Mamba-2, gated
    delta and recurrent layers. The FFN's are those of dense layers, of shared and of routed experts.
    """

    QKV = "qkv"
    Q = "q"
    K = "k"
    V = "v"
    Q_DOWN = "q_down"
    Q_UP = "q_up"
    KV_DOWN = "kv_down"
    KV_UP = "kv_up"
    IN_PROJECTION = "in_projection"
    OUT_PROJECTION = "out_projection"
    ATTENTION_OUTPUT = "attention_output"
    FFN_UP = "ffn_up"
    GATE = "gate"
    UP = "up"
    FFN_DOWN = "ffn_down"


PARTS = {
    LoraTarget.QKV: (LoraTarget.Q, LoraTarget.K, LoraTarget.V),
    LoraTarget.FFN_UP: (LoraTarget.GATE, LoraTarget.UP),
}
EVERY_LINEAR = tuple(target for target in LoraTarget if all(target not in parts for parts in PARTS.values()))
EVERY_PART = tuple(target for target in LoraTarget if target not in PARTS)  # of models with a module for each


def _quantized_base(value: object) -> object:
    """Return the bits of a switch, which was NF4's alone."""
    return (QuantizedBase.NF4 if value else None) if isinstance(value, bool) else value


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters train, the model's own weights do not (LoRA)."""

    rank: Annotated[Count, Field(description="width of an adapter")]
    targets: Annotated[
        tuple[LoraTarget, ...],
        BeforeValidator(names),
        Field(description="linear layers that have an adapter; all if absent"),
    ] = EVERY_LINEAR
    train_embeddings: Annotated[Switch, Field(description="embedding and output projection train too")] = False
    share_expert_adapters: Annotated[
        Switch, Field(description="the experts of a rank share one adapter; false: each has its own")
    ] = True
    normalize_moe_lora: Annotated[
        Switch, Field(description="rank over experts_per_token is the width of routed experts' adapters")
    ] = False
    all_to_all: Annotated[
        Switch,
        Field(description="outputs of row-parallel adapters are exchanged, not gathered (a2a_experimental)"),
    ] = False
    dropout: Annotated[
        float, Field(strict=True, ge=0.0, lt=1.0, description="of an adapter's input (PEFT's lora_dropout)")
    ] = 0.0
    fp32: Annotated[
        Switch | None,
        Field(
            description="adapters in fp32 beside a base in 16 bits, with casts of their input (PEFT); the framework's "
            "habit if absent"
        ),
    ] = None
    expert_weights: Annotated[
        Switch,
        Field(description="adapters of routed experts are added to their weights in every pass (target_parameters)"),
    ] = False
    dora: Annotated[
        Switch, Field(description="an adapter has a magnitude per output, and makes the matrix's norms anew (DoRA)")
    ] = False
    quantized_base: Annotated[
        QuantizedBase | None,
        BeforeValidator(_quantized_base),
        Field(
            description="weights of the base's linear layers in few bits: nf4 or true (QLoRA, blocks of 64), "
            "nf4_double (scales quantised too), or int8 (LLM.int8)"
        ),
    ] = None

    def expert_rank(self, experts_per_token: int) -> int:
        """Return the inner width of an adapter of routed experts."""
        return self.rank // experts_per_token if self.normalize_moe_lora else self.rank

    def chosen(self, row: Row) -> list[float]:
        """Return the shares of a product's output that have an adapter each; empty where it has none."""
        if row.kind is not Kind.PRODUCT or row.matrix is None:
            return []
        whole = LoraTarget(row.matrix)
        chosen = [1.0] if whole in self.targets else []
        parts = PARTS.get(whole, ())[-len(row.parts) :]  # an FFN without a gate has the up-projection alone
        return chosen + [share for part, share in zip(parts, row.parts, strict=False) if part in self.targets]


class AdapterSettings(NamedTuple):
    """Ranks that adapters are split over, and the experts of a rank.

    Attributes:
        group: tensor-parallel ranks.
        expert_group: ranks that split an expert.
        sequence_parallel: tensor-parallel ranks split the tokens where they do not split the layer.
        held: experts of a rank.
        routed: tokens of the busiest rank's experts.
        experts_per_token: of the router; 1 without experts.
        measured: products of a backward pass that the system measured by themselves.
    """

    group: Topology
    expert_group: Topology
    sequence_parallel: bool
    held: int = 0
    routed: float = 0.0
    experts_per_token: int = 1
    measured: frozenset[str] = frozenset()


class _Adapter(NamedTuple):
    """One adapter of a product, over so many rows, ``times`` of its kind on a rank."""

    row: Row
    inputs: int  # on one rank
    outputs: float
    rank: int
    tokens: int
    group: Topology
    times: float
    routed: bool

    @property
    def _place(self) -> str:
        """Return how names in the breakdown tell adapters of experts and of an FFN from a mixer's."""
        return "expert_" if self.row.module is Module.EXPERTS else "ffn_" if self.row.module in OF_FFN else ""

    def _product(self, name: str, shape: tuple[int, int, int]) -> Row:
        operator = catalogue()[self.row.operator.name]  # in the step's own precision
        passes = both(operator, shape, self.times)
        _, inputs, outputs = shape
        return Row(
            self._place + name,
            self.row.module,
            Kind.ADAPTER,
            operator,
            *passes,
            split=self.row.split,
            weights=inputs * outputs * (self.times if self.routed else 1),
            routed=self.routed,
            multiplications=inputs * outputs,
        )

    def _input_rows(self, call: LayerCall, lora: Lora) -> list[Row]:
        """Return the casts and the dropout of an adapter's input, and what its first product then keeps of its own."""
        narrow, drops = call.element_bytes, lora.dropout > 0.0
        widens = lora.fp32 and narrow < FP32_BYTES
        size_bytes = CASTS * (narrow + FP32_BYTES) if widens else 0
        size_bytes += (2 * FP32_BYTES + MASK_BYTES if widens else dropout_bytes(call)) if drops else 0
        if not size_bytes:
            return []
        elements = self.tokens * self.inputs * self.times
        launches = ((2 * CASTS if widens else 0) + drops) * self.times
        kept = Kept(Role.ADAPTER, float(elements * (narrow + MASK_BYTES * drops)))
        moved = elements * size_bytes
        name = self._place + "lora_input"
        return [stream(name, self.row.module, call, (moved, moved), (launches, launches), keeps=(kept,))]

    def rows(self, call: LayerCall, lora: Lora, settings: AdapterSettings) -> list[Row]:
        """Return what it runs.

        Of a column-parallel layer both matrices are split by their outputs; of a row-parallel one the first by its
        inputs, and the second by its outputs.
        """
        ranks, row = self.group.ranks, self.row
        narrow = self.rank // ranks if row.split is Split.COLUMN else self.rank
        outputs = int(self.outputs)
        up = outputs // ranks if row.split is Split.ROW else outputs
        return [
            self._product("lora_down", (self.tokens, self.inputs, narrow)),
            self._product("lora_up", (self.tokens, self.rank, up)),
            self._addition(call, 0 if lora.dora else outputs),
            *(self._magnitudes(call, lora, settings.measured) if lora.dora else []),
            *self._input_rows(call, lora),
            *self._traffic(call, settings.sequence_parallel, lora.all_to_all),
        ]

    def _addition(self, call: LayerCall, outputs: int) -> Row:
        """Return the scaling and the addition of so wide an output, and that of the gradients of both inputs."""
        moved = [SCALE_PASSES * outputs + ADD_PASSES * width for width in (outputs, self.inputs)]
        size_bytes = [self.tokens * each * call.element_bytes * self.times for each in moved]
        launches = 2 * self.times
        kept = Kept(Role.ADAPTER, float(self.tokens * self.rank * call.element_bytes))
        return stream(
            self._place + "lora_addition",
            self.row.module,
            call,
            (size_bytes[0], size_bytes[1]),
            (launches, launches),
            keeps=(kept,) if not self.row.routed else (),
        )

    def _magnitudes(self, call: LayerCall, lora: Lora, measured: Collection[str]) -> list[Row]:
        sizes = self.inputs, int(self.outputs), self.rank, self.tokens, self.times
        how = bool(lora.fp32), lora.dropout > 0.0, lora.quantized_base, measured
        return [row._replace(routed=self.routed) for row in dora_rows(Dora(self.row, self._place, *sizes, *how), call)]

    def _traffic(self, call: LayerCall, sequence_parallel: bool, all_to_all: bool) -> list[Row]:
        """Return the sums and gathers of an adapter over the ranks that split it.

        Beside a column-parallel layer the narrow activations are gathered, and backward the gradients of these and,
        unless tokens are split too, of its input are summed. Beside a row-parallel one narrow activations are summed,
        then whole outputs gathered, of which a rank keeps its tokens; backward those gradients are gathered again.

        Source: Megatron-Bridge, src/megatron/bridge/peft/utils.py, ParallelLinearAdapter (gather_output).
        """
        row, group = self.row, self.group
        if row.split is Split.WHOLE:
            return []

        def one(collective: str, size_bytes: float, forward: int, backward: int) -> list[Row]:
            part = Part.TENSOR_PARALLEL
            return traffic(collective, row.module, size_bytes, group, part, (forward, backward))

        narrow, ranks = self.tokens * self.rank * call.element_bytes, group.ranks
        if row.split is Split.COLUMN:
            whole = 0 if sequence_parallel else self.tokens * self.inputs * call.element_bytes
            rows = one("all_gather", narrow // ranks, 1, 0)
            return rows + one("all_reduce", narrow, 0, 1) + one("all_reduce", whole, 0, 1)
        share = self.tokens * int(self.outputs) * call.element_bytes // ranks
        summed = one("all_reduce", narrow, 1, 1)
        if all_to_all and sequence_parallel:
            return summed + one("all_to_all", share, 1, 1)
        return summed + one("all_gather", share, 1, 1 if sequence_parallel else 0)


def _adapters(row: Row, lora: Lora, call: LayerCall, settings: AdapterSettings) -> list[Row]:
    """Return the adapters of a product; the experts of a rank share one, over all their rows at once, or have one each.

    An adapter that the experts of a rank share is the same on all ranks. Source: Megatron-Bridge,
    src/megatron/bridge/peft/utils.py, mark_expert_parallel_replicated.
    """
    shares = lora.chosen(row)
    if not shares or row.forward is None:
        return []
    _, inputs, outputs = row.forward.shape
    of_experts = row.module is Module.EXPERTS
    if of_experts and lora.expert_weights:
        return merged_rows(row, lora.expert_rank(settings.experts_per_token), settings.held, call)
    rank, group, times, tokens = lora.rank, settings.group, 1.0, row.forward.shape[0]
    if of_experts:
        rank, group = lora.expert_rank(settings.experts_per_token), settings.expert_group
        times = 1.0 if lora.share_expert_adapters else float(settings.held)
        tokens = max(1, ceil(settings.routed / times))
    routed = of_experts and not lora.share_expert_adapters
    rows: list[Row] = []
    for share in shares:
        adapter = _Adapter(row, inputs, round(outputs * share), rank, tokens, group, times, routed)
        rows += adapter.rows(call, lora, settings)
    if of_experts:
        narrow = len(shares) * settings.routed * rank * call.element_bytes
        rows[0] = rows[0]._replace(keeps=(Kept(Role.ADAPTER, narrow),))
        rows = [row._replace(multiplications=row.multiplications * settings.experts_per_token) for row in rows]
    return rows


def _frozen(row: Row, unread: bool, call: LayerCall, measured: Collection[str]) -> Row:
    """Return a row of the base model: no gradients of its weights, and inputs kept only where an adapter reads them."""
    keeps = tuple(kept for kept in row.keeps if kept.role is not Role.NORMED)
    if row.kind is Kind.BIAS_GRADIENT:
        row = row._replace(backward=None)
    if row.kind is Kind.PRODUCT:
        row, reads = row.input_gradient(measured), row.reads
        if unread and reads is not None and not reads.shared and reads.role is not Role.NORMED:
            keeps = (*keeps, Kept(reads.role, -reads.elements * call.element_bytes))
    return row._replace(trains=False, keeps=keeps)


def _normed_again(rows: list[Row], lora: Lora, call: LayerCall) -> list[Kept]:
    """Return the norms' outputs that adapters keep, of each branch; a column-parallel layer's is kept gathered.

    Source: Megatron-Bridge, src/megatron/bridge/peft/utils.py (sequence_parallel_input_regather: False).
    """
    tokens: dict[bool, int] = {}
    for row in rows:
        if row.module is Module.EXPERTS or row.split is Split.ROW or not lora.chosen(row) or row.forward is None:
            continue
        if row.forward.shape[1] == call.hidden_size:
            tokens[row.module in OF_FFN] = row.forward.shape[0]
    return [Kept(Role.NORMED, float(each * call.hidden_size * call.element_bytes)) for each in tokens.values()]


def with_adapters(rows: list[Row], lora: Lora, call: LayerCall, settings: AdapterSettings) -> list[Row]:
    """Return a layer's rows with frozen weights and adapters beside its products, in the step's own precision."""
    adapted: list[Row] = []
    added: list[Row] = []
    for row in rows:
        adapters = _adapters(row, lora, call, settings)
        is_summed = lora.expert_weights and row.module is Module.EXPERTS and bool(adapters)
        frozen = _frozen(row, not adapters, call, settings.measured)
        adapted.append(row._replace(trains=False) if is_summed else frozen)  # sums have a gradient
        added += adapters
    if added and (normed := _normed_again(rows, lora, call)):
        added[0] = added[0]._replace(keeps=(*added[0].keeps, *normed))
    return adapted + added
