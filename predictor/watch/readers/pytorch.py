"""Logs of torchtitan, Composer, OLMo, litgpt, and of trainers in one file: nanoGPT, modded-nanogpt, nanochat, llm.c."""

from __future__ import annotations

import re
from collections.abc import Callable

from predictor.watch.events import ALLOCATOR_RETRY, CHECKPOINT, COLLECTION, EVALUATION
from predictor.watch.readers.log_format import END, START, Extract, KeyValue, LogFormat, Values, groups, rule


def _with(pattern: str) -> Callable[[], Extract]:
    return lambda: groups(pattern)


TORCHTITAN = LogFormat(
    "torchtitan log",
    "torchtitan",
    "0.1 to 0.3",
    "torchtitan/components/metrics.py, MetricsProcessor.log",
    "torchtitan.log",
    ("step: ",),
    _with(
        r"(?<!validate )step:\s*(?P<step>[\d,]+)\s+loss:\s*(?P<loss>\S+)"
        r"(?:.*?memory:\s*(?P<memory_gib>[\d.]+)GiB\((?P<memory_percent>[\d.]+)%\))?(?:.*?tflops:\s*(?P<tflops>[\d.,]+))?"
    ),
    (
        rule(EVALUATION, "validate step: ", r"validate step:\s*(?P<step>\d+)", in_step=True),
        rule(CHECKPOINT, "Finished saving the checkpoint", r"in\s?(?P<seconds>[\d.]+) seconds", in_step=True),
        rule(ALLOCATOR_RETRY, "memory allocation retries"),
        rule(COLLECTION, "[GC]", r"\[GC\].* took (?P<seconds>[\d.]+) seconds", in_step=True),
        rule(START, "Training starts at step", r"at step (?P<first>\d+)(?:.*total steps (?P<target>\d+))?"),
        rule(START, "global batch size", r"Training starts at step.*global batch size (?P<batch>\d+)"),
        rule(START, "Loading the checkpoint from", r"step-(?P<resumed>\d+)"),
        rule(END, "Training completed", says="completed"),
    ),
    tells=re.compile(rb"step:\s*\d+\s.{0,12}loss:.*(?:GiB\(|tps:)|\[titan\] \d{4}-"),
)


def _composer_header() -> Extract:
    header = re.compile(rb"\[(?:epoch=\d+\]\[)?(?:epoch|iteration|batch|sample|token)=\d+(?:/\d+)?\]:")
    return lambda line: Values() if header.search(line) else None


