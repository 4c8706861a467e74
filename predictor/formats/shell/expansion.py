"""Expand the variables and the arithmetic of a shell script's words, and evaluate its tests; nothing is executed."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from predictor.core.base.errors import ConfigError
from predictor.formats.shell.words import is_unknown, unknown

LONGEST_WORD = 1_000_000  # characters; a variable that doubles itself soon fills the memory
_VARIABLE = re.compile(r"\$(?:\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}|([A-Za-z_]\w*)|([0-9@*#?$!]))")
_CASED = re.compile(r"([A-Za-z_]\w*)(,,?|\^\^?)")
_ALL_ARGUMENTS = re.compile(r"\$[@*]|\$\{[@*](?::[^}]*)?\}")
_OWN_ARGUMENT = re.compile(r"\$\{?([0-9]+|[@*#])(?::?[-=](.*?))?\}?", re.DOTALL)
_NAME = re.compile(r"([A-Za-z_]\w*)(?:\[([@*]|[0-9]+)\])?(?:(:?[-=+?])(.*))?", re.DOTALL)
_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARISONS: dict[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}


@dataclass(slots=True)
class Script:
    """Variables and commands of a script.

    Attributes:
        values: of variables, arrays joined with spaces.
        conditional: words of assignments that stand in a condition or a loop, by variable.
        used: variables that are expanded.
        commands: the words of every command, expanded.
        documents: texts that the script holds (<<EOF), expanded unless they are literal (<<'EOF').
        skipped: variables that only branches set which do not run.
        guesses: what an unset variable is taken for, by its name: its default, or nothing.
        loops: values that a variable takes one after another, of which the first is read.
    """

    values: dict[str, str] = field(default_factory=dict)
    conditional: dict[str, list[str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    commands: list[list[str]] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    guesses: dict[str, str] = field(default_factory=dict)
    loops: dict[str, list[str]] = field(default_factory=dict)

    def of_loops(self, where: str) -> list[str]:
        """Return a note on the values that loops take, for variables that a command has."""
        taken = {name: values for name, values in self.loops.items() if name in self.used and len(values) > 1}
        shown_values = ", ".join(f"{name} {values[0]} of {', '.join(values)}" for name, values in taken.items())
        return [f"{where}: of a loop the first run is read: {shown_values}"] if taken else []


def expand(word: str, script: Script) -> str:
    """Return a word with its variables replaced; quotes have been removed by now.

    Raises:
        ConfigError: it is longer than any command line.
    """

    def replace(variable: re.Match[str]) -> str:
        own = _own_argument(variable[0], script)
        if own is not None:
            return own
        inner = variable[1] if variable[1] is not None else variable[2]
        parts = _NAME.fullmatch(inner) if inner is not None else None
        if parts is None:
            return _of_another_form(variable[0], inner or "", script)
        name, index, default_kind, default_text = parts.groups()
        script.used.add(name)
        if name in script.conditional and name not in script.values:
            return unknown(variable[0])
        value = script.values.get(name)
        if value is not None and index is not None and index.isdigit():
            value = next(iter(value.split()[int(index) :]), "")
        if default_kind and default_kind.endswith("+"):
            return _where_set(name, value, default_kind, default_text, script)
        if value:
            return value
        if default_kind and not default_kind.endswith("?"):  # ${X:?message} has no default
            guess = _guessed(name, default_text, script)
            if default_kind.endswith("="):
                script.values[name] = guess
            return guess
        if value is None and name in script.skipped:
            return ""
        return value if value is not None else unknown(variable[0])

    expanded = _VARIABLE.sub(replace, _replace_arithmetic(word, script))
    if len(expanded) > LONGEST_WORD:
        raise ConfigError(
            f"{word[:80]} expands to {len(expanded):,} characters; expected arguments of at most {LONGEST_WORD:,}"
        )
    return expanded


def _of_another_form(variable: str, inner: str, script: Script) -> str:
    """Return what ``${1:-x}``, which has a default even so, and ``${X,,}``, ``${X^}`` and their kin stand for."""
    if (default := re.fullmatch(r"([0-9]+):?-(.*)", inner, re.DOTALL)) is not None:
        return _guessed(f"${default[1]}", default[2], script)
    cased = _CASED.fullmatch(inner)
    value = expand(f"${{{cased[1]}}}", script) if cased else unknown(variable)
    if cased is None or is_unknown(value):
        return value
    end = 1 if len(cased[2]) == 1 else len(value)  # one sign changes the first letter alone
    changed = value[:end].lower() if "," in cased[2] else value[:end].upper()
    return changed + value[end:]


def _own_argument(written: str, script: Script) -> str | None:
    """Return an argument that another script calls this one with, or its default; None for anything else."""
    if "#" not in script.values:
        if not _ALL_ARGUMENTS.fullmatch(written):
            return None
        script.guesses["$@"] = ""  # the script is read as if it were started without any
        return ""
    own = _OWN_ARGUMENT.fullmatch(written)
    return None if own is None else script.values.get(own[1], "") or expand(own[2] or "", script)


def _where_set(name: str, value: str | None, kind: str, text: str, script: Script) -> str:
    """Return what ``${X+text}`` and ``${X:+text}`` stand for: the text where a variable is set, or holds something."""
    if value is None and name not in script.skipped:
        script.guesses[name] = ""
    is_set = bool(value) if kind == ":+" else value is not None
    return expand(text, script) if is_set else ""


def _guessed(name: str, default: str, script: Script) -> str:
    """Return the default of a variable that the script takes from outside."""
    value = expand(default.strip("\"'"), script)
    if name not in script.values:
        script.guesses[name] = value
    return value


def _replace_arithmetic(word: str, script: Script) -> str:
    while (start := word.find("$((")) >= 0:
        end = word.find("))", start)
        if end < 0:
            return word
        inside = word[start + 3 : end]
        value = calculate(expand(bare_names(inside), script))
        result = unknown(f"({inside})") if value is None else str(value)
        word = f"{word[:start]}{result}{word[end + 2 :]}"
    return word


def bare_names(text: str) -> str:
    """Return arithmetic whose variables, which need no « $ » there, have one."""
    return re.sub(r"(?<![\w${])([A-Za-z_]\w*)", r"$\1", text)


def _with_if(text: str) -> str:
    """Return arithmetic whose « a ? b : c » is written as Python does."""
    choice = re.fullmatch(r"(.+?)\?(.+?):(.+)", text, re.DOTALL)
    return f"(({choice[2]}) if ({choice[1]}) else ({choice[3]}))" if choice else text


def calculate(text: str) -> int | None:
    """Return the value of whole numbers, + - * / %, comparisons and brackets; None for anything else."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            return int(COMPARISONS[type(node.ops[0])](value(node.left), value(node.comparators[0])))
        if isinstance(node, ast.IfExp):
            return value(node.body) if value(node.test) else value(node.orelse)
        raise ValueError(text)

    try:
        return value(ast.parse(_with_if(text.strip()), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None
