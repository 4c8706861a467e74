"""A transformer's parameters and FLOPs: decoder or encoder, dense or mixture of experts, attention or recurrence."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from operator import attrgetter

from predictor.core.base.lazy import lazy
from predictor.core.base.remembered import remembered
from predictor.core.blocks.layer import LayerSettings, layer_rows
from predictor.core.blocks.mixers import LayerKind, Mixer
from predictor.core.costs.layer_call import padded_vocab_size
from predictor.core.folds import multiplications, parameters
from predictor.core.rows import Row
from predictor.core.workload.architecture import Architecture, MixtureOfExperts, sized
from predictor.core.workload.layout import Layout
from predictor.core.workload.switches import Activation, Attention, Biases, Loss, Normalization, Positions, QkNorm

__all__ = [
    "Activation",
    "Attention",
    "Biases",
    "LayerKind",
    "Loss",
    "Mixer",
    "MixtureOfExperts",
    "Normalization",
    "Positions",
    "QkNorm",
    "Transformer",
]

ONE_RANK = Layout(1, 1, 1, gpus_per_node=1)
# Fields that say which layers a model has, and what stands before and behind them: a layer is the same for all of them.
OUTSIDE_A_LAYER = frozenset(
    {
        *("num_layers", "vocab_size", "num_position_embeddings", "embedding_norm", "final_norm", "positions"),
        *("lm_head_bias", "lm_head_transform", "num_mtp_layers", "encoder", "vision", "tied_embeddings", "loss"),
        *("layer_types", "ffn_types", "rotary_layers", "sliding_window_layers", "other_parameters"),
    }
)
AT_THE_ENDS = attrgetter(
    *("vocab_size", "num_position_embeddings", "embedding_norm", "final_norm", "positions", "lm_head_bias"),
    *("lm_head_transform", "num_mtp_layers", "encoder", "tied_embeddings", "loss"),
)
IN_A_LAYER = attrgetter(*(field.name for field in fields(Architecture) if field.name not in OUTSIDE_A_LAYER))
_SIZES: dict[tuple[object, ...], object] = {}  # hashed once for each model
_ROWS: dict[tuple[object, ...], list[Row]] = {}  # of layers, shared by models


class Transformer(Architecture):
    """An architecture with what follows from it, computed once: unlike its base, it has no slots."""

    def layer_rows(self, kind: LayerKind) -> list[Row]:
        """Return the rows of a layer that one rank holds whole, over a sample."""
        rows = self._known_rows.get(kind)
        if rows is None:
            call = sized(self, self.call(1, 1), kind)
            rows = self._known_rows[kind] = remembered(
                _ROWS, (self.layer_sizes, kind, call), lambda: layer_rows(self, kind, call, LayerSettings(ONE_RANK))
            )
        return rows

    def weighted_rows(self, kind: LayerKind) -> int:
        """Return how many rows of a layer have weights."""
        known = self._known_weighted.get(kind)
        if known is None:
            known = self._known_weighted[kind] = len([row for row in self.layer_rows(kind) if row.weights])
        return known

    @lazy
    def layer_sizes(self) -> object:
        """A key for all that the rows of a layer depend on, the sizes of a call aside, which models have in common."""
        return remembered(_SIZES, (*IN_A_LAYER(self), self.other_parameters // self.num_layers), object)

    @lazy
    def end_sizes(self) -> object:
        """A key for all that the passes of its beginning and its end depend on, the sizes of a call aside."""
        return remembered(_SIZES, (*AT_THE_ENDS(self), self.layer_sizes), object)

    @lazy
    def _known_rows(self) -> dict[LayerKind, list[Row]]:
        """Rows of the kinds of layers that were asked for."""
        return {}

    @lazy
    def _known_weighted(self) -> dict[LayerKind, int]:
        """Rows with weights of the kinds of layers that were asked for."""
        return {}

    def _unmet_parameters(self) -> int:
        """Return the parameters of attention's experts that one token does not meet."""
        unmet = self.attention_experts * self.key_value_heads - self.num_attention_heads
        return 2 * unmet * self.head_dim * self.hidden_size if self.attention_experts else 0

    def norm_parameters(self, norms: int) -> int:
        """Return the parameters of so many norms over the hidden dimension."""
        return norms * self.norm_width * self.hidden_size

    def embedding_parameters(self, tensor_parallel_size: int = 1) -> int:
        """Return the parameters of the embedding, or of an untied output projection, on one rank (padded)."""
        rows = padded_vocab_size(self.vocab_size, tensor_parallel_size) // tensor_parallel_size
        return rows * self.hidden_size

    def position_parameters(self) -> int:
        """Return the parameters of learned positions, none with other ones; every rank holds them whole."""
        rows = self.num_position_embeddings or self.sequence_length
        return rows * self.hidden_size if self.learned_positions else 0

    @property
    def has_lm_head(self) -> bool:
        """Return whether an output projection over the vocabulary follows the layers."""
        return self.loss is not Loss.SCORE and (self.encoder is None or self.encoder.mlm_head)

    def beginning_parameters(self) -> int:
        """Return what the first stage holds beside the embedding, whole on every rank: positions, a norm, types."""
        types = 0 if self.encoder is None else self.encoder.beginning_parameters(self.hidden_size)
        own = self.per_layer_inputs
        per_layer = 0 if own is None else own.beginning_parameters(self.hidden_size, self.num_layers)
        return self.position_parameters() + types + self.norm_parameters(self.embedding_norm) + per_layer

    def end_parameters(self, tensor_parallel_size: int = 1) -> int:
        """Return what the last stage holds beside the output projection, on one rank: its norm, heads, biases."""
        parameters = self.norm_parameters(self.final_norm) + self.other_parameters % self.num_layers
        parameters += self.hidden_size**2 + self.norm_parameters(1) if self.lm_head_transform else 0
        if self.encoder is not None:
            parameters += self.encoder.end_parameters(self.hidden_size, self.norm_parameters(1))
        if self.lm_head_bias and self.has_lm_head:
            parameters += self.vocab_size // tensor_parallel_size
        return parameters + self.num_mtp_layers * self.mtp_parameters(tensor_parallel_size)

    def mtp_parameters(self, tensor_parallel_size: int = 1) -> int:
        """Return what a multi-token prediction module has on one rank beside its layer.

        Norms of the token's embedding and of the layers' output, a projection of both, a last norm; embedding and
        output projection are the model's. Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.2.
        """
        return 2 * self.hidden_size * self.hidden_size // tensor_parallel_size + self.norm_parameters(3)

    def end_embeddings(self, is_first: bool) -> int:
        """Return how many matrices as large as the embedding the last stage has; ``is_first``: it is the first too.

        An output projection of its own, or, apart from the first stage, a copy of the embedding that it is; and a copy
        for multi-token prediction, which embeds the next tokens. Source: Megatron-LM,
        core/models/common/language_module/language_module.py, setup_embeddings_and_output_layer.
        """
        tied = self.tied_embeddings
        output = self.has_lm_head and not (tied and is_first)
        return output + (self.num_mtp_layers > 0 and not is_first and not tied)

    def _met_parameters(self, kind: LayerKind, active: bool) -> int:
        """Return a layer's parameters, or those that one token meets."""
        dense, routed, *_ = parameters(self.layer_rows(kind))
        if active and routed and self.experts is not None:
            routed = routed // self.experts.num_experts * self.experts.experts_per_token
        return dense + routed - (self._unmet_parameters() if active and kind.mixer.is_attention else 0)

    def num_parameters(self, active: bool = False) -> int:
        """Return the model's parameters, its vocabulary not padded; ``active``: only those that one token meets."""
        embeddings = 1 + (self.has_lm_head and not self.tied_embeddings)
        held = embeddings * self.vocab_size * self.hidden_size + self.beginning_parameters() + self.end_parameters()
        for kind, count in self.kinds.items():
            held += count * self._met_parameters(kind, active)
        if self.num_mtp_layers:
            held += self.num_mtp_layers * self._met_parameters(self.mtp_kind, active)
        return held + (0 if self.vision is None else self.vision.parameters(self.hidden_size))

    def matrix_parameters(self) -> int:
        """Return the parameters in matrices of layers, those that predict further tokens included."""
        kinds = self.kinds + Counter({self.mtp_kind: self.num_mtp_layers} if self.num_mtp_layers else {})
        return sum(count * parameters(self.layer_rows(kind)).matrices.total for kind, count in kinds.items())

    @lazy
    def kinds(self) -> Counter[LayerKind]:
        """How many layers of each kind the model has, those that predict further tokens left out."""
        return Counter(self.kind(layer) for layer in range(self.num_layers))

    def _end_multiplications(self) -> float:
        """Return the multiplications of a token in the output projection, an encoder's head, and further predictions.

        Source: Megatron-LM, training/training.py, num_floating_point_operations (mtp_num_layers).
        """
        projection = float(self.hidden_size * self.vocab_size) if self.has_lm_head else 0.0
        has_head = self.lm_head_transform or (self.encoder is not None and self.encoder.mlm_head)
        head = self.hidden_size**2 if has_head else 0.0
        if not self.num_mtp_layers:
            return projection + head
        module = 2 * self.hidden_size**2 + multiplications(self.layer_rows(self.mtp_kind)) + projection
        return projection + head + self.num_mtp_layers * module

    def model_flops_per_token(self) -> float:
        """Return the FLOPs that a token needs forward and backward, no recomputation counted.

        Attention counts all keys of a token, masked or not, as published MFU figures do, and a window's where there is
        one. Source: Narayanan et al. 2021, arXiv:2104.04473, appendix A, for any FFN width.
        """
        layers = sum(count * multiplications(self.layer_rows(kind)) for kind, count in self.kinds.items())
        return 6.0 * (layers + self._end_multiplications()) + self._vision_flops_per_token()

    def _vision_flops_per_token(self) -> float:
        """Return the share of a token of the sequence in the vision tower's FLOPs; not trained, of its forward pass."""
        if self.vision is None:
            return 0.0
        per_sample = self.vision.multiplications_per_sample(self.hidden_size)
        return (6.0 if self.vision.trained else 2.0) * per_sample / self.sequence_length
