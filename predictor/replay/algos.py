"""Search a plan of precisions by the greedy method.

python -m predictor.replay.algos --model_name bert --mem_limit 16
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file, whose folder Python searches instead of the checkout
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from predictor.replay.procedure.command import run
from predictor.replay.procedure.plans import greedy_answer, greedy_parser

if __name__ == "__main__":
    sys.exit(run(greedy_parser(), greedy_answer))
