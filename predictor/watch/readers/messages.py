"""Messages that bear on speed, in the words of PyTorch, NCCL, the driver, Slurm and the frameworks."""

from __future__ import annotations

from predictor.watch.events import (
    ALLOCATOR_RETRY,
    ERROR,
    HARDWARE,
    NETWORK,
    OUT_OF_MEMORY,
    RECOMPILED,
    SKIPPED,
)
from predictor.watch.readers.log_format import END, START, rule

RULES = (
    rule(OUT_OF_MEMORY, "ut of memory"),
    rule(OUT_OF_MEMORY, "OutOfMemoryError"),
    rule(OUT_OF_MEMORY, "oom_kill event"),
    rule(ALLOCATOR_RETRY, "memory allocation retries"),  # torchtitan
    rule(ALLOCATOR_RETRY, "allocator cache flushes"),  # DeepSpeed, ZeRO-3
    rule(RECOMPILED, "ecompil", r"Recompiling function|recompile_limit|torch\._dynamo hit"),
    rule(RECOMPILED, "cache_size_limit"),
    rule(NETWORK, "NCCL WARN"),
    rule(NETWORK, "collective operation timeout"),  # ProcessGroupNCCL's watchdog
    rule(NETWORK, "IBV_WC_"),
    rule(HARDWARE, "NVRM: Xid"),
    rule(HARDWARE, "ECC error"),
    rule(SKIPPED, "kipping step", r"(?i)overflow"),  # DeepSpeed's loss scaler
    rule(ERROR, "Traceback (most recent call last)"),
    rule(ERROR, "Segmentation fault"),
    # Slurm says why it ended a job, torchrun that it begins the ranks again.
    rule(END, "CANCELLED AT", r"CANCELLED AT \S+(?: DUE TO (?P<state>[A-Z ]+?))? \*\*\*", says="CANCELLED"),
    rule(START, "orker group", r"(?:will restart|Restarting) worker group"),
)
STATES = {"TIME LIMIT": "TIMEOUT", "NODE FAILURE": "NODE_FAIL", "PREEMPTION": "PREEMPTED"}
