"""Print which kernels are tracked and how they compute; check a configuration of one's own.

python -m predictor.replay.config
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file, whose folder Python searches instead of the checkout
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from predictor.replay.procedure.command import run
from predictor.replay.procedure.kernels import answer, parser

if __name__ == "__main__":
    sys.exit(run(parser(), answer))
