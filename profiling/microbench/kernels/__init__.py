"""Kernels of the catalogue's operators, a file each, discovered by name.

A file's ``build`` makes a call of a shape. It may say how a sweep draws shapes, where that is not the shape in a layer:
``drawn``, of a layer, or ``of_recommender``, of a recommender; and that few train with it (``RARE``), so that a survey
of a few minutes takes it last.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from microbench.call import Build
from microbench.engines import EngineError, load_engine


def kernel_names() -> list[str]:
    """Return the operators that have a kernel, sorted."""
    return sorted(module.name for module in iter_modules(__path__))


def kernel(operator: str) -> ModuleType:
    """Return the module of an operator's kernel."""
    return import_module(f"{__name__}.{operator}")


def build_function(operator: str) -> Build:
    """Return the function that builds a call of one operator."""
    build: Build = kernel(operator).build
    return build


def of_recommenders(operator: str) -> bool:
    """Return whether recommenders run an operator, and transformers do not."""
    return hasattr(kernel(operator), "of_recommender")


def engine_fault(operator: str) -> str:
    """Return why the engine of an operator's kernel does not load; empty where it does, or is not installed."""
    engine = getattr(kernel(operator), "ENGINE", None)
    try:
        if engine is not None:
            load_engine(engine)
    except EngineError as error:
        return str(error)
    return ""
