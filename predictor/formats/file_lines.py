"""The line of a file that a problem is about: behind the file's name, as editors follow it."""

from __future__ import annotations

import re

from predictor.core.base.errors import ConfigError, ManyProblemsError
from predictor.core.schema.problems import lines_of
from predictor.formats.source import Source

# «launch.sh: --num-layers is …», «ds.json: zero_optimization.stage is …».
PROBLEM = re.compile(
    r"^(?P<where>.+?): (?P<key>-{0,2}[A-Za-z_][\w.-]*) (?:is|are|comes|has|cannot|stands|names|asks)\b"
)


def with_line(error: ConfigError, source: Source) -> ConfigError:
    """Return an error whose problems name the line of the file where the key that they are about stands."""
    lines = [_with_line(line, source) for line in lines_of(error)]
    if isinstance(error, ManyProblemsError):
        return ManyProblemsError(lines)
    return ConfigError(lines[0]) if type(error) is ConfigError else error  # others say more than a line


def _with_line(problem: str, source: Source) -> str:
    found = PROBLEM.match(problem)
    name = source.path.name
    if found is None or found["where"] != name:
        return problem
    line = line_of(source.text, found["key"])
    return problem if line is None else f"{name}:{line}{problem[len(name) :]}"


def line_of(text: str, key: str) -> int | None:
    """Return the line, from 1, where a dotted key or an argument stands; None where it is not written so.

    Of a dotted key each part is looked for behind the part before it, as files of sections have them.
    """
    at, found = 0, None
    for part in [key] if key.startswith("-") else key.split("."):
        found = re.compile(_written(part), re.MULTILINE).search(text, at)
        at = at if found is None else found.end()  # a section may be called otherwise
    return None if found is None else text.count("\n", 0, found.end()) + 1


def _written(part: str) -> str:
    """Return the pattern of a key as a file writes it: dashes or underscores, in quotes or not, before its value."""
    spelled = re.sub(r"[-_]", "[-_]", re.escape(part).replace(r"\-", "-"))
    if part.startswith("-"):
        return rf"(?<!\S){spelled}(?![\w-])"
    return rf"(?:^|[\s\"'\[{{,.(]){spelled}[\"']?\s*(?:[:=\]])"
