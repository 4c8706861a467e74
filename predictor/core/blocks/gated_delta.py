"""A gated delta layer: linear attention whose state forgets by a gate and is corrected by the delta rule.

Source: Yang et al. 2024, arXiv:2412.06464; transformers, models/qwen3_next/modeling_qwen3_next.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from predictor.core.base.fields import Amount, Count, Switch
from predictor.core.blocks.mamba2 import CONVOLUTION_PASSES, GATED_NORM_PASSES
from predictor.core.blocks.token_mixer import Around, Kernels, TokenMixer, out_projection
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import product, shaped, stream
from predictor.core.rows import Kept, Matrix, Module, Reads, Role, Row, Split

# Normalising queries and keys to length one reads and writes them; backward reads them and a gradient and writes.
UNIT_LENGTH_PASSES = (2, 3)
# Multiply-accumulates of a token per element of a head's state: decay, prediction, correction, output. Source:
# Megatron-LM, training/training.py, FLOPs of gated delta layers.
STATE_MULTIPLICATIONS = 4
# Time of a recurrence whose decays are of channels over that of one whose decays are of heads, both with 48 heads 128
# wide: medians of 1.7 on H100, 1.8 on B200, B300, GB200 and GB300, 2.2 on L40S and RTX PRO 6000. Source: chunk_kda and
# chunk_gated_delta_rule of SGLang, ai-dynamo/aiconfigurator at 095f58a.
CHANNEL_DECAY_TIMES = 1.8


def _input(name: str, shape: tuple[int, int, int], split: Split, reads: Reads | None = None) -> Row:
    return product(name, Module.MIXER, "qkv_projection", shape, split, reads, matrix=Matrix.IN_PROJECTION)


@dataclass(frozen=True, slots=True)
class GatedDelta(TokenMixer):
    """Sizes of gated delta layers; several value heads may share a key head."""

    num_key_heads: Annotated[Count, Field(description="heads of queries and keys")]
    num_value_heads: Annotated[Count, Field(description="heads of values")]
    key_head_dim: Annotated[Count, Field(description="width of a key")]
    value_head_dim: Annotated[Count, Field(description="width of a value")]
    conv_kernel: Annotated[Count, Field(description="tokens that the convolution of queries, keys and values sees")] = 4
    chunk_size: Annotated[Count, Field(description="tokens of a chunk of the recurrence")] = 64
    channel_decay: Annotated[
        Switch, Field(description="every channel of a key has a decay, projected from the input (Kimi Linear)")
    ] = False
    gate_rank: Annotated[Amount, Field(description="width through which gate and decays are projected; 0: at once")] = 0

    shared_out: ClassVar[tuple[str, ...]] = ("num_key_heads",)
    divide: ClassVar[tuple[tuple[str, str], ...]] = (("num_key_heads", "num_value_heads"),)

    @property
    def keys(self) -> int:
        """Return the width of all keys, which is that of all queries."""
        return self.num_key_heads * self.key_head_dim

    @property
    def values(self) -> int:
        """Return the width of all values."""
        return self.num_value_heads * self.value_head_dim

    @property
    def convolved(self) -> int:
        """Return the width of what the convolution sees: queries, keys and values."""
        return 2 * self.keys + self.values

    def _projections(self, call: LayerCall) -> list[Row]:
        """Return the products of queries, keys, values and gate; of write strengths and decays; through low ranks."""
        tp, hidden = call.tensor_parallel_size, call.hidden_size
        narrow = self.num_value_heads * (1 if self.channel_decay else 2)
        wide = self.convolved + (0 if self.gate_rank else self.values)
        wide += self.keys if self.channel_decay and not self.gate_rank else 0
        reads = Reads(Role.NORMED, call.unsplit_tokens * hidden)
        wide_shape, narrow_shape = (call.tokens, hidden, wide // tp), (call.tokens, hidden, narrow // tp)
        return [
            _input("in_projection", wide_shape, Split.COLUMN, reads),
            _input("gate_projection", narrow_shape, Split.COLUMN),
            *self._through_rank(call),
        ]

    def _through_rank(self, call: LayerCall) -> list[Row]:
        """Return the products of a gate, and of decays of channels, that are projected through a low rank."""
        if not self.gate_rank:
            return []
        rank, tp = self.gate_rank, call.tensor_parallel_size
        rows = []
        for width in (self.values, self.keys) if self.channel_decay else (self.values,):
            down = (call.unsplit_tokens, call.hidden_size, rank)
            rows.append(_input("gate_projection", down, Split.WHOLE))
            up = (call.tokens, rank, width // tp)
            rows.append(_input("gate_projection", up, Split.COLUMN))
        return rows

    def rows(self, call: LayerCall, kernels: Kernels, biases: bool) -> Around:
        """Return the products, the convolution, unit-length queries and keys, the recurrence and the gated norm.

        Heads are split; the norm of a head's output is whole on every rank. A value head has a decay and a step-size
        bias; the convolution has no bias. Kept are inputs before and behind the convolution, the gate, outputs and
        chunks' inverses; queries and keys are repeated for the value heads that share them.
        Source: fla-org/flash-linear-attention, fla/ops/gated_delta_rule/chunk.py, ChunkGatedDeltaRuleFunction;
        transformers, qwen3_next.
        """
        tp = call.tensor_parallel_size
        heads = self.num_value_heads // tp
        widths = (self.key_head_dim, self.value_head_dim, self.chunk_size)
        per_element = call.tokens * call.element_bytes / tp
        vectors = self.convolved * self.conv_kernel + self.num_value_heads
        vectors += self.keys if self.channel_decay else self.num_value_heads
        repeated = 2 * self.num_value_heads * self.key_head_dim + self.values
        kept = per_element * (self.convolved + repeated + self.values + self.num_value_heads * self.chunk_size)
        convolved, unit = per_element * self.convolved, per_element * 2 * self.keys
        gated = per_element * self.values
        states = self.num_value_heads * self.key_head_dim * self.value_head_dim
        return Around(
            [
                *self._projections(call),
                stream(
                    "convolution",
                    Module.MIXER,
                    call,
                    (convolved * CONVOLUTION_PASSES[0], convolved * CONVOLUTION_PASSES[1]),
                    weights=vectors // tp,
                    multiplications=float(self.conv_kernel * self.convolved),
                ),
                stream(
                    "qk_norm",
                    Module.MIXER,
                    call,
                    (unit * UNIT_LENGTH_PASSES[0], unit * UNIT_LENGTH_PASSES[1]),
                    (2, 2),
                ),
                shaped(
                    "gated_delta_rule",
                    Module.MIXER,
                    "gated_delta_rule",
                    (call.micro_batch_size, call.sequence_length, heads, *widths),
                    times=CHANNEL_DECAY_TIMES if self.channel_decay else 1.0,
                    multiplications=float(STATE_MULTIPLICATIONS * states),
                    keeps=(Kept(Role.QKV, kept), Kept(Role.CORE, per_element * 2 * self.values)),
                ),
                stream(
                    "gated_norm",
                    Module.MIXER,
                    call,
                    (gated * GATED_NORM_PASSES[0], gated * GATED_NORM_PASSES[1]),
                    weights=self.value_head_dim,
                ),
                out_projection(call, self.values // tp, call.hidden_size),
            ],
            [],
        )
