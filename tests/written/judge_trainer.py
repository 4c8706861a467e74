"""Judge scripts that start a Hugging Face Trainer by accelerate's launcher and by transformers' TrainingArguments.

Usage: judge_trainer.py CASES VERDICTS. The first file is a list of {"script": text, "launch": what the launcher's
parser has to say, "sizes": what TrainingArguments have to} as JSON; the second becomes a list of what is refused, or
said otherwise, null where nothing is.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate.commands.launch import launch_command_parser
from transformers import HfArgumentParser, TrainingArguments

YOURS = {"DATASET_NAME": "tokens", "LEARNING_RATE": "3e-4", "TRAIN_ITERS": "100"}
START = 'exec "${LAUNCHER[@]}"'
PRINTED = r"""printf '%s\0' "${LAUNCHER[@]}" """


@dataclass
class OwnArguments:
    """Those of run_clm.py itself: transformers, examples/pytorch/language-modeling/run_clm.py."""

    model_name_or_path: str
    dtype: str
    block_size: int
    dataset_name: str


def judge(script: str, launch: dict[str, Any], sizes: dict[str, Any]) -> str | None:
    """Return what is refused, None where nothing is."""
    try:
        assert script.count(START) == 1, "it starts no launcher"
        shell = ["bash", "-c", script.replace(START, PRINTED)]
        ran = subprocess.run(shell, env={**os.environ, **YOURS}, capture_output=True, text=True, check=True)
        words = ran.stdout.split("\0")[:-1]
        assert words[:2] == ["accelerate", "launch"], words[:2]
        started = launch_command_parser().parse_args(words[2:])
        arguments = [*started.training_script_args, "--use_cpu", "true"]
        _, trainer = HfArgumentParser((OwnArguments, TrainingArguments)).parse_args_into_dataclasses(arguments)
        for said, expected in ((started, launch), (trainer, sizes)):
            for name, value in expected.items():
                assert getattr(said, name) == value, f"{name} is {getattr(said, name)}, expected {value}"
    except (AssertionError, ValueError, TypeError, SystemExit, subprocess.CalledProcessError) as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    cases, verdicts = map(Path, sys.argv[1:])
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    found = [judge(**case) for case in json.loads(cases.read_text(encoding="utf-8"))]
    verdicts.write_text(json.dumps(found), encoding="utf-8")
