"""Fit all regressors of a system, derive the missing ones, and publish them with host times and card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fitting.card import card
from fitting.datasheet import with_donor_host
from fitting.derive import Derived, derive_collectives, derive_operators, with_shared_host
from fitting.levels import attention_levels
from fitting.own_tables import HOST_OPERATOR, find_tables, is_own, launch_quantity
from fitting.pipeline import Fit, fit_all
from fitting.public_tables import is_public
from fitting.publish import completed, contents, publish
from fitting.report import REFERENCE, Fitted, held_out_document
from fitting.systems import SystemSource
from fitting.tables import Tables, operators_of
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.dropped import all_dropped
from predictor.core.costs.operator import Direction
from predictor.core.costs.published import PublishedSystem, measured_precisions, read_hardware, read_manifest
from predictor.core.costs.regressors import DirectionModel, RegressorFile
from predictor.core.costs.work import FP8_PRECISIONS
from predictor.core.hardware.hardware import Quantity, System, Transfer


def host_quantities(fits: Sequence[Fit]) -> dict[str, Quantity]:
    """Return the host time of a kernel launch, forward and backward.

    RoPE is many short kernels: below some size the host cannot launch them any faster, and the duration is constant.
    It is the launch term of the physics; divided by the number of kernels, it is the host time of a launch.
    """
    quantities: dict[str, Quantity] = {}
    for fit in fits:
        if fit.regressor == HOST_OPERATOR and fit.model is not None and fit.model.overlapped:
            floor = f"launch floor of the measured RoPE {fit.direction} times"
            quantities |= launch_quantity(fit.direction, fit.model.physics[0], floor)
    return quantities


def regressor_files(
    fits: Sequence[Fit], derived: Sequence[Derived], system: System, precision: str
) -> list[RegressorFile]:
    """Return one published file per regressor."""
    directions: dict[str, dict[Direction, DirectionModel]] = {}
    parts: list[Fit | Derived] = [*fits, *derived]
    for part in parts:
        if part.model is not None:
            directions.setdefault(part.regressor, {})[part.direction] = part.model
    return [
        RegressorFile(
            format="estimate-train-time/regressor/1",
            name=name,
            gpu=system.gpu.name,
            precision=precision,
            num_multiprocessors=int(system.gpu.num_multiprocessors.value),
            members=tuple(operator.name for operator in operators_of(name)),
            directions={direction: models[direction] for direction in Direction if direction in models},
        )
        for name, models in sorted(directions.items())
    ]


def with_recorded_kernel(hardware: System, tables: Sequence[Tables], say: Callable[[str], None]) -> System:
    """Return a system with the implementation of attention that its rows name; ``say`` takes a difference."""
    recorded = next((kernel for table in tables if (kernel := table.attention_kernel()) is not None), None)
    if recorded is None or recorded == hardware.attention_kernel:
        return hardware
    if hardware.attention_kernel is not None:
        say(f"attention was measured with {recorded}, as its rows say, not with {hardware.attention_kernel}")
    return hardware.model_copy(update={"attention_kernel": recorded})


def fit_system(
    source: SystemSource,
    measurements: Path,
    out: Path,
    donor: Path | None,
    say: Callable[[str], None] = lambda text: None,
    keep: Path | None = None,
) -> dict[str, object]:
    """Fit, publish to ``out`` and return the content of ``held_out.json``; ``say`` and the card name unused tables.

    With ``keep``, a published system of the same GPU, regressors of what was not measured here are kept from it.

    A regressor without usable rows is derived from a measured donor. A system with a transfer section, or whose donor
    has one, is published with it instead: its predictions use the donors' regressors, those of collectives too.

    Raises:
        FileNotFoundError: a folder is missing.
        TableError: a table cannot be read, or there is none of this GPU.
        PublishedError: the donor is damaged.
    """
    files: list[RegressorFile] = []
    parts: list[Fitted] = []
    launches: dict[str, Quantity] = {}
    references: dict[int, Quantity] = {}
    notes: list[str] = []
    gpu = source.hardware.gpu
    tables = find_tables(measurements, gpu.name, list(gpu.peak_tflop_per_s), notes.append)
    hardware = with_recorded_kernel(source.hardware, tables, notes.append)
    for note in notes:
        say(note)
    donors = source.hardware.transfer or donors_of(donor)
    for table in tables:
        fits = fit_all(source.hardware, table)
        models = with_shared_host({(f.regressor, f.direction): f.model for f in fits if f.model})
        fits = [replace(f, model=models.get((f.regressor, f.direction))) for f in fits]
        derived = [*derive_collectives(models), *attention_levels(fits, source.hardware)]
        if donor is not None and donors is None and _has_donor_for(donor, table.precision):
            derived += derive_operators(fits, source.hardware, PublishedSystem(donor, table.precision))
        files += regressor_files(fits, derived, source.hardware, table.precision)
        parts.append(Fitted(table.precision, fits, derived))
        measured = table.launch_quantities()
        references = table.reference_us() | references
        launches |= host_quantities(fits) if measured is None else measured
    measured_here = {"host": {**source.hardware.host, **launches}, "reference_us": references or None}
    system = hardware.model_copy(update=measured_here)
    if donors is None and donor is not None and not any(file.name in COLLECTIVES for file in files):
        name = donor.resolve().name
        donors = Transfer(operators=name, intra_node=name, inter_node=name)
    system = system.model_copy(update={"transfer": donors})
    if donors is not None and not system.host:
        system = with_donor_host(system, out)
    document = held_out_document(system.name, parts)
    for part in parts:
        fitted = {file.name for file in files if file.precision == part.precision}
        for name in sorted({fit.regressor for fit in part.fits} - fitted):
            if told := all_dropped(document, name, part.precision):
                say(told)
    published = contents(system, files, card(source, system, document, files, notes), document)
    publish(out, published if keep is None else completed(published, system, keep))
    return document


def _has_donor_for(donor: Path, precision: str) -> bool:
    """Return whether operators are derived from the donor: in fp8 only if measured, as no whole step needs them."""
    return precision not in FP8_PRECISIONS or precision in measured_precisions(donor)


def donors_of(donor: Path | None) -> Transfer | None:
    """Return the donors of a donor known from its data sheet; None for a measured donor.

    Raises:
        FileNotFoundError: the donor is not a published system.
        PublishedError: it is damaged.
    """
    return None if donor is None else read_hardware(donor, read_manifest(donor)).transfer


def judge(
    source: SystemSource, measurements: Path, say: Callable[[str], None] = lambda text: None
) -> dict[str, object]:
    """Refit on every split without publishing, and return the content of ``held_out.json``.

    Tables in the reference's layout get its errors too, which are of the same tables. ``say`` as in ``find_tables``.

    Raises:
        FileNotFoundError: a folder is missing.
        TableError: a table cannot be read, or there is none of this GPU.
    """
    gpu = source.hardware.gpu
    tables = find_tables(measurements, gpu.name, list(gpu.peak_tflop_per_s), say)
    parts = [Fitted(table.precision, fit_all(source.hardware, table, untouched=True), []) for table in tables]
    document = held_out_document(source.hardware.name, parts)
    has_reference = not is_own(measurements) and not is_public(measurements)
    return document | {"reference": REFERENCE} if has_reference else document
