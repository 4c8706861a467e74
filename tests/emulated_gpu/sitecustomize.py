"""Every Python process sees a virtual H100 as soon as it has imported torch: put this folder on PYTHONPATH.

The kit runs each stage of a survey in a process of its own, which a test cannot reach otherwise. ``FAILING_PEAK`` names
a precision whose matrix product fails.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

ENTERED: list[AbstractContextManager[None]] = []


def install(torch: ModuleType) -> None:
    """Put the virtual GPU behind torch; products and copies are small, since the processor runs them."""
    import pytest

    from microbench import profile, system
    from microbench.kernels import build_function
    from tests.unit.virtual_gpu import VirtualGpu, installed, scaled_build

    patch, gpu = pytest.MonkeyPatch(), VirtualGpu()
    context = installed(patch, gpu)
    context.__enter__()
    ENTERED.append(context)  # one that nobody holds is left again
    torch.version.cuda = "13.0"
    patch.setattr(profile, "build_function", scaled_build(gpu, build_function))
    patch.setattr(system, "PRODUCT_SIZES", {"cuda": (128,)})
    patch.setattr(system, "memory_bandwidth_gb_per_s", lambda device: 3000.0)
    patch.setattr("microbench.system.SIZE", 64)
    measured = system.peak_tflop_per_s

    def peak(device: Any, precision: str) -> float:
        if precision == os.environ.get("FAILING_PEAK"):
            raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")
        return measured(device, precision)

    patch.setattr(system, "peak_tflop_per_s", peak)


class AfterTorch(MetaPathFinder):
    """Installs the virtual GPU once torch's own modules are there."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return torch's own way of being loaded, with the virtual GPU behind it; None for other modules."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            install(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, AfterTorch())
