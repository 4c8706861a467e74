"""A command that can be preempted, without any trainer: it counts steps, and saves the count when it is told to leave.

python count_steps.py FOLDER STEPS [SECONDS_PER_STEP]. Each start appends « start from N » to FOLDER/history.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

TO_BE_RESUMED = 75


def main(folder: Path, steps: int, seconds: float) -> int:
    told: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: told.append(number))
    saved = folder / "steps"
    done = int(saved.read_text()) if saved.exists() else 0
    with (folder / "history").open("a") as history:
        history.write(f"start from {done}\n")
    while done < steps:
        time.sleep(seconds)
        done += 1
        if told:
            break
    saved.write_text(str(done))
    return TO_BE_RESUMED if done < steps else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.1))
