"""Multi-head latent attention: queries, keys and values are projected up from low-rank latents.

Source: DeepSeek-AI 2024 (DeepSeek-V2), arXiv:2405.04434, section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.costs.operator import Direction
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.mixers.indexer import Indexer
from predictor.workloads.mixers.linear import Linear, Split, linear_tasks, total
from predictor.workloads.mixers.token_mixer import KeptByMixer, Kernels
from predictor.workloads.tasks import Task, shaped_task, stream_task

UP = "qkv_projection"  # the operator that times them all: one family of products
COPY_PASSES = 2


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

    @property
    def mean_width(self) -> int:
        """Return the width of a plain head with the same FLOPs and, of keys and values together, the same bytes."""
        return (self.key_width + self.v_head_dim + 1) // 2

    def linears(self, hidden_size: int, num_heads: int) -> tuple[Linear, ...]:
        """Return the matrices; down-projections are whole on every tensor-parallel rank, heads are split."""
        queries = num_heads * self.key_width
        if self.q_lora_rank:
            of_queries: tuple[Linear, ...] = (
                Linear("q_down_projection", UP, hidden_size, self.q_lora_rank, Split.WHOLE),
                Linear("q_up_projection", UP, self.q_lora_rank, queries, Split.COLUMN),
            )
        else:
            of_queries = (Linear("q_up_projection", UP, hidden_size, queries, Split.COLUMN),)
        keys_and_values = num_heads * (self.qk_nope_head_dim + self.v_head_dim)
        return (
            *of_queries,
            Linear("kv_down_projection", UP, hidden_size, self.kv_lora_rank + self.qk_rope_head_dim, Split.WHOLE),
            Linear("kv_up_projection", UP, self.kv_lora_rank, keys_and_values, Split.COLUMN),
            Linear("attention_output", "attention_output", num_heads * self.v_head_dim, hidden_size, Split.ROW),
        )

    def latent_of_queries(self, hidden_size: int) -> int:
        """Return the width of what queries are projected up from."""
        return self.q_lora_rank or hidden_size

    def parameters(self, hidden_size: int, num_heads: int, tensor_parallel_size: int = 1) -> int:
        """Return the parameters on one rank: matrices, the norms of both latents, the norm of the indexer's key."""
        parameters = total(self.linears(hidden_size, num_heads), tensor_parallel_size)
        if self.indexer is not None:
            parameters += self.indexer.parameters(hidden_size, self.latent_of_queries(hidden_size))
        return parameters + self.q_lora_rank + self.kv_lora_rank

    def biases(self, hidden_size: int) -> int:
        """Return the parameters of the biases where attention has them: of the down-projections and of the output.

        Source: transformers, models/deepseek_v3/modeling_deepseek_v3.py (attention_bias).
        """
        return self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim + hidden_size

    def core_multiplications(self, num_heads: int, keys: int) -> float:
        """Return the multiplications of a query with the keys that it sees and of their scores with the values."""
        seen = keys if self.indexer is None else self.indexer.keys(keys)
        return float(seen * num_heads * (self.key_width + self.v_head_dim))

    def gathered_width(self, hidden_size: int) -> int:
        """Return the width of what the up-projections read: latents, and the rotated key, which all heads share."""
        return (self.q_lora_rank or hidden_size) + self.kv_lora_rank + self.qk_rope_head_dim

    def tasks(self, call: LayerCall, direction: Direction, kernels: Kernels) -> list[Task]:
        """Return the products, the norms of the latents, the rotation, and the copies that join a head's parts.

        Source: Megatron-LM, core/transformer/multi_latent_attention.py, and core/fusions/fused_mla_yarn_rope_apply.py
        for kernels that rotate, split and join at once.
        """
        tasks = linear_tasks(self.linears(call.hidden_size, call.num_attention_heads), call, direction)
        if self.indexer is not None:
            tasks += self.indexer.tasks(call, self.latent_of_queries(call.hidden_size), direction)
        latents = [width for width in (self.q_lora_rank, self.kv_lora_rank) if width]
        norms = [shaped_task(kernels.norm, (call.unsplit_tokens, width), direction) for width in latents]
        tasks += [norm._replace(name="latent_norm") for norm in norms]
        heads = call.tokens * call.heads_per_rank
        # Keys are joined from their parts, of which all heads share one, and values are made contiguous.
        copied = heads * (2 * self.qk_nope_head_dim + self.qk_rope_head_dim + 2 * self.v_head_dim)
        copied += call.tokens * self.qk_rope_head_dim
        if kernels.fused_rope:
            rotated = heads * self.qk_rope_head_dim * COPY_PASSES
            return [*tasks, stream_task("rope", (rotated + copied) * call.element_bytes, call, launches=2)]
        copied += heads * self.key_width * COPY_PASSES  # queries too
        rotated_heads = (call.heads_per_rank + 2) // 2  # of queries and the one key, as many as of either on average
        rope = shaped_task("rope", (call.tokens, rotated_heads, self.qk_rope_head_dim), direction)
        return [*tasks, rope, stream_task("head_copies", copied * call.element_bytes, call, launches=3)]

    def kept(self, call: LayerCall) -> KeptByMixer:
        """Return the latents before and behind their norms; queries, keys and values; attention's output."""
        heads = call.tokens * call.heads_per_rank
        latents = 2 * (self.q_lora_rank + self.kv_lora_rank) + self.qk_rope_head_dim
        return KeptByMixer(
            latents=float(call.unsplit_tokens * latents * call.element_bytes),
            qkv=float(heads * (2 * self.key_width + self.v_head_dim) * call.element_bytes),
            core=float(heads * self.v_head_dim * call.element_bytes),
        )
