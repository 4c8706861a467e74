"""docs/experiment.md lists every key with its values, its default and its meaning, as the sections define them."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from model_training_framework.config import ExperimentConfig
from model_training_framework.config import sections as sections_module
from model_training_framework.config.section import Section

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "experiment.md"
VALUES = {
    "Amount": "whole number ≥ 0",
    "AtLeastMinusOne": "whole number ≥ -1",
    "Count": "whole number ≥ 1",
    "Environment": "names with texts or numbers",
    "ExperimentName": "1 to 128 letters, digits and `. _ + = , -`",
    "FileOrKeys": "file, or keys and values",
    "Free": "keys and values",
    "Line": "one line of text",
    "Memory": 'text such as `"32G"`',
    "NotNegative": "number ≥ 0",
    "Positive": "number > 0",
    "Probability": "0 ≤ number < 1",
    "Seed": "whole number, 0 to 2³² - 1",
    "Switch": "true or false",
    "Text": "text",
    "TimeLimit": 'text such as `"1:30:00"`, or auto',
    "Word": "text that is not empty",
    "Annotated[int, Field(strict=True, ge=0, le=3)]": "0, 1, 2 or 3",
    "list[Line]": "list of lines",
    "list[Text]": "list of texts",
    "tuple[Probability, Probability]": "two numbers, 0 ≤ number < 1",
}
SECTIONS: dict[str, type[Section]] = {
    section.dotted: section
    for section in vars(sections_module).values()
    if isinstance(section, type) and issubclass(section, Section) and section is not Section
}


def values_of(annotation: str) -> str:
    kind = annotation.removesuffix(" | None")
    words = re.fullmatch(r"Literal\[(.*)\]", kind)
    return words[1].replace("'", "`") if words else VALUES[kind]


def default_of(field: Any, info: Any) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if value is None or value in ([], {}):
        return "–"
    return f"`{list(value) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else value}`"


def table(section: type[Section]) -> str:
    """Return the table of a section's keys, sections within it left out."""
    rows = ["| key | values | default | meaning |", "|---|---|---|---|"]
    infos: dict[str, Any] = vars(section)["__pydantic_fields__"]
    for field in fields(section):  # type: ignore[arg-type]
        info = infos[field.name]
        if field.name not in SECTIONS:
            cells = (f"`{field.name}`", values_of(str(field.type)), default_of(field, info), info.description)
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def test_every_section_is_documented_as_it_is_defined() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    documented: dict[str, type[Section]] = {"": ExperimentConfig, **SECTIONS}
    for name, section in documented.items():
        assert f"## {name or 'Top level'}\n" in text
        expected = table(section)
        assert expected in text, f"docs/experiment.md, {name or 'top level'}; expected:\n{expected}"


def test_the_examples_of_the_document_are_experiments() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        ExperimentConfig.from_dict(yaml.safe_load(block))


def test_every_key_says_what_it_means() -> None:
    for section in (ExperimentConfig, *SECTIONS.values()):
        assert all(info.description for info in vars(section)["__pydantic_fields__"].values())
