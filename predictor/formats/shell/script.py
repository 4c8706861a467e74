"""Read a shell script without running it: assignments, arrays, ${variables} and conditions that the script settles.

Expansions whose value is known only when the script runs (positional arguments, command substitution, environment) are
marked as unknown in their word, so that a reader can refuse them. Of a condition that the script itself settles the
branch that runs is read, the others are not; assignments in one that only a run settles are kept apart. A loop over the
script's own arguments assigns nothing: the script is read as if it were started without any.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import dropwhile

from predictor.formats.shell.conditions import is_open, is_test, of_command, outcome
from predictor.formats.shell.expansion import Script, expand
from predictor.formats.shell.words import ASSIGNMENT, Document, Statement, is_unknown, shown, statements, unknown

__all__ = ["Script", "is_unknown", "parse", "shown"]

# What a loop that reads the script's own arguments has in its head, and the branch of a case inside it as its subject.
_OWN_ARGUMENTS = re.compile(r"\$(?:[#@*1]|\{(?:[#@*1])\W?|\{1[^0-9])|\bgetopts\b")
_FIRST_ARGUMENT = re.compile(r"\{?1(?![0-9])")
_DOLLAR = "\x03"
_SCRIPTS = (".sh", ".slurm", ".sbatch")
_LOOPS = frozenset({"for", "while", "until", "select"})
_CLOSING = frozenset({"fi", "done", "esac"})
_PREFIXES = frozenset({"do", "export", "local", "declare", "readonly", "{", "time"})


@dataclass(slots=True)
class _Block:
    """An if, a case or a loop.

    Attributes:
        runs: whether the present branch runs; None: only a run of the script knows.
        taken: whether an earlier branch ran.
        condition: statements of the condition, while they are read.
        subject: word that a case compares; None: no case.
        awaits_pattern: a pattern of the case comes next.
        matches: an alternative of that pattern does.
        of_arguments: it reads the script's own arguments.
        name: the variable of a loop over words, which has the first of them inside; empty: no such loop.
    """

    runs: bool | None = None
    taken: bool | None = False
    condition: list[Statement] | None = None
    subject: str | None = None
    awaits_pattern: bool = False
    matches: bool | None = False
    of_arguments: bool = False
    name: str = ""

    def enter(self, matches: bool | None) -> None:
        """Begin a branch."""
        if self.taken is True or matches is False:
            self.runs = False
        else:
            self.runs = matches if self.taken is False else None
        self.taken = True if self.runs else self.taken if matches is False or self.taken else None


@dataclass(slots=True)
class _Reading:
    """A script being read: what it says so far, and the blocks that are open."""

    script: Script = field(default_factory=Script)
    blocks: list[_Block] = field(default_factory=list)
    status: bool | None = True  # outcome of what « && » and « || » have joined so far
    join: str = ""  # the operator in front of the present statement
    test: list[Statement] = field(default_factory=list)  # of a « [[ … » that goes on behind an operator

    def joined(self) -> bool | None:
        """Return whether the present statement runs, as far as the operator in front of it says."""
        if not self.join or self.status is None:
            return None if self.join else True
        return self.status if self.join == "&&" else not self.status

    def runs(self) -> bool | None:
        """Return whether the present statement runs."""
        states = [*(block.runs for block in self.blocks), self.joined()]
        if False in states:
            return False
        return None if None in states else True

    def end(self, end: str, own: bool | None) -> None:
        """Go on behind a statement that ends with an operator and has an outcome of its own, if it runs."""
        here = self.joined()
        if here is not False:
            self.status = own if here else None
        self.join = end if end in ("&&", "||") else ""


def parse(text: str, values: dict[str, str] | None = None) -> Script:
    """Return the variables and the commands of a script, in the order in which they stand.

    Args:
        text: of the script.
        values: of variables that it starts with.
    """
    reading = _Reading(Script(values=dict(values or {})))
    for statement in statements(text):
        words = _without_keywords(reading, statement)
        if words:
            _take(reading, Statement(words, statement.end, statement.documents))
        else:
            reading.join = ""
        block = reading.blocks[-1] if reading.blocks else None
        if block is not None and block.subject is not None and statement.end == ";;":
            block.awaits_pattern = True
    return reading.script


def _without_keywords(reading: _Reading, statement: Statement) -> list[str]:
    """Return the words of a statement that assign or call; blocks that it opens, turns or closes are followed."""
    words = statement.words
    while words:
        taken = _of_open_block(reading, words, statement.end)
        if taken is None:
            taken = _keyword(reading, words)
        if taken is None:
            return words
        words = taken
    return []


def _of_open_block(reading: _Reading, words: list[str], end: str) -> list[str] | None:
    """Take in words of a condition or of a case's pattern; return those behind, None where neither is open."""
    block = reading.blocks[-1] if reading.blocks else None
    if block is not None and block.condition is not None:
        if words[0] != "then":
            block.condition.append(Statement(words, end))
            return []
        block.enter(_settled(reading, block.condition))
        block.condition = None
        return words[1:]
    if block is not None and block.awaits_pattern and words[0] != "esac":
        _pattern(reading, block, words[-1], end)
        return []
    return None


