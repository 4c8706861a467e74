"""Lightning attention: linear attention in blocks whose heads decay at fixed rates, with a norm and an output gate.

Source: MiniMax 2025 (MiniMax-01), arXiv:2501.08313, section 2.2; Qin et al. 2024 (Lightning Attention-2),
arXiv:2401.04658; transformers, models/minimax/modeling_minimax.py (MiniMaxLightningAttention).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from predictor.core.base.fields import Count
from predictor.core.blocks.mamba2 import GATED_NORM_PASSES
from predictor.core.blocks.token_mixer import Around, Kernels, TokenMixer, out_projection
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import product, shaped, stream
from predictor.core.rows import Kept, Matrix, Module, Reads, Role, Row, Split

# SiLU reads and writes; backward it reads its input and a gradient and writes one.
ACTIVATION_PASSES = (2, 3)


@dataclass(frozen=True, slots=True)
class LightningAttention(TokenMixer):
    """Sizes of lightning attention layers; queries, keys and values have as many heads."""

    num_heads: Annotated[Count, Field(description="heads of queries, keys and values")]
    head_dim: Annotated[Count, Field(description="width of one of them")]
    chunk_size: Annotated[Count, Field(description="tokens of a block, inside which attention is computed whole")] = 256

    shared_out: ClassVar[tuple[str, ...]] = ("num_heads",)

    @property
    def width(self) -> int:
        """Return the width of all queries, which is that of all keys and of all values."""
        return self.num_heads * self.head_dim

    def _projection(self, name: str, call: LayerCall, parts: int, kept: float, reads: Reads | None) -> Row:
        """Return a product that makes so many parts as wide as all queries, and the bytes that are kept of them."""
        shape = (call.tokens, call.hidden_size, parts * self.width // call.tensor_parallel_size)
        keeps = (Kept(Role.QKV, kept),)
        operator, matrix = "qkv_projection", Matrix.IN_PROJECTION
        return product(name, Module.MIXER, operator, shape, Split.COLUMN, reads, keeps=keeps, matrix=matrix)

    def rows(self, call: LayerCall, kernels: Kernels, biases: bool) -> Around:
        """Return both input products, SiLU of queries, keys and values, the scan of blocks, gated norm and output.

        Products inside a block and states between blocks are those of a Mamba-2 scan whose every head is a group. Kept
        are queries, keys and values before and behind SiLU, the gate, and the scan's output before and behind its norm.
        """
        tp, size = call.tensor_parallel_size, float(call.tokens * self.width * call.element_bytes)
        heads, per_rank = self.num_heads // tp, size / tp
        scan = (call.micro_batch_size, call.sequence_length, heads, self.head_dim, self.head_dim, heads)
        activated = 3 * per_rank
        reads = Reads(Role.NORMED, call.unsplit_tokens * call.hidden_size)
        return Around(
            [
                self._projection("in_projection", call, 3, 2 * activated, reads),
                stream(
                    "qkv_activation",
                    Module.MIXER,
                    call,
                    (activated * ACTIVATION_PASSES[0], activated * ACTIVATION_PASSES[1]),
                ),
                shaped(
                    "lightning_attention",
                    Module.MIXER,
                    "ssd_scan",
                    (*scan, self.chunk_size),
                    # Scores and their values inside a block; a state's update and its reading.
                    multiplications=2.0 * self.width * (min(self.chunk_size, call.sequence_length) + self.head_dim),
                    keeps=(Kept(Role.CORE, 2 * per_rank),),
                ),
                self._projection("gate_projection", call, 1, per_rank, None),
                stream(
                    "gated_norm",
                    Module.MIXER,
                    call,
                    (per_rank * GATED_NORM_PASSES[0], per_rank * GATED_NORM_PASSES[1]),
                    weights=self.width // tp,
                ),
                out_projection(call, self.width // tp, call.hidden_size),
            ],
            [],
        )
