"""Multi-head latent attention: queries, keys and values are projected up from low-rank latents.

Source: DeepSeek-AI 2024 (DeepSeek-V2), arXiv:2405.04434, section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field

from predictor.core.base.fields import Amount, Count, absent_is_zero
from predictor.core.blocks.token_mixer import Around, Kernels, TokenMixer
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import product, shaped, stream
from predictor.core.rows import Kept, Kind, Matrix, Module, Pass, Reads, Role, Row, Split
from predictor.core.workload.tasks import BACKWARD, FORWARD

# The lightning indexer of sparse attention: small heads score all earlier keys, attention sees the best of them.
# Forward it scores every pair of tokens, which a kernel reduces over heads before it writes one fp32 score per pair,
# and the best are sorted out of those. Backward only chosen pairs have gradients. Source: DeepSeek-AI 2025
# (DeepSeek-V3.2), arXiv:2512.02556, section 2.1; transformers, models/deepseek_v32/modeling_deepseek_v32.py.
FP32_BYTES = 4
SCORE_PASSES = 2  # written by the scoring kernel, read by the selection
UP = "qkv_projection"  # the operator that times them all: one family of products
COPY_PASSES = 2


@dataclass(frozen=True, slots=True)
class Indexer:
    """Sparse attention in front of latent attention (DeepSeek-V3.2): small heads score all earlier keys of a query."""

    num_heads: Annotated[Count, Field(description="heads that score keys")]
    head_dim: Annotated[Count, Field(description="width of one of them")]
    top_k: Annotated[Count, Field(description="keys that attention sees, the best ones")]

    def keys(self, sequence_length: int) -> int:
        """Return the keys of a query that attention sees."""
        return min(self.top_k, sequence_length)

    def rows(self, call: LayerCall, latent_width: int, all_keys: int) -> list[Row]:
        """Return its products, whole on every rank, the key's norm, the scores, and the choice of the best.

        Args:
            call: sizes of the layer.
            latent_width: of the input of its queries.
            all_keys: of a query, before the choice.
        """
        tokens, samples, length = call.unsplit_tokens, call.micro_batch_size, call.sequence_length
        matrices = {
            "index_queries": (tokens, latent_width, self.num_heads * self.head_dim),
            "index_key": (tokens, call.hidden_size, self.head_dim),
            "index_weights": (tokens, call.hidden_size, self.num_heads),
        }
        heads, share = samples * self.num_heads, 0.5 if call.causal else 1.0
        operator = catalogue()["attention_scores"]
        launches = operator.launches
        scores = Row(
            "index_scores",
            Module.MIXER,
            Kind.OTHER,
            operator,
            Pass(FORWARD, (heads, length, self.head_dim, length), share, share * launches[0]),
            Pass(BACKWARD, (heads, length, self.head_dim, self.keys(length)), 1.0, launches[1]),
            multiplications=float(all_keys * self.num_heads * self.head_dim),
        )
        size_bytes = share * samples * length * length * FP32_BYTES * SCORE_PASSES
        return [
            *(product(name, Module.MIXER, "qkv_projection", shape, Split.WHOLE) for name, shape in matrices.items()),
            shaped("layer_norm", Module.MIXER, "layer_norm", (tokens, self.head_dim), weights=2 * self.head_dim),
            scores,
            stream("index_choice", Module.MIXER, call, (size_bytes, 0), (2, 0)),
        ]


@dataclass(frozen=True, slots=True)
class LatentSizes(TokenMixer):
    """Sizes of multi-head latent attention."""

    kv_lora_rank: Annotated[Count, Field(description="width of the latent of keys and values")]
    qk_nope_head_dim: Annotated[Count, Field(description="of a head's queries and keys, what is not rotated")]
    qk_rope_head_dim: Annotated[Count, Field(description="what is rotated; all heads share one rotated key")]
    v_head_dim: Annotated[Count, Field(description="width of a head's values")]
    q_lora_rank: Annotated[
        Amount, BeforeValidator(absent_is_zero), Field(description="width of the queries' latent; none if absent")
    ] = 0

    @property
    def indexer(self) -> Indexer | None:
        """Return none: attention sees all keys."""
        return None

    @property
    def key_width(self) -> int:
        """Return the width of a head's queries and keys."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def mean_width(self) -> int:
        """Return the width of a plain head with the same FLOPs and, of keys and values together, the same bytes."""
        return (self.key_width + self.v_head_dim + 1) // 2

    def core_multiplications(self, num_heads: int, keys: int) -> float:
        """Return the multiplications of a query with the keys that it sees and of their scores with the values."""
        seen = keys if self.indexer is None else self.indexer.keys(keys)
        return float(seen * num_heads * (self.key_width + self.v_head_dim))

    def gathered_width(self, hidden_size: int) -> int:
        """Return the width of the up-projections' inputs: latents, and the rotated key, which all heads share."""
        return (self.q_lora_rank or hidden_size) + self.kv_lora_rank + self.qk_rope_head_dim

    def _projections(self, call: LayerCall, biases: bool) -> list[Row]:
        """Return the products of the latents; down-projections are whole on every tensor-parallel rank.

        Where attention has biases, down-projections and output have them. Source: transformers,
        models/deepseek_v3/modeling_deepseek_v3.py (attention_bias).
        """
        hidden, own, tokens, heads = call.hidden_size, call.unsplit_tokens, call.tokens, call.heads_per_rank
        rank, width = self.q_lora_rank, heads * self.key_width
        normed, normed_again = Reads(Role.NORMED, own * hidden), Reads(Role.NORMED, own * hidden, shared=True)
        rows = []
        if rank:
            bias = rank if biases else 0
            rows.append(
                product(
                    "q_down_projection",
                    Module.MIXER,
                    UP,
                    (own, hidden, rank),
                    Split.WHOLE,
                    normed,
                    bias,
                    matrix=Matrix.Q_DOWN,
                )
            )
        of_queries = Reads(Role.LATENT, own * rank) if rank else normed
        up = Module.UP_PROJECTION
        shape = (tokens, rank or hidden, width)
        rows.append(product("q_up_projection", up, UP, shape, Split.COLUMN, of_queries, matrix=Matrix.Q_UP))
        down = self.kv_lora_rank + self.qk_rope_head_dim
        rows.append(
            product(
                "kv_down_projection",
                Module.MIXER,
                UP,
                (own, hidden, down),
                Split.WHOLE,
                normed_again,
                biases=down if biases else 0,
                matrix=Matrix.KV_DOWN,
            )
        )
        keys_and_values = heads * (self.qk_nope_head_dim + self.v_head_dim)
        shape = (tokens, self.kv_lora_rank, keys_and_values)
        reads = Reads(Role.LATENT, own * self.kv_lora_rank)
        rows.append(product("kv_up_projection", up, UP, shape, Split.COLUMN, reads, matrix=Matrix.KV_UP))
        return rows

    def rows(self, call: LayerCall, kernels: Kernels, biases: bool) -> Around:
        """Return the products, the norms of the latents, the rotation, and the copies that join a head's parts.

        Kept are the latents before and behind their norms, queries, keys and values, and attention's output.
        Source: Megatron-LM, core/transformer/multi_latent_attention.py, and core/fusions/fused_mla_yarn_rope_apply.py
        for kernels that rotate, split and join at once.
        """
        heads, element = call.tokens * call.heads_per_rank, call.element_bytes
        latents = [width for width in (self.q_lora_rank, self.kv_lora_rank) if width]
        norms = [
            shaped("latent_norm", Module.MIXER, kernels.norm, (call.unsplit_tokens, width), weights=width)
            for width in latents
        ]
        kept_latents = 2 * (self.q_lora_rank + self.kv_lora_rank) + self.qk_rope_head_dim
        norms[-1] = norms[-1]._replace(keeps=(Kept(Role.LATENT, float(call.unsplit_tokens * kept_latents * element)),))
        qkv = Kept(Role.QKV, float(heads * (2 * self.key_width + self.v_head_dim) * element))
        outputs = heads * self.v_head_dim
        shape = (call.tokens, call.heads_per_rank * self.v_head_dim, call.hidden_size)
        output = product(
            "attention_output",
            Module.MIXER,
            "attention_output",
            shape,
            Split.ROW,
            Reads(Role.CORE, outputs, shared=True),
            biases=call.hidden_size if biases else 0,
            matrix=Matrix.ATTENTION_OUTPUT,
        )
        before = [*self._projections(call, biases), *norms, *self._rotation(call, kernels)]
        before[-1] = before[-1]._replace(keeps=(qkv, Kept(Role.CORE, float(outputs * element))))
        return Around(before, [output])

    def _rotation(self, call: LayerCall, kernels: Kernels) -> list[Row]:
        """Return the rotation of queries and the shared key, and the copies that join a head's parts."""
        heads, up = call.tokens * call.heads_per_rank, Module.UP_PROJECTION
        # Keys are joined from their parts, of which all heads share one, and values are made contiguous.
        copied = heads * (2 * self.qk_nope_head_dim + self.qk_rope_head_dim + 2 * self.v_head_dim)
        copied += call.tokens * self.qk_rope_head_dim
        if kernels.fused_rope:
            size_bytes = (heads * self.qk_rope_head_dim * COPY_PASSES + copied) * call.element_bytes
            return [stream("rope", up, call, (size_bytes, size_bytes), (2, 2))]
        copied += heads * self.key_width * COPY_PASSES  # queries too
        rotated_heads = (call.heads_per_rank + 2) // 2  # of queries and the one key, as many as of either on average
        size_bytes = copied * call.element_bytes
        return [
            shaped("rope", up, "rope", (call.tokens, rotated_heads, self.qk_rope_head_dim)),
            stream("head_copies", up, call, (size_bytes, size_bytes), (3, 3)),
        ]


@dataclass(frozen=True, slots=True)
class LatentAttention(LatentSizes):
    """Multi-head latent attention (DeepSeek-V2)."""

    indexer: Annotated[Indexer | None, Field(description="sparse attention")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingLatentAttention(LatentSizes):
    """Multi-head latent attention of layers with a window, where it has other sizes."""

    num_attention_heads: Annotated[Count, Field(description="query heads of those layers")]
