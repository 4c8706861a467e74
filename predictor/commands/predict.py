"""``predict``: the time, the memory and the cost of one training step."""

from __future__ import annotations

import argparse
from pathlib import Path

from predictor.base.errors import ConfigError
from predictor.commands.parser import Commands, add_command, add_config, as_json, config_path, width

# Options that a HugeCTR configuration takes; any other configuration says these things itself.
RECOMMENDER_OPTIONS = ("gpus", "batch_size", "plan", "key_exponent", "precision", "cached_share")


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "predict", "predict one training step", answer)
    add_config(command)
    command.add_argument("--system", metavar="NAME", help="published system, instead of the configuration's")
    command.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
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


def answer(arguments: argparse.Namespace) -> str:
    """Return the report of one configuration."""
    path = config_path(arguments)
    given = {name: getattr(arguments, name) for name in RECOMMENDER_OPTIONS if getattr(arguments, name) is not None}
    if is_hugectr_file(path):
        from predictor.interface.recommender import predict_recommender

        step = predict_recommender(path, system=arguments.system, **given)
        return as_json(step.to_dict()) if arguments.json else step.text(width())
    if given:
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise ConfigError(f"{option} is for HugeCTR configurations; {path} says it itself")
    from predictor.interface.prediction import predict

    prediction = predict(path, system=arguments.system)
    return as_json(prediction.to_dict()) if arguments.json else prediction.text(width())
