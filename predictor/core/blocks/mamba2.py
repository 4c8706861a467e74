"""A Mamba-2 layer: an input projection, a short convolution, a state-space scan in chunks, a gated norm, an output.

Source: Dao & Gu 2024, arXiv:2405.21060; transformers, models/mamba2/modeling_mamba2.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from predictor.core.base.errors import ConfigError
from predictor.core.base.fields import Count, Switch
from predictor.core.blocks.token_mixer import Around, Kernels, TokenMixer, out_projection
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import product, shaped, stream
from predictor.core.rows import Kept, Matrix, Module, Reads, Role, Row, Split

# Reads and writes per element of a convolution with its SiLU: forward input and output; backward the input and the
# output's gradient are read, the input's is written. The gated norm reads values and gate and writes; backward it reads
# both and a gradient and writes two.
CONVOLUTION_PASSES = (2, 3)
GATED_NORM_PASSES = (3, 5)
# Copies of what context-parallel ranks exchange: of the projections' parts to the order of ranks, to one tensor and to
# the order of tokens; of the scan's output to attention's order of tokens and back to whole heads.
COPIES_BEFORE, COPIES_BEHIND = 3, 2
COPY_PASSES = 2
COPIES = 9  # kernels: five to the order of ranks, one each of the others
# Of a multiply-accumulate: FLOPs of a token per element of the state. Source: Megatron-LM, training/training.py,
# mamba_layer_flops (scan).
SCAN_FLOPS = 7


@dataclass(frozen=True, slots=True)
class Mamba2(TokenMixer):
    """Sizes of Mamba-2 layers."""

    num_heads: Annotated[Count, Field(description="heads of the inner values")]
    head_dim: Annotated[Count, Field(description="width of one of them")]
    state_size: Annotated[Count, Field(description="width of a head's state, per element of the head")]
    num_groups: Annotated[Count, Field(description="groups of heads that share B and C")] = 1
    conv_kernel: Annotated[Count, Field(description="tokens that the convolution sees")] = 4
    chunk_size: Annotated[Count, Field(description="tokens of a chunk of the scan")] = 256
    conv_bias: Annotated[Switch, Field(description="the convolution has a bias")] = True
    gated_norm: Annotated[Switch, Field(description="the gated values are normalised")] = True

    splits_samples: ClassVar[bool] = True
    shared_out: ClassVar[tuple[str, ...]] = ("num_groups",)
    divide: ClassVar[tuple[tuple[str, str], ...]] = (("num_groups", "num_heads"),)

    def check_split(self, tensor_parallel_size: int, context_parallel_size: int) -> None:
        """Check that tensor-parallel ranks share out groups, and context-parallel ranks their heads."""
        super(Mamba2, self).check_split(tensor_parallel_size, context_parallel_size)
        tp, cp = tensor_parallel_size, context_parallel_size
        heads, groups = self.num_heads // tp, self.num_groups // tp
        if cp > 1 and (heads % cp or (groups % cp and cp % groups)):
            raise ConfigError(
                f"context_parallel_size is {cp}; it must divide the {heads} Mamba-2 heads of a tensor-parallel rank, "
                f"and divide its {groups} groups or be a multiple of them"
            )

    @property
    def inner(self) -> int:
        """Return the width of the inner values."""
        return self.num_heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Return the width of what the convolution sees: values, B and C."""
        return self.inner + 2 * self.num_groups * self.state_size

    def _groups(self, call: LayerCall) -> int:
        """Return the groups of a rank; where it has less than one, ranks hold copies of a group's B and C."""
        return max(1, self.num_groups // (call.tensor_parallel_size * call.context_parallel_size))

    def _shared_width(self, call: LayerCall) -> int:
        """Return the width of B, which is C's, of all groups of a tensor-parallel rank and their copies."""
        return self._groups(call) * call.context_parallel_size * self.state_size

    def exchanged(self, call: LayerCall) -> list[int]:
        """Return the widths per token that context-parallel ranks exchange one after the other.

        A rank has its tokens of all heads outside the convolution and the scan, and all tokens of its heads inside:
        gate, values, B, C and step sizes go there, and values come back. Backward their gradients return.
        Source: Megatron-LM, core/ssm/mamba_context_parallel.py.
        """
        inner, shared = self.inner // call.tensor_parallel_size, self._shared_width(call)
        return [inner, inner, shared, shared, self.num_heads // call.tensor_parallel_size, inner]

    def _convolved_on_rank(self, call: LayerCall) -> int:
        """Return the width per token of a context-parallel rank that the convolution sees."""
        return self.inner // call.tensor_parallel_size + 2 * self._shared_width(call)

    def _reordered(self, call: LayerCall) -> list[Row]:
        """Return the copies around the exchange."""
        if call.context_parallel_size < 2:
            return []
        *before, behind = self.exchanged(call)
        elements = call.tokens * (COPIES_BEFORE * sum(before) + COPIES_BEHIND * behind)
        size_bytes = elements * COPY_PASSES * call.element_bytes
        return [stream("exchange_copy", Module.MIXER, call, (size_bytes, size_bytes), (COPIES, COPIES))]

    def rows(self, call: LayerCall, kernels: Kernels, biases: bool) -> Around:
        """Return the products, the convolution, the scan and the gated norm, heads and groups split over ranks.

        A head has a decay, a step-size bias and a skip weight. The input projection's output is kept, and the scan's
        output before and behind its gated norm: the backward pass convolves and sums up chunks again.
        Source: state-spaces/mamba, mamba_ssm/ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn; Megatron-LM,
        core/ssm/mamba_mixer.py.
        """
        tp, tokens = call.tensor_parallel_size, call.tokens
        heads, groups = self.num_heads // (tp * call.context_parallel_size), self._groups(call)
        widths = (heads, self.head_dim, self.state_size, groups, self.chunk_size)
        per_element = tokens * call.element_bytes / tp
        projected = self.inner + self.convolved + self.num_heads
        width, kept = self.convolved // tp, float(projected)
        if call.context_parallel_size > 1:  # with copies of B and C
            width = self._convolved_on_rank(call)
            kept += tp * width - self.convolved
        convolved = tokens * width * call.element_bytes
        gated = tokens * self.inner // tp * call.element_bytes
        vectors = self.convolved * (self.conv_kernel + self.conv_bias) + 3 * self.num_heads
        vectors += self.inner if self.gated_norm else 0
        return Around(
            [
                product(
                    "in_projection",
                    Module.MIXER,
                    "qkv_projection",
                    (tokens, call.hidden_size, projected // tp),
                    Split.COLUMN,
                    Reads(Role.NORMED, call.unsplit_tokens * call.hidden_size),
                    keeps=(Kept(Role.QKV, per_element * kept),),
                    matrix=Matrix.IN_PROJECTION,
                ),
                stream(
                    "convolution",
                    Module.MIXER,
                    call,
                    (convolved * CONVOLUTION_PASSES[0], convolved * CONVOLUTION_PASSES[1]),
                    weights=vectors // tp,
                    multiplications=float(self.conv_kernel * self.convolved),
                ),
                shaped(
                    "ssd_scan",
                    Module.MIXER,
                    "ssd_scan",
                    (call.micro_batch_size, call.sequence_length, *widths),
                    multiplications=SCAN_FLOPS / 2.0 * self.inner * self.state_size,
                    keeps=(Kept(Role.CORE, per_element * 2 * self.inner),),
                ),
                stream("gated_norm", Module.MIXER, call, (gated * GATED_NORM_PASSES[0], gated * GATED_NORM_PASSES[1])),
                *self._reordered(call),
                out_projection(call, self.inner // tp, call.hidden_size),
            ],
            [],
        )
