"""Messages that bear on speed, in the words of PyTorch, NCCL, the driver, Slurm and the frameworks."""

from __future__ import annotations

from predictor.watch.events import (
    ERROR,
    HARDWARE,
    NETWORK,
    OUT_OF_MEMORY,
    RECOMPILED,
)
from predictor.watch.readers.log_format import END, START, rule

# Few words, as each is looked for in all of a log; words of one framework are with its format.
RULES = (
    rule(OUT_OF_MEMORY, "ut of memory"),
    rule(OUT_OF_MEMORY, "slurmstepd: error:", r"oom_kill event|OOM Killed"),
    rule(RECOMPILED, "ecompil", r"Recompiling function|hit config\.recompile_limit|log all recompilation reasons"),
    rule(NETWORK, "NCCL WARN"),
    rule(NETWORK, "collective operation timeout"),  # ProcessGroupNCCL's watchdog
    rule(HARDWARE, "NVRM: Xid"),
    rule(HARDWARE, "ECC error"),
    rule(ERROR, "Traceback (most recent call last)"),
    # Slurm says why it ended a job, torchrun that it begins the ranks again.
    rule(END, "slurmstepd: error:", r"CANCELLED AT \S+(?: DUE TO (?P<state>[A-Z ]+?))? \*\*\*", says="CANCELLED"),
    rule(START, "orker group", r"(?:will restart|Restarting) worker group"),
    rule(START, "SLURM_JOB_NODELIST", r"SLURM_JOB_NODELIST['\"]?\s*[=:]\s*['\"]?(?P<hosts>[\w.,\[\]-]+)"),
)
STATES = {"TIME LIMIT": "TIMEOUT", "NODE FAILURE": "NODE_FAIL", "PREEMPTION": "PREEMPTED"}
