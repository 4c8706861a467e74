"""Low-rank adapters: beside a linear layer whose weights are frozen, two narrow ones train.

Base weights have no gradients and no optimizer states; the gradient of their input is computed as ever.
Source: Hu et al. 2021, arXiv:2106.09685; Megatron-Bridge, src/megatron/bridge/peft/lora.py and utils.py
(ParallelLinearAdapter: how tensor parallelism splits an adapter; share_expert_adapters).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from predictor.workloads.mixers.linear import Linear, Split, total
from predictor.workloads.switches import Ffn, LayerKind
from predictor.workloads.transformer import Transformer


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
OF_MIXERS = {
    "q_down_projection": LoraTarget.Q_DOWN,
    "q_up_projection": LoraTarget.Q_UP,
    "kv_down_projection": LoraTarget.KV_DOWN,
    "kv_up_projection": LoraTarget.KV_UP,
    "in_projection": LoraTarget.IN_PROJECTION,
    "gate_projection": LoraTarget.IN_PROJECTION,
    "out_projection": LoraTarget.OUT_PROJECTION,
    "attention_output": LoraTarget.ATTENTION_OUTPUT,
}


def _of_mixer(model: Transformer, kind: LayerKind) -> list[tuple[LoraTarget, Linear]]:
    """Return the linear layers of a token mixer by target, that of queries, keys and values also in its parts."""
    found = []
    for linear in model.mixer_linears(kind.mixer):
        if linear.name != "qkv_projection":
            found.append((OF_MIXERS[linear.name], linear))
            continue
        key_value_heads, head_dim = model.heads_of(kind.mixer)
        queries = linear.outputs - 2 * key_value_heads * head_dim  # and their gate
        widths = (linear.outputs, queries, key_value_heads * head_dim, key_value_heads * head_dim)
        targets = (LoraTarget.QKV, *PARTS[LoraTarget.QKV])
        found += [(target, linear._replace(outputs=width)) for target, width in zip(targets, widths, strict=True)]
    return found


def _of_ffn(model: Transformer, hidden: int, width: int) -> list[tuple[LoraTarget, Linear]]:
    """Return the linear layers of an FFN by target, the first one also in its parts."""
    up = Linear("ffn_up", "ffn_up", hidden, width, Split.COLUMN)
    return [
        (LoraTarget.FFN_UP, up._replace(outputs=width * (model.ffn_matrices - 1))),
        *([(LoraTarget.GATE, up)] if model.activation.gated else []),
        (LoraTarget.UP, up),
        (LoraTarget.FFN_DOWN, Linear("ffn_down", "ffn_down", width, hidden, Split.ROW)),
    ]


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters of a run.

    Attributes:
        rank: inner width of an adapter.
        targets: linear layers that have one.
        train_embeddings: embedding and output projection train too.
        share_expert_adapters: the experts of a rank share one adapter; otherwise each has its own.
        normalize_moe_lora: those of routed experts are as many times narrower as a token visits experts.
        all_to_all: outputs of adapters of row-parallel layers are exchanged by tokens, not gathered.
    """

    rank: int
    targets: tuple[LoraTarget, ...] = EVERY_LINEAR
    train_embeddings: bool = False
    share_expert_adapters: bool = True
    normalize_moe_lora: bool = False
    all_to_all: bool = False

    def _chosen(self, candidates: list[tuple[LoraTarget, Linear]]) -> tuple[Linear, ...]:
        return tuple(linear for target, linear in candidates if target in self.targets)

    def linears(self, model: Transformer, kind: LayerKind) -> tuple[Linear, ...]:
        """Return the linear layers of a kind of layer that have an adapter, those of routed experts left out."""
        candidates = _of_mixer(model, kind)
        if kind.ffn is Ffn.DENSE:
            candidates += _of_ffn(model, model.hidden_size, model.ffn_hidden_size)
        elif kind.has_experts and model.experts is not None and model.experts.shared_expert_ffn_hidden_size:
            candidates += _of_ffn(model, model.hidden_size, model.experts.shared_expert_ffn_hidden_size)
        return self._chosen(candidates)

    def expert_linears(self, model: Transformer, kind: LayerKind) -> tuple[Linear, ...]:
        """Return the linear layers of a routed expert that have an adapter."""
        experts = model.experts
        if not kind.has_experts or experts is None:
            return ()
        width = experts.token_width(model.hidden_size)
        return self._chosen(_of_ffn(model, width, experts.expert_ffn_hidden_size))

    def expert_rank(self, model: Transformer) -> int:
        """Return the inner width of an adapter of routed experts."""
        met = 1 if model.experts is None else model.experts.experts_per_token
        return self.rank // met if self.normalize_moe_lora else self.rank

    def pair(self, linear: Linear, rank: int | None = None) -> tuple[Linear, Linear]:
        """Return the two matrices of a linear layer's adapter.

        Of a column-parallel layer both are split by their outputs; of a row-parallel one the first by its inputs.
        """
        rank, whole = rank or self.rank, linear.split is Split.WHOLE
        down = Split.WHOLE if whole else Split.ROW if linear.split is Split.ROW else Split.COLUMN
        up = Split.WHOLE if whole else Split.COLUMN
        return (
            Linear("lora_down", linear.operator, linear.inputs, rank, down),
            Linear("lora_up", linear.operator, rank, linear.outputs, up),
        )

    def parameters(self, model: Transformer, kind: LayerKind, tensor_parallel_size: int = 1) -> int:
        """Return the parameters of one layer's adapters on one rank, those of routed experts left out."""
        return sum(total(self.pair(linear), tensor_parallel_size) for linear in self.linears(model, kind))

    def expert_parameters(self, model: Transformer, kind: LayerKind, tensor_parallel_size: int = 1) -> int:
        """Return the parameters on one rank of the adapters of one routed expert, or of those that experts share."""
        rank = self.expert_rank(model)
        return sum(total(self.pair(linear, rank), tensor_parallel_size) for linear in self.expert_linears(model, kind))

    def rank_parameters(
        self, model: Transformer, kind: LayerKind, splits: tuple[int, int], held: int
    ) -> tuple[int, int]:
        """Return the parameters of a layer's adapters on one rank: those that every rank has, those of its experts.

        An adapter that the experts of a rank share is the same on all ranks. Source: Megatron-Bridge,
        src/megatron/bridge/peft/utils.py, mark_expert_parallel_replicated.

        Args:
            model: the model.
            kind: of the layer.
            splits: ranks that split a layer, and an expert.
            held: experts of a rank.
        """
        parameters, of_experts = self.parameters(model, kind, splits[0]), self.expert_parameters(model, kind, splits[1])
        return (parameters + of_experts, 0) if self.share_expert_adapters else (parameters, held * of_experts)

    def model_flops_per_token(self, model: Transformer) -> float:
        """Return the FLOPs that a token needs: of frozen weights no gradients, of adapters all three products.

        Source: Megatron-Bridge, src/megatron/bridge/training/utils/flop_utils.py (4 FLOPs a parameter with LoRA).
        """
        kinds = [model.kind(layer) for layer in range(model.num_layers)]
        frozen = sum(model.layer_matrices(kind) for kind in kinds)
        frozen += 0 if self.train_embeddings or not model.has_lm_head else model.hidden_size * model.vocab_size
        met = 0 if model.experts is None else model.experts.experts_per_token
        adapters = sum(self.parameters(model, kind) + met * self.expert_parameters(model, kind) for kind in kinds)
        return model.model_flops_per_token() - 2.0 * frozen + 6.0 * adapters
