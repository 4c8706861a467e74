"""Record steps of one configuration: ``python -m llm_trainer.measure CONFIG --out FOLDER``, or so under torchrun."""

from __future__ import annotations

import argparse
import os
import sys

from llm_trainer.exceptions import LLMTrainerError, ModelConfigurationError
from model_training_framework.trainer.measure_options import record_steps

PROGRAM = "python -m llm_trainer.measure"
CONFIG = "configuration in the predictor's full form, with or without system"


def measure(arguments: argparse.Namespace) -> None:
    """Run and record.

    Raises:
        LLMTrainerError, TrainerError: what the run cannot do.
    """
    import torch

    from llm_trainer.measure.configuration import is_compiled, read_measured_config, task_names
    from llm_trainer.measure.run import run_and_record
    from model_training_framework.trainer.operator_recorder import OperatorRecorder

    config = read_measured_config(arguments.config)
    is_on_cpu = arguments.device == "cpu" or not torch.cuda.is_available()
    if config.run.precision == "fp16" and is_on_cpu:
        raise ModelConfigurationError("precision is fp16, in which a CPU does not train; use bf16 or fp32")
    layout, rank = config.run.layout, int(os.environ.get("RANK", "0"))
    stages = layout.pipeline_parallel_size
    stage = rank * stages // layout.num_gpus
    facts = {"pipeline_stage": stage, "threads": arguments.threads}
    is_last = 0 < stage == stages - 1
    # A compiled model's kernels are of several operators at once.
    profiled = 0 if is_compiled(config.run) else arguments.profiled
    recorder = OperatorRecorder(arguments.steps, arguments.warm_up, profiled, facts, is_last, task_names(config.run))
    config.training.max_steps = recorder.num_steps
    run_and_record(config, recorder, arguments.out, arguments.device, config.content)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    return record_steps(PROGRAM, CONFIG, measure, LLMTrainerError, arguments)


if __name__ == "__main__":
    sys.exit(main())
