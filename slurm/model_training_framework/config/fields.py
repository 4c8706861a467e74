"""Types of single values: ranges, and the slips that YAML and pydantic would let pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from model_training_framework.config.errors import ConfigurationError

LONGEST_NAME = 128  # of an experiment: a folder's name has 255 bytes, and files beside it take a suffix
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,-]*")
NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._+=,-]+")
# What sbatch --time takes: minutes, minutes:seconds, hours:minutes:seconds, and days-hours[:minutes[:seconds]].
DURATION = re.compile(
    r"(?:(?P<days>\d+)-(?P<hours>\d+)(?::(?P<minutes>\d+)(?::(?P<seconds>\d+))?)?|\d+(?::\d+){0,2})", re.ASCII
)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
AUTO = "auto"
UNLIMITED = ("UNLIMITED", "INFINITE")
MEMORY = re.compile(r"\d+[KMGT]?B?", re.ASCII | re.IGNORECASE)


def file_values(value: Any, where: str = "") -> Any:
    """Return a value as YAML and JSON hold it, in new containers: tuples become lists.

    Raises:
        ConfigurationError: it, or something in it, is neither text, number, true, false nor null.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict | Mapping):
        return {str(key): file_values(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [file_values(inner, f"{where}[{index}]") for index, inner in enumerate(value)]
    there = f"{where.lstrip('.')} is {value!r}: " if where else ""
    raise ConfigurationError(
        f"{there}expected text, a number, true, false, null, a list or a mapping; put dates in quotes"
    )


def _not_a_switch(value: object) -> object:
    """Refuse true and false, which pydantic would turn into 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _whole(value: object) -> object:
    """Refuse what pydantic would turn into a whole number although nobody meant one; 1e4 is one."""
    if isinstance(value, bool | str):
        raise ValueError("expected a whole number")
    return value


def _environment(value: object) -> object:
    """Return environment variables as the text that they are: OMP_NUM_THREADS: 4 is usual."""
    if not isinstance(value, Mapping):
        return value
    for name in value:
        if not isinstance(name, str) or not VARIABLE.fullmatch(name):
            raise ValueError(f"{name} is no name of an environment variable; expected letters, digits and _")
    is_number = {name: isinstance(inner, int | float) and not isinstance(inner, bool) for name, inner in value.items()}
    return {name: str(inner) if is_number[name] else inner for name, inner in value.items()}


def _file_or_keys(value: object) -> object:
    """Refuse what is neither the path of a file nor a mapping, before pydantic explains both."""
    if isinstance(value, Mapping):
        return file_values(value)
    if not isinstance(value, str) or not value:
        raise ValueError("expected the path of a file, or keys and values")
    return value


def safe_name(text: str) -> str:
    """Return a text as a name that a folder and a Slurm job can bear."""
    return NOT_IN_A_NAME.sub("_", text).lstrip("._+=,-")[:LONGEST_NAME] or "experiment"


def _experiment_name(value: object) -> object:
    """Refuse what a folder or a Slurm job cannot be called, or could not safely."""
    if not isinstance(value, str):
        raise ValueError("expected text; put it in quotes")
    if not NAME.fullmatch(value) or len(value) > LONGEST_NAME:
        raise ValueError(
            f"a folder and a job are called so: 1 to {LONGEST_NAME} letters, digits and . _ + = , - "
            f"that start with a letter or digit. Try {safe_name(value)}"
        )
    return value


def duration_s(text: str) -> int:
    """Return a duration as sbatch --time writes it, in seconds.

    Raises:
        ValueError: it is not one.

    Source: sbatch(1), option --time.

    >>> duration_s("90"), duration_s("24:00:00"), duration_s("1-12")
    (5400, 86400, 129600)
    """
    found = DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration such as 90, 1:30:00 or 2-12:00:00")
    if found["days"] is not None:
        days, hours, minutes, seconds = (int(found[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    parts = [int(part) for part in text.split(":")]
    hours = parts[0] if len(parts) == 3 else 0
    minutes = parts[1] if len(parts) == 3 else parts[0]
    return (hours * 60 + minutes) * 60 + (parts[-1] if len(parts) > 1 else 0)


def _time_limit(value: object) -> object:
    """Refuse a number: YAML 1.1 reads 24:00:00 without quotes as 86400, which Slurm would take for minutes."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        minutes, seconds = divmod(int(value), 60)
        meant = f'"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"'
        raise ValueError(f'put it in quotes: {meant} if that was meant, or "{int(value)}" for minutes')
    if not isinstance(value, str) or not (
        value == AUTO or value.upper() in UNLIMITED or (DURATION.fullmatch(value) and duration_s(value))
    ):
        raise ValueError('expected "auto" or a duration as sbatch takes it: "90" minutes, "1:30:00", "2-12:00:00"')
    return value


def _memory(value: object) -> object:
    """Return memory as sbatch --mem takes it; a bare number is megabytes there too."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not MEMORY.fullmatch(text):
        raise ValueError('expected memory as sbatch takes it, such as "32G"')
    return text


FileOrKeys = Annotated[str | dict[str, Any], BeforeValidator(_file_or_keys)]
Free = Annotated[dict[str, Any], BeforeValidator(file_values)]
Text = Annotated[str, Field(strict=True)]
Word = Annotated[str, Field(strict=True, min_length=1)]
Line = Annotated[str, Field(strict=True, min_length=1, pattern=r"^[^\x00-\x1f\x7f]+$")]
Environment = Annotated[dict[str, Line], BeforeValidator(_environment)]
Switch = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(ge=1, le=10**15), BeforeValidator(_whole)]
Amount = Annotated[int, Field(ge=0, le=10**15), BeforeValidator(_whole)]
AtLeastMinusOne = Annotated[int, Field(ge=-1, le=10**9), BeforeValidator(_whole)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False), BeforeValidator(_not_a_switch)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False), BeforeValidator(_not_a_switch)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0), BeforeValidator(_not_a_switch)]
Seed = Annotated[int, Field(ge=0, lt=2**32), BeforeValidator(_whole)]  # NumPy takes no larger one
ExperimentName = Annotated[str, BeforeValidator(_experiment_name)]
TimeLimit = Annotated[str, BeforeValidator(_time_limit)]
Memory = Annotated[str, BeforeValidator(_memory)]
