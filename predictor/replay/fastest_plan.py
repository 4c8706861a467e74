"""Derive the fastest plan of precisions for a model, and the fastest under a memory limit.

python -m predictor.replay.fastest_plan --model_name bert --indicator_type fisher --mem_limit 16
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file, whose folder Python searches instead of the checkout
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from predictor.replay.procedure.command import run
from predictor.replay.procedure.plans import answer, parser

if __name__ == "__main__":
    sys.exit(run(parser(), answer))
