"""Amounts of memory as they are written on a command line."""

from __future__ import annotations

import re
from math import isfinite

from predictor.core.base.errors import ConfigError

UNITS = {"": 2**30, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
FORM = re.compile(r"\s*([0-9.eE+-]+)\s*([A-Za-z]*)\s*")


def memory_bytes(option: str, text: str) -> float:
    """Return bytes; a number alone counts GiB.

    Raises:
        ConfigError: it is no positive amount of memory.

    >>> memory_bytes("--mem_limit", "1.5"), memory_bytes("--mem_limit", "800MiB")
    (1610612736.0, 838860800.0)
    """
    form = FORM.fullmatch(text)
    unit = {name.lower(): size for name, size in UNITS.items()}.get(form[2].lower()) if form else None
    try:
        number = float(form[1]) if form else 0.0
    except ValueError:
        number = 0.0
    if unit is None or not (isfinite(number) and number > 0.0):
        raise ConfigError(f"{option} is {text}; expected a positive amount such as 16, 16GiB or 800MiB")
    return number * unit


def told(size_bytes: float) -> str:
    """Return an amount of memory in the unit that reads best.

    >>> told(3.2 * 2**30), told(700 * 2**20)
    ('3.20 GiB', '700.00 MiB')
    """
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes >= UNITS[unit]:
            return f"{size_bytes / UNITS[unit]:.2f} {unit}"
    return f"{size_bytes:.0f} B"
