"""Configurations that Hydra composes: files of a defaults list, and keys that a command line overrides.

Source: Hydra's documentation, advanced/defaults_list.md and advanced/override_grammar/basic.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import load_foreign, one_line
from predictor.core.schema.merging import merged
from predictor.formats.shell.script import parse
from predictor.formats.shell.words import UNKNOWN, is_unknown

DEEPEST = 10  # files that build on files
SELF = "_self_"
# An override: key=value, +key=value, ++key=value; ~key takes a key out.
OVERRIDE = re.compile(r"(?:\+{0,2}([A-Za-z_][\w./@-]*)=(.*)|~([A-Za-z_][\w.]*)(?:=.*)?)", re.DOTALL)
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_ENTRY = re.compile(r"(?:(?:optional|override)\s+)*([^@\s]+)(?:@(\S+))?")
# A text that a substitution holds: worker=$(cat <<EOF … EOF).
_SUBSTITUTED = re.compile(r"\$\(\s*cat\s+<<-?\s*[\"']?(\w+)[\"']?\n(.*?)^\s*\1\s*$", re.DOTALL | re.MULTILINE)
_EXTENSION = re.compile(r"\.ya?ml$")


@dataclass(slots=True)
class Composed:
    """A configuration with the files that it builds on.

    Attributes:
        content: keys and values.
        absent: files of its defaults lists that are not beside it.
    """

    content: dict[str, Any]
    absent: list[str] = field(default_factory=list)


def composed(path: Path, depth: int = 0) -> Composed:
    """Return a file's content on top of the files that its ``defaults`` name.

    Raises:
        ConfigError: a file is no mapping, or files name each other in a circle.
    """
    if depth > DEEPEST:
        raise ConfigError(f"{path.name}: its defaults name more than {DEEPEST} files in a row; expected no circle")
    text = path.read_text(encoding="utf-8-sig")
    try:
        content = load_foreign(text)
    except (yaml.YAMLError, ValueError) as error:
        why = one_line(error) if isinstance(error, yaml.YAMLError) else str(error)
        raise ConfigError(f"{path.name}: {why}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path.name} holds no keys and values")
    own = {str(key): value for key, value in content.items() if key != "defaults"}
    entries = content.get("defaults") or []
    entries = entries if isinstance(entries, list) else [entries]
    result = Composed({})
    for entry in entries if SELF in entries else [*entries, SELF]:
        if entry == SELF:
            result.content = merged(result.content, own)
        else:
            _add(result, entry, path.parent, depth)
    return result


def _add(result: Composed, entry: Any, folder: Path, depth: int) -> None:
    """Merge the file of one entry of a defaults list into a configuration."""
    if isinstance(entry, dict):
        for group, choice in entry.items():
            found = _ENTRY.fullmatch(str(group).strip())
            if found is None or found[1].startswith("hydra/") or choice is None:
                continue
            package = found[2] or found[1].strip("/").replace("/", ".")
            for name in choice if isinstance(choice, list) else [choice]:
                is_optional = str(group).startswith("optional ")
                _merge(result, folder / found[1].strip("/") / str(name), package, depth, is_optional)
    elif isinstance(entry, str):
        name, _, package = entry.partition("@")
        _merge(result, folder / name, package, depth)


def _merge(result: Composed, file: Path, package: str, depth: int, is_optional: bool = False) -> None:
    file = file if _EXTENSION.search(file.name) else file.with_name(f"{file.name}.yaml")
    if not file.is_file():
        result.absent += [] if is_optional else [str(file.name if not package else f"{package}/{file.name}")]
        return
    inner = composed(file, depth + 1)
    declared = _PACKAGE.search(file.read_text(encoding="utf-8-sig"))
    if declared is not None:
        package = "" if declared[1] == "_global_" else declared[1]
    content = inner.content
    for part in reversed([part for part in package.split(".") if part and part != "_global_"]):
        content = {part: content}
    result.content = merged(result.content, content)
    result.absent += inner.absent


def overridden(content: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a configuration with the keys that a command line sets or takes out."""
    result = dict(content)
    for word in overrides:
        found = OVERRIDE.fullmatch(word)
        if found is None:
            continue
        *sections, name = (found[1] or found[3]).split(".")
        value: Any = {name: _value(found[2])} if found[1] else {name: None}
        for section in reversed(sections):
            value = {section: value}
        result = merged(result, value)
    return result


def _value(text: str) -> Any:
    """Return the value of an override as YAML reads it; text where it is none, or where only a run knows it."""
    if is_unknown(text):
        return text
    try:
        return load_foreign(text)
    except (yaml.YAMLError, ValueError):
        return text


@dataclass(slots=True)
class Invocation:
    """A program that a script starts with overrides.

    Attributes:
        program: its file or module.
        flags: arguments with dashes, by name; empty text where none has a value.
        overrides: as they are written.
        launcher: arguments in front of it, such as those of torchrun.
    """

    program: str
    flags: dict[str, str] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    launcher: dict[str, str] = field(default_factory=dict)


def invocations(text: str, programs: re.Pattern[str]) -> list[Invocation]:
    """Return the starts of some programs in a script, its variables expanded.

    Those in texts that it writes count; where it calls none itself, also those that a variable holds.
    """
    script = parse(text)
    found = [_invocation(words, programs) for words in script.commands]
    documents = [*script.documents, *(inside[2] for inside in _SUBSTITUTED.finditer(text))]
    for document in documents:
        found += invocations(document, programs) if document != text else []
    if not any(found):
        held = [value for value in script.values.values() if " " in value and programs.search(value)]
        found += [one for value in held if value != text for one in invocations(value, programs)]
    return [one for one in found if one is not None]


def _invocation(words: list[str], programs: re.Pattern[str]) -> Invocation | None:
    at = next((i for i, word in enumerate(words) if programs.search(word) and "=" not in word), None)
    if at is None:
        return None
    found = Invocation(words[at].strip("\"'"))
    _take(words[:at], found.launcher, [])
    _take(words[at + 1 :], found.flags, found.overrides)
    return found


def _take(words: list[str], flags: dict[str, str], overrides: list[str]) -> None:
    """Take the arguments among words: those with dashes, and overrides."""
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag, _, value = word[2:].partition("=")
            flag = flag.replace("_", "-")
            flags[flag] = value.strip("'\"")
        elif OVERRIDE.fullmatch(word.lstrip("'\"")):
            overrides.append(word.strip("'\""))
            flag = ""
        elif re.match(r"-[A-Za-z]", word):
            flag = word[1:]
            flags[flag] = ""
        elif flag and (not flags[flag] or not word.startswith(UNKNOWN)):
            flags[flag] = f"{flags[flag]} {word}".strip()
