"""The examples' training, in which rank 1 sleeps for ever, or is stopped, at a step of the job's first start.

python hang_once.py sleep|stop STEP --config FILE
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "slurm" / "examples"))

import train

HOW, HANGS_AT = sys.argv.pop(1), int(sys.argv.pop(1))
IS_TO_HANG = os.environ["RANK"] == "1" and os.environ.get("SLURM_RESTART_COUNT", "0") == "0"


class HangingTrainer(train.LanguageModelTrainer):
    """Hangs where it is to."""

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return the loss, if ever."""
        while IS_TO_HANG and self.state.global_step == HANGS_AT:
            if HOW == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(1.0)
        return super().training_step(batch, batch_idx)


train.LanguageModelTrainer = HangingTrainer  # type: ignore[misc]
train.main()
