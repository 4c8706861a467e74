"""A transformer's parameters and FLOPs: decoder or encoder, dense or mixture of experts, attention or recurrence."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.workloads.architecture import Architecture, MixtureOfExperts
from predictor.workloads.layer_call import padded_vocab_size
from predictor.workloads.mixers.linear import total
from predictor.workloads.switches import (
    Activation,
    Attention,
    Biases,
    Ffn,
    LayerKind,
    Loss,
    Mixer,
    Normalization,
    Positions,
    QkNorm,
)

__all__ = [
    "Activation",
    "Attention",
    "Biases",
    "Ffn",
    "LayerKind",
    "Loss",
    "Mixer",
    "MixtureOfExperts",
    "Normalization",
    "Positions",
    "QkNorm",
    "Transformer",
]

DENSE = LayerKind()


@dataclass(frozen=True, slots=True)
class Transformer(Architecture):
    """An architecture with what follows from it."""

    def attention_parameters(self, tensor_parallel_size: int = 1, mixer: Mixer = Mixer.FULL) -> int:
        """Return the parameters of attention's matrices on one rank; key-value heads are copied to have one each.

        Multi-head latent attention counts the norms of its latents too.
        """
        tp = tensor_parallel_size
        if (latent := self.token_mixer(mixer)) is not None:
            return latent.parameters(self.hidden_size, self.query_heads(mixer), tp)
        key_value_heads, head_dim = self.heads_of(mixer)
        query_heads = self.num_attention_heads * (3 if self.attention_output_gate else 2)
        if self.attention_experts:
            query_heads = 2 * self.attention_experts * key_value_heads
        width = (query_heads + self.key_value_projections(mixer) * max(key_value_heads, tp)) * head_dim
        return width * self.hidden_size // tp + self.hidden_size * self.attention_experts

    def _unmet_parameters(self) -> int:
        """Return the parameters of attention's experts that one token does not meet."""
        unmet = self.attention_experts * self.key_value_heads - self.num_attention_heads
        return 2 * unmet * self.head_dim * self.hidden_size if self.attention_experts else 0

    def _attention_biases(self, tensor_parallel_size: int, mixer: Mixer) -> int:
        """Return the biases of attention on one rank: split with the heads, the output's whole."""
        if self.latent_attention is not None:
            return self.latent_attention.biases(self.hidden_size) if self.biases.of_attention_output else 0
        key_value_heads, head_dim = self.heads_of(mixer)
        heads = self.num_attention_heads * (2 if self.attention_output_gate else 1)
        heads += self.key_value_projections(mixer) * max(key_value_heads, tensor_parallel_size)
        biases = heads * head_dim // tensor_parallel_size if self.biases.of_qkv else 0
        return biases + (self.hidden_size if self.biases.of_attention_output else 0)

    def _qk_norm_parameters(self, tensor_parallel_size: int, mixer: Mixer) -> int:
        """Return the parameters of the norms of queries and keys on one rank; over all heads they are split."""
        key_value_heads, head_dim = self.heads_of(mixer)
        if self.qk_norm is QkNorm.PER_HEAD:
            return 2 * head_dim * self._per_norm
        if self.qk_norm is not QkNorm.WHOLE:
            return 0
        heads = self.num_attention_heads + max(key_value_heads, tensor_parallel_size)
        return heads * head_dim * self._per_norm // tensor_parallel_size

    def _mixer_parameters(self, mixer: Mixer, tensor_parallel_size: int) -> int:
        """Return the parameters of a layer's token mixer on one rank, its norms before and behind not counted."""
        tp = tensor_parallel_size
        if mixer is Mixer.NONE:
            return 0
        other = self.token_mixer(mixer)
        if other is not None and not mixer.is_attention:
            return other.parameters(self.hidden_size, self.num_attention_heads, tp)
        per_head = self.attention_sinks + (self.hidden_size if self.attention_head_gate else 0)
        sinks = self.query_heads(mixer) * per_head // tp
        if (beside := self.beside(mixer)) is not None:
            sinks += beside.parameters(self.hidden_size, self.num_attention_heads, tp)
        attention = self.attention_parameters(tp, mixer) + self._attention_biases(tp, mixer)
        return attention + self._qk_norm_parameters(tp, mixer) + sinks

    def _ffn_parameters(self, width: int, ffn_hidden_size: int, tensor_parallel_size: int = 1) -> int:
        """Return the parameters of an FFN over so wide tokens on one rank; the bias of its output is on every rank."""
        if not ffn_hidden_size:
            return 0
        biases = (self.ffn_matrices - 1) * ffn_hidden_size if self.biases.of_ffn else 0
        split = self.ffn_matrices * width * ffn_hidden_size + biases
        return split // tensor_parallel_size + (width if self.biases.of_ffn else 0)

    def layer_parameters(self, tensor_parallel_size: int = 1, kind: LayerKind = DENSE) -> int:
        """Return the parameters of one layer on one rank, its routed experts not counted.

        Matrices and their biases are split over the group; norms, routers and the biases of sums are on every rank.
        """
        tp = tensor_parallel_size
        norms = kind.branches * (2 if self.post_norms else 1) - (self.shared_input_norm and kind.branches == 2)
        mixer = self._mixer_parameters(kind.mixer, tp) + self.norm_parameters(norms)
        mixer += self.other_parameters // self.num_layers
        if self.per_layer_inputs is not None:
            mixer += self.per_layer_inputs.layer_parameters(self.hidden_size, self.norm_parameters(1))
        if kind.ffn is Ffn.NONE:
            return mixer
        if kind.ffn is Ffn.DENSE or self.experts is None:
            return mixer + self._ffn_parameters(self.hidden_size, self.ffn_hidden_size, tp)
        experts = self.experts
        router = self.hidden_size * (experts.num_experts + experts.shared_expert_gate)
        router += experts.num_experts if experts.router_bias else 0
        if experts.latent_size:
            router += experts.latent_parameters(self.hidden_size)
            router += (self.hidden_size + experts.latent_size) if self.biases.of_ffn else 0
        return mixer + self._ffn_parameters(self.hidden_size, experts.shared_expert_ffn_hidden_size, tp) + router

    def expert_parameters(self, tensor_parallel_size: int = 1) -> int:
        """Return the parameters of one routed expert on one rank."""
        if self.experts is None:
            return 0
        width = self.experts.token_width(self.hidden_size)
        return self._ffn_parameters(width, self.experts.expert_ffn_hidden_size, tensor_parallel_size)

    @property
    def _per_norm(self) -> int:
        """Return the parameters of a norm per element."""
        is_layer_norm = self.normalization is Normalization.LAYER_NORM
        return self.norm_weights + (is_layer_norm if self.norm_biases is None else self.norm_biases)

    def norm_parameters(self, norms: int) -> int:
        """Return the parameters of so many norms over the hidden dimension."""
        return norms * self._per_norm * self.hidden_size

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
        return self.encoder is None or self.encoder.mlm_head

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

    def _routed_parameters(self, kind: LayerKind, active: bool) -> int:
        """Return the parameters of a layer's routed experts, or of those that one token meets."""
        if not kind.has_experts or self.experts is None:
            return 0
        met = self.experts.experts_per_token if active else self.experts.num_experts
        return met * self.expert_parameters()

    def num_parameters(self, active: bool = False) -> int:
        """Return the model's parameters, its vocabulary not padded; ``active``: only those that one token meets."""
        embeddings = 1 + (self.has_lm_head and not self.tied_embeddings)
        parameters = (
            embeddings * self.vocab_size * self.hidden_size + self.beginning_parameters() + self.end_parameters()
        )
        kinds = [self.kind(layer) for layer in range(self.num_layers)] + [self.mtp_kind] * self.num_mtp_layers
        for kind in kinds:
            parameters += self.layer_parameters(kind=kind) + self._routed_parameters(kind, active)
            parameters -= self._unmet_parameters() if active and kind.mixer.is_attention else 0
        return parameters + (0 if self.vision is None else self.vision.parameters(self.hidden_size))

    def _ffn_multiplications(self, kind: LayerKind) -> float:
        """Return the multiplications of a token in one layer's FFN."""
        if kind.ffn is Ffn.NONE:
            return 0.0
        if not (kind.has_experts and self.experts):
            return self.ffn_matrices * self.hidden_size * self.ffn_hidden_size
        experts, hidden = self.experts, self.hidden_size
        routed = experts.experts_per_token * experts.expert_ffn_hidden_size * experts.token_width(hidden)
        shared = experts.shared_expert_ffn_hidden_size * hidden
        return self.ffn_matrices * (routed + shared) + hidden * experts.num_experts + experts.latent_parameters(hidden)

    def _keys(self, mixer: Mixer) -> int:
        """Return the keys of a query, masked or not."""
        limits = {Mixer.SLIDING: self.sliding_window, Mixer.CHUNKED: self.attention_chunk}
        return min(limit for limit in (self.sequence_length, limits.get(mixer, 0), self.document_tokens) if limit)

    def layer_matrices(self, kind: LayerKind) -> float:
        """Return the multiplications of a token with the matrices of one layer."""
        own = 0.0 if self.per_layer_inputs is None else self.per_layer_inputs.multiplications(self.hidden_size)
        return self._ffn_multiplications(kind) + total(self.mixer_linears(kind.mixer)) + own

    def _layer_multiplications(self, kind: LayerKind) -> float:
        """Return the multiplications of a token in one layer forward."""
        mixer, matrices = kind.mixer, self.layer_matrices(kind)
        if mixer is Mixer.NONE:
            return matrices
        other, keys = self.token_mixer(mixer), self._keys(mixer)
        if (beside := self.beside(mixer)) is not None:
            matrices += beside.core_multiplications(0, keys)
        if other is None:
            core = 2 * keys * self.num_attention_heads * self.heads_of(mixer)[1]
            return matrices + core * (2 if self.differential_attention else 1)
        latent = self.latent_of(mixer)
        if latent is not None and latent.indexer is not None:
            width = latent.latent_of_queries(self.hidden_size)
            matrices += latent.indexer.multiplications(self.hidden_size, width, keys)
        return matrices + other.core_multiplications(self.query_heads(mixer), keys)

    def _end_multiplications(self) -> float:
        """Return the multiplications of a token in the output projection, an encoder's head, and further predictions.

        Source: Megatron-LM, training/training.py, num_floating_point_operations (mtp_num_layers).
        """
        projection = float(self.hidden_size * self.vocab_size) if self.has_lm_head else 0.0
        has_head = self.lm_head_transform or (self.encoder is not None and self.encoder.mlm_head)
        head = self.hidden_size**2 if has_head else 0.0
        if not self.num_mtp_layers:
            return projection + head
        module = 2 * self.hidden_size**2 + self._layer_multiplications(self.mtp_kind) + projection
        return projection + head + self.num_mtp_layers * module

    def model_flops_per_token(self) -> float:
        """Return the FLOPs that a token needs forward and backward, no recomputation counted.

        Attention counts all keys of a token, masked or not, as published MFU figures do, and a window's where there is
        one. Source: Narayanan et al. 2021, arXiv:2104.04473, appendix A, for any FFN width.
        """
        layers = sum(self._layer_multiplications(self.kind(layer)) for layer in range(self.num_layers))
        return 6.0 * (layers + self._end_multiplications()) + self._vision_flops_per_token()

    def _vision_flops_per_token(self) -> float:
        """Return the share of a token of the sequence in the vision tower's FLOPs; not trained, of its forward pass."""
        if self.vision is None:
            return 0.0
        per_sample = self.vision.multiplications_per_sample(self.hidden_size)
        return (6.0 if self.vision.trained else 2.0) * per_sample / self.sequence_length
