"""The lightning indexer of sparse attention: small heads score all earlier keys, attention sees the best of them.

Forward it scores every pair of tokens, which a kernel reduces over heads before it writes one fp32 score per pair, and
the best are sorted out of those. Backward only chosen pairs have gradients. Source: DeepSeek-AI 2025 (DeepSeek-V3.2),
arXiv:2512.02556, section 2.1; transformers, models/deepseek_v32/modeling_deepseek_v32.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from predictor.core.base.fields import Count
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import product, shaped, stream
from predictor.core.rows import Kind, Module, Pass, Row, Split
from predictor.core.workload.tasks import BACKWARD, FORWARD

FP32_BYTES = 4
SCORE_PASSES = 2  # written by the scoring kernel, read by the selection


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
