"""Implementations of exact attention on a GPU, each forced: one that cannot run a shape is an error, never another one.

Without a name, that is FlashAttention 2, by flash-attn where it is installed, else by torch. The others are measured on
request, into tables of their own: flash_attention-cudnn. A row's kernel begins with its implementation's name.
"""

from __future__ import annotations

import warnings
from typing import Any

from microbench.call import Call, Maker, Tensor
from microbench.timing import KERNEL_ERRORS
from predictor.core.costs.operator import Operator
from predictor.core.workload.run_choices import AttentionKernel

DEFAULT = AttentionKernel.FLASH_2
CUDNN, FLASH_3 = AttentionKernel.CUDNN, AttentionKernel.FLASH_3
OTHERS = {
    "flash_attention": (CUDNN, FLASH_3),
    "grouped_query_attention": (CUDNN, FLASH_3),
    "mla_attention": (CUDNN,),
}
TORCH = "torch scaled_dot_product_attention"
SETTING = "attention_kernel"  # in the identity of a table of another implementation than the default
SMALLEST = {
    "flash_attention": (1, 128, 2, 64, 1),
    "grouped_query_attention": (1, 128, 2, 1, 64, 1, 0),
    "mla_attention": (1, 128, 2),
}


def recorded(make: Maker, library: str) -> str:
    """Return what a row says ran: on a GPU « implementation: library »; a processor has its own."""
    return library if make.device == "cpu" else f"{make.attention_kernel or DEFAULT}: {library}"


def read_recorded(kernel: str) -> tuple[str, str]:
    """Return the implementation and the library that a row says ran; a row of before they were named has no first.

    >>> read_recorded("cudnn: torch"), read_recorded("flash-attn")
    (('cudnn', 'torch'), ('', 'flash-attn'))
    """
    name, mark, library = kernel.partition(": ")
    return (name, library) if mark and name in list(AttentionKernel) else ("", kernel)


def packaged_function(make: Maker) -> Tensor | None:
    """Return flash-attn's function, version 3's where that is asked for; None where torch's own kernels run.

    Raises:
        ImportError: version 3 is asked for, and not installed.
    """
    if make.attention_kernel == FLASH_3:
        from flash_attn_interface import flash_attn_func as third

        def first(*inputs: Tensor, **options: Any) -> Tensor:  # some releases return the sums of the softmax as well
            output = third(*inputs, **options)
            return output[0] if isinstance(output, tuple) else output

        return first
    if make.attention_kernel or make.device == "cpu" or make.precision == "fp32":
        return None
    try:
        from flash_attn import flash_attn_func
    except ImportError:
        return None
    return flash_attn_func


def torch_backend(make: Maker) -> tuple[Any, str]:
    """Return the one backend that torch's attention may use, and its name."""
    from torch.nn.attention import SDPBackend

    if make.attention_kernel == CUDNN:
        return SDPBackend.CUDNN_ATTENTION, f"{TORCH}, cuDNN backend"
    return SDPBackend.FLASH_ATTENTION, f"{TORCH}, flash backend"


def fault(operator: Operator, device: str, precision: str) -> str:
    """Return why the implementation that an operator names does not run here, by its smallest call; empty if it does.

    Args:
        operator: in whatever implementation.
        device: as torch names it.
        precision: of the call.
    """
    if not operator.kernel:
        return ""
    if device == "cpu":
        return f"{operator.kernel} is a kernel of GPUs; --device cuda measures one"
    from microbench.kernels import build_function

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            _run(build_function(operator.name)(SMALLEST[operator.name], Maker(device, precision, operator.kernel)))
        except KERNEL_ERRORS as error:
            told = [str(warning.message).partition(" (Triggered")[0] for warning in warned]
            reasons = [text for text in told if operator.kernel in text.lower() and not text.endswith(":")]
            return " ".join([*dict.fromkeys(reasons), str(error).partition("\n")[0] or type(error).__name__])
    return ""


def _run(call: Call) -> None:
    """Run a call both ways, to its end."""
    import torch

    output = call.forward()
    torch.autograd.grad(output, call.inputs, torch.ones_like(output))
    torch.cuda.synchronize()
