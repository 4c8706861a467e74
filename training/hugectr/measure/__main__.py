"""Record steps of a HugeCTR configuration: ``python -m hugectr.measure CONFIG --out FOLDER``, or so under torchrun."""

from __future__ import annotations

import argparse
import sys

from hugectr.exceptions import HugeCtrError
from model_training_framework.trainer.measure_options import record_steps

PROGRAM = "python -m hugectr.measure"
CONFIG = "HugeCTR's JSON, with or without the clause prediction"


def measure(arguments: argparse.Namespace) -> None:
    """Run and record.

    Raises:
        HugeCtrError, TrainerError: what the run cannot do.
    """
    from hugectr.measure.run import StepCounts, run_and_record

    counts = StepCounts(arguments.warm_up, arguments.steps, arguments.profiled)
    run_and_record(arguments.config, counts, arguments.out, arguments.device)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    return record_steps(PROGRAM, CONFIG, measure, HugeCtrError, arguments)


if __name__ == "__main__":
    sys.exit(main())
