"""Read tables of published steps and convert every row that a configuration expresses."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictor.core.schema.inherited_keys import of_record
from predictor.core.step.memory import GIB
from predictor.core.workload.run_choices import Conditions
from predictor.evidence.published.converters import converter_of
from predictor.evidence.published.row import Row, UnexpressedError
from predictor.evidence.verification.measured import MeasuredStep

REPOSITORY = re.compile(r"github:([\w.-]+/[\w.-]+)(?:@\w+)?(?: \([^)]*\))?:?(.*)")
ADDRESS = re.compile(r"https?://([\w./-]+)")
# Of repositories with several publications: the beginning of a document's path, and the publication's name.
OF_DOCUMENTS: dict[str, tuple[tuple[str, str], ...]] = {
    "NVIDIA/Megatron-LM": (
        ("tests/functional_tests", "NVIDIA/Megatron-LM, functional tests"),
        ("images/", "Narayanan et al. 2021"),
    ),
    "NVIDIA-NeMo/Megatron-Bridge": (("examples/model_verification_cards", "Megatron-Bridge, verification cards"),),
    "NVIDIA/NeMo": (("docs/source/performance/performance_long", "NeMo, performance of long sequences"),),
}
# One table that each release of NeMo prints anew, by where its releases keep it.
PERFORMANCE_SUMMARY = "NeMo, performance summary"
OF_ADDRESS = {"docs.nvidia.com/nemo-framework": PERFORMANCE_SUMMARY}
OF_REPOSITORY = {"NVIDIA/NeMo": PERFORMANCE_SUMMARY, "NVIDIA/NeMo-Framework-Launcher": PERFORMANCE_SUMMARY}
STEPS, RECENT_STEPS = "step_times.csv", "recent_step_times.csv"
TABLES = (STEPS, RECENT_STEPS, "users_step_times.csv", "megatron_ci_step_times.csv")
GB = 1e9
PEAK_IN_NOTES = re.compile(r"\bmem (\d+(?:\.\d+)?) ?GB")


def publication(row: Row) -> str:
    """Return the publication of a row; of one whose source is not stated, its group.

    >>> publication(Row({"source": "github:NVIDIA/Megatron-LM@d98e8a6:tests/functional_tests/a/b.json"}))
    'NVIDIA/Megatron-LM, functional tests'
    """
    text = row.text("source")
    if (found := REPOSITORY.match(text)) is not None:
        repository, path = found.groups()
        parts = OF_DOCUMENTS.get(repository, ())
        named = (name for beginning, name in parts if path.startswith(beginning))
        return next(named, OF_REPOSITORY.get(repository, repository))
    if (address := ADDRESS.match(text)) is not None:
        named = (name for beginning, name in OF_ADDRESS.items() if address[1].startswith(beginning))
        return next(named, address[1])
    return text or row.text("group")


@dataclass(frozen=True, slots=True)
class PublishedTables:
    """Published steps.

    Attributes:
        steps: that configurations express.
        unexpressed: rows that none does, by reason.
        num_rows: all.
    """

    steps: tuple[MeasuredStep, ...]
    unexpressed: Counter[str]
    num_rows: int


def read_rows(path: Path) -> Iterator[Mapping[str, str]]:
    """Yield the rows of a table.

    Raises:
        FileNotFoundError: there is no such table.
    """
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _peak_gib(row: Row) -> float | None:
    """Return the measured memory of a GPU: of its column, or of notes that give GB."""
    if row.text("mem_gib"):
        return row.number("mem_gib")
    noted = PEAK_IN_NOTES.search(row.text("notes"))
    return float(noted[1]) * GB / GIB if noted else None


def _name(row: Row) -> str:
    job = re.search(r"job ([^\s;]+)", row.text("notes"))
    return job[1] if job else row.text("id")


def _under(config: dict[str, Any], ordinary: bool) -> dict[str, Any]:
    """Return a configuration that says its conditions."""
    conditions = Conditions.ORDINARY if ordinary else Conditions.TUNED
    return {**config, "training": {"conditions": str(conditions), **config["training"]}}


def converted(cells: Mapping[str, str]) -> MeasuredStep:
    """Return a row as a measured step with its configuration.

    Raises:
        UnexpressedError: no configuration expresses it, or its table says that it is no fair measurement.
    """
    row = Row(cells)
    if row.text("unfit_for_summary"):
        raise UnexpressedError(f"its table says not to average it ({row.text('unfit_for_summary')})")
    converter = converter_of(row)
    seconds = row.number("derived_step_time_s")
    num_gpus = row.whole("n_gpus")
    return MeasuredStep(
        table=row.text("group"),
        name=_name(row),
        seconds=seconds,
        num_gpus=num_gpus,
        config=of_record(_under(converter.convert(row), converter.ordinary)),
        statistic=row.text("stat"),
        peak_gib=_peak_gib(row),
        peak_counts=converter.peak,
        groups=converter.groups(row),
        source=publication(row),
        ordinary=converter.ordinary,
    )


def published_tables(folder: Path) -> PublishedTables:
    """Convert the tables of a folder, those of them that it has.

    Raises:
        FileNotFoundError: it has none.
    """
    paths = [folder / name for name in TABLES if (folder / name).is_file()]
    if not paths:
        raise FileNotFoundError(f"{folder} has none of {', '.join(TABLES)}")
    steps: list[MeasuredStep] = []
    unexpressed: Counter[str] = Counter()
    num_rows = 0
    for path in paths:
        for cells in read_rows(path):
            num_rows += 1
            try:
                steps.append(converted(cells))
            except UnexpressedError as reason:
                unexpressed[str(reason)] += 1
    return PublishedTables(tuple(steps), unexpressed, num_rows)
