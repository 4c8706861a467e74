"""One call of an operator, as a kernel file builds it, ready to run forward and backward as in a training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from predictor.core.costs.operator import Shape

# A torch.Tensor; only code that makes tensors imports torch, so that listing the kernels works without it.
Tensor = Any
Output = Any

# torch's dtype of the tensors of a precision; fp8 operators quantise bf16 tensors.
DTYPES = {
    "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "bfloat16", "fp8_block": "bfloat16",
}  # fmt: skip
WEIGHT_SCALE = 0.02


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    Attributes:
        forward: run the forward pass and return its output, or outputs.
        inputs: tensors whose gradients the backward pass computes; empty without autograd.
        kernel: name of the kernel, library or backend that runs.
        backward: run the backward pass where autograd does not derive it from ``forward``.
    """

    forward: Callable[[], Output]
    inputs: tuple[Tensor, ...]
    kernel: str
    backward: Callable[[], Output] | None = None


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes tensors on one device in one precision.

    Attributes:
        attention_kernel: implementation that fused attention is forced to; empty: see ``microbench.attention``.
    """

    device: str
    precision: str
    attention_kernel: str = ""

    @property
    def dtype(self) -> Any:
        """Return torch's name for the precision."""
        import torch

        return getattr(torch, DTYPES[self.precision])

    def activation(self, *sizes: int) -> Tensor:
        """Return normal numbers with a gradient."""
        import torch

        return torch.randn(*sizes, device=self.device, dtype=self.dtype).requires_grad_()

    def constant(self, *sizes: int, dtype: Any = None) -> Tensor:
        """Return normal numbers without a gradient."""
        import torch

        return torch.randn(*sizes, device=self.device, dtype=dtype or self.dtype)

    def weight(self, *sizes: int) -> Tensor:
        """Return a weight, initialised as in a model."""
        import torch

        return torch.empty(*sizes, device=self.device, dtype=self.dtype).normal_(0.0, WEIGHT_SCALE).requires_grad_()

    def ids(self, count: int, largest: int) -> Tensor:
        """Return ``count`` whole numbers below ``largest``."""
        import torch

        return torch.randint(largest, (count,), device=self.device)

    def causal_mask(self, length: int) -> Tensor:
        """Return True where a query may not see a key, (1, length, length)."""
        import torch

        return torch.ones(length, length, device=self.device, dtype=torch.bool).triu_(1).unsqueeze_(0)


Build = Callable[[Shape, Maker], Call]


def parameter_list(shape: Shape, make: Maker) -> list[Tensor]:
    """Return a list of fp32 tensors with gradients for a shape (parameters, tensors), sized as in a model.

    A transformer's list alternates few large matrices and many vectors, so half of the tensors are small.
    """
    import torch

    parameters, tensors = shape
    vectors = min(tensors // 2, parameters // 1024)
    matrices = tensors - vectors
    width = max(1, parameters // (1024 * max(vectors, 1))) if vectors else 0
    rest = parameters - vectors * width
    sizes = [width] * vectors + [rest // matrices + (i < rest % matrices) for i in range(matrices)]
    parameter_tensors = []
    for size in sizes:
        tensor = torch.empty(size, device=make.device, dtype=torch.float32).normal_(0.0, WEIGHT_SCALE).requires_grad_()
        tensor.grad = torch.randn_like(tensor)
        parameter_tensors.append(tensor)
    return parameter_tensors


def optimizer_call(shape: Shape, make: Maker, form: str) -> Call:
    """Return an AdamW step over a list of fp32 tensors; ``form`` is fused, foreach or looped."""
    from torch.optim import AdamW

    step = AdamW(parameter_list(shape, make), lr=1e-4, fused=form == "fused", foreach=form == "foreach")
    return Call(step.step, (), f"torch.optim.AdamW {form}")
