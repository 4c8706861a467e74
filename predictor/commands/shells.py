"""Completion scripts of bash (4 or newer), fish and zsh, generated from the command line's parser."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import NamedTuple

from predictor.core.base.bundled import examples, systems
from predictor.core.costs.work import STEP_PRECISIONS
from predictor.core.plan.framework_rules import RULES
from predictor.core.schema.presets import preset_names
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.software import Framework

LONGEST_HELP = 60
# What options take that is no file, by the name in their help.
NO_FILES = ("N", "X", "K", "VALUE", "KEY=VALUE", "CHANGE", "SECONDS", "ADDRESS", "PERCENT", "PORT", "REGEX")
# What arguments are known to take, by the name of their value, of one command by the command's too.
KNOWN: Mapping[str, Callable[[], Iterable[object]]] = {
    "system": systems,
    "to": systems,
    "model": preset_names,
    "example": examples,
    "name": examples,
    "schedule": lambda: SCHEDULES,
    "recompute": lambda: Recompute,
    "precision": lambda: STEP_PRECISIONS,
    "framework": lambda: Framework,
    "search framework": lambda: RULES,
}
BASH = r"""# bash completion for %(program)s: source it,
# or put it into ~/.local/share/bash-completion/completions/%(program)s
%(function)s() {
  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"
  local words="" files=yes at=1
  while (( at < COMP_CWORD )) && [[ ${COMP_WORDS[at]} == --no-color || ${COMP_WORDS[at]} == --debug ]]; do
    at=$(( at + 1 ))
  done
  local command="${COMP_WORDS[at]}"
  if [[ $current == "=" ]]; then current=""; fi
  if [[ $before == "=" ]]; then before="${COMP_WORDS[COMP_CWORD-2]}"; fi
  case "$command" in
    %(names)s) ;;
    *) command=predict ;;
  esac
  if (( COMP_CWORD == at )); then
    words=%(first)s
  else
    case "$command $before" in
%(values)s
      *)
        case "$command" in
%(commands)s
        esac
        ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ $files == yes && $current != -* ]]; then
    compopt -o filenames 2>/dev/null
    local name
    while IFS= read -r name; do COMPREPLY+=("$name"); done < <(compgen -f -- "$current")
  fi
}
complete -F %(function)s %(program)s
"""


class Option(NamedTuple):
    """An option of a command.

    Attributes:
        flags: its spellings.
        text: its help.
        takes_value: it is followed by one.
        values: known ones.
        only_values: it takes no file.
    """

    flags: tuple[str, ...]
    text: str
    takes_value: bool
    values: tuple[str, ...]
    only_values: bool


class Command(NamedTuple):
    """A command: its line of help, its options, and the known values of what stands without an option."""

    name: str
    text: str
    options: tuple[Option, ...]
    values: tuple[str, ...]
    only_values: bool


def _known(command: str, action: argparse.Action) -> tuple[tuple[str, ...], bool]:
    """Return the values that an argument is known to take, and whether it takes no file."""
    if action.choices is not None:
        return tuple(map(str, action.choices)), True
    known = KNOWN.get(f"{command} {action.dest}", KNOWN.get(action.dest))
    if known is not None:
        return tuple(map(str, known())), action.dest not in ("system", "to", "model")
    return (), not str(action.metavar).isupper() or action.metavar in NO_FILES


def _line(action: argparse.Action) -> str:
    """Return the first words of an argument's help."""
    if action.help in (None, argparse.SUPPRESS):
        return ""
    words = " ".join(str(action.help).replace("%%", "%").split())
    return words if len(words) <= LONGEST_HELP else f"{words[:LONGEST_HELP].rsplit(' ', 1)[0]} …"


def described(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[Command]:
    """Return every command with all that it takes."""
    texts: Mapping[str, str] = {action.dest: action.help or "" for action in commands._choices_actions}
    found = []
    for name, parser in commands.choices.items():
        options: list[Option] = []
        values: tuple[str, ...] = ()
        only = True
        for action in parser._actions:
            known, is_only = _known(name, action)
            if action.option_strings:
                flags = tuple(action.option_strings)
                options.append(Option(flags, _line(action), action.nargs != 0, known, is_only))
            else:
                values, only = known, is_only
        found.append(Command(name, texts[name], tuple(options), values, only))
    return found


def _files(only_values: bool) -> str:
    return "; files=no" if only_values else ""


def bash_script(program: str, commands: Sequence[Command]) -> str:
    """Return the script."""
    values, own = [], []
    for command in commands:
        for option in command.options:
            if option.takes_value:
                patterns = "|".join(f'"{command.name} {flag}"' for flag in option.flags)
                known = quote(" ".join(option.values))
                values.append(f"      {patterns}) words={known}{_files(option.only_values)} ;;")
        flags = [flag for option in command.options for flag in option.flags]
        words = quote(" ".join([*command.values, *flags]))
        own.append(f"          {command.name}) words={words}{_files(command.only_values)} ;;")
    names = [command.name for command in commands]
    return BASH % {
        "program": program,
        "function": f"_{program.replace('-', '_')}",
        "names": "|".join(names),
        "first": quote(" ".join([*names, "--version", "--help"])),
        "values": "\n".join(values),
        "commands": "\n".join(own),
    }


def _quoted(text: str) -> str:
    """Return a word in fish's single quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _flags(option: Option) -> str:
    long = [f"-l {flag[2:]}" for flag in option.flags if flag.startswith("--")]
    short = [f"-s {flag[1:]}" for flag in option.flags if not flag.startswith("--")]
    return " ".join([*short, *long])


def _option(head: str, option: Option) -> str:
    line = f"{head} {_flags(option)}"
    if option.takes_value:
        line += " -x" if option.only_values else " -r"
    if option.values:
        line += f" -a {_quoted(' '.join(option.values))}"
    return f"{line} -d {_quoted(option.text)}" if option.text else line


def _lines(program: str, commands: Sequence[Command]) -> Iterator[str]:
    names = " ".join(command.name for command in commands)
    yield f"# fish completion for {program}: put it into ~/.config/fish/completions/{program}.fish"
    first = f"complete -c {program} -n 'not __fish_seen_subcommand_from {names}'"
    yield f"{first} -l version -d 'print the version'"
    for command in commands:
        yield f"{first} -a {command.name} -d {_quoted(command.text)}"
    for command in commands:
        head = f"complete -c {program} -n '__fish_seen_subcommand_from {command.name}'"
        if command.values:
            yield f"{head}{' -f' if command.only_values else ''} -a {_quoted(' '.join(command.values))}"
        for option in command.options:
            yield _option(head, option)


def fish_script(program: str, commands: Sequence[Command]) -> str:
    """Return the script."""
    return "\n".join(_lines(program, commands)) + "\n"


ZSH = """#compdef %(program)s
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


def zsh_script(program: str, commands: Sequence[Command]) -> str:
    """Return the script; a first word that is no command is a configuration of predict."""
    names = [f"    {quote(f'{command.name}:{_escaped(command.text)}')}" for command in commands]
    cases = [_case(command, command.name) for command in commands if command.name != "predict"]
    cases += [_case(command, "*") for command in commands if command.name == "predict"]
    return ZSH % {
        "program": program,
        "function": f"_{program.replace('-', '_')}",
        "names": "\n".join(names),
        "cases": "\n".join(cases),
    }
