"""Generate the graph of a model's forward pass, with the depth of every operator.

python -m predictor.replay.fwd_gen --model_name resnet50
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file, whose folder Python searches instead of the checkout
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from predictor.replay.procedure.command import run
from predictor.replay.procedure.forward import answer, parser

if __name__ == "__main__":
    sys.exit(run(parser(), answer))
