"""Scripts that hold no arguments of a training themselves: what they start, and what to read instead."""

from __future__ import annotations

import re

from predictor.core.base.errors import ConfigError

CALLED = re.compile(
    r"(?:^|[\s;\"'])(?:bash|sh|source|\.|sbatch|srun)\s+(?:-\w+\s+)*(?:\"\$\([^\n]*?\)/)?\"?([^\s;|&\"']+\.(?:sh|slurm|sbatch))\b",
    re.MULTILINE,
)
OF_SHELLS = re.compile(r"/(?:conda|profile|activate|bashrc|modules?)[\w.-]*\.sh$|/profile\.d/")  # that set up a shell
MOST_SHOWN, MOST_NAMES = 3, 6
# GPT-NeoX's launcher, its program, and the configurations that follow with or without an ending.
NEOX = re.compile(r"\bdeepy\.py\s+[^\s;|&]+\.py\s+([^\n;|&>]+)")


# A program of Python that a launcher starts, and its arguments.
OWN = re.compile(
    r"(?:^|[\s;&|\"'])(?:torchrun|deepspeed|(?:accelerate|composer|fabric)\s+\w*|(?:\S*/)?python3?|srun)\b[^\n;|&]*?\s(\S+\.py)\b([^\n;|&]*)"
)
NAMED = re.compile(r"(?:^|[\s=])([^\s=\"'$]+\.(?:ya?ml|json|toml))\b")
WAY_OUT = "give the run as a configuration, or as options: --model NAME or config.json --gpus N --micro-batch-size N …"


def of_other_script(where: str, text: str) -> ConfigError | None:
    """Return why a shell script without arguments cannot be read, with those that it starts; None for other texts."""
    without_remarks = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    configurations = _of_gpt_neox(without_remarks)
    if configurations:
        return ConfigError(f"{where} starts GPT-NeoX with {' '.join(configurations)}: read these files, together")
    called = [name for name in dict.fromkeys(CALLED.findall(without_remarks)) if not OF_SHELLS.search(name)]
    if called:
        shown = ", ".join(called[:MOST_SHOWN])
        return ConfigError(f"{where} holds no arguments of a training; it starts {shown}: read that")
    if (started := of_own_program(where, without_remarks)) is not None:
        return started
    if not (text.startswith("#!") or re.search(r"^export \w+=", text, re.MULTILINE)):
        return None
    return ConfigError(
        f"{where} holds no arguments of a training, such as --num-layers 32; read the script that starts it, or print "
        "the command that runs (echo in front of it) and read that"
    )


def of_own_program(where: str, text: str) -> ConfigError | None:
    """Return why a program that no tool here knows cannot be read; None where a script starts none."""
    found = list(OWN.finditer(text))
    if not found:
        return None
    program, arguments = found[-1][1], found[-1][2]
    if (file := NAMED.search(arguments)) is not None:
        started = f"{program} with {file[1]}: read that file, if it is of a tool that list-formats shows; otherwise"
        return ConfigError(f"{where} starts {started} {WAY_OUT}")
    names = re.findall(r"(?:^|\s)(--?[A-Za-z][\w.-]*)", arguments)
    listed = ", ".join(names[:MOST_NAMES]) + (" …" if len(names) > MOST_NAMES else "")
    started = f"{program}, a program of its own whose arguments ({listed or 'none'}) are not known here"
    return ConfigError(f"{where} starts {started}; {WAY_OUT}")


def _of_gpt_neox(text: str) -> list[str]:
    """Return the configurations that a script starts GPT-NeoX with.

    Source: EleutherAI/gpt-neox, megatron/neox_arguments/arguments.py (consume_deepy_args).
    """
    started = NEOX.search(text)
    words = [word.strip("\"'") for word in started[1].split()] if started else []
    folder, files = "", []
    while words and not words[0].isdigit():
        word = words.pop(0)
        if word in ("-d", "--conf_dir") and words:
            folder = f"{words.pop(0).rstrip('/')}/"
        elif word.startswith("-"):
            del words[:1]
        else:
            files.append(word)
    return [
        f"{folder}{name if name.endswith(('.yml', '.yaml', '.json')) or '$' in name else f'{name}.yml'}"
        for name in files
    ]
