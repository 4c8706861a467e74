"""fp8 matrix products as in training: quantised in plain torch operations, multiplied by cuBLASLt.

- ``fp8``, one scale a tensor: activations and weights in e4m3, gradients in e5m2; ``torch._scaled_mm``. Transformer
  Engine's hybrid format and its accumulation: fast forward, not backward (``MMParams`` of Float8CurrentScaling).
- ``fp8_block``, everything in e4m3: one scale for 1 × 128 numbers along the summed size of activations and gradients,
  one for 128 × 128 of weights; never fast. DeepSeek-V3, arXiv:2412.19437, section 3.3.2. It takes
  ``torch.nn.functional.scaled_mm`` (2.10 on; before, torch read the scales of some sizes wrongly, pull request 166752),
  cuBLAS 12.9 and a GPU of compute capability 9.

Every product is of a row-major matrix and the transpose of a row-major one, both with the summed size last: Hopper
takes no other layout. So activations, weights and gradients exist as they are and transposed.
"""

from __future__ import annotations

from itertools import compress
from typing import Any, NamedTuple

from microbench.call import Call, Maker, Tensor
from predictor.core.costs.operator import Shape
from predictor.core.costs.work import FP8_PRECISIONS, SIZE_MULTIPLES

GROUP = 128
TENSOR, GROUPS, BLOCKS = None, (1, GROUP), (GROUP, GROUP)  # what shares a scale
SCALE_PADDING = 4  # cuBLASLt reads columns of block scales that begin at whole 16 bytes
SMALLEST_AMAX = 1e-12  # a group of zeros has a scale too

Block = tuple[int, int] | None


class Operand(NamedTuple):
    """A matrix of a product.

    Attributes:
        values: fp8, row-major, (rows, summed size).
        scale: fp32, what a value is multiplied by to get its number back. Of a tensor (); of groups (rows, summed size
            / 128) and of blocks (summed size / 128 padded to a multiple of 4, rows / 128), both with the first size
            contiguous, as cuBLASLt reads them.
        block: what shares a scale: (rows, columns), or None for the tensor.
    """

    values: Tensor
    scale: Tensor
    block: Block


class BothWays(NamedTuple):
    """A quantised matrix as it is, and transposed."""

    straight: Operand
    transposed: Operand


def formats(precision: str) -> tuple[Any, Any]:
    """Return torch's types of activations and weights, and of gradients."""
    import torch

    return torch.float8_e4m3fn, torch.float8_e5m2 if precision == "fp8" else torch.float8_e4m3fn


def check_sizes(shape: Shape, precision: str) -> None:
    """Check that fp8 matrices can have these sizes.

    Raises:
        ValueError: a size is not a multiple that the precision needs.
    """
    multiple = SIZE_MULTIPLES[precision]
    if any(size % multiple for size in shape):
        raise ValueError(f"sizes are {shape}; {precision} needs multiples of {multiple} in all of them")


