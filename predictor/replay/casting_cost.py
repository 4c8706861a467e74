"""Measure the cost of casts between precisions on this device.

python -m predictor.replay.casting_cost --device auto
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file, whose folder Python searches instead of the checkout
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from predictor.replay.procedure.casting import answer, parser
from predictor.replay.procedure.command import run

if __name__ == "__main__":
    sys.exit(run(parser(), answer))
