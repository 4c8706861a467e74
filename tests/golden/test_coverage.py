"""The golden configurations leave out nothing that a configuration can say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from predictor.core.costs.hardware_change import CHANGES
from predictor.core.schema.sections import RunConfig
from tests.golden.configurations import READERS, Configuration, configurations
from tests.golden.predictions import REDUCED, run

SCHEMA = RunConfig.model_json_schema()
# The reader refuses it: « auto » stands where a trainer decides.
REFUSED = ("deepspeed/trainer.json",)


def in_full(configuration: Configuration) -> bool:
    """Return whether a configuration says everything itself: no preset, no file of another tool, not the short form."""
    model = configuration.content.get("model")
    return "from" not in configuration.content and isinstance(model, dict) and "preset" not in model


def values_by_key() -> dict[str, list[Any]]:
    """Return the values that golden configurations have, those that they leave out included, by dotted key."""
    values = defaultdict[str, list[Any]](list)

    def collect(content: dict[str, Any], prefix: str = "") -> None:
        for key, value in content.items():
            values[f"{prefix}{key}"].append(value)
            if isinstance(value, dict):
                collect(value, f"{prefix}{key}.")

    for configuration in filter(in_full, configurations()):
        collect(RunConfig.model_validate(configuration.content).model_dump(mode="json"))
    return values


def alternatives(field: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a field of the schema may be, references resolved."""
    if "$ref" in field:
        return alternatives(SCHEMA["$defs"][field["$ref"].rpartition("/")[2]])
    return [type_ for choice in field["anyOf"] for type_ in alternatives(choice)] if "anyOf" in field else [field]


def fields(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """Return dotted key, schema and alternatives of everything that a configuration can set."""
    for key, field in schema["properties"].items():
        choices = alternatives(field)
        yield f"{prefix}{key}", field, choices
        for choice in choices:
            if "properties" in choice:
                yield from fields(choice, f"{prefix}{key}.")


FIELDS = {key: (field, choices) for key, field, choices in fields(SCHEMA)}
VALUES = values_by_key()


def named_choices(choices: list[dict[str, Any]]) -> list[Any]:
    """Return the values that a schema lists one by one: names, stages of ZeRO, switches."""
    named = [value for choice in choices for value in choice.get("enum", ())]
    named += [choice["const"] for choice in choices if "const" in choice]
    return named + [switch for choice in choices if choice.get("type") == "boolean" for switch in (False, True)]


@pytest.mark.parametrize("key", FIELDS)
def test_every_choice_and_every_key_is_used(key: str) -> None:
    field, choices = FIELDS[key]
    unused = [value for value in named_choices(choices) if value not in VALUES[key]]
    assert not unused, f"no golden configuration has {key}: {unused}"
    default = field.get("default")
    assert any(value not in (None, default) for value in VALUES[key]), f"no golden configuration sets {key}"
    if len(choices) > 1 and any(choice.get("type") == "array" for choice in choices):
        assert any(isinstance(value, list) for value in VALUES[key]), f"no golden configuration lists {key}"


def test_the_schema_is_walked_to_its_leaves() -> None:
    assert {"model.moe.shared_expert_gate", "parallelism.zero_stage", "training.recompute", "budget.train_tokens"} <= {
        *FIELDS
    }
    assert named_choices(FIELDS["parallelism.zero_stage"][1]) == [0, 1, 2, 3]
    assert named_choices(FIELDS["training.recompute"][1]) == ["none", "selective", "per_op", "full"]
    assert named_choices(FIELDS["model.causal"][1]) == [False, True]


def test_every_published_system_is_used() -> None:
    published = {line.split()[0] for line in run(["list-systems"]).splitlines()}
    assert published <= {configuration.content.get("system") for configuration in configurations()}


def test_every_file_of_another_tool_is_read() -> None:
    texts = [f"{configuration.content} {configuration.command}" for configuration in configurations()]
    files = [str(path.relative_to(READERS)) for path in READERS.glob("*/*")]
    assert len(files) > len(REFUSED)
    assert [file for file in files if not any(f"READERS/{file}" in text for text in texts)] == list(REFUSED)


def test_every_command_that_predicts_and_every_change_of_hardware_is_used() -> None:
    commands = [configuration.command for configuration in configurations()]
    assert {command.split()[0] for command in commands} == set(REDUCED)
    assert [key for key in CHANGES if not any(f"--set {key}=" in command for command in commands)] == []
