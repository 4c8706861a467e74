"""Logging of a command or a training script, set up once."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from model_training_framework.utils.paths import ensure_directory_exists

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
OURS = "model_training_framework"  # name of the handlers that are replaced when logging is set up again


def setup_logging(level: str | int = "INFO", log_file: str | Path | None = None) -> logging.Logger:
    """Log to stderr, and to a file if one is given; standard output stays free for results.

    Calling it again replaces what it set up before, so that no line is logged twice; handlers of others stay.

    Args:
        level: least severity: DEBUG, INFO, WARNING, ERROR or CRITICAL, in any case, or its number.
        log_file: file that lines are appended to, as UTF-8; its folder is made where it is missing.

    Returns:
        The root logger.

    Raises:
        ValueError: there is no such level.
        OSError: the file cannot be written.
    """
    severity = level.upper() if isinstance(level, str) else level
    if isinstance(severity, str) and severity not in LEVELS:
        raise ValueError(f"level is {level!r}; expected {', '.join(LEVELS[:-1])} or {LEVELS[-1]}")
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if log_file is not None:
        path = Path(log_file)
        ensure_directory_exists(path.parent)
        handlers.append(logging.FileHandler(path, encoding="utf-8"))
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if handler.get_name() == OURS]:
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        handler.set_name(OURS)
        handler.setFormatter(logging.Formatter(FORMAT))
        root.addHandler(handler)
    root.setLevel(severity)
    return root


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module: ``get_logger(__name__)``."""
    return logging.getLogger(name)
