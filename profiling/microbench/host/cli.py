"""The command ``host``: launches on this host, as a host section for a configuration."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from microbench.device import processor_name
from microbench.errors import MeasureError
from microbench.host.measure import DRIVER_US, HostCost, measure_host
from predictor.core.base.command_line import progress

SECONDS, LEAST_SECONDS = 45.0, 1.0


def section(cost: HostCost, processor: str, torch_version: str) -> str:
    """Return the host section of a configuration, with how its numbers were measured in comments."""
    alone = cost.alone
    ranks = (
        "Slowdown: not measured, one process" if cost.together is None else f"Slowdown: {cost.ranks} processes at once"
    )
    here = f"{alone.forward_us:.2f} µs forward and {alone.backward_us:.2f} µs backward"
    lines = [
        f"# {processor}, PyTorch {torch_version}: RoPE on four CPU tokens with autograd, lower decile of its passes.",
        f"# A launch: {here}, and {DRIVER_US:g} µs of CUDA's driver, which was not measured here.",
        f"# Repetitions: the median is {alone.spread:.0%} above. {ranks}, collector {cost.collector:.2f}.",
        "# Not measured, for want of a GPU: the driver on this host, and waiting in .item().",
        "host:",
        f"  launch_forward_us: {alone.forward_us + DRIVER_US:.2f}",
        f"  launch_backward_us: {alone.backward_us + DRIVER_US:.2f}",
    ]
    if cost.together is not None:
        lines.append(f"  slowdown: {cost.slowdown:.2f}")
    return "\n".join(lines)


def _host(arguments: argparse.Namespace) -> int:
    if arguments.ranks < 1:
        raise MeasureError(f"--ranks is {arguments.ranks}; expected at least 1, the GPUs of a node")
    if not (math.isfinite(arguments.seconds) and arguments.seconds >= LEAST_SECONDS):
        raise MeasureError(f"--seconds is {arguments.seconds:g}; expected at least {LEAST_SECONDS:g}")
    import torch

    progress(f"measuring launches on {processor_name()}")
    text = section(measure_host(arguments.ranks, arguments.seconds, progress), processor_name(), torch.__version__)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    return 0


def register(commands: Any) -> None:
    """Add ``host`` to a parser's sub-commands."""
    host = commands.add_parser("host", help="measure what a launch costs this host: in a minute, without a GPU")
    host.add_argument("--ranks", type=int, default=1, help="processes at once, the GPUs of a node (default 1)")
    host.add_argument("--seconds", type=float, default=SECONDS, help=f"about so long (default {SECONDS:g})")
    host.add_argument("--out", type=Path, help="file for the section as well")
    host.set_defaults(run=_host)
