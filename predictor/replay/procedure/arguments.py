"""Arguments that name a trace, spelled as the specification does: ``--bit 32 --model_name bert --fp32_comm_t4``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from predictor.core.base.command_line import Parser
from predictor.core.base.errors import ConfigError, nearest
from predictor.replay.precision.operator_graph import Precision
from predictor.replay.procedure.folders import Folders

# What the specification's --bit counts; which of the two formats is meant, trace and file name say.
PRECISIONS_OF_BITS = {
    "8": (Precision.INT8, Precision.FP8),
    "16": (Precision.FP16, Precision.BF16),
    "32": (Precision.FP32, Precision.TF32),
}
LITERAL_NAME = re.compile(r"--([A-Za-z0-9][\w.-]*)")


class TraceParser(Parser):
    """A parser that also takes a trace by the literal ``--<file_name>`` of the specification."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read an option that is none of the command's as ``--file_name``."""
        parsed, rest = super().parse_known_args(args, namespace)
        if len(rest) != 1 or (name := LITERAL_NAME.fullmatch(rest[0])) is None:
            return parsed, rest
        if parsed.file_name is not None:
            raise ConfigError(f"{rest[0]}: the trace is --file_name {parsed.file_name} already; name it once")
        names = Folders(parsed.root).trace_names(parsed.model_name)
        if name[1] not in names:
            options = [option for action in self._actions for option in action.option_strings]
            raise ConfigError(
                f"{rest[0]} is no option and no trace of {parsed.model_name}."
                f"{nearest(rest[0], [*options, *(f'--{known}' for known in names)])} "
                f"{self.prog} --help lists the options; traces: {', '.join(names) or 'none'}"
            )
        parsed.file_name = name[1]
        return parsed, []


def add_model(parser: argparse.ArgumentParser, default: str | None = "bert") -> None:
    """Add ``--model_name``."""
    parser.add_argument(
        "--model_name",
        "--model-name",
        default=default,
        metavar="NAME",
        help=f"folder of traces: vgg16, resnet50, bert, roberta or another ({default or 'all'})",
    )


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which step of which trace, and in what."""
    add_model(parser)
    parser.add_argument(
        "--file_name", "--file-name", metavar="TRACE", help="of the trace, without its ending; or literally --TRACE"
    )
    parser.add_argument(
        "--device_name", "--device-name", default="t4", metavar="NAME", help="names the device in what is written (t4)"
    )
    parser.add_argument(
        "--bit", default="32", metavar="BITS", help=f"8, 16, 32, or a precision: {', '.join(Precision)} (32)"
    )
    parser.add_argument(
        "--target_trace_idx",
        "--target-trace-idx",
        type=int,
        default=0,
        metavar="I",
        help="step of the trace, counted from 0 (0)",
    )
    parser.add_argument("--rank", type=int, metavar="R", help="to take apart (the first); predictions have all ranks")


def precision_of(bit: str, known: Sequence[str] = ()) -> Precision:
    """Return the precision that ``--bit`` says.

    Args:
        bit: a number of bits, or a precision.
        known: precisions and file names that tell two formats of as many bits apart, the most telling first.

    Raises:
        ConfigError: it is neither.
    """
    if bit in PRECISIONS_OF_BITS:
        formats = PRECISIONS_OF_BITS[bit]
        words = [word for name in known for word in re.split(r"[^a-z0-9]+", name.lower())]
        return next((Precision(word) for word in words if word in formats), formats[0])
    if bit in set(Precision):
        return Precision(bit)
    raise ConfigError(f"--bit is {bit}; it must be 8, 16, 32 or a precision: {', '.join(Precision)}")


def trace_name(folders: Folders, model: str, file_name: str | None, bit: str) -> str:
    """Return the trace that is meant: the one named, or the only one of the model, or the only one in these bits.

    Raises:
        ConfigError: there is none, or more than one.
    """
    if file_name is not None:
        return file_name
    names = folders.trace_names(model)
    if not names:
        folders.traces(model, "*")
    formats = PRECISIONS_OF_BITS.get(bit) or (precision_of(bit),)
    fitting = names if len(names) == 1 else [name for name in names if set(name.lower().split("_")) & set(formats)]
    if len(fitting) != 1:
        raise ConfigError(f"--file_name is not given and {model} has {len(names)} traces: {', '.join(names)}; name one")
    return fitting[0]
