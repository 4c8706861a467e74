"""Completion for bash 4 or newer."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from predictor.commands.shells.described import Command

TEMPLATE = r"""# bash completion for %(program)s: source it,
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


def _files(only_values: bool) -> str:
    return "; files=no" if only_values else ""


def script(program: str, commands: Sequence[Command]) -> str:
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
    return TEMPLATE % {
        "program": program,
        "function": f"_{program.replace('-', '_')}",
        "names": "|".join(names),
        "first": quote(" ".join([*names, "--version", "--help"])),
        "values": "\n".join(values),
        "commands": "\n".join(own),
    }
