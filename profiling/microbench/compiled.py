"""Functions as torch.compile fuses them: Triton kernels on a GPU, C++ loops on a processor that has a compiler.

A function is compiled once for all shapes of a process, with dynamic sizes: compiled for each shape, a sweep's hundred
would take minutes. The kernels keep the form that they have in training: element-wise ones run over flat tensors, and
rows of more than 1,024 elements are reduced in a loop whether their length is known or not (PyTorch
torch/_inductor/choices.py, should_use_persistent_reduction); shorter rows, which only small models have, would be held
in registers. The time of compiling is that of the first call's warm-up: it counts against the operator's share of a
budget, and is no part of a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from microbench.call import Maker, Output, Tensor

KERNELS = {"cuda": "Triton", "cpu": "C++"}


class Fused:
    """A function that is compiled at its first call; where that fails, every later call fails at once."""

    def __init__(self, function: Callable[..., Output], compile_: Callable[..., Callable[..., Output]]) -> None:
        """Compile nothing yet; a graph with breaks, or more variants than the compiler keeps, is an error."""
        self._run = compile_(function, dynamic=True, fullgraph=True)
        self._fault = ""

    def __call__(self, *inputs: Tensor) -> Output:
        """Run the function.

        Raises:
            RuntimeError: it cannot be compiled here.
        """
        from torch._dynamo.exc import TorchDynamoException

        if self._fault:
            raise RuntimeError(self._fault)
        try:
            return self._run(*inputs)
        except TorchDynamoException as error:
            self._fault = str(error)
            raise


@lru_cache
def _fused(function: Callable[..., Output], compile_: Any) -> Fused:
    # The graph is kept, as a pass is timed again and again, so that the backward pass may not write into what it reads.
    from torch._functorch import config

    if hasattr(config, "donated_buffer"):
        config.donated_buffer = False
    return Fused(function, compile_)


def fused(function: Callable[..., Output]) -> Callable[..., Output]:
    """Return a function as the compiler fuses it; the same object every time."""
    import torch

    return _fused(function, torch.compile)


def kernel_name(make: Maker) -> str:
    """Return the compiler and its language, for the rows."""
    return f"torch.compile, {KERNELS[make.device]}, dynamic sizes" if make.device in KERNELS else "torch.compile"
