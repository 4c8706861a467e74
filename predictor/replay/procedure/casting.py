"""Casting costs: measured on the device at hand by ``python -m microbench casts``, read by every prediction."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from predictor.core.base.command_line import Parser, progress
from predictor.replay.precision.measured_costs import (
    MeasuredCast,
    MeasuredCosts,
    joined,
    read_measured_costs,
    write_measured_costs,
)
from predictor.replay.procedure.command import UnansweredError, folders_of, new_parser
from predictor.replay.procedure.folders import Folders

COMMAND = ("-m", "microbench", "casts")
TIMEOUT_S = 1800.0
TRACED_ON_CPU = "cpu"


def parser() -> Parser:
    """Return the command line's parser."""
    result = new_parser("casting_cost", "Measure what casts between precisions cost on this device.")
    result.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="where to measure (auto)")
    result.add_argument("--threads", type=int, default=1, metavar="N", help="torch's threads on a CPU (1)")
    result.add_argument(
        "--device_name",
        "--device-name",
        metavar="NAME",
        help="file to write, below tmp_data/casting_cost (the device's)",
    )
    result.add_argument("--python", default=sys.executable, metavar="EXE", help="interpreter that has torch (this one)")
    return result


def answer(arguments: argparse.Namespace) -> str:
    """Measure, write the costs where predictions look for them, and return alpha and beta of every pair.

    Raises:
        UnansweredError: nothing could be measured; the message is the command's last line.
    """
    folders = folders_of(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        measured = Path(scratch) / "casts.json"
        _measure(arguments, measured)
        costs = read_measured_costs(measured)
    path = costs_path(folders, arguments.device_name or costs.device)
    write_measured_costs(path, costs)
    return "\n".join([*_table(costs), "", f"wrote {path}; predictions from traces of this device read it"])


def costs_path(folders: Folders, device_name: str) -> Path:
    """Return where the costs of a device lie, in a folder that exists."""
    name = re.sub(r"[^\w.-]+", "_", device_name).strip("_.").lower() or "device"
    path = folders.root / "tmp_data" / "casting_cost" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def measured_costs(
    folders: Folders, device_name: str, traced_device: str, backend: str, is_sample: bool = False
) -> MeasuredCosts | None:
    """Return what was measured on a traced device, all its files as one, or None where there are none.

    The device is the one whose file ``--device_name`` names, else the one that the trace names; of CPUs, which traces
    do not name, the one that was measured last.

    Args:
        folders: with what was measured.
        device_name: as on the command line.
        traced_device: as the trace says.
        backend: of the trace.
        is_sample: it is a sample, whose costs were measured where it was recorded; they are those of no other trace.

    Raises:
        RecordError: a file of costs is damaged.
    """
    files = sorted(folders.costs(is_sample), key=lambda path: (path.stat().st_mtime, path.name), reverse=True)
    tables = [(path, read_measured_costs(path)) for path in files]
    fitting = [(path, table) for path, table in tables if table.device_kind == backend]
    named = [table for path, table in fitting if path.stem == device_name.lower()]
    traced = [table for _, table in fitting if backend == TRACED_ON_CPU or table.device == traced_device]
    first = next(iter([*named, *traced]), None)
    if first is None:
        return None
    device = first.device, first.device_kind, first.threads
    return joined(table for _, table in fitting if (table.device, table.device_kind, table.threads) == device)


def _measure(arguments: argparse.Namespace, out: Path) -> None:
    command = [
        *(arguments.python, *COMMAND, "--out", str(out)),
        *("--device", arguments.device, "--threads", str(arguments.threads)),
    ]
    progress(f"measuring casts: {' '.join(command)}")
    try:
        done = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise UnansweredError(f"--python is {arguments.python}, which is no program; name one that has torch") from None
    except subprocess.TimeoutExpired:
        raise UnansweredError(f"casts were not measured within {TIMEOUT_S:.0f} s") from None
    if done.returncode or not out.is_file():
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise UnansweredError(
            f"casts cannot be measured: {said[-1] if said else 'the command printed nothing'}; --python names an "
            "interpreter with torch: pip install -e .[profile]"
        )


def _environment() -> dict[str, str]:
    """Return this process's environment; in a checkout the same code measures as predicts."""
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / "profiling" / "microbench").is_dir():
        return dict(os.environ)
    roots = [str(checkout), str(checkout / "profiling")]
    before = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join([*roots, *([before] if before else [])])}


def _table(costs: MeasuredCosts) -> Iterator[str]:
    yield f"casts on {costs.device} ({costs.device_kind}, {costs.threads} threads): alpha · elements + beta"
    yield f"{'from':6} {'to':6} {'alpha ns/element':>16} {'beta µs':>9} {'largest error':>14} {'sizes':>6}"
    yield from map(_line, costs.casts)


def _line(cast: MeasuredCast) -> str:
    alpha_ns = 1e3 * cast.alpha_us_per_element
    numbers = f"{alpha_ns:16.4f} {cast.beta_us:9.2f} {cast.relative_error:14.1%} {len(cast.samples):6}"
    return f"{cast.cast_from:6} {cast.cast_to:6} {numbers}"
