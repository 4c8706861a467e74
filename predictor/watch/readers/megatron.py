"""Logs of Megatron-LM, and of Megatron-Bridge, Megatron-DeepSpeed, GPT-NeoX, NeMo and nanotron, which have its lines.

A line of theirs has fields between bars, ``iteration 10/ 500 | consumed samples: 2560 | elapsed time per iteration
(ms): 4012.3 | …``; which fields there are differs between versions, and their names decide what is read. Its time is
that of one iteration, the mean since the line before. Timers follow it, the slowest rank's being the last number.
"""

from __future__ import annotations

import re
from dataclasses import replace

from predictor.watch.events import CHECKPOINT, EVALUATION
from predictor.watch.readers import deepspeed
from predictor.watch.readers.log_format import END, KNOWN, START, Fields, LogFormat, Timers, rule

ITERATION = r"iteration:?\s*(?P<step>\d+)\s*/\s*(?P<target>\d+)"
TIMERS = ("forward-compute", "backward-compute", "batch-generator", "all-grads-sync", "optimizer")
PAUSES = ("save-checkpoint", "evaluate", "eval-time")
# Without the dots behind the names: words that end in what is frequent are found slowly.
TIMER_WORDS = tuple(f" {name} " if name in ("optimizer", "evaluate") else f" {name}" for name in (*TIMERS, *PAUSES))
RULES = (
    rule(KNOWN, "memory (MB)", r"memory \(MB\) \|.*\bmax reserved: (?P<memory_mib>[\d.]+)"),
    rule(CHECKPOINT, "successfully saved checkpoint", r"iteration\s+(?P<step>\d+)"),
    rule(EVALUATION, "validation loss at", r"validation loss at iteration (?P<step>\d+)(?! on test)"),
    rule(START, "using world size", r"using world size: (?P<world>\d+)"),
    rule(START, "successfully loaded checkpoint", r"at iteration\s+(?P<resumed>\d+)"),
    rule(END, "[after training is done]", says="completed"),
)


def _family(name: str, tool: str, versions: str, produced: str, example: str, tells: str | None = None) -> LogFormat:
    return LogFormat(
        name,
        tool,
        versions,
        produced,
        example,
        ("elapsed time per iteration",),
        lambda: Fields(ITERATION),
        RULES,
        TIMER_WORDS,
        lambda: Timers((*TIMERS, *PAUSES)),
        guard=" ......",
        tells=re.compile(tells.encode()) if tells else None,
    )


MEGATRON_LM = _family(
    "Megatron-LM log",
    "Megatron-LM",
    "core 0.4 to 0.18",
    "megatron/training/training.py, training_log",
    "megatron_lm.log",
)
MEGATRON_DEEPSPEED = LogFormat(
    "Megatron-DeepSpeed log",
    "Megatron-DeepSpeed",
    "2022 to 2025",
    "megatron/training.py, training_log",
    "megatron_deepspeed.log",
    ("elapsed time per iteration",),
    lambda: Fields(ITERATION),
    (*RULES, *deepspeed.RULES),
    ("time (ms) | ",),
    deepspeed.breakdown,
    tells=re.compile(rb"elapsed time per iteration.*(?:samples per second|tokens per gpu per second)"),
)
# GPT-NeoX descends from Megatron-DeepSpeed and writes its lines.
GPT_NEOX = replace(
    MEGATRON_DEEPSPEED,
    name="GPT-NeoX log",
    tool="GPT-NeoX",
    versions="2.0",
    produced="megatron/logging.py, training_log",
    example="gpt_neox.log",
    tells=re.compile(rb"samples/sec: [\d.]+ \| iteration "),
)
MEGATRON_BRIDGE = LogFormat(
    "Megatron-Bridge log",
    "Megatron-Bridge",
    "0.1 to 0.6",
    "src/megatron/bridge/training/utils/train_utils.py, training_log",
    "megatron_bridge.log",
    ("elapsed time per iteration",),
    lambda: Fields(ITERATION),
    (rule(KNOWN, "Step Time : ", r"GPU utilization: (?P<tflops>[\d.]+)\s?MODEL_TFLOP"), *RULES),
    TIMER_WORDS,
    lambda: Timers((*TIMERS, *PAUSES)),
    guard=" ......",
    tells=re.compile(rb"Step Time : [\d.]+s.*GPU utilization"),
)
NEMO = LogFormat(
    "NeMo log",
    "NeMo",
    "2.0 to 2.5",
    "nemo/lightning/pytorch/callbacks/progress_printer.py",
    "nemo_2.log",
    ("Training epoch ",),
    lambda: Fields(r"Training epoch \d+, iteration (?P<step>\d+)/(?P<target>\d+)"),
    (
        rule(EVALUATION, "Validation: iteration", r"Validation: iteration (\d+)/\1\b"),
        rule(CHECKPOINT, "Global Checkpoint Save", r"Iteration: (?P<step>\d+).*?Save duration: (?P<seconds>[\d.]+)s"),
        rule(START, "Distributed training", r"[Ss]tarting with (?P<world>\d+) processes"),
        rule(END, "`Trainer.fit` stopped", says="completed"),
    ),
)
NANOTRON = LogFormat(
    "nanotron log",
    "nanotron",
    "0.4",
    "src/nanotron/trainer.py, train_step_logs",
    "nanotron.log",
    ("elapsed_time_per_iteration_ms",),
    lambda: Fields(ITERATION),
    (
        rule(CHECKPOINT, "Saving checkpoint at"),
        rule(START, "[Start training]", r"\[Start training\].*"),
        rule(START, "Resuming training from", r"(?:step|iteration)\D*(?P<resumed>\d+)"),
    ),
)
FORMATS = (MEGATRON_BRIDGE, MEGATRON_DEEPSPEED, GPT_NEOX, NANOTRON, NEMO, MEGATRON_LM)