def _quantised(x: Tensor, dtype: Any, block: Block) -> tuple[Tensor, Tensor]:
    """Return fp8 numbers (rows, columns) and the scales of their blocks, (rows / block rows, columns / block columns).

    No number is clamped: the largest of a block becomes the largest of the format, to a rounding that fp8 swallows.
    """
    import torch

    rows, columns = x.shape
    high, wide = block or (rows, columns)
    blocks = x.reshape(rows // high, high, columns // wide, wide)
    amax = blocks.abs().amax(dim=(1, 3), keepdim=True).float().clamp_(min=SMALLEST_AMAX)
    scale = amax / torch.finfo(dtype).max
    return (blocks / scale).to(dtype).view(rows, columns), scale.view(rows // high, columns // wide)


def _operand(values: Tensor, scale: Tensor, block: Block) -> Operand:
    """Return a matrix with its scales, (rows / block rows, columns / block columns), laid out for a product."""
    if block is TENSOR:
        return Operand(values, scale.reshape(()), block)
    if block == GROUPS:
        return Operand(values, scale.t().contiguous().t(), block)
    rows, columns = scale.shape
    padded = scale.new_zeros(rows, -(-columns // SCALE_PADDING) * SCALE_PADDING)
    padded[:, :columns] = scale
    return Operand(values, padded.t(), block)


def quantise(x: Tensor, dtype: Any, precision: str) -> BothWays:
    """Quantise an activation or a gradient, (rows, columns), for products that sum over either size.

    One scale serves both ways; groups lie along the summed size, so the transposed copy is quantised anew.
    """
    if precision == "fp8":
        return _with_transpose(*_quantised(x, dtype, TENSOR), TENSOR)
    straight = _operand(*_quantised(x, dtype, GROUPS), GROUPS)
    values, scale = _quantised(x, dtype, (GROUP, 1))
    return BothWays(straight, _operand(values.t().contiguous(), scale.t(), GROUPS))


def quantise_weight(weight: Tensor, dtype: Any, precision: str) -> BothWays:
    """Quantise a weight, (n, k); a block's scale serves both ways, as a tensor's does."""
    block = TENSOR if precision == "fp8" else BLOCKS
    return _with_transpose(*_quantised(weight, dtype, block), block)


def _with_transpose(values: Tensor, scale: Tensor, block: Block) -> BothWays:
    return BothWays(_operand(values, scale, block), _operand(values.t().contiguous(), scale.t(), block))


def product(a: Operand, b: Operand, fast_accumulation: bool = False) -> Tensor:
    """Return a @ bᵀ in bf16.

    Raises:
        RuntimeError: this torch, its cuBLAS or the GPU does not have the product; torch's own subclasses included.
        ValueError: the same, on a CPU.
    """
    import torch

    if a.block is TENSOR:
        return torch._scaled_mm(
            a.values,
            b.values.t(),
            scale_a=a.scale,
            scale_b=b.scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=fast_accumulation,
        )
    from torch.nn import functional

    recipes = {GROUPS: functional.ScalingType.BlockWise1x128, BLOCKS: functional.ScalingType.BlockWise128x128}
    assert a.block is not None
    assert b.block is not None
    return functional.scaled_mm(
        a.values,
        b.values.t(),
        a.scale,
        recipes[a.block],
        b.scale,
        recipes[b.block],
        swizzle_a=functional.SwizzleType.NO_SWIZZLE,
        swizzle_b=functional.SwizzleType.NO_SWIZZLE,
        output_dtype=torch.bfloat16,
        use_fast_accum=fast_accumulation,
    )


class Linear(NamedTuple):
    """The quantised matrices of a linear layer: x (m, k), weight (n, k) and the gradient of its output (m, n)."""

    x: BothWays
    weight: BothWays
    gradient: BothWays

    def forward(self) -> Tensor:
        """Return x @ weightᵀ, (m, n); only one scale a tensor is accumulated fast."""
        return product(self.x.straight, self.weight.straight, fast_accumulation=self.x.straight.block is TENSOR)

    def backward(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of x, (m, k), and of the weight, (n, k)."""
        return (
            product(self.gradient.straight, self.weight.transposed),
            product(self.gradient.transposed, self.x.transposed),
        )


def fp8_linear_call(shape: Shape, make: Maker) -> Call:
    """Return a linear layer's three products, its matrices quantised before.

    Raises:
        ValueError: a size is not a multiple that the precision needs.
    """
    check_sizes(shape, make.precision)
    m, k, n = shape
    values, gradients = formats(make.precision)
    layer = Linear(
        quantise(make.constant(m, k), values, make.precision),
        quantise_weight(make.weight(n, k).detach(), values, make.precision),
        quantise(make.constant(m, n), gradients, make.precision),
    )
    kernel = (
        "torch._scaled_mm, a scale a tensor: e4m3 forward, accumulated fast; e5m2 by e4m3 backward, not fast"
        if make.precision == "fp8"
        else "torch scaled_mm e4m3: 1x128 by 128x128, weight gradient 1x128 by 1x128; not accumulated fast"
    )
    return Call(layer.forward, (), kernel, backward=layer.backward)


def fp8_precisions(capability: tuple[int, int]) -> tuple[str, ...]:
    """Return the fp8 precisions whose products this torch has for a GPU of a compute capability.

    Whether its cuBLAS has them shows when a product is run. AMD's GPUs have other formats (fnuz), not measured here.
    """
    import torch
    from torch.nn import functional

    # torch refuses blocks on other GPUs than Hopper: later ones have scales of 1 × 32 instead.
    is_supported = (
        capability >= (8, 9) and hasattr(torch, "_scaled_mm"),
        capability[0] == 9 and hasattr(functional, "scaled_mm"),
    )
    if torch.version.hip is not None or not hasattr(torch, "float8_e4m3fn"):
        return ()
    return tuple(compress(FP8_PRECISIONS, is_supported))
