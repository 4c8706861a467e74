"""Gradient of a linear layer's weight, added to an fp32 sum, stored (outputs, inputs).

On a GPU ``aten::addmm.dtype_out`` whose sum is its output too: one cuBLAS product of 16-bit operands with an fp32
result and beta = 1, as is APEX's ``wgrad_gemm_accum_fp32`` of Megatron-LM's --gradient-accumulation-fusion. Elsewhere,
and before torch let the sum be wider than the operands (aten/src/ATen/native/cuda/Blas.cpp, _addmm_dtype_out_cuda), a
product in 16 bits and its addition to the sum, two kernels; the row's kernel says which.
"""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from microbench.gradient_shapes import gradients
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Shape

PROBED = 16  # rows and columns of the product that shows whether the device has the fused one


def add_in_product(total: Tensor, gradient: Tensor, x: Tensor) -> Tensor:
    """Add dYᵀ · X to the fp32 sum in one product."""
    import torch

    return torch.ops.aten.addmm.dtype_out(total, gradient.t(), x, torch.float32, out=total)


def add_behind_product(total: Tensor, gradient: Tensor, x: Tensor) -> Tensor:
    """Add dYᵀ · X, rounded to 16 bits, to the fp32 sum."""
    return total.add_(gradient.t() @ x)


def has_fused_sum(make: Maker) -> bool:
    """Return whether a product of the device adds 16-bit operands to an fp32 sum."""
    import torch

    operand = make.constant(PROBED, PROBED)
    try:
        add_in_product(make.constant(PROBED, PROBED, dtype=torch.float32), operand, operand)
    except (AttributeError, RuntimeError):  # torch has no such product, or none for this device
        return False
    return True


def drawn(call: LayerCall) -> Shape:
    """Return the shape in a layer of a sweep."""
    return gradients(call)[1]


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (m, k, n): of the layer's inputs, tokens and its outputs."""
    import torch

    inputs, tokens, outputs = shape
    gradient, x = make.constant(tokens, outputs), make.constant(tokens, inputs)
    total = torch.zeros(outputs, inputs, device=make.device, dtype=torch.float32)
    if has_fused_sum(make):
        return Call(lambda: add_in_product(total, gradient, x), (), "torch addmm, 16-bit operands, fp32 sum in place")
    return Call(lambda: add_behind_product(total, gradient, x), (), "torch mm, then add_ to the fp32 sum")
