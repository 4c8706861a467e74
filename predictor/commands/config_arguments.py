"""Arguments of a configuration: a file, a bundled example, or a model and options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.core.base.bundled import EXAMPLES_FOLDER, examples
from predictor.core.base.errors import ConfigError, nearest

if TYPE_CHECKING:
    from predictor.core.predict.inputs import Configuration
    from predictor.core.predict.prediction import StepPrediction

# Options that say a key of the configuration, with their short forms; each also has the key's own name.
KEY_OPTIONS: dict[str, tuple[str, ...]] = {
    "gpus": (),
    "tensor_parallel_size": ("--tp",),
    "pipeline_parallel_size": ("--pp",),
    "virtual_pipeline_parallel_size": ("--vp",),
    "context_parallel_size": ("--cp",),
    "expert_parallel_size": ("--ep",),
    "data_parallel_size": ("--dp",),
    "zero_stage": (),
    "micro_batch_size": (),
    "global_batch_size": (),
    "sequence_length": (),
    "vocab_size": (),
    "precision": (),
    "recompute": (),
    "framework": (),
    "conditions": (),
}
MODEL_ONLY = "training.conditions=model"


def example(name: str) -> Path:
    """Return the path of a bundled example, with or without its ending.

    Raises:
        ConfigError: there is none; the message lists them.
    """
    stem = name.removesuffix(".yml")
    if stem not in examples():
        raise ConfigError(f"{name} is not an example.{nearest(stem, examples())} There are: {', '.join(examples())}")
    return EXAMPLES_FOLDER / f"{stem}.yml"


def add_changes(command: argparse.ArgumentParser) -> None:
    """Let a command take ``--set``."""
    command.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="KEY=VALUE",
        help="a key of the configuration (training.recompute=full), or a number of the hardware "
        "(inter_node_gb_per_s=50, or =x2 for twice as much); all that are given change together",
    )
    command.add_argument(
        "--network",
        action="append",
        dest="changes",
        type=lambda text: f"network={text}",
        metavar="TEXT",
        help='the network between nodes: "200 Gb/s per node", "4x100Gb", "NDR400 per GPU"',
    )
    command.add_argument("--strict", action="store_true", help="refuse every key of another tool that is not known")
    command.add_argument(
        "--verbose", "-v", action="store_true", help="list the keys of another tool that were passed over"
    )


def add_model_only(command: argparse.ArgumentParser, dest: str, action: str, const: str) -> None:
    """Let a command take ``--model-only``, which leaves out what published runs took beyond their modelled time."""
    command.add_argument(
        "--model-only",
        dest=dest,
        action=action,
        const=const,
        default=[] if action == "append_const" else None,
        help="the modelled time alone, without what runs of this kind took beyond it (training.conditions=model)",
    )


def add_config(command: argparse.ArgumentParser, is_required: bool = True) -> None:
    """Let a command take one configuration: files, a bundled example, or a model and the usual keys as options."""
    which = command.add_mutually_exclusive_group(required=is_required)
    which.add_argument(
        "paths",
        nargs="*",
        default=[],
        metavar="CONFIG",
        help="configuration file, the files of another tool that make one, or the folder of a run",
    )
    which.add_argument("--config", "-c", metavar="FILE", help="the same")
    which.add_argument("--example", "-e", metavar="NAME", help="a bundled example")
    which.add_argument("--model", metavar="NAME|FILE", help="no configuration, but a preset or another tool's file")
    add_changes(command)
    names = {key: (*short, f"--{key.replace('_', '-')}") for key, short in KEY_OPTIONS.items()}
    keys = command.add_argument_group(
        "keys of the configuration, as with --set", ", ".join(" or ".join(options) for options in names.values())
    )
    for key, options in names.items():
        keys.add_argument(*options, dest=key, metavar="VALUE", help=argparse.SUPPRESS)
    add_model_only(command, "conditions", "store_const", "model")


def config_path(arguments: argparse.Namespace) -> Path:
    """Return the path of the command's configuration, the first of several; of a model its name, perhaps a preset's."""
    if arguments.example is not None:
        return example(arguments.example)
    path = Path(next(iter(arguments.paths), arguments.config or arguments.model or ""))
    if not path.is_dir():
        return path
    from predictor.core.plan.of_model import own_in

    return own_in(path) or path


def model_of(arguments: argparse.Namespace) -> str | list[str] | None:
    """Return the model that options complete: of ``--model``, or other tools' files given as CONFIG; else None."""
    if arguments.model is not None:
        return str(arguments.model)
    if len(arguments.paths) > 1:
        return list(arguments.paths)
    given = next(iter(arguments.paths), arguments.config)
    if given is None:
        return None
    from predictor.core.plan.of_model import is_of_other_tool  # only when needed, for a fast start

    return str(given) if is_of_other_tool(given) else None


def key_changes(arguments: argparse.Namespace) -> list[str]:
    """Return the keys that options say, each ``KEY=VALUE``."""
    given = [(key, getattr(arguments, key)) for key in KEY_OPTIONS]
    return [f"{key}={value}" for key, value in given if value is not None]


def configuration(arguments: argparse.Namespace, changes: list[str]) -> Configuration:
    """Return the configuration that a command was asked about, with changed keys.

    Args:
        arguments: of the command; of a model, ``system`` is its own.
        changes: KEY=VALUE; those of the hardware are left to the prediction.
    """
    from predictor.core.costs.hardware_change import is_of_hardware  # only when needed, for a fast start
    from predictor.core.predict.inputs import read, with_changes

    keys = [text for text in changes if not is_of_hardware(text)] if changes else []
    model = model_of(arguments)
    if model is None:
        return with_changes(read(config_path(arguments)), keys)
    from predictor.layout_search.model_options import of_model

    return of_model(model, keys, arguments.system)


def predicted(arguments: argparse.Namespace) -> StepPrediction:
    """Return the prediction of what a command was asked about, with all its changes."""
    from predictor.core.costs.hardware_change import is_of_hardware
    from predictor.core.predict.prediction import predict

    changes = [*key_changes(arguments), *arguments.changes]
    asked = configuration(arguments, changes)
    system = None if model_of(arguments) is not None else arguments.system
    return predict(
        asked, system=system, hardware=[text for text in changes if is_of_hardware(text)] if changes else None
    )


def predicted_file(path: str, system: str | None, changes: list[str]) -> StepPrediction:
    """Return the prediction of a configuration, or of another tool's file or a run's folder on a named system.

    Raises:
        ConfigError: another tool's file says no system and none is named, or it cannot be predicted.
    """
    from predictor.core.costs.hardware_change import is_of_hardware
    from predictor.core.plan.of_model import is_of_other_tool
    from predictor.core.predict.prediction import predict

    if not is_of_other_tool(path):
        return predict(path, system=system, hardware=changes)
    from predictor.layout_search.model_options import of_model

    hardware = [text for text in changes if is_of_hardware(text)]
    keys = [text for text in changes if text not in hardware]
    return predict(of_model(path, keys, system), hardware=hardware)