COMPOSER = LogFormat(
    "Composer console log",
    "Composer, llm-foundry",
    "0.15 to 0.32",
    "composer/loggers/console_logger.py",
    "composer.log",
    ("]:",),
    _composer_header,
    (
        rule(EVALUATION, "[Eval batch=", r"\[Eval batch=(\d+)/\1\]"),
        rule(CHECKPOINT, "Saved checkpoint to"),
        rule(START, "Starting training"),
        rule(END, "Training completed", says="completed"),
    ),
    (" Train ",),
    lambda: KeyValue(r"^\W*\s*Train (?P<key>[^:\n]+): (?P<value>[-\d.,eE+naif]+)"),
    is_block=True,
    tells=re.compile(rb"\[(?:batch|token|sample|epoch)=\d+(?:/\d+)?\]:|\t Train time/batch: "),
)
OLMO = LogFormat(
    "OLMo console log",
    "OLMo, OLMo-core",
    "OLMo 0.2 to 0.6, OLMo-core 1.0 to 2.4",
    "src/olmo_core/train/callbacks/console_logger.py; olmo/train.py, log_metrics_to_console",
    "olmo_core.log",
    ("[step=",),
    _with(r"\[step=(?P<step>\d+)/(?P<target>\d+|\?\?\?)"),
    (
        rule(CHECKPOINT, "Saving checkpoint for step", r"step (?P<step>\d+)", in_step=True),
        rule(CHECKPOINT, "Checkpoint saved to", in_step=True),
        rule(START, "Loading checkpoint from", r"step(?P<resumed>\d+)"),
        rule(EVALUATION, "Finished evaluation", in_step=True),
        rule(END, "Training complete", says="completed"),
    ),
    ("throughput/", "train/C", "System/Peak"),
    lambda: KeyValue(r"\s{4}(?P<key>[\w/ ()%.-]+)=(?P<value>[-\d.,eE+naif]+)\s*$"),
    is_block=True,
    tells=re.compile(rb"\[step=\d+/(?:\d+|\?\?\?),epoch="),
)
LITGPT = LogFormat(
    "litgpt log",
    "litgpt",
    "0.4 to 0.5: a step is an iteration, a micro-batch",
    "litgpt/pretrain.py, fit",
    "litgpt.log",
    ("iter time: ",),
    _with(r"iter (?P<step>\d+) step \d+ ?\|\s*loss train: (?P<loss>[^\s,]+).*?iter time: (?P<ms>[\d.]+) ms"),
    (
        rule(EVALUATION, "val time: ", r"iter (?P<step>\d+): val loss.*?val time: (?P<ms>[\d.]+) ms"),
        rule(CHECKPOINT, "Saving checkpoint to"),
        rule(START, "Resuming training from", r"Resuming training from"),
    ),
)
MODDED_NANOGPT = LogFormat(
    "modded-nanogpt log",
    "modded-nanogpt",
    "2024-10 to 2025-12",
    "train_gpt.py",
    "modded_nanogpt.log",
    ("train_time:",),
    _with(
        r"step:(?P<step>\d+)/(?P<target>\d+) (?:train_loss:(?P<loss>\S+) )?train_time:(?P<train_ms>[\d.]+)ms step_avg"
    ),
    (rule(EVALUATION, " val_loss:", r"step:(?P<step>\d+)/\d+ val_loss:"),),
)
NANOGPT = LogFormat(
    "nanoGPT log",
    "nanoGPT",
    "2023 to 2025",
    "train.py",
    "nanogpt.log",
    (": loss ",),
    _with(r"iter (?P<step>\d+): loss (?P<loss>[^\s,]+), time (?P<ms>[\d.]+)ms"),
    (
        rule(EVALUATION, ": train loss ", r"step (?P<step>\d+): train loss", in_step=True),
        rule(CHECKPOINT, "saving checkpoint to", in_step=True),
        rule(START, "Resuming training from"),
    ),
)
NANOCHAT = LogFormat(
    "nanochat log",
    "nanochat, build-nanogpt",
    "2024-06 to 2025-12",
    "scripts/base_train.py; train_gpt2.py",
    "nanochat.log",
    ("dt: ",),
    _with(
        r"step\s+(?P<step>\d+)(?:/(?P<target>\d+))?(?: \([\d.]+%\))? \|\s*loss: (?P<loss>\S+)"
        r".*?dt: (?P<ms>[\d.,]+)\s?ms"
        r"(?:.*?tok/sec: (?P<tokens_per_s>[\d.,]+))?"
    ),
    (
        rule(EVALUATION, "Validation bpb: ", r"Step (?P<step>\d+) \| Validation bpb"),
        rule(EVALUATION, "validation loss: "),
        rule(CHECKPOINT, "Saved model parameters to"),
    ),
)
LLM_C = LogFormat(
    "llm.c log",
    "llm.c",
    "2024",
    "train_gpt2.cu, main",
    "llm_c.log",
    (" tok/s",),
    _with(
        r"step\s+(?P<step>\d+)/(?P<target>\d+) \|\s*(?:train )?loss (?P<loss>\S+).*?\| (?P<ms>[\d.]+) ms \|"
        r".*?(?P<tokens_per_s>[\d.]+) tok/s"
    ),
    (rule(EVALUATION, "val loss ", r"^val loss "), rule(CHECKPOINT, "Writing model to", r"_(?P<step>\d+)\.bin")),
)
MAXTEXT = LogFormat(
    "MaxText log",
    "MaxText",
    "2024 to 2025",
    "MaxText/metric_logger.py",
    "maxtext.log",
    ("completed step: ",),
    _with(
        r"completed step: (?P<step>\d+), seconds: (?P<seconds>[\d.]+), TFLOP/s/device: (?P<tflops>[\d.]+)"
        r"(?:.*?\bloss: (?P<loss>\S+))?"
    ),
)
LLM_TRAINER = LogFormat(
    "llm_trainer log",
    "llm_trainer",
    "this project's",
    "training/llm_trainer/training/console.py",
    "llm_trainer.log",
    ("  learning rate ",),
    _with(
        r"step (?P<step>\d+) of (?P<target>\d+): loss (?P<loss>\S+)  learning rate \S+"
        r"  (?P<tokens_per_s>[\d,]+) tokens/s"
    ),
)
FORMATS = (*(TORCHTITAN, COMPOSER, OLMO, LITGPT, MODDED_NANOGPT, NANOGPT, NANOCHAT, LLM_C, MAXTEXT, LLM_TRAINER),)
