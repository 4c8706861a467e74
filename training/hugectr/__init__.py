"""HugeCTR's Python interface on TorchRec: recommenders that train on CPUs and GPUs alike.

Not to be installed beside NVIDIA's package of the same name. Importing it loads no torch; a session does.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Public name: its module. Loaded on first use.
_PUBLIC = {
    "DataReader32": "hugectr.session",
    "DataReader64": "hugectr.session",
    "LearningRateScheduler": "hugectr.schedule",
    "ModelOversubscriber": "hugectr.session",
    "Session": "hugectr.session",
    "SolverParser": "hugectr.solver",
    "get_learning_rate_scheduler": "hugectr.schedule",
    "solver_parser_helper": "hugectr.solver",
}
_ROOMS = ("inference",)
__all__ = [
    "DataReader32",
    "DataReader64",
    "LearningRateScheduler",
    "ModelOversubscriber",
    "Session",
    "SolverParser",
    "get_learning_rate_scheduler",
    "solver_parser_helper",
]


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    if name in _ROOMS:
        return import_module(f"hugectr.{name}")
    raise AttributeError(f"module 'hugectr' has no attribute {name!r}")
