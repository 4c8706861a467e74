"""Logs of a Hugging Face Trainer, and so of TRL, axolotl and LLaMA-Factory: its progress bar and printed dictionaries.

The bar has every step with a time; a dictionary has neither number nor time, so that it is read only where there is no
bar: its epoch gives the number then.
"""

from __future__ import annotations

import re
from dataclasses import replace

from predictor.watch.events import CHECKPOINT, EVALUATION, NOT_FINITE
from predictor.watch.readers import deepspeed, names
from predictor.watch.readers.log_format import END, GROUPS, START, Extract, LogFormat, Values, groups, put, rule
from predictor.watch.readers.names import number
from predictor.watch.readers.progress_bar import TrainerBar

PRINTED = r"\{'loss': '?(?P<loss>[^',}]+).*?'epoch': '?(?P<epoch>[\d.]+)"
TOTAL = re.compile(rb"Total optimization steps = (?P<target>[\d,]+)")
EPOCHS = re.compile(rb"Num Epochs = ([\d,]+)")


def _trainer() -> Extract:
    bar, printed = TrainerBar(), re.compile(PRINTED.encode())
    known: dict[str, float] = {}  # what the log says of the whole run
    has_bar = False

    def extract(line: bytes) -> Values | None:
        nonlocal has_bar
        for name, pattern in (("target", TOTAL), ("epochs", EPOCHS)):
            if (stated := pattern.search(line)) is not None:
                known[name] = number(stated[1]) or 0.0
                return None
        if b"%|" in line:
            values = bar(line)
            has_bar = has_bar or values is not None
            return values
        found = printed.search(line)
        epoch = number(found["epoch"]) if found is not None else None
        if has_bar or found is None or epoch is None or not known.get("epochs") or "target" not in known:
            return None
        step = epoch / known["epochs"] * known["target"]
        values = {names.NUMBER: step + 0.5, names.TARGET: known["target"]}
        put(values, GROUPS["loss"], found["loss"])
        return values

    return extract


HUGGING_FACE = LogFormat(
    "Hugging Face Trainer log",
    "Hugging Face Trainer",
    "transformers 4.20 to 5.3, TRL, axolotl, LLaMA-Factory",
    "src/transformers/trainer_callback.py, ProgressCallback and PrinterCallback; trainer.py, _inner_training_loop",
    "hugging_face_trainer.log",
    ("%|", "{'loss': ", "Total optimization steps", "Num Epochs ="),
    _trainer,
    (
        rule(START, "***** Running training *****"),
        rule(START, "Total train batch size", r"accumulation\) = (?P<batch>[\d,]+)"),
        rule(START, "Total optimization steps", TOTAL.pattern.decode()),
        rule(START, "Continuing training from global step", r"global step (?P<resumed>\d+)"),
        rule(CHECKPOINT, "Saving model checkpoint to", r"checkpoint-(?P<step>\d+)", in_step=True),
        rule(EVALUATION, "eval_runtime", r"eval_runtime'?: '?(?P<seconds>[\d.]+)", in_step=True),
        rule(NOT_FINITE, "{'loss': ", r"\{'loss': '?(?:nan|inf)"),
        rule(END, "'train_runtime'", says="completed"),
        *deepspeed.RULES[2:],
    ),
    tells=re.compile(rb"\{'(?:train_)?loss': |'train_runtime': |\*{5} Running training \*{5}"),
)
_LIGHTNING_WORDS = r"Epoch (?P<epoch>\d{1,9}):\s*:?\s*$"
NEMO_BAR = LogFormat(
    "NeMo progress bar",
    "NeMo",
    "1.20 to 2.0",
    "nemo/utils/callbacks and lightning/pytorch/callbacks/progress/tqdm_progress.py",
    "nemo_1.log",
    ("%|",),
    lambda: TrainerBar(_LIGHTNING_WORDS, is_smoothed=False),
    (rule(EVALUATION, "Validation", r"Validation(?: DataLoader \d+)?:\s*:?\s*100%\|"),),
    tells=re.compile(rb"\|.*train_step_timing in s="),
)
LIGHTNING = replace(
    NEMO_BAR,
    name="Lightning progress bar",
    tool="Lightning",
    versions="1.6 to 2.6",
    produced="src/lightning/pytorch/callbacks/progress/tqdm_progress.py",
    example="lightning.log",
    rules=(
        rule(EVALUATION, "Validation", r"Validation(?: DataLoader \d+)?:\s*100%\|"),
        rule(START, "All distributed processes registered", r"Starting with (?P<world>\d+) processes"),
        rule(END, "`Trainer.fit` stopped", says="completed"),
    ),
    tells=re.compile(rb"Epoch \d+:\s+\d{1,3}%\|"),
)
# Bars of preparations and of evaluations, by Transformers, datasets and Lightning.
_OTHER_WORK = r"(?i:map|load|fetch|token|generat|filter|pack|valid|eval|test|writ|sav|sanity|shard|predict|process)"
TQDM = LogFormat(
    "tqdm progress bar",
    "",
    "4.60 to 4.67",
    "tqdm/std.py, format_meter",
    "tqdm.log",
    ("%|",),
    lambda: TrainerBar(rf"^(?!.*(?:{_OTHER_WORK}))"),
    HUGGING_FACE.rules,  # a Trainer's log before it has logged a loss
    tells=re.compile(rf"^(?!.*(?:{_OTHER_WORK}).*%\|).*\d%\|[^|]{{0,400}}\|\s*\d+/\d+ \[".encode()),
)
TORCHTUNE = LogFormat(
    "torchtune log",
    "torchtune",
    "0.2 to 0.6",
    "recipes/full_finetune_distributed.py; torchtune/training/metric_logging.py",
    "torchtune.log",
    ("|Loss: ", "| loss:"),
    lambda: _torchtune(),
    (rule(CHECKPOINT, "Saved final model checkpoint"), rule(CHECKPOINT, "Model checkpoint of size")),
    tells=re.compile(rb"\d+\|\d+\|Loss: |^Step \d+ \| loss:.*tokens_per_second_per_gpu:"),
)


def _torchtune() -> Extract:
    words = re.compile(rb"\|(?P<step>\d+)\|Loss: (?P<loss>[^:]+):\s*\d{1,3}%")
    bar = TrainerBar(r"(?P<epoch>\d{1,9})\|\d+\|Loss: (?P<loss>[^:]+):\s*$")
    logged = groups(r"Step (?P<step>\d+) \| loss:(?P<loss>\S+)(?:.*?peak_memory_reserved:(?P<memory_gib>[\d.]+))?")

    def extract(line: bytes) -> Values | None:
        found = words.search(line)
        if found is None:
            return logged(line)
        values = bar(line)
        if values is not None:
            values[names.NUMBER] = float(found["step"])
        return values

    return extract


FORMATS = (HUGGING_FACE, TORCHTUNE, NEMO_BAR, LIGHTNING)
