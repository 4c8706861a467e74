"""Read the words of a shell script without running it: assignments, arrays and ${variables}, nothing that executes.

Expansions whose value is known only when the script runs (positional arguments, command substitution, environment) are
marked as unknown in their word, so that a reader can refuse them.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

UNKNOWN = "\x00"  # encloses the text of an expansion of unknown value

_VARIABLE = re.compile(r"\$(?:\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}|([A-Za-z_]\w*)|([0-9@*#?$!]))")
_NAME = re.compile(r"([A-Za-z_]\w*)(?:\[[@*0]\])?(?:(:?[-=])(.*))?", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_OPENING = frozenset({"if", "for", "while", "until", "case", "select"})
_CLOSING = frozenset({"fi", "done", "esac"})
_PREFIXES = frozenset({"then", "do", "else", "elif", "export", "local", "declare", "readonly", "{", "!", "time"})
_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(slots=True)
class Script:
    """Variables and commands of a script.

    Attributes:
        values: of variables, arrays joined with spaces.
        conditional: words of assignments that stand in a condition or a loop, by variable.
        used: variables that are expanded.
        commands: the words of every command, expanded.
    """

    values: dict[str, str] = field(default_factory=dict)
    conditional: dict[str, list[str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    commands: list[list[str]] = field(default_factory=list)


def is_unknown(word: str) -> bool:
    """Return whether a word contains an expansion of unknown value."""
    return UNKNOWN in word


def shown(word: str) -> str:
    """Return a word as its script writes it."""
    return word.replace(UNKNOWN, "")


def _unknown(expansion: str) -> str:
    """Return the mark of an expansion; without spaces, so that it stays one word, and never expanded again."""
    text = re.sub(r"[\s$]+", "", expansion)
    return f"{UNKNOWN}{text}{UNKNOWN}"


def parse(text: str) -> Script:
    """Return the variables and the commands of a script, in the order in which they stand."""
    script = Script()
    depth = 0
    for words in _statements(text):
        while words and words[0] in _PREFIXES | _OPENING | _CLOSING:
            depth += (words[0] in _OPENING) - (words[0] in _CLOSING)
            if words[0] in _OPENING:
                words = []  # the condition itself
                break
            words = words[1:]
        if not words:
            continue
        if _ASSIGNMENT.match(words[0]):
            for word in words:
                _assign(script, word, is_conditional=depth > 0)
        else:
            script.commands.append(" ".join(_expand(word, script) for word in words).split())
    return script


def _assign(script: Script, word: str, is_conditional: bool) -> None:
    assignment = _ASSIGNMENT.match(word)
    if assignment is None:
        return
    name, appends = assignment[1], bool(assignment[2])
    value = _expand(word[assignment.end() :], script)
    if is_conditional:
        script.conditional.setdefault(name, []).extend(value.split())
        return
    script.values[name] = f"{script.values.get(name, '')} {value}".strip() if appends else value


def _expand(word: str, script: Script) -> str:
    """Return a word with its variables replaced; quotes have been removed by now."""

    def replace(variable: re.Match[str]) -> str:
        inner = variable[1] if variable[1] is not None else variable[2]
        parts = _NAME.fullmatch(inner) if inner is not None else None
        if parts is None:  # ${1:-x} has a default even so
            default = re.fullmatch(r"[0-9]+:?-(.*)", inner or "", re.DOTALL)
            return _expand(default[1].strip("\"'"), script) if default else _unknown(variable[0])
        name, default_kind, default_text = parts.groups()
        script.used.add(name)
        if name in script.conditional and name not in script.values:
            return _unknown(variable[0])
        value = script.values.get(name)
        if value:
            return value
        if default_kind:
            return _expand(default_text.strip("\"'"), script)
        return value if value is not None else _unknown(variable[0])

    word = _replace_arithmetic(word, script)
    return _VARIABLE.sub(replace, word)


def _replace_arithmetic(word: str, script: Script) -> str:
    while (start := word.find("$((")) >= 0:
        end = word.find("))", start)
        if end < 0:
            return word
        inside = word[start + 3 : end]
        bare = re.sub(r"(?<![\w${])([A-Za-z_]\w*)", r"$\1", inside)
        value = _calculate(_expand(bare, script))
        result = _unknown(f"({inside})") if value is None else str(value)
        word = f"{word[:start]}{result}{word[end + 2 :]}"
    return word


def _calculate(text: str) -> int | None:
    """Return the value of whole numbers, + - * / % and brackets; None for anything else."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](value(node.left), value(node.right))
        raise ValueError(text)

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _statements(text: str) -> list[list[str]]:
    """Split a script into statements of words: comments and quotes removed, arrays kept in one word."""
    statements: list[list[str]] = [[]]
    position = 0
    while position < len(text):
        character = text[position]
        if character in "\n;|&()":
            statements.append([])
            position += 1
        elif character in " \t\r" or text.startswith("\\\n", position):
            position += 2 if character == "\\" else 1
        elif character == "#":
            position = _line_end(text, position)
        else:
            word, position = _word(text, position)
            statements[-1].append(word)
    return [words for words in statements if words]


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _word(text: str, position: int) -> tuple[str, int]:
    """Return the word that begins at a position, and where it ends."""
    word = ""
    while position < len(text):
        character = text[position]
        if character == "(" and _ASSIGNMENT.fullmatch(word):
            inside, position = _array(text, position + 1)
            return f"{word}{inside}", position
        if character in " \t\r\n;|&()":
            break
        part, position = _part(text, position)
        word += part
    return word, position


def _part(text: str, position: int) -> tuple[str, int]:
    """Return a quoted string, an expansion or one character, and where it ends."""
    character = text[position]
    if character == "\\":
        return text[position + 1 : position + 2].replace("\n", ""), position + 2
    if character == "'":
        end = text.find("'", position + 1)
        end = len(text) if end < 0 else end
        return text[position + 1 : end], end + 1
    if character == '"':
        return _double_quoted(text, position + 1)
    if character == "`" or (text.startswith("$(", position) and not text.startswith("$((", position)):
        end = text.find("`", position + 1) + 1 if character == "`" else _balanced(text, position + 1, "()")
        end = end or len(text)
        return _unknown(text[position:end].strip("$`")), end
    if text.startswith(("${", "$(("), position):
        end = _balanced(text, position + 1, "{}" if text[position + 1] == "{" else "()")
        return text[position:end].replace("\n", " "), end
    return character, position + 1


def _double_quoted(text: str, position: int) -> tuple[str, int]:
    word = ""
    while position < len(text) and text[position] != '"':
        if text[position] == "'":
            part, position = "'", position + 1
        else:
            part, position = _part(text, position)
        word += part
    return word, position + 1


def _balanced(text: str, position: int, brackets: str) -> int:
    depth = 0
    for index in range(position, len(text)):
        depth += (text[index] == brackets[0]) - (text[index] == brackets[1])
        if depth == 0:
            return index + 1
    return len(text)


def _array(text: str, position: int) -> tuple[str, int]:
    """Return the words of an array joined with spaces, and where it ends."""
    words: list[str] = []
    while position < len(text) and text[position] != ")":
        if text[position] in " \t\r\n" or text.startswith("\\\n", position):
            position += 2 if text[position] == "\\" else 1
        elif text[position] == "#":
            position = _line_end(text, position)
        else:
            word, end = _word(text, position)
            words.append(word)
            position = end if end > position else position + 1
    return " ".join(words), position + 1
