"""A configuration without a file: a model by name, and options for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from predictor.core.base.bundled import systems
from predictor.core.base.errors import NoLayoutError, raise_together
from predictor.core.costs.hardware_change import KEYS, is_of_hardware
from predictor.core.plan.framework_rules import RULES, FrameworkRules, rules_behind
from predictor.core.plan.of_model import content_of_model
from predictor.core.predict.inputs import Configuration
from predictor.core.schema.finding import find_folder, published, usual_notes
from predictor.core.schema.inherited_keys import OwnKeys
from predictor.core.schema.merging import merged
from predictor.core.schema.own_system import is_system_file
from predictor.core.schema.settings import EXCLUSIVE, GPUS, Setting, keys_of, parse_setting, with_settings
from predictor.core.schema.software import ORDINARY
from predictor.layout_search.question import DECIDED, SearchQuestion, search_problem

# Keys of the batch of a step: the number of its samples, which a search takes as it is.
BATCH = ("global_batch_size", "num_micro_batches")


def _decides_layout(setting: Setting) -> bool:
    """Return whether a setting chooses what a search would decide."""
    section, key = setting.path[0], setting.path[-1]
    return key in DECIDED.get(section, ()) and key not in BATCH


def of_model(model: str | Sequence[str], changes: Sequence[str], system: str | None = None) -> Configuration:
    """Return the configuration of a model with the given keys; of a layout that is not given, the fastest that fits.

    Args:
        model: a preset's name, a file (a configuration, or one of another tool), a run's folder, or several files.
        changes: KEY=VALUE, keys of a configuration or ``gpus``; those of the hardware are left to the prediction.
        system: published system, instead of the configuration's.

    Raises:
        ConfigError: the system, the GPUs or the batch is not said, or nothing fits.
    """
    settings = [parse_setting(text, KEYS) for text in changes if not is_of_hardware(text)]
    layout = [setting for setting in settings if _decides_layout(setting)]
    gpus = next((setting.value for setting in settings if setting.path == (GPUS,)), None)
    beside = OwnKeys(keys_of(settings), gpus if isinstance(gpus, int) and not layout else None)
    content, base, notes = _content(model, system, beside)
    _require_said(content, settings, layout, gpus)
    if layout or gpus is None or "micro_batch_size" in (content.get("training") or {}):
        return Configuration(_name(model), with_settings(content, settings), base, notes)
    fixed = [setting for setting in settings if setting.path != (GPUS,)]
    content = with_settings(content, fixed)
    named = (content.get("training") or {}).get("framework")
    candidates = [rules_behind(named)] if named else list(RULES.values())
    if named is None:  # a framework that is only supposed has not been tuned
        content = merged({"training": {"conditions": ORDINARY}}, content)
    missing: NoLayoutError | None = None
    for rules in candidates:
        try:
            return _fastest(model, content, gpus, rules, notes)
        except NoLayoutError as error:
            missing = missing or error
    assert missing is not None
    raise missing


def _name(model: str | Sequence[str]) -> str:
    """Return what a configuration of a model is called."""
    return fspath(model) if isinstance(model, str | PathLike) else " + ".join(model)


def _content(
    model: str | Sequence[str], system: str | None, beside: OwnKeys
) -> tuple[dict[str, Any], Path, tuple[str, ...]]:
    """Return the configuration of a model on a system, its folder and notes."""
    content, base, notes = content_of_model(model, beside)
    if system is not None:
        content = merged(content, {"system": system, "gpu": None})
    return _system_from_anywhere(content, base), base, (*notes, *usual_notes(content.get("system")))


def _system_from_anywhere(content: dict[str, Any], base: Path) -> dict[str, Any]:
    """Return a configuration whose system is found from any folder."""
    name = content.get("system")
    if not name or name in systems():
        return content
    found = base / name if is_system_file(name, base) else find_folder(name, base)
    return {**content, "system": str(found.resolve())}


def _require_said(content: dict[str, Any], settings: Sequence[Setting], layout: Sequence[Setting], gpus: Any) -> None:
    """Check that system, GPUs and the batch of a step are said, which nobody can guess; all that is missing at once."""
    said = {setting.path[-1] for setting in settings} | (content.get("training") or {}).keys()
    has_gpus = gpus is not None or "data_parallel_size" in said | (content.get("parallelism") or {}).keys()
    beside = f" beside {layout[0].path[-1]}" if layout else ""
    is_said = {
        f"--system is missing; published: {published()}": bool(content.get("system")),
        "--gpus is missing: how many GPUs does the run take?": has_gpus,
        "--sequence-length is missing: how many tokens does a sample have?": (
            "sequence_length" in said | (content.get("model") or {}).keys()
        ),
        f"--micro-batch-size is missing{beside}; without any key of the layout, the fastest that fits is taken": (
            "micro_batch_size" in said or (gpus is not None and not layout) or not has_gpus
        ),
        "--global-batch-size is missing: how many samples does one step take?": bool(said & EXCLUSIVE.keys()),
    }
    raise_together([line for line, has_it in is_said.items() if not has_it])


def _fastest(
    model: str | Sequence[str], content: dict[str, Any], gpus: Any, rules: FrameworkRules | None, notes: tuple[str, ...]
) -> Configuration:
    """Return the fastest layout of a search that a framework runs, and say so.

    Raises:
        NoLayoutError: the framework has none, or none fits.
    """
    from predictor.layout_search import answer  # a search, which costs a start that has none

    framework = None if rules is None else rules.name
    problem = search_problem(SearchQuestion(model=content, num_gpus=gpus, framework=framework))
    details = answer.search(problem, 1, False)
    found = answer.configuration(details, details.winners[0])
    runs = "" if rules is None else f" of those that {rules.label} runs"
    said = (
        f"No layout was given: this is the fastest that fits{runs}, as search finds it; --framework names another "
        "framework, --tp, --pp and others choose a layout."
    )
    told = tuple(dict.fromkeys((*notes, *problem.notes, said)))
    return Configuration(_name(model), found, Path.cwd(), told)
