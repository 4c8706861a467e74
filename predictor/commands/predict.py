"""``predict``: the time, the memory and the cost of one training step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.commands.config_arguments import KEY_OPTIONS, add_config, config_path, predicted
from predictor.commands.parser import BrokenLimit, Commands, add_command, width
from predictor.core.base.errors import ConfigError
from predictor.core.base.json_text import as_json

if TYPE_CHECKING:
    from predictor.core.predict.prediction import StepPrediction
    from predictor.recommender.prediction import RecommenderStep

# Options that a HugeCTR configuration takes, and those of them that no other does.
RECOMMENDER_OPTIONS = ("gpus", "precision", "batch_size", "plan", "key_exponent", "cached_share")
ONLY_RECOMMENDER = RECOMMENDER_OPTIONS[2:]


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "predict", "predict one training step", answer)
    add_config(command)
    command.add_argument("--system", metavar="NAME", help="published system, instead of the configuration's")
    command.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    command.add_argument(
        "--require-fit",
        action="store_true",
        help="exit with 3 where a GPU's memory is too small, by more than the error of predictions (8 %%)",
    )
    hugectr = command.add_argument_group("of a HugeCTR configuration, beside --gpus and --precision")
    hugectr.add_argument("--batch-size", type=int, metavar="N", help="samples of a step, all GPUs together")
    hugectr.add_argument("--plan", metavar="FILE", help="sharding plan, instead of HugeCTR's placement")
    hugectr.add_argument("--key-exponent", type=float, metavar="X", help="power law of the keys; 0: uniform")
    hugectr.add_argument("--cached-share", type=float, metavar="X", help="of all rows in device memory; 1: all")


def is_hugectr_file(path: Path) -> bool:
    """Return whether a file is a HugeCTR configuration; reads no file that cannot be one."""
    if path.suffix != ".json" or not path.is_file():
        return False
    from predictor.core.schema.input_kind import HUGECTR
    from predictor.formats import detect

    return detect(path) == HUGECTR


def _told(step: StepPrediction | RecommenderStep, arguments: argparse.Namespace) -> str:
    """Return a prediction as text or JSON, marked where it had to fit and does not."""
    text = as_json(step.to_dict()) if arguments.json else step.text(width())
    return BrokenLimit(text) if arguments.require_fit and step.fits is False else text


def recommender(path: Path, arguments: argparse.Namespace) -> RecommenderStep:
    """Predict a HugeCTR configuration.

    Raises:
        ConfigError: an option is for transformers.
    """
    from predictor.recommender.prediction import predict_recommender

    for key in KEY_OPTIONS:
        if getattr(arguments, key) is not None and key not in RECOMMENDER_OPTIONS:
            raise ConfigError(f"--{key.replace('_', '-')} is for transformers; {path} is a HugeCTR configuration")
    if arguments.changes:
        raise ConfigError(f"--set is for transformers; {path} is a HugeCTR configuration")
    values = {name: getattr(arguments, name, None) for name in RECOMMENDER_OPTIONS}
    given = {name: value for name, value in values.items() if value is not None}
    if "gpus" in given:
        try:
            given["gpus"] = int(given["gpus"])
        except ValueError:
            raise ConfigError(f"--gpus is {given['gpus']!r}; expected a whole number") from None
    return predict_recommender(path, system=arguments.system, **given)


def answer(arguments: argparse.Namespace) -> str:
    """Return the report of one configuration."""
    path = config_path(arguments)
    if is_hugectr_file(path):
        return _told(recommender(path, arguments), arguments)
    given = next((name for name in ONLY_RECOMMENDER if getattr(arguments, name) is not None), None)
    if given is not None:
        raise ConfigError(f"--{given.replace('_', '-')} is for HugeCTR configurations; {path} is none")
    return _told(predicted(arguments), arguments)
