"""A gated delta layer: linear attention whose state forgets by a gate and is corrected by the delta rule.

Source: Yang et al. 2024, arXiv:2412.06464; transformers, models/qwen3_next/modeling_qwen3_next.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.costs.operator import Direction
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.mixers.linear import Linear, Split, linear_tasks, total
from predictor.workloads.mixers.mamba2 import CONVOLUTION_PASSES, GATED_NORM_PASSES
from predictor.workloads.mixers.token_mixer import KeptByMixer, Kernels
from predictor.workloads.tasks import BACKWARD, Task, shaped_task, stream_task

# Normalising queries and keys to length one reads and writes them; backward reads them and a gradient and writes.
UNIT_LENGTH_PASSES = (2, 3)
# Multiply-accumulates of a token per element of a head's state: decay, prediction, correction, output. Source:
# Megatron-LM, training/training.py, FLOPs of gated delta layers.
STATE_MULTIPLICATIONS = 4


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """Sizes of a gated delta layer; several value heads may share a key head.

    Attributes:
        conv_kernel: tokens that the convolution of queries, keys and values sees.
        chunk_size: tokens that the recurrence computes with matrix products at once.
        channel_decay: every channel of a key has a decay of its own, projected from the input (Kimi Linear).
        gate_rank: width through which gate and decays of channels are projected; 0: at once.
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int = 4
    chunk_size: int = 64
    channel_decay: bool = False
    gate_rank: int = 0

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

    def linears(self, hidden_size: int, num_heads: int) -> tuple[Linear, ...]:
        """Return the matrices: of queries, keys, values and gate; of write strengths and decays; of the output."""
        narrow = self.num_value_heads * (1 if self.channel_decay else 2)
        wide = self.convolved + (0 if self.gate_rank else self.values)
        wide += self.keys if self.channel_decay and not self.gate_rank else 0
        return (
            Linear("in_projection", "qkv_projection", hidden_size, wide, Split.COLUMN),
            Linear("gate_projection", "qkv_projection", hidden_size, narrow, Split.COLUMN),
            *self._through_rank(hidden_size),
            Linear("out_projection", "attention_output", self.values, hidden_size, Split.ROW),
        )

    def _through_rank(self, hidden_size: int) -> tuple[Linear, ...]:
        """Return the matrices of a gate, and of decays of channels, that are projected through a low rank."""
        if not self.gate_rank:
            return ()
        widths = (self.values, self.keys) if self.channel_decay else (self.values,)
        down = [Linear("gate_projection", "qkv_projection", hidden_size, self.gate_rank, Split.WHOLE)] * len(widths)
        up = [Linear("gate_projection", "qkv_projection", self.gate_rank, width, Split.COLUMN) for width in widths]
        return (*down, *up)

    def parameters(self, hidden_size: int, num_heads: int, tensor_parallel_size: int = 1) -> int:
        """Return the parameters on one rank; heads are split, the norm of a head's output is on every rank.

        A value head has a decay and a step-size bias; the convolution has no bias.
        """
        split = self.convolved * self.conv_kernel + self.num_value_heads
        split += self.keys if self.channel_decay else self.num_value_heads
        matrices = total(self.linears(hidden_size, num_heads), tensor_parallel_size)
        return matrices + split // tensor_parallel_size + self.value_head_dim

    def biases(self, hidden_size: int) -> int:
        """Return none: attention's switch does not reach the projections."""
        return 0

    def core_multiplications(self, num_heads: int, keys: int) -> float:
        """Return the multiplications of the recurrence and the convolution; they do not depend on the sequence."""
        states = self.num_value_heads * self.key_head_dim * self.value_head_dim
        return float(STATE_MULTIPLICATIONS * states + self.conv_kernel * self.convolved)

    def gathered_width(self, hidden_size: int) -> int:
        """Return the width of what the input projections read."""
        return hidden_size

    def tasks(self, call: LayerCall, direction: Direction, kernels: Kernels) -> list[Task]:
        """Return the products, the convolution, unit-length queries and keys, the recurrence and the gated norm.

        Source: fla-org/flash-linear-attention, fla/ops/gated_delta_rule/chunk.py; transformers, qwen3_next.
        """
        tp, back = call.tensor_parallel_size, direction is BACKWARD
        heads = self.num_value_heads // tp
        widths = (self.key_head_dim, self.value_head_dim, self.chunk_size)
        rule = (call.micro_batch_size, call.sequence_length, heads, *widths)
        per_element = call.tokens * call.element_bytes / tp
        return [
            *linear_tasks(self.linears(call.hidden_size, call.num_attention_heads), call, direction),
            shaped_task("gated_delta_rule", rule, direction),
            stream_task("convolution", per_element * self.convolved * CONVOLUTION_PASSES[back], call),
            stream_task("qk_norm", per_element * 2 * self.keys * UNIT_LENGTH_PASSES[back], call, launches=2),
            stream_task("gated_norm", per_element * self.values * GATED_NORM_PASSES[back], call),
        ]

    def kept(self, call: LayerCall) -> KeptByMixer:
        """Return what the kernels save: inputs before and behind the convolution, the gate, outputs, chunks' inverses.

        Queries and keys are repeated for the value heads that share them. Source: fla-org/flash-linear-attention,
        fla/ops/gated_delta_rule/chunk.py, ChunkGatedDeltaRuleFunction.
        """
        repeated = 2 * self.num_value_heads * self.key_head_dim + self.values
        inverses = self.num_value_heads * self.chunk_size
        per_element = call.tokens * call.element_bytes / call.tensor_parallel_size
        return KeptByMixer(
            0.0,
            per_element * (self.convolved + repeated + self.values + inverses),
            per_element * 2 * self.values,
        )
