"""Tell a YAML file of another tool from a configuration of our own, whose sections have names that others use too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.foreign import readers
from predictor.core.schema.input_kind import is_of_trainer, is_plan
from predictor.core.schema.section import section_in, section_keys
from predictor.core.schema.sections import RunConfig

# Keys of a configuration of our own, in either form, that no other tool's YAML has.
OWN_KEYS = frozenset({"system", "from", "gpu_name", "operator_data_folder", "nccl_data_folder", "training_config"})


def other_format(path: Path, content: dict[str, Any]) -> str | None:
    """Return the format of a YAML file of another tool; None of a configuration of our own, in any form.

    Raises:
        ConfigError: it is of a tool that is not read, of nobody who is known, or a plan.
    """
    if OWN_KEYS & content.keys() or is_of_trainer(content):
        return None
    if is_plan(content):
        raise ConfigError(f"{path} is a plan, of several systems: plan {path.name} takes it, and check")
    foreign, is_mostly_own = _foreign_keys(content)
    if not foreign or (is_mostly_own and not path.is_file()):
        return None
    told = readers().of_configuration(path)
    if told is not None or is_mostly_own:
        return told
    if isinstance(parts := content.get("defaults"), list):
        raise ConfigError(
            f"{path} is put together by Hydra from {', '.join(map(str, parts))[:200]}, which are not read with it; let "
            "its program print the whole (--cfg job) and read that"
        )
    if not any("." in key for key in foreign):
        return None  # the short form, whose own check names a slip
    return readers().detect(path)  # which refuses it, and says what it looks like


def _foreign_keys(content: dict[str, Any]) -> tuple[list[str], bool]:
    """Return the keys, those of sections behind a dot, that no configuration has, and whether most are its own."""
    known: dict[str, bool] = {}
    for name, values in content.items():
        section = section_in(RunConfig, name)
        if section is None or not isinstance(values, dict):
            known[str(name)] = name in (*RunConfig.model_fields, "from")
            continue
        keys = section_keys(section)
        known |= {f"{name}.{key}": key in keys or key == "preset" for key in values}
    foreign = [key for key, is_known in known.items() if not is_known]
    return foreign, 2 * len(foreign) < len(known)
