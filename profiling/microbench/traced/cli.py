"""The commands ``trace``, ``traced``, ``casts``, ``statistics`` and ``compare-precisions``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from microbench.device import Device, find_device
from microbench.errors import MeasureError
from microbench.traced.settings import (
    MODELS,
    PRECISIONS,
    InputSpec,
    TraceSettings,
    default_input,
    read_input,
    settings_of,
    write_json,
)
from predictor.core.base.command_line import progress

SHARED = ("model", "batch", "image", "sequence", "layers", "width", "attention", "optimizer", "threads")
INPUT_FOLDER_SUFFIX = ".json"


def _settings(arguments: argparse.Namespace, device: Device, **own: Any) -> TraceSettings:
    """Return the settings of a run from the command line."""
    values = {name: getattr(arguments, name) for name in SHARED}
    if arguments.input is not None:
        values["input_data"] = _input(arguments)
    return settings_of({**values, **own, "device": device.kind})


def _input(arguments: argparse.Namespace) -> InputSpec:
    """Return the inputs that ``--input`` names; a folder has one file for every model, written where it is missing."""
    path: Path = arguments.input
    if path.is_dir() or not path.suffix:
        path = path / f"{arguments.model}{INPUT_FOLDER_SUFFIX}"
    if path.is_file():
        return read_input(path)
    batch, image = arguments.batch or 4, arguments.image or (16 if arguments.model == "tiny" else 224)
    spec = default_input(arguments.model, batch, image, arguments.sequence or 128)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, spec)
    except OSError as error:
        raise MeasureError(f"{path}: {error.strerror}") from None
    return spec


def run_trace(arguments: argparse.Namespace) -> int:
    """Record the traces of a training run and print their paths.

    Raises:
        MeasureError: bad settings, or a rank failed.
    """
    from microbench.traced.record import record_run

    device = find_device(arguments.device, arguments.threads)
    own = {name: getattr(arguments, name) for name in ("precision", "ranks", "steps", "warm_up", "keep")}
    settings = _settings(arguments, device, **own)
    progress(f"training {settings.name} on {settings.ranks} ranks of {device.name}")
    folder, record = record_run(settings, device, arguments.out)
    for rank in record.steps:
        steps = ", ".join(f"{us / 1e3:.1f}" for us in rank.profiled_us)
        progress(f"rank {rank.rank}: profiled steps of {steps} ms")
        print(folder / f"rank-{rank.rank}.json.gz")
    return 0


def _write(path: Path | None, device: Device, **rows: Any) -> None:
    """Write a table of measured costs, or print it."""
    from microbench.traced.tables import table_of
    from predictor.replay.precision.measured_costs import write_measured_costs

    costs = table_of(device, **rows)
    if path is None:
        print(costs.model_dump_json(indent=1))
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_measured_costs(path, costs)
    except OSError as error:
        raise MeasureError(f"{path}: {error.strerror}") from None
    print(path)


def run_traced(arguments: argparse.Namespace) -> int:
    """Measure a traced step's operators again and write their costs.

    Raises:
        MeasureError: the ranks that measure together failed.
    """
    from microbench.traced.together import measure_traced

    device = find_device(arguments.device, arguments.threads)
    result = measure_traced(arguments.trace, arguments.step, arguments.precision, arguments.ranks, device, progress)
    for name, share, reason in result.unsupported:
        progress(f"not measured: {name}, {share:.1%} of the step: {reason}")
    _write(arguments.out, device, operators=result.rows)
    return 0


def run_casts(arguments: argparse.Namespace) -> int:
    """Measure casts and write their fits."""
    from microbench.traced.casts import measure_casts
    from microbench.traced.cold import ColdClock
    from predictor.replay.precision.casts import fit_cast
    from predictor.replay.precision.operator_graph import Precision

    device = find_device(arguments.device, arguments.threads)
    exponents = range(arguments.smallest, arguments.largest + 1)
    fits = []
    for source, target, samples in measure_casts(device.kind, ColdClock(device), exponents):
        fit = fit_cast(Precision(source), Precision(target), samples)
        progress(f"{source} → {target}: {fit.alpha_us_per_element * 1e6:.1f} µs per 10⁶ elements + {fit.beta_us:.1f}")
        fits.append(fit)
    _write(arguments.out, device, casts=tuple(fits))
    return 0


def run_compare(arguments: argparse.Namespace) -> int:
    """Predict models in another precision and print them beside their traces."""
    from microbench.traced.compare_precisions import SIZES, compare, render

    device = find_device(arguments.device, arguments.threads)
    models = arguments.models or list(SIZES)
    print(render(compare(models, device, arguments.out, arguments.reuse, progress)))
    return 0


def run_statistics(arguments: argparse.Namespace) -> int:
    """Gather what the indicator of sensitivity needs, and write it.

    Raises:
        MeasureError: bad settings, or the file cannot be written.
    """
    from microbench.traced.statistics import gather
    from predictor.replay.precision.indicator import write_statistics

    device = find_device(arguments.device, arguments.threads)
    settings = _settings(arguments, device, ranks=1, steps=arguments.steps)
    statistics = gather(settings)
    try:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_statistics(arguments.out, statistics)
    except OSError as error:
        raise MeasureError(f"{arguments.out}: {error.strerror}") from None
    print(arguments.out)
    return 0


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", choices=MODELS, metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--batch", type=int, help="samples per rank (default 4)")
    parser.add_argument("--image", type=int, help="pixels of a side, of a model of images (default 224)")
    parser.add_argument("--sequence", type=int, help="tokens, of a model of language (default 128)")
    parser.add_argument("--layers", type=int, help="encoder layers; of images, blocks or convolutions per stage")
    parser.add_argument("--width", type=int, help="hidden size; of images, channels of the first stage")
    parser.add_argument("--attention", choices=("sdpa", "eager"), help="of a model of language (default sdpa)")
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), help="default: sgd for images, adamw for language")
    parser.add_argument("--input", type=Path, help="description of synthetic inputs, or a folder of one per model")


def register(commands: Any, device: argparse.ArgumentParser) -> None:
    """Add the commands to a parser's sub-commands; ``device`` has the options of a device."""
    trace = commands.add_parser("trace", parents=[device], help="record traces of a small data-parallel training run")
    _add_model(trace)
    trace.add_argument("--precision", choices=PRECISIONS, default="fp32", help="bf16 and fp16 by autocast")
    trace.add_argument("--ranks", type=int, default=2, help="data-parallel, on this machine (default 2)")
    trace.add_argument("--out", type=Path, required=True, help="folder of traces; MODEL/PRECISION is added")
    trace.add_argument("--steps", type=int, default=3, help="profiled steps (default 3)")
    trace.add_argument(
        "--keep", choices=("all", "median", "fastest"), default="all", help="steps of the traces (default all)"
    )
    trace.add_argument("--warm-up", type=int, default=2, help="steps before (default 2)")
    trace.set_defaults(run=run_trace)
    traced = commands.add_parser(
        "traced", parents=[device], help="measure a traced step's operators in other precisions"
    )
    traced.add_argument("trace", type=Path, metavar="TRACE", help="of PyTorch's profiler, with shapes")
    traced.add_argument("--precision", nargs="+", choices=PRECISIONS, required=True, help="to measure, in turns")
    traced.add_argument(
        "--ranks", type=int, help="processes that measure at once (default: as many as trained on a CPU)"
    )
    traced.add_argument("--step", type=int, help="which of the trace's steps (default: as replay chooses)")
    traced.add_argument("--out", type=Path, help="measured costs (default: printed)")
    traced.set_defaults(run=run_traced)
    casts = commands.add_parser("casts", parents=[device], help="measure casts between precisions, fitted by elements")
    casts.add_argument("--out", type=Path, help="measured costs (default: printed)")
    casts.add_argument("--smallest", type=int, default=12, help="2 to this power of elements (default 12)")
    casts.add_argument("--largest", type=int, default=26, help="2 to this power of elements (default 26)")
    casts.set_defaults(run=run_casts)
    statistics = commands.add_parser("statistics", parents=[device], help="norms and ranges of a model's tensors")
    _add_model(statistics)
    statistics.add_argument("--steps", type=int, default=3, help="that the numbers are means over (default 3)")
    statistics.add_argument("--out", type=Path, required=True, help="file to write")
    statistics.set_defaults(run=run_statistics)
    both = commands.add_parser(
        "compare-precisions", parents=[device], help="predict models in another precision from traces, and trace them"
    )
    both.add_argument("--models", nargs="+", choices=MODELS[:4], metavar="MODEL", help="default: all four")
    both.add_argument("--out", type=Path, required=True, help="folder of traces and costs")
    both.add_argument("--reuse", action="store_true", help="take the traces and costs that are in the folder")
    both.set_defaults(run=run_compare)
