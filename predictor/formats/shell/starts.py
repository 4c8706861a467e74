"""Scripts that hold no arguments of a training themselves: what they start, and what to read instead."""

from __future__ import annotations

import re

from predictor.core.base.errors import ConfigError

CALLED = re.compile(
    r"(?:^|[\s;\"'])(?:bash|sh|source|\.|sbatch|srun)\s+(?:-\w+\s+)*\"?([^\s;|&\"']+\.(?:sh|slurm|sbatch))\b",
    re.MULTILINE,
)
MOST_SHOWN = 3
# GPT-NeoX's launcher, its program, and the configurations that follow with or without an ending.
NEOX = re.compile(r"\bdeepy\.py\s+[^\s;|&]+\.py\s+([^\n;|&>]+)")


def of_other_script(where: str, text: str) -> ConfigError | None:
    """Return why a shell script without arguments cannot be read, with those that it starts; None for other texts."""
    without_remarks = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    configurations = _of_gpt_neox(without_remarks)
    if configurations:
        return ConfigError(f"{where} starts GPT-NeoX with {' '.join(configurations)}: read these files, together")
    called = list(dict.fromkeys(CALLED.findall(without_remarks)))
    if called:
        shown = ", ".join(called[:MOST_SHOWN])
        return ConfigError(f"{where} holds no arguments of a training; it starts {shown}: read that")
    if not (text.startswith("#!") or re.search(r"^export \w+=", text, re.MULTILINE)):
        return None
    return ConfigError(
        f"{where} holds no arguments of a training, such as --num-layers 32; read the script that starts it, or print "
        "the command that runs (echo in front of it) and read that"
    )


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
