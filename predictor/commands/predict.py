"""``predict``: the time, the memory and the cost of one training step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.base.errors import ConfigError
from predictor.commands.parser import Commands, Unfit, add_command, add_config, as_json, config_path, width

if TYPE_CHECKING:
    from predictor.interface.prediction import StepPrediction
    from predictor.interface.recommender import RecommenderStep

# Options that a HugeCTR configuration takes; any other configuration says these things itself.
RECOMMENDER_OPTIONS = ("gpus", "batch_size", "plan", "key_exponent", "precision", "cached_share")


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "predict", "predict one training step", answer)
    add_config(command)
    command.add_argument("--system", metavar="NAME", help="published system, instead of the configuration's")
    command.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    command.add_argument("--require-fit", action="store_true", help="exit with 3 where a GPU's memory is too small")
    hugectr = command.add_argument_group("of a HugeCTR configuration, instead of what its file says")
    hugectr.add_argument("--gpus", type=int, metavar="N", help="GPUs")
    hugectr.add_argument("--batch-size", type=int, metavar="N", help="samples of a step, all GPUs together")
    hugectr.add_argument("--plan", metavar="FILE", help="sharding plan, instead of HugeCTR's placement")
    hugectr.add_argument("--key-exponent", type=float, metavar="X", help="power law of the keys; 0: uniform")
    hugectr.add_argument("--cached-share", type=float, metavar="X", help="of all rows in device memory; 1: all")
    hugectr.add_argument("--precision", choices=("fp32", "fp16", "bf16"), help="of matrix products")


def is_hugectr_file(path: Path) -> bool:
    """Return whether a file is a HugeCTR configuration; reads no file that cannot be one."""
    if path.suffix != ".json" or not path.is_file():
        return False
    from predictor.configuration.readers import HUGECTR, detect

    return detect(path) == HUGECTR


def _told(step: StepPrediction | RecommenderStep, arguments: argparse.Namespace) -> str:
    """Return a prediction as text or JSON, marked where it had to fit and does not."""
    text = as_json(step.to_dict()) if arguments.json else step.text(width())
    return Unfit(text) if arguments.require_fit and step.fits is False else text


def answer(arguments: argparse.Namespace) -> str:
    """Return the report of one configuration."""
    path = config_path(arguments)
    given = {name: getattr(arguments, name) for name in RECOMMENDER_OPTIONS if getattr(arguments, name) is not None}
    if is_hugectr_file(path):
        from predictor.interface.recommender import predict_recommender

        return _told(predict_recommender(path, system=arguments.system, **given), arguments)
    if given:
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise ConfigError(f"{option} is for HugeCTR configurations; {path} says it itself")
    from predictor.interface.prediction import predict

    return _told(predict(path, system=arguments.system), arguments)
