"""Take one step of a trace apart, or predict it in a precision.

python -m predictor.replay.analyse --bit 32 --model_name resnet50 --generate_mapping --file_name fp32_comm_t4
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file, whose folder Python searches instead of the checkout
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from predictor.replay.procedure.analysis import answer, parser
from predictor.replay.procedure.command import run

if __name__ == "__main__":
    sys.exit(run(parser(), answer))
