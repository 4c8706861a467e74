"""Completion for fish 3 or newer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from predictor.commands.shells.described import Command, Option


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


def script(program: str, commands: Sequence[Command]) -> str:
    """Return the script."""
    return "\n".join(_lines(program, commands)) + "\n"
