"""Options of a Python call about a recommender, checked as the command line's arguments are."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.sizes import whole
from predictor.core.costs.work import STEP_PRECISIONS
from predictor.core.predict.inputs import file_values
from predictor.recommender.hugectr.reading import HugeCtrConfig, parse_hugectr, read_hugectr
from predictor.recommender.hugectr.sections import LARGEST_BATCH, LARGEST_GPUS
from predictor.recommender.hugectr.to_run import Options


def _path(name: str, value: object, what: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | PathLike):
        raise ConfigError(f"{name} is {value!r}; expected {what}")
    text = fspath(value)
    if not isinstance(text, str):
        raise ConfigError(f"{name} is {value!r}; expected {what}, as text")
    return text


def _number(name: str, value: object, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ConfigError(f"{name} is {value!r}; expected {what}")
    return float(value)


def options_of(
    *, system: object, gpus: object, batch_size: object, plan: object, key_exponent: object, precision: object,
    cached_share: object,
) -> Options:  # fmt: skip
    """Return the options of a call.

    Raises:
        ConfigError: one has a type or a value that is not allowed.
    """
    if precision is not None and precision not in STEP_PRECISIONS:
        raise ConfigError(f"precision is {precision!r}; expected one of {', '.join(STEP_PRECISIONS)}")
    return Options(
        system=system_path(system),
        gpus=None if gpus is None else whole("gpus", gpus, largest=LARGEST_GPUS),
        batch_size=None if batch_size is None else whole("batch_size", batch_size, largest=LARGEST_BATCH),
        plan=_path("plan", plan, "the file of a sharding plan, or default"),
        key_exponent=_number("key_exponent", key_exponent, "0, uniform keys, or the exponent of a power law"),
        precision=None if precision is None else str(precision),
        cached_share=_number("cached_share", cached_share, "a share of every table's rows, above 0 and at most 1"),
    )


def system_path(system: object) -> str | None:
    """Return the name or folder of a published system as text; None where none is given."""
    return _path("system", system, "a published system, by name or folder")


def opened(config: str | PathLike[str] | Mapping[str, Any]) -> tuple[str, HugeCtrConfig, Path]:
    """Return a configuration's name, what it says, and the folder that its paths are relative to.

    Raises:
        ConfigError: it is no path and no mapping, or cannot be read.
        FileNotFoundError: there is no such file.
        MissingKeyError: a required clause or key is missing.
    """
    if isinstance(config, Mapping):
        return "configuration", parse_hugectr(file_values(config)), Path.cwd()
    if not isinstance(config, str | PathLike):
        raise ConfigError(
            f"config is {config!r}; expected the path of a HugeCTR configuration, or a mapping of its clauses"
        )
    path = Path(config)
    return fspath(config), read_hugectr(path), path.resolve().parent
