"""Kernels of the catalogue's operators, a file each, discovered by name."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from microbench.call import Build


def kernel_names() -> list[str]:
    """Return the operators that have a kernel, sorted."""
    return sorted(module.name for module in iter_modules(__path__))


def build_function(operator: str) -> Build:
    """Return the function that builds a call of one operator."""
    build: Build = import_module(f"{__name__}.{operator}").build
    return build
