"""``config``: known kernels, and whether the four steps of adding one's own are complete."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from predictor.core.base.command_line import Parser
from predictor.core.base.errors import ConfigError, nearest
from predictor.replay.precision.operator_config import OperatorConfig, own_operators, read_operators
from predictor.replay.precision.operator_graph import Precision
from predictor.replay.procedure.command import folders_of, new_parser
from predictor.replay.procedure.folders import Folders

OWN_FILE = "config.yaml"


def parser() -> Parser:
    """Return the command line's parser."""
    result = new_parser("config", "Print what is known of kernels; check the entries of a kernel of one's own.")
    add_config(result)
    result.add_argument("kernels", nargs="*", metavar="KERNEL", help="kernels to tell of (those of one's own files)")
    return result


def add_config(parser: argparse.ArgumentParser) -> None:
    """Let a command read entries of kernels."""
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=f"entries of kernels of one's own, several times; {OWN_FILE} of the root is always read",
    )


def config_of(folders: Folders, arguments: argparse.Namespace) -> OperatorConfig:
    """Return what is known of operators, extended by the root's file and by ``--config``.

    Raises:
        ConfigError: a file is not there, or damaged.
    """
    own = folders.root / OWN_FILE
    files = [*([own] if own.is_file() else []), *arguments.config]
    return read_operators(*files) if files else own_operators()


def answer(arguments: argparse.Namespace) -> str:
    """Return what is known of the kernels that are asked for.

    Raises:
        ConfigError: one of them is not known, or an entry of one's own is incomplete.
    """
    known, config = own_operators(), config_of(folders_of(arguments), arguments)
    added = [name for name in sorted(config.tracked) if name not in known.tracked]
    names = arguments.kernels or added
    for name in names:
        if name not in config.tracked:
            raise ConfigError(
                f"{name} is no kernel that is tracked.{nearest(name, config.tracked)} Add it to ops_to_track (--config)"
            )
    missing = [problem for name in names for problem in problems(config, name)]
    if missing:
        raise ConfigError("; ".join(missing))
    if not names:
        return "\n".join(_counts(config))
    return "\n".join(line for name in names for line in _kernel(config, name))


def problems(config: OperatorConfig, name: str) -> Iterator[str]:
    """Yield which steps of adding a kernel are missing: a kernel with a choice needs them all."""
    if not config.is_changeable(name):
        return
    backward = config.of(config.aten_op_to_bwd_mapper, name)
    if not backward:
        yield f"{name} can change precision and has no backward; add it to aten_op_to_bwd_mapper, in lower case"
    elif not any(operator in config.grad_required_bwds for operator in backward):
        yield (
            f"{name}: none of its backward operators ({', '.join(backward)}) is in grad_required_bwds; give it 2 with "
            "a weight and a bias that need gradients, otherwise 1"
        )


def _counts(config: OperatorConfig) -> Iterator[str]:
    yield f"ops_to_track                {len(config.tracked)}"
    yield f"aten_op_to_bwd_mapper       {len(config.aten_op_to_bwd_mapper)}"
    yield f"bit_width_changeable_nodes  {len(config.bit_width_changeable_nodes)}"
    yield f"grad_required_bwds          {len(config.grad_required_bwds)}"
    yield f"special_aten_mapping        {len(config.special_aten_mapping)}"
    yield "name a kernel, or give --config FILE, for its entries"


def _kernel(config: OperatorConfig, name: str) -> Iterator[str]:
    backward = config.of(config.aten_op_to_bwd_mapper, name) or ()
    others = config.names(name)[1:]
    choices = config.choices(name, "cuda", tuple(Precision))
    gradients = [
        f"{operator}: {config.grad_required_bwds[operator]}"
        for operator in backward
        if operator in config.grad_required_bwds
    ]
    yield name
    yield f"  backward   {', '.join(backward) or 'none'}"
    yield f"  precision  {', '.join(choices) if choices else 'as its inputs are'}"
    yield f"  gradients  {', '.join(gradients) or 'none'}"
    yield f"  names      {', '.join(others) or 'no other'}"
    yield f"  work       {config.of(config.work, name) or 'unknown: no cost by physics'}"