def _keyword(reading: _Reading, words: list[str]) -> list[str] | None:
    """Follow a keyword at the beginning of a statement; return the words behind it, None where there is none."""
    blocks, first = reading.blocks, words[0]
    if first == "if" or (first == "elif" and blocks):
        if first == "if":
            blocks.append(_Block())
        blocks[-1].condition = []
    elif first == "else" and blocks:
        blocks[-1].enter(True)
    elif first == "case":
        subject = expand(words[1], reading.script) if len(words) > 1 else ""
        blocks.append(_Block(runs=False, subject=subject, awaits_pattern=True))
        return words[3:]
    elif first in _LOOPS:
        bare = first == "for" and len(words) == 2 and not words[1].startswith("((")  # « for x; do »
        reads = bare or bool(_OWN_ARGUMENTS.search(" ".join(words)))
        blocks.append(_Block(of_arguments=reads, name="" if reads else _first_of_loop(reading, words)))
        return []
    elif first in _CLOSING:
        if blocks and blocks[-1].name:
            del reading.script.values[blocks[-1].name]
        del blocks[-1:]
    elif first not in _PREFIXES:
        return None
    return words[1:]


def _first_of_loop(reading: _Reading, words: list[str]) -> str:
    """Give the variable of « for x in 1 2 3 » its first value, and return its name; empty: the words are not known."""
    if words[0] != "for" or len(words) < 4 or words[2] != "in":
        return ""
    name, script = words[1], reading.script
    values = " ".join(expand(word, script) for word in words[3:]).split()
    if not values or any(map(is_unknown, values)) or name in script.values or "*" in "".join(values):
        return ""
    script.values[name] = values[0]
    script.loops[name] = values
    return name


def _settled(reading: _Reading, condition: list[Statement]) -> bool | None:
    """Return the outcome of the condition of an innermost block, whose outer blocks may not run at all."""
    outer = [block.runs for block in reading.blocks[:-1]]
    return False if False in outer else outcome(condition, reading.script)


def _pattern(reading: _Reading, block: _Block, word: str, end: str) -> None:
    """Take in a pattern of a case, or an alternative of it (« | »), and begin its branch."""
    subject, pattern = block.subject or "", expand(word, reading.script)
    if len(reading.blocks) > 1 and is_unknown(subject) and _FIRST_ARGUMENT.match(shown(subject)):
        block.of_arguments = True
    if is_unknown(subject) or is_unknown(pattern):
        block.matches = None if block.matches is not True else True
    elif fnmatchcase(subject, pattern):
        block.matches = True
    if end != "|":
        block.awaits_pattern = False
        block.enter(block.matches)
        block.matches = False


def _take(reading: _Reading, statement: Statement) -> None:
    """Take in an assignment, a test or a command."""
    script, words, runs = reading.script, statement.words, reading.runs()
    if runs is not False:
        script.documents += [_filled(document, script) for document in statement.documents]
    if reading.test or is_test(words):
        reading.test.append(Statement(words, statement.end))
        if is_open(reading.test[0].words) and words[-1] != "]]" and statement.end in ("&&", "||"):
            return
        own = outcome(reading.test, script)
        reading.test = []
    elif all(map(ASSIGNMENT.match, words)):
        _assign_all(reading, words, runs)
        own = True
    else:
        bare = list(dropwhile(ASSIGNMENT.match, words))  # without variables of this command alone
        own = None if runs is False else of_command(bare, script)
        words = words if any(word.endswith(_SCRIPTS) for word in bare) else bare  # a called script gets them
        if runs is not False:
            script.commands.append(" ".join(expand(word, script) for word in words if word != "!").split())
    reading.end(statement.end, own)


def _filled(document: Document, script: Script) -> str:
    """Return a text that the script holds with the script's variables filled in; an escaped dollar is none of them."""
    if document.is_literal:
        return document.text
    return expand(document.text.replace("\\$", _DOLLAR), script).replace(_DOLLAR, "$")


def _assign_all(reading: _Reading, words: list[str], runs: bool | None) -> None:
    """Take in the assignments of a statement; those in a loop over the script's own arguments keep what was there."""
    script = reading.script
    names = [found[1] for word in words if (found := ASSIGNMENT.match(word))]
    if any(block.of_arguments for block in reading.blocks):
        script.guesses |= {name: script.values[name] for name in names if script.values.get(name)}
    elif runs is False:
        script.skipped |= set(names)
    else:
        for word in words:
            _assign(script, word, is_conditional=runs is None)


def _assign(script: Script, word: str, is_conditional: bool) -> None:
    assignment = ASSIGNMENT.match(word)
    if assignment is None:
        return
    name, appends = assignment[1], bool(assignment[2])
    value, old = expand(word[assignment.end() :], script), script.values.get(name)
    if not is_conditional:
        if not appends and not re.search(rf"\$\{{?{name}\b", word):
            script.conditional.pop(name, None)  # what a condition made of it is gone
        script.values[name] = f"{old or ''}{value}".strip() if appends else value
        return
    if not appends and old and value.startswith(old):
        value = value[len(old) :]
        appends = True
    if value == old:
        return
    script.conditional.setdefault(name, []).extend(value.split())
    if old is not None and "--" not in f"{old}{value}":  # of arguments the condition's are checked by themselves
        script.values[name] = unknown(name)
