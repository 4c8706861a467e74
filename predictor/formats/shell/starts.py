"""Scripts that hold no arguments of a training themselves: what they start, and what to read instead."""

from __future__ import annotations

import re

from predictor.core.base.errors import ConfigError

CALLED = re.compile(
    r"(?:^|[\s;\"'])(?:bash|sh|source|\.|sbatch|srun)\s+(?:-\w+\s+)*\"?([^\s;|&\"']+\.(?:sh|slurm|sbatch))\b",
    re.MULTILINE,
)
MOST_SHOWN = 3


def of_other_script(where: str, text: str) -> ConfigError | None:
    """Return why a shell script without arguments cannot be read, with those that it starts; None for other texts."""
    without_remarks = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
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
