"""Copy of fp32 numbers in the training precision; backward copies the gradients back."""

from __future__ import annotations

from microbench.call import Call, Maker
from predictor.core.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (elements,); where training is in fp32 itself, the copy is in bf16."""
    import torch

    narrow = torch.bfloat16 if make.precision == "fp32" else make.dtype
    wide, gradient = make.constant(*shape, dtype=torch.float32), make.constant(*shape, dtype=narrow)
    return Call(
        lambda: wide.to(narrow), (), f"torch copy fp32 to {narrow}", backward=lambda: gradient.to(torch.float32)
    )
