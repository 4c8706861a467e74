"""Turn pydantic's complaints into lines: the dotted key, its value, the rule and the remedy."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError as PydanticError

from model_training_framework.config.errors import ValidationError
from model_training_framework.config.schema import is_section, joined, keys_of, printable, unknown_key

EXPECTED = {
    "string_type": "expected text; put it in quotes",
    "string_too_short": "expected text that is not empty",
    "string_pattern_mismatch": "expected one line of text, without control characters",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "finite_number": "expected a finite number",
    "list_type": "expected a list",
    "tuple_type": "expected a list",
    "dict_type": "expected keys and values",
}
LONGEST_SHOWN = 60


def shown(value: object) -> str:
    """Return a value as a file has it, without the contents of what has many."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def _is_branch(part: object) -> bool:
    """Return whether a part of a location is pydantic's name for one type of several."""
    return isinstance(part, str) and (part.startswith(("constrained-", "function-", "dict[", "literal[")))


def _range(kind: str, context: dict[str, Any]) -> str | None:
    for name, words in {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}.items():
        if name in context and kind in {"greater_than_equal", "greater_than", "less_than_equal", "less_than"}:
            bound = context[name]
            return f"expected {words} {bound:g}" if isinstance(bound, float) else f"expected {words} {bound}"
    return None


def _line(complaint: Any, at: str) -> str:
    """Return the line of one complaint."""
    location = [part for part in complaint["loc"] if not _is_branch(part)]
    if complaint["type"] == "invalid_key":
        *names, key = map(str, location)
        return unknown_key(".".join(names), key)
    if location and isinstance(location[0], int):  # a section was built with values in order
        location[0] = keys_of(at)[location[0]] if location[0] < len(keys_of(at)) else str(location[0])
    names = [str(part) for part in location if isinstance(part, str)]
    index = "".join(f" [{part}]" for part in location if isinstance(part, int))
    kind, context = complaint["type"], complaint.get("ctx", {})
    where = ".".join([*([at] if at else []), *names])
    section, _, key = where.rpartition(".")
    if kind == "missing":
        return f"{where} is missing; it is required"
    if kind == "unexpected_keyword_argument":
        return unknown_key(section, key)
    if kind == "unexpected_positional_argument":
        return f"{at or 'an experiment'} takes {len(keys_of(at))} values: {', '.join(keys_of(at))}"
    if kind in {"dataclass_type", "dataclass_exact_type"}:
        return (
            f"{where or 'the configuration'} is {shown(complaint['input'])}; it needs keys: {', '.join(keys_of(where))}"
        )
    reason = complaint["msg"].removeprefix("Value error, ")
    if kind == "value_error" and (is_section(where) or not where or isinstance(complaint["input"], dict)):
        # What keys say together, or one within; the reason names it
        return joined(where, reason)
    if kind == "literal_error":
        reason = f"expected {str(context['expected']).replace(chr(39), '')}"
    elif kind in {"too_long", "too_short"} or kind == "missing_argument":
        reason = f"expected {context.get('max_length', context.get('min_length'))} values"
    else:
        reason = _range(kind, context) or EXPECTED.get(kind, reason)
    return f"{where}{index} is {shown(complaint['input'])}: {reason}"


def explained(error: PydanticError, at: str = "") -> ValidationError:
    """Return the error of the framework that says what pydantic found.

    An unknown key comes before a missing one: it is usually the missing one, misspelt.

    Args:
        error: of pydantic.
        at: the section that was being built, where it was not a whole configuration.
    """
    complaints = sorted(error.errors(include_url=False), key=lambda complaint: complaint["type"] == "missing")
    return ValidationError(*dict.fromkeys(printable(_line(complaint, at)) for complaint in complaints))
