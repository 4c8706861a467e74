"""What the libraries print about themselves and nobody can act on."""

from __future__ import annotations

import logging
import warnings

LOGGERS = ("torchrec.distributed.utils", "torch.fx._symbolic_trace")


def hush_libraries() -> None:
    """Leave out TorchRec's remarks on kernels and PyTorch's on names that TorchRec still uses."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
