"""Record steps of a HugeCTR configuration: ``python -m hugectr.measure CONFIG --out FOLDER``, or so under torchrun."""

from __future__ import annotations

import argparse
import sys

from hugectr.exceptions import HugeCtrError
from model_training_framework.trainer import TrainerError
from model_training_framework.trainer.measure_options import measure_parser, option_out_of_range
from predictor.core.base.command_line import progress

PROGRAM = "python -m hugectr.measure"
CONFIG = "HugeCTR's JSON, with or without the clause prediction"
BAD_INPUT, FAILED = 2, 1


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    return measure_parser(PROGRAM, CONFIG).parse_args(arguments)


def measure(arguments: argparse.Namespace) -> None:
    """Run and record.

    Raises:
        HugeCtrError, TrainerError: what the run cannot do.
    """
    import torch

    from hugectr.measure.run import StepCounts, run_and_record

    wrong = option_out_of_range(arguments)
    if wrong is not None:
        raise HugeCtrError(wrong)
    torch.set_num_threads(arguments.threads)
    counts = StepCounts(arguments.warm_up, arguments.steps, arguments.profiled)
    run_and_record(arguments.config, counts, arguments.out, arguments.device)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    try:
        measure(parse(arguments))
    except HugeCtrError as error:
        progress(f"error: {error}")
        return BAD_INPUT
    except TrainerError as error:
        progress(f"error: {error}")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
