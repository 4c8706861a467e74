"""Multi-head latent attention: queries, keys and values are projected up from low-rank latents.

Source: DeepSeek-AI 2024 (DeepSeek-V2), arXiv:2405.04434, section 2.1; the sparse attention's indexer: DeepSeek-AI 2025
(DeepSeek-V3.2), arXiv:2512.02556, section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.workloads.mixers.linear import Linear, Split, total


@dataclass(frozen=True, slots=True)
class Indexer:
    """Scores all earlier keys of a query with small heads; attention then sees the best ``top_k`` of them."""

    num_heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Sizes of multi-head latent attention.

    Attributes:
        q_lora_rank: width of the queries' latent; 0: queries are projected directly.
        kv_lora_rank: width of the latent of keys and values.
        qk_nope_head_dim: of a head's queries and keys, what is not rotated.
        qk_rope_head_dim: what is; one rotated key is shared by all heads.
        v_head_dim: width of a head's values.
    """

    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int = 0
    indexer: Indexer | None = None

    @property
    def key_width(self) -> int:
        """Return the width of a head's queries and keys."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def linears(self, hidden_size: int, num_heads: int) -> tuple[Linear, ...]:
        """Return the matrices; down-projections are whole on every tensor-parallel rank, heads are split."""
        queries = num_heads * self.key_width
        if self.q_lora_rank:
            of_queries: tuple[Linear, ...] = (
                Linear("qkv_projection", hidden_size, self.q_lora_rank, Split.WHOLE),
                Linear("qkv_projection", self.q_lora_rank, queries, Split.COLUMN),
            )
        else:
            of_queries = (Linear("qkv_projection", hidden_size, queries, Split.COLUMN),)
        keys_and_values = num_heads * (self.qk_nope_head_dim + self.v_head_dim)
        return (
            *of_queries,
            Linear("qkv_projection", hidden_size, self.kv_lora_rank + self.qk_rope_head_dim, Split.WHOLE),
            Linear("qkv_projection", self.kv_lora_rank, keys_and_values, Split.COLUMN),
            Linear("attention_output", num_heads * self.v_head_dim, hidden_size, Split.ROW),
        )

    def indexer_linears(self, hidden_size: int) -> tuple[Linear, ...]:
        """Return the indexer's matrices, whole on every rank: of its queries, its one key, and its heads' weights."""
        if self.indexer is None:
            return ()
        heads, width = self.indexer.num_heads, self.indexer.head_dim
        return (
            Linear("qkv_projection", self.q_lora_rank or hidden_size, heads * width, Split.WHOLE),
            Linear("qkv_projection", hidden_size, width, Split.WHOLE),
            Linear("qkv_projection", hidden_size, heads, Split.WHOLE),
        )

    def parameters(self, hidden_size: int, num_heads: int, tensor_parallel_size: int = 1) -> int:
        """Return the parameters on one rank: matrices, the norms of both latents, the norm of the indexer's key."""
        linears = self.linears(hidden_size, num_heads) + self.indexer_linears(hidden_size)
        norms = self.q_lora_rank + self.kv_lora_rank
        if self.indexer is not None:
            norms += 2 * self.indexer.head_dim
        return total(linears, tensor_parallel_size) + norms

    def biases(self, hidden_size: int) -> int:
        """Return the parameters of the biases where attention has them: of the down-projections and of the output.

        Source: transformers, models/deepseek_v3/modeling_deepseek_v3.py (attention_bias).
        """
        return self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim + hidden_size
