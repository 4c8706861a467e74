"""Split a shell script into statements of words: comments and quotes removed, arrays kept in one word."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

UNKNOWN = "\x00"  # encloses the text of an expansion of unknown value
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_ENDS = (";;", "&&", "||", "\n", ";", "|", "&", "(", ")")
_BEFORE_ARITHMETIC = frozenset({"if", "elif", "while", "until", "for", "!", "then", "else", "do"})
_HERE = re.compile(r"<<-?\s*([\"']?)(\w+)\1")


@dataclass(frozen=True, slots=True)
class Document:
    """A text that a script holds on lines of its own (<<EOF).

    Attributes:
        text: of it.
        is_literal: its variables are not the script's (<<'EOF').
    """

    text: str
    is_literal: bool = False


@dataclass(slots=True)
class Statement:
    """One simple command or assignment.

    Attributes:
        words: without quotes, variables not expanded; arithmetic ((…)) is one word.
        end: the operator or the line end behind it.
        documents: texts that follow it.
    """

    words: list[str] = field(default_factory=list)
    end: str = ""
    documents: list[Document] = field(default_factory=list)


def is_unknown(word: str) -> bool:
    """Return whether a word contains an expansion of unknown value."""
    return UNKNOWN in word


def shown(word: str) -> str:
    """Return a word as its script writes it."""
    return word.replace(UNKNOWN, "")


def without_unknown(text: str, stand_in: str) -> str:
    """Return a text whose expansions of unknown value are a stand-in."""
    return re.sub(f"{UNKNOWN}[^{UNKNOWN}]*{UNKNOWN}", stand_in, text)


def as_written(word: str) -> str:
    """Return a word as a message shows it, expansions of unknown value with their « $ »."""
    return re.sub(f"{UNKNOWN}(`?)([^{UNKNOWN}]*){UNKNOWN}", lambda mark: (mark[1] or "$") + mark[2], word)


def unknown(expansion: str) -> str:
    """Return the mark of an expansion; without spaces, so that it stays one word, and never expanded again."""
    text = re.sub(r"[\s$]+", "", expansion)
    return f"{UNKNOWN}{text}{UNKNOWN}"


def statements(text: str) -> list[Statement]:
    """Return the statements of a script in the order in which they stand."""
    found = [Statement()]
    pending: list[tuple[Statement, re.Match[str]]] = []
    position = 0
    while position < len(text):
        character = text[position]
        end = next((end for end in _ENDS if text.startswith(end, position)), "")
        is_arithmetic = text.startswith("((", position) and set(found[-1].words) <= _BEFORE_ARITHMETIC
        # A list in a file of arguments, as in ([0]*3+[1]*5), is no subshell either.
        end = "" if is_arithmetic or text.startswith("([", position) else end
        here = _HERE.match(text, position) if character == "<" else None
        if end:
            position += len(end)
            if end == "\n":
                position, pending = _documents(text, position, pending), []
            found[-1].end = end
            found.append(Statement())
        elif character in " \t\r" or text.startswith("\\\n", position):
            position += 2 if character == "\\" else 1
        elif character == "#":
            position = _line_end(text, position)
        elif here is not None:
            pending.append((found[-1], here))
            position = here.end()
        elif is_arithmetic:
            close = _balanced(text, position, "()")
            found[-1].words.append(text[position:close])
            position = close
        else:
            word, position = _word(text, position)
            found[-1].words.append(word)
    return [statement for statement in found if statement.words or statement.end in (";;", ")")]


def _documents(text: str, position: int, pending: list[tuple[Statement, re.Match[str]]]) -> int:
    """Store the documents that begin at a position with their statements; return where they end."""
    for statement, here in pending:
        end = re.compile(rf"^\s*{here[2]}\s*$", re.MULTILINE).search(text, position)
        inside = text[position : end.start() if end else len(text)]
        statement.documents.append(Document(inside, is_literal=bool(here[1])))
        position = end.end() if end else len(text)
    return position


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _word(text: str, position: int) -> tuple[str, int]:
    """Return the word that begins at a position, and where it ends."""
    word = ""
    if text.startswith("([", position):
        end = _balanced(text, position, "()")
        word, position = text[position:end], end
    while position < len(text):
        character = text[position]
        if character == "(" and ASSIGNMENT.fullmatch(word):
            inside, position = _array(text, position + 1)
            return f"{word} {inside}" if word.endswith("+=") else f"{word}{inside}", position  # elements, no text
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
        inside = text[position:end].strip("$`")
        return "" if inside.lstrip("( ").startswith("#") else unknown(inside), end  # `# a remark between arguments`
    if text.startswith("$[", position):  # the older spelling of $((…))
        end = _balanced(text, position + 1, "[]")
        return f"$(({text[position + 2 : end - 1]}))", end
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
