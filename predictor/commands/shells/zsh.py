"""Completion for zsh, by its own _arguments."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from predictor.commands.shells.described import Command, Option

TEMPLATE = """#compdef %(program)s
# zsh completion for %(program)s: put it into a folder of $fpath as _%(program)s, or source it after compinit
%(function)s() {
  local -a commands
  commands=(
%(names)s
  )
  if (( CURRENT == 2 )); then
    _describe -t commands command commands
    _files
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
%(cases)s
  esac
}
if [[ $funcstack[1] == _%(program)s ]]; then %(function)s "$@"; else compdef %(function)s %(program)s; fi
"""


def _escaped(text: str) -> str:
    """Return help without what _arguments and _describe read as their own."""
    return text.replace("[", "(").replace("]", ")").replace(":", " -")


def _taken(values: Sequence[str], only_values: bool) -> str:
    """Return what completes a value."""
    if not values:
        return " " if only_values else "_files"
    return f"({' '.join(values)})" if only_values else f"{{compadd -- {' '.join(values)}; _files}}"


def _specification(option: Option, flag: str) -> str:
    # the repeatable form: whether an option may stand twice is the parser's to say
    taken = f":value:{_taken(option.values, option.only_values)}" if option.takes_value else ""
    return quote(f"*{flag}[{_escaped(option.text)}]{taken}")


def _case(command: Command, pattern: str) -> str:
    lines = [_specification(option, flag) for option in command.options for flag in option.flags]
    lines.append(quote(f"*:value:{_taken(command.values, command.only_values)}"))
    return f"    {pattern})\n      _arguments \\\n        " + " \\\n        ".join(lines) + "\n      ;;"


def script(program: str, commands: Sequence[Command]) -> str:
    """Return the script; a first word that is no command is a configuration of predict."""
    names = [f"    {quote(f'{command.name}:{_escaped(command.text)}')}" for command in commands]
    cases = [_case(command, command.name) for command in commands if command.name != "predict"]
    cases += [_case(command, "*") for command in commands if command.name == "predict"]
    return TEMPLATE % {
        "program": program,
        "function": f"_{program.replace('-', '_')}",
        "names": "\n".join(names),
        "cases": "\n".join(cases),
    }
