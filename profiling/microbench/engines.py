"""Libraries whose kernels an operator runs where they are installed: absent, loaded, or installed and broken."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from microbench.errors import MeasureError

INSTALL = {
    "fbgemm_gpu": "pip install 'estimate-train-time[recommend]' and pip install --no-deps -r "
    "training/hugectr/engine-cpu.txt bring releases that fit together"
}


class EngineError(MeasureError):
    """An engine that is installed and does not load, as beside another release of torch."""


def load_engine(name: str) -> bool:
    """Import an engine, which registers its kernels; return whether it is installed.

    Raises:
        EngineError: it is installed, but does not load.
    """
    if find_spec(name) is None:
        return False
    try:
        import_module(name)
    except (ImportError, OSError) as error:  # OSError: a shared library, by torch.ops.load_library
        reason = str(error).strip().partition("\n")[0]
        raise EngineError(f"{name} is installed, but does not load ({reason}); {INSTALL[name]}") from None
    return True
