"""Evaluate the tests of a shell script, [ … ], [[ … ]] and (( … )), as far as the script itself says their outcome."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from predictor.formats.shell.expansion import Script, bare_names, calculate, expand
from predictor.formats.shell.words import Statement, is_unknown, shown

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
_OPENING = ("[", "[[", "test")
_CLOSING = ("]", "]]")
_JOINING = {"&&": "&&", "||": "||", "-a": "&&", "-o": "||"}
_TRUE, _FALSE, _COMMAND = "\x01", "\x02", "\x00"  # stand for commands: those whose outcome is known, and any other
_KNOWN = {"true": _TRUE, ":": _TRUE, "false": _FALSE}
# Programs that are run for their outcome; any other is expected to succeed.
_PROBES = frozenset({"grep", "egrep", "command", "which", "type", "pgrep", "cmp", "diff", "hash", "mountpoint", "ping"})
_UNSET = re.compile(r"\{?(?:[A-Za-z_]\w*|[0-9])(?:\[[@*]\])?\}?")  # a variable, no output of a command


def is_test(words: list[str]) -> bool:
    """Return whether words begin a test, also one that goes on behind « && » (« [[ a && b ]] »)."""
    return bool(words) and (
        words[0] in _OPENING or words[0].startswith("((") or (words[0] == "!" and is_test(words[1:]))
    )


def is_open(words: list[str]) -> bool:
    """Return whether a test that words begin is not closed by them."""
    return "[[" in words[:2] and words[-1] != "]]"


def of_command(words: list[str], script: Script) -> bool | None:
    """Return the outcome of a command in front of « && » or « || »: true and false as they are, others succeed.

    None: it is run for its outcome, or which command it is only a run of the script knows.
    """
    first = expand(words[0], script)
    if first in _KNOWN:
        return first != "false"
    return None if is_unknown(first) or first in _PROBES or "!" in words[:1] else True


def outcome(statements: list[Statement], script: Script) -> bool | None:
    """Return the outcome of a condition; None where only a run of the script knows.

    Args:
        statements: of the condition; « && » and « || » end those that they join.
        script: with the variables so far; a variable that it does not set is taken for empty where a test asks only
            whether it is, which is recorded in its guesses.
    """
    tokens: list[str] = []
    inside = False
    for number, statement in enumerate(statements):
        words = list(statement.words)
        if not inside:
            negations = len(words)
            while words and words[0] == "!":
                words = words[1:]
            tokens += ["!"] * (negations - len(words))
            if not words or words[0] not in _OPENING:
                tokens.append(_of_word(words, script))
                words = []
        inside = (inside or bool(words)) and not (words and words[-1] in _CLOSING)
        tokens += [word for word in words if word not in (*_OPENING, *_CLOSING)]
        if number + 1 < len(statements):
            tokens.append(statement.end if statement.end in ("&&", "||") else _COMMAND)
    return _joined(tokens, script)


def _of_word(words: list[str], script: Script) -> str:
    """Return the token of a condition that is no test: arithmetic, true, false, or a command with its own outcome."""
    if len(words) == 1 and words[0].startswith("(("):
        value = calculate(expand(bare_names(words[0][2:-2]), script))
        return _COMMAND if value is None else _TRUE if value else _FALSE
    return _KNOWN.get(expand(words[0], script), _COMMAND) if len(words) == 1 else _COMMAND


def _joined(tokens: list[str], script: Script) -> bool | None:
    """Return the outcome of tests joined by operators, from left to right as a shell does."""
    value: bool | None = None
    join = ""
    part: list[str] = []
    for token in [*tokens, "end"]:
        if token not in _JOINING and token != "end":
            part.append(token)
            continue
        right = _atom(part, script)
        value = right if not join else _and(value, right) if join == "&&" else _or(value, right)
        join, part = _JOINING.get(token, ""), []
    return value


def _and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _or(left: bool | None, right: bool | None) -> bool | None:
    if left or right:
        return True
    return None if left is None or right is None else False


def _atom(tokens: list[str], script: Script) -> bool | None:
    if tokens and tokens[0] == "!":
        value = _atom(tokens[1:], script)
        return None if value is None else not value
    if tokens in ([_TRUE], [_FALSE]):
        return tokens == [_TRUE]
    if not tokens or not {_TRUE, _FALSE, _COMMAND}.isdisjoint(tokens):
        return None
    words = [expand(token, script) for token in tokens]
    if words[0] in ("-z", "-n") and len(words) <= 2:
        is_empty = _is_empty(words[1] if len(words) == 2 else "", script)
        return is_empty if words[0] == "-z" or is_empty is None else not is_empty
    if len(words) == 3 and not any(map(is_unknown, words)):
        return _compared(*words)
    return None


def _is_empty(word: str, script: Script) -> bool | None:
    if not is_unknown(word):
        return not word
    name = shown(word)
    if not _UNSET.fullmatch(name) or name.strip("{}") in script.conditional:
        return None
    script.guesses[name.strip("{}")] = ""
    return True


def _compared(left: str, sign: str, right: str) -> bool | None:
    if sign in ("=", "=="):
        return fnmatchcase(left, right)
    if sign == "!=":
        return not fnmatchcase(left, right)
    numbers = calculate(left), calculate(right)
    if sign in _NUMBERS and numbers[0] is not None and numbers[1] is not None:
        return _NUMBERS[sign](numbers[0], numbers[1])
    return None
