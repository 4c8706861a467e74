"""The examples' training, in which rank 1 sleeps for ever, or is stopped, at a step of the job's first start.

python hang_once.py sleep|stop STEP --config FILE
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "slurm" / "examples"
HOW, HANGS_AT = sys.argv.pop(1), int(sys.argv.pop(1))
IS_TO_HANG = os.environ["RANK"] == "1" and os.environ.get("SLURM_RESTART_COUNT", "0") == "0"

sys.path.insert(0, str(EXAMPLES))
train: Any = importlib.import_module("train")
training_step = train.LanguageModelTrainer.training_step


def hanging_step(trainer: Any, batch: Any, batch_idx: int) -> Any:
    """Return the loss, if ever."""
    while IS_TO_HANG and trainer.state.global_step == HANGS_AT:
        if HOW == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1.0)
    return training_step(trainer, batch, batch_idx)


train.LanguageModelTrainer.training_step = hanging_step
train.main()
