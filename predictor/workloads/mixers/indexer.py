"""The lightning indexer of sparse attention: small heads score all earlier keys, attention sees the best of them.

Forward it scores every pair of tokens, which a kernel reduces over heads before it writes one fp32 score per pair, and
the best are sorted out of those. Backward only chosen pairs have gradients. Source: DeepSeek-AI 2025 (DeepSeek-V3.2),
arXiv:2512.02556, section 2.1; transformers, models/deepseek_v32/modeling_deepseek_v32.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.costs.operator import Direction
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.mixers.linear import Linear, Split, linear_tasks, total
from predictor.workloads.tasks import BACKWARD, Task, shaped_task, stream_task

FP32_BYTES = 4
SCORE_PASSES = 2  # written by the scoring kernel, read by the selection


@dataclass(frozen=True, slots=True)
class Indexer:
    """Scores all earlier keys of a query with small heads; attention then sees the best ``top_k`` of them.

    Attributes:
        is_own: the layer runs it; otherwise it takes the choice of an earlier layer's.
    """

    num_heads: int
    head_dim: int
    top_k: int
    is_own: bool = True

    def linears(self, hidden_size: int, latent_width: int) -> tuple[Linear, ...]:
        """Return its matrices, whole on every rank: of its queries, its one key, and its heads' weights."""
        if not self.is_own:
            return ()
        return (
            Linear("index_queries", "qkv_projection", latent_width, self.num_heads * self.head_dim, Split.WHOLE),
            Linear("index_key", "qkv_projection", hidden_size, self.head_dim, Split.WHOLE),
            Linear("index_weights", "qkv_projection", hidden_size, self.num_heads, Split.WHOLE),
        )

    def parameters(self, hidden_size: int, latent_width: int) -> int:
        """Return its parameters: matrices, and the LayerNorm of its key."""
        return total(self.linears(hidden_size, latent_width)) + (2 * self.head_dim if self.is_own else 0)

    def keys(self, sequence_length: int) -> int:
        """Return the keys that attention sees of a query."""
        return min(self.top_k, sequence_length)

    def multiplications(self, hidden_size: int, latent_width: int, sequence_length: int) -> float:
        """Return the multiplications of a token: matrices, and its scores with all keys."""
        if not self.is_own:
            return 0.0
        return float(total(self.linears(hidden_size, latent_width)) + sequence_length * self.num_heads * self.head_dim)

    def tasks(self, call: LayerCall, latent_width: int, direction: Direction) -> list[Task]:
        """Return what one pass runs: the products, the key's norm, the scores, and the choice of the best."""
        if not self.is_own:
            return []
        samples, length = call.micro_batch_size, call.sequence_length
        tasks = linear_tasks(self.linears(call.hidden_size, latent_width), call, direction)
        norm = shaped_task("layer_norm", (call.unsplit_tokens, self.head_dim), direction)
        heads = samples * self.num_heads
        if direction is BACKWARD:
            chosen = (heads, length, self.head_dim, self.keys(length))
            return [*tasks, norm, shaped_task("attention_scores", chosen, direction)._replace(name="index_scores")]
        share = 0.5 if call.causal else 1.0
        scores = shaped_task("attention_scores", (heads, length, self.head_dim, length), direction, share)
        size_bytes = share * samples * length * length * FP32_BYTES * SCORE_PASSES
        return [
            *tasks,
            norm,
            scores._replace(name="index_scores"),
            stream_task("index_choice", size_bytes, call, launches=2),
        ]
