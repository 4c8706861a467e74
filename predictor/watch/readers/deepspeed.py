"""Logs of DeepSpeed: throughput of the engine, of the pipeline engine, and the breakdown by wall clock.

The engine states samples per second of its last step; the batch, which its configuration dump names, makes that a time.
"""

from __future__ import annotations

from predictor.watch.events import ALLOCATOR_RETRY, CHECKPOINT, SKIPPED
from predictor.watch.readers.log_format import KNOWN, START, Extract, Fields, LogFormat, Values, groups, rule

ENGINE = r"global_step=(?P<step>\d+), RunningAvgSamplesPerSec=\S+, CurrSamplesPerSec=(?P<samples_per_s>[\d.eE+]+)"
OLD_ENGINE = (
    r" \d+/(?P<step>\d+), (?:RunningAvg)?SamplesPerSec=\S+,(?: CurrSamplesPerSec=(?P<samples_per_s>[\d.eE+]+))?"
)
PIPELINE = (
    r"steps: (?P<step>\d+) loss: (?P<loss>\S+) .*?iter time \(s\): (?P<seconds>[\d.]+)"
    r" samples/sec: (?P<samples_per_s>\S+)"
)
RULES = (
    rule(CHECKPOINT, "is ready now!", r"Checkpoint (?:global_step)?(?P<step>\d+)\S* is ready now!"),
    rule(KNOWN, "train_batch_size ", r"train_batch_size \.{2,} (?P<batch>\d+)"),
    rule(ALLOCATOR_RETRY, "allocator cache flushes"),  # ZeRO-3
    rule(SKIPPED, "kipping step", r"(?i)overflow"),
    rule(START, "DeepSpeed info: version", r"DeepSpeed info: version"),
)


def breakdown() -> Extract:
    """Return what reads the times of a whole step; those of its micro-steps are left out."""
    return Fields(r"time \(ms\) \| (?:fwd|forward): ")


def _steps() -> Extract:
    extracts = [groups(pattern) for pattern in (ENGINE, OLD_ENGINE, PIPELINE)]

    def extract(line: bytes) -> Values | None:
        return next((values for read in extracts if (values := read(line)) is not None), None)

    return extract


DEEPSPEED = LogFormat(
    "DeepSpeed log",
    "DeepSpeed",
    "0.6 to 0.18",
    "deepspeed/utils/timer.py, deepspeed/runtime/pipe/engine.py",
    "deepspeed.log",
    ("SamplesPerSec=", "iter time (s): "),
    _steps,
    RULES,
    ("time (ms) | ",),
    breakdown,
)
