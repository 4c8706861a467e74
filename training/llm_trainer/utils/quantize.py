"""Dynamic int8 quantisation of linear layers, on the integer matrix product of torch itself.

``torch.ao.quantization.quantize_dynamic`` is deprecated, with the tensor types that it makes; what it is to be replaced
by, torchao, multiplies with this same operator.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from llm_trainer.exceptions import GenerationError
from llm_trainer.models import TransformerLM

LARGEST = 127  # of int8, the same on both sides of 0
CUDA_ROWS = 32  # cuBLAS multiplies int8 matrices of more than 16 rows only,
CUDA_MULTIPLE = 8  # and of sides that are multiples of 8


class Int8Linear(nn.Module):
    """A linear layer with int8 weights, whose inputs become int8 as they come; for inference only.

    A row of the weight, and a token of the input, has its largest magnitude as 127 (symmetric, per channel and per
    token). Source: Jacob et al. 2018, arXiv:1712.05877, section 2.3, with zero points of 0.
    """

    def __init__(self, linear: nn.Linear) -> None:
        """Quantise a layer's weight; the layer itself stays as it is."""
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / LARGEST
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())

    def forward(self, hidden: Tensor) -> Tensor:
        """Return (…, out_features) of (…, in_features), of the same dtype."""
        rows = hidden.flatten(0, -2)
        number = rows.shape[0]
        scale = rows.abs().amax(dim=1, keepdim=True).float().clamp_min(1e-30) / LARGEST
        whole = (rows / scale).round().to(torch.int8)
        if rows.is_cuda and number < CUDA_ROWS:
            whole = functional.pad(whole, (0, 0, 0, CUDA_ROWS - number))
        product = torch._int_mm(whole, self.weight.t())[:number]
        result = product.float() * scale * self.scale
        if self.bias is not None:
            result = result + self.bias
        return cast("Tensor", result.to(hidden.dtype).unflatten(0, hidden.shape[:-1]))


def quantized(model: TransformerLM) -> TransformerLM:
    """Return a copy whose linear layers are int8; embeddings and norms stay as they are.

    Raises:
        GenerationError: a layer's sides are no multiples of 8, on CUDA.
    """
    result = copy.deepcopy(model)
    linears = [(name, module) for name, module in result.named_modules() if isinstance(module, nn.Linear)]
    for name, linear in linears:
        sides = (linear.in_features, linear.out_features)
        if linear.weight.is_cuda and any(side % CUDA_MULTIPLE for side in sides):
            raise GenerationError(
                f"{name} is {sides[0]} × {sides[1]}; int8 on CUDA needs multiples of {CUDA_MULTIPLE}. "
                "Set quantize to False"
            )
        result.set_submodule(name, Int8Linear(linear))
    return result
