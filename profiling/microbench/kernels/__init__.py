"""Kernels of the catalogue's operators, a file each, discovered by name."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from microbench.call import Build
from microbench.engines import EngineError, load_engine


def kernel_names() -> list[str]:
    """Return the operators that have a kernel, sorted."""
    return sorted(module.name for module in iter_modules(__path__))


def build_function(operator: str) -> Build:
    """Return the function that builds a call of one operator."""
    build: Build = import_module(f"{__name__}.{operator}").build
    return build


def engine_fault(operator: str) -> str:
    """Return why the engine of an operator's kernel does not load; empty where it does, or is not installed."""
    engine = getattr(import_module(f"{__name__}.{operator}"), "ENGINE", None)
    try:
        if engine is not None:
            load_engine(engine)
    except EngineError as error:
        return str(error)
    return ""
