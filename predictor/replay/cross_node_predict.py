"""Predict a step over ranks that were traced on different devices, and say who waits for whom.

python -m predictor.replay.cross_node_predict --model_name resnet50 --file_names fp32_comm_t4 fp32_comm_v100
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file, whose folder Python searches instead of the checkout
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from predictor.replay.procedure.command import run
from predictor.replay.procedure.cross_node import answer, parser

if __name__ == "__main__":
    sys.exit(run(parser(), answer))
