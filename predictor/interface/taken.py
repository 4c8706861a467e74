"""Defaults that a configuration takes without saying them, where a model by name (``--model``) takes others.

A configuration's own defaults are plain: fp16, no fused side kernels, no traffic beside computing. A model by name runs
as its framework trains today. The same run, once in each form, so has two times; the answer to the first says why.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from predictor.base.errors import ConfigError, PublishedError
from predictor.configuration.loading import Loaded, Taken
from predictor.configuration.merging import merged
from predictor.configuration.of_model import AS_MEGATRON, TrainedAs, as_trained
from predictor.configuration.sections import validate
from predictor.configuration.short_config import is_short
from predictor.configuration.taking import with_files
from predictor.configuration.telling import is_of_trainer
from predictor.search.frameworks import rules_behind
from predictor.step.prediction import predict
from predictor.workloads.frameworks import SECTIONS

# Of two times, what is no rounding.
NOTICEABLE = 1e-4

Prepare = Callable[[dict[str, Any]], Loaded]


def _trained_as(content: dict[str, Any]) -> TrainedAs | None:
    """Return how the software of a configuration trains a model by name; None of software that no option names."""
    software = (content.get("training") or {}).get("framework")
    if software is None:
        return AS_MEGATRON
    rules = rules_behind(software)
    return None if rules is None else rules.trained_as


def _differing(content: dict[str, Any], usual: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return dotted keys that a configuration does not decide, each with its default and the usual value."""
    taken = validate(content).model_dump(mode="json")
    return {
        f"{section}.{key}": (taken[section][key], other)
        for section in SECTIONS
        for key, other in usual[section].items()
        if (content.get(section) or {}).get(key) != other and taken[section][key] != other
    }


def _step(prepare: Prepare, content: dict[str, Any]) -> tuple[float, str] | None:
    """Return time and precision of a configuration's step; None where it cannot run so."""
    try:
        loaded = prepare(content)
        return predict(loaded.run, loaded.system).step.us, loaded.run.precision
    except (ConfigError, PublishedError):
        return None


def _decides_all(own: dict[str, Any], base: Path) -> bool:
    """Return whether a configuration as it was written decides all: in the short form, or of a trainer's file.

    In the short form defaults are what the form means, and of a trainer's file what its software does.
    """
    if is_short(own) or is_of_trainer(own):
        return True
    whole = with_files(own, base)[0] if "from" in own else own
    return "framework" in (whole.get("training") or {}) and "framework" not in (own.get("training") or {})


def taken_silently(content: dict[str, Any], own: dict[str, Any], base: Path, prepare: Prepare) -> Taken | None:
    """Return the defaults that change an answer and that nothing says; None where there are none.

    Args:
        content: of a configuration in its full form, with changes.
        own: the same as it was written.
        base: folder that paths in it are relative to.
        prepare: returns the run of such a content on its system.
    """
    if _decides_all(own, base):
        return None
    content, _, _ = with_files(content, base)
    trained_as = _trained_as(content)
    if trained_as is None:
        return None
    usual = as_trained(content, trained_as, own.get("model"))
    here = _step(prepare, content)
    keys: dict[str, tuple[Any, Any]] = {}
    for name, (value, other) in _differing(content, usual).items():
        section, key = name.split(".")
        changed = _step(prepare, merged(content, {section: {key: other}}))
        if here is None or changed is None or _is_other(here, changed):
            keys[name] = value, other
    there = _step(prepare, usual)
    return Taken(keys, trained_as.in_words, None if there is None else there[0]) if keys else None


def _is_other(one: tuple[float, str], other: tuple[float, str]) -> bool:
    """Return whether two steps differ in time or in precision."""
    return one[1] != other[1] or abs(other[0] - one[0]) > NOTICEABLE * one[0]
