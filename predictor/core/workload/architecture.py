"""Architecture of a transformer: sizes, switches, and the kind of every layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from predictor.core.base.fields import Amount, Count, Switch
from predictor.core.blocks.latent_attention import LatentSizes
from predictor.core.blocks.mamba2 import Mamba2
from predictor.core.blocks.mixers import LayerKind, Mixer
from predictor.core.blocks.token_mixer import TokenMixer
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.work import ELEMENT_BYTES
from predictor.core.workload.model_keys import ModelKeys
from predictor.core.workload.switches import Ffn, Loss, Normalization, Positions


def sized(model: Architecture, call: LayerCall, kind: LayerKind) -> LayerCall:
    """Return a model's call as the operators of one kind of layer see it.

    Heads of latent attention are as wide as their queries, keys and values on average. Keys that an indexer chooses are
    as many as a window of that size has, wherever they stand.
    """
    if not kind.mixer.is_attention:
        return call
    window = model.window_of(kind.mixer)
    segments = [length for length in (model.document_tokens,) if length]
    if kind.mixer is Mixer.CHUNKED:
        segments.append(model.attention_chunk)
    segment = min(segments, default=0)
    latent = model.latent_of(kind.mixer)
    if latent is not None:
        heads, width = model.query_heads(kind.mixer), latent.mean_width
        if latent.indexer is not None and latent.indexer.top_k < (segment or model.sequence_length):
            window = min(window or latent.indexer.top_k, latent.indexer.top_k)
        return replace(
            call, num_attention_heads=heads, head_width=width, num_key_value_heads=0, segment=segment, window=window
        )
    key_value_heads, head_dim = model.heads_of(kind.mixer)
    if (key_value_heads, head_dim) != (model.key_value_heads, model.head_dim):
        call = replace(call, num_key_value_heads=key_value_heads, head_width=head_dim)
    if model.key_value_projections(kind.mixer) == 1:
        call = replace(call, shared_key_values=True)
    return replace(call, window=window, segment=segment) if window or segment else call


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """A mixture of experts in place of a layer's FFN.

    Source: Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2021, arXiv:2101.03961.
    """

    num_experts: Annotated[Count, Field(description="routed experts of a layer")]
    experts_per_token: Annotated[Count, Field(description="experts that each token visits (top-k)")]
    expert_ffn_hidden_size: Annotated[Count, Field(description="inner width of one expert")]
    shared_expert_ffn_hidden_size: Annotated[
        Amount, Field(description="inner width of all shared experts together")
    ] = 0
    shared_expert_gate: Annotated[Switch, Field(description="a learned gate scales the shared experts' output")] = False
    num_dense_layers: Annotated[Amount, Field(description="layers at the start that have an ordinary FFN")] = 0
    capacity_factor: Annotated[
        float | None,
        Field(gt=0.0, le=1000.0, description="tokens an expert takes over its even share; absent: dropless"),
    ] = None
    load_imbalance: Annotated[
        float | None,
        Field(
            ge=1.0,
            le=1000.0,
            description="busiest rank's tokens over the mean, which all ranks wait for; if absent even in tuned runs, "
            "in ordinary ones as natural routing is",
        ),
    ] = None
    router_bias: Annotated[Switch, Field(description="the router has a bias, or a trained correction, per expert")] = (
        False
    )
    activation_clamp: Annotated[float | None, Field(gt=0.0, le=1e6, description="largest input of the gate")] = None
    latent_size: Annotated[
        Amount, Field(description="width to which tokens are projected on their way to experts; hidden_size if 0")
    ] = 0

    def token_width(self, hidden_size: int) -> int:
        """Return the width of a token on its way to its experts and back."""
        return self.latent_size or hidden_size


@dataclass(frozen=True, slots=True)
class Architecture(ModelKeys):
    """Sizes and switches of the model: keys of its section, and what follows from others.

    Attributes:
        num_key_value_heads: heads of keys and values; 0: as many as there are query heads.
        head_width: width of one head; 0: hidden_size over the query heads.
        sliding_window: tokens that a query of a windowed layer sees; 0: all.
        rotary_fraction: share of every head's width that is rotated; 0 for learned positions.
        rotary_layers: layers whose attention rotates queries and keys, a pattern that repeats; empty: all.
        num_position_embeddings: rows of learned positions; 0: sequence_length.
        layer_types, ffn_types: token mixers and FFNs of the layers, a pattern that repeats; empty: all alike, but for
            ``sliding_window_layers`` and ``num_dense_layers``.
        attention_chunk: tokens of a chunk, of which a query of a chunked layer sees no others.
        document_tokens: mean tokens of the documents of a sample, inside which attention stays; 0: one document.
        experts: the experts of a layer, where it has any.
        measured_kernels: fused kernels and gradient products that the system measured by themselves.
    """

    ffn_hidden_size: int
    vocab_size: int
    num_key_value_heads: int = 0
    head_width: int = 0
    sliding_window: int = 0
    rotary_fraction: float = 1.0
    rotary_layers: tuple[bool, ...] = ()
    num_position_embeddings: int = 0
    layer_types: tuple[Mixer, ...] = ()
    ffn_types: tuple[Ffn, ...] = ()
    attention_chunk: int = 0
    document_tokens: int = 0
    experts: MixtureOfExperts | None = None
    measured_kernels: frozenset[str] = frozenset()

    @property
    def key_value_heads(self) -> int:
        """Return the heads of keys and values."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_dim(self) -> int:
        """Return the width of one head."""
        return self.head_width or self.hidden_size // self.num_attention_heads

    @property
    def norm_operator(self) -> str:
        """Return the operator that times a norm: of a fused RMSNorm its own where the system measured it."""
        norm = self.normalization
        return norm.value if norm.value in self.measured_kernels else norm.operator

    @property
    def ffn_matrices(self) -> int:
        """Return the matrices of an FFN."""
        return 3 if self.activation.gated else 2

    @property
    def splits_layers(self) -> bool:
        """Return whether tensor-parallel ranks may split layers and output projection; some are only modelled whole."""
        own = (self.per_layer_inputs, self.sliding_latent_attention, self.full_attention)
        of_switches = self.attention_experts or self.lm_head_transform or self.loss is Loss.FUSED_LINEAR
        return all(sizes.splits_layers for sizes in self.mixers.values()) and not (any(own) or of_switches)

    @property
    def splits_samples(self) -> bool:
        """Return whether context-parallel ranks may split a sample: all layers have attention over all of it."""
        chooses = self.latent_attention is not None and self.latent_attention.indexer is not None
        beside = self.mamba2_beside_attention
        return not (
            self.sliding_window or chooses or beside or self.vision or set(self.layer_types) - {Mixer.FULL, Mixer.NONE}
        )

    def parallel_mixer(self, mixer: Mixer) -> Mamba2 | None:
        """Return what runs beside a layer's attention."""
        return self.mamba2 if self.mamba2_beside_attention and mixer.is_attention else None

    def heads_of(self, mixer: Mixer) -> tuple[int, int]:
        """Return the heads of keys and values, and the width of a head, of a layer with attention."""
        full = self.full_attention
        if full is None or mixer is not Mixer.FULL:
            return self.key_value_heads, self.head_dim
        return full.num_key_value_heads or self.key_value_heads, full.head_dim or self.head_dim

    def key_value_projections(self, mixer: Mixer) -> int:
        """Return how many projections make keys and values of a layer with attention."""
        full = self.full_attention
        return 1 if full is not None and full.shared_key_values and mixer is Mixer.FULL else 2

    def latent_of(self, mixer: Mixer) -> LatentSizes | None:
        """Return the sizes of a layer's latent attention, where it has such."""
        if mixer is Mixer.SLIDING and self.sliding_latent_attention is not None:
            return self.sliding_latent_attention
        return self.latent_attention if mixer.is_attention else None

    def window_of(self, mixer: Mixer) -> int:
        """Return the tokens that a query of a layer sees, itself included; 0: all.

        A window as long as the sample hides nothing: kernels then run without one.
        Source: flash-attention, csrc/flash_attn/flash_api.cpp (window_size_left >= seqlen_k).
        """
        return self.sliding_window if mixer is Mixer.SLIDING and self.sliding_window < self.sequence_length else 0

    def query_heads(self, mixer: Mixer) -> int:
        """Return the query heads of a layer with attention."""
        sliding = self.sliding_latent_attention if mixer is Mixer.SLIDING else None
        return self.num_attention_heads if sliding is None else sliding.num_attention_heads

    @property
    def shared_out(self) -> tuple[int, ...]:
        """Return the sizes that tensor-parallel ranks share out, beside those of attention, FFN and experts."""
        sizes = [getattr(mixer, key) for mixer in self.mixers.values() for key in mixer.shared_out]
        if self.vision is not None:
            sizes += [self.vision.num_attention_heads, self.vision.ffn_hidden_size]
        return tuple(sizes)

    def token_mixer(self, mixer: Mixer) -> TokenMixer | None:
        """Return what a layer mixes its tokens with; None: plain attention, or nothing."""
        return self.latent_of(mixer) if mixer.is_attention else self.mixers.get(mixer)

    def keys_of(self, mixer: Mixer) -> int:
        """Return the keys of a query, masked or not, before an indexer chooses among them."""
        limits = {Mixer.SLIDING: self.sliding_window, Mixer.CHUNKED: self.attention_chunk}
        return min(limit for limit in (self.sequence_length, limits.get(mixer, 0), self.document_tokens) if limit)

    @property
    def norm_width(self) -> int:
        """Return the parameters of a norm per element."""
        is_layer_norm = self.normalization is Normalization.LAYER_NORM
        return self.norm_weights + (is_layer_norm if self.norm_biases is None else self.norm_biases)

    @property
    def learned_positions(self) -> bool:
        """Return whether positions are rows of a learned table."""
        return not self.rotary_fraction if self.positions is None else self.positions is Positions.LEARNED

    @property
    def only_kind(self) -> LayerKind | None:
        """Return the kind of all layers, None where they may differ."""
        patterns: tuple[tuple[object, ...], ...] = (self.layer_types, self.ffn_types, self.rotary_layers)
        alike = all(len(set(pattern)) < 2 for pattern in patterns) and not self.num_mtp_layers
        if not alike or (self.experts is not None and self.experts.num_dense_layers):
            return None
        return None if self.sliding_window_layers is not None else self.kind(0)

    def _mixer(self, layer: int) -> Mixer:
        if self.layer_types:
            return self.layer_types[layer % len(self.layer_types)]
        count = self.num_layers if self.sliding_window_layers is None else self.sliding_window_layers
        before, after = layer * count // self.num_layers, (layer + 1) * count // self.num_layers
        return Mixer.SLIDING if self.sliding_window and after > before else Mixer.FULL

    def _ffn(self, layer: int) -> Ffn:
        if self.ffn_types:
            return self.ffn_types[layer % len(self.ffn_types)]
        return Ffn.EXPERTS if self.experts is not None and layer >= self.experts.num_dense_layers else Ffn.DENSE

    def kind(self, layer: int) -> LayerKind:
        """Return what kind of layer stands at a position, counted from 0."""
        mixer, pattern = self._mixer(layer), self.rotary_layers
        rotates = not (pattern and mixer.is_attention) or pattern[layer % len(pattern)]
        return LayerKind(mixer, self._ffn(layer), rotates=rotates)

    @property
    def mtp_kind(self) -> LayerKind:
        """Return the kind of a layer that predicts a further token: that of the last one.

        Source: Megatron-LM, core/models/gpt/gpt_layer_specs.py, get_gpt_mtp_block_spec.
        """
        return self.kind(self.num_layers - 1)

    def call(
        self,
        micro_batch_size: int,
        tensor_parallel_size: int,
        element_bytes: int = ELEMENT_BYTES,
        context_parallel_size: int = 1,
        sequence_parallel: bool = False,
    ) -> LayerCall:
        """Return the sizes that operators see for one micro-batch on one rank; no window."""
        return LayerCall(
            micro_batch_size=micro_batch_size,
            sequence_length=self.sequence_length,
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            ffn_hidden_size=self.ffn_hidden_size,
            vocab_size=self.vocab_size,
            tensor_parallel_size=tensor_parallel_size,
            rotary_fraction=self.rotary_fraction,
            causal=self.causal,
            element_bytes=element_bytes,
            num_key_value_heads=self.num_key_value_heads,
            head_width=self.head_width,
            gated=self.activation.gated,
            output_gate=self.attention_output_gate,
            context_parallel_size=context_parallel_size,
            sequence_parallel=sequence_parallel,
        )
