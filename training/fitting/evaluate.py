"""Errors of a published system on measurement tables, through the code that predicts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fitting.gate import ColumnCount
from fitting.heldout import LARGEST_SHARE
from fitting.own_tables import find_tables
from fitting.pipeline import gated_rows
from fitting.report import mean
from fitting.scores import percent, relative_error
from fitting.tables import Row, Tables, operators_of
from microbench.errors import TableError
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.cost import Cost
from predictor.core.costs.published import PublishedSystem, measured_precisions, read_hardware, read_manifest
from predictor.core.costs.variants import as_tabled

EVALUATION_FORMAT = "estimate-train-time/evaluation/1"


@dataclass(frozen=True, slots=True)
class Job:
    """One regressor's tables against one published system."""

    folder: Path
    tables: Tables
    regressor: str


def _column(name: str, rows: Sequence[Row], costs: Sequence[Cost], count: ColumnCount, sms: int) -> dict[str, Any]:
    entry = {"column": name, **count.to_dict()}
    if not rows:
        return entry
    us = np.array([row.us for row in rows])
    error = relative_error(np.array([cost.us for cost in costs]), us)
    works = [row.operator.work(row.shape, row.direction, sms) for row in rows]
    work = np.array([w.flops or w.size_bytes for w in works])
    largest = work >= np.quantile(work, 1.0 - LARGEST_SHARE)
    inside = [cost.low_us <= row.us <= cost.high_us for row, cost in zip(rows, costs, strict=True)]
    return entry | {
        "mape": percent(error.mean()),
        "median": percent(float(np.median(error))),
        "largest_mape": percent(error[largest].mean()),
        "coverage": percent(float(np.mean(inside))),
        "sources": sorted({cost.source.label for cost in costs}),
    }


def run_job(job: Job) -> list[dict[str, Any]]:
    """Return one entry per column of a regressor's tables."""
    system = as_tabled(PublishedSystem(job.folder, job.tables.precision))
    sms = int(system.hardware.gpu.num_multiprocessors.value)
    result = []
    for _, gated in gated_rows(job.tables, job.regressor, system.hardware):
        for name, count in gated.columns.items():
            members = [row for row in gated.kept if row.column == name]
            costs = [system.cost(row.operator, row.direction, row.shape) for row in members]
            entry = _column(name, members, costs, count, sms)
            result.append({"regressor": job.regressor, "precision": job.tables.precision, **entry})
    return result


def _summary(columns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    judged = [column for column in columns if "mape" in column]
    keys = ("mape", "median", "largest_mape", "coverage")
    return {"columns": len(judged), **{key: mean(column[key] for column in judged) for key in keys}}


def evaluate(folder: Path, measurements: Path) -> dict[str, Any]:
    """Return the errors of a published system on every table of its GPU.

    Raises:
        FileNotFoundError: a folder is missing.
        PublishedError: the system is damaged, or lacks an operator that was measured.
        TableError: a table cannot be read, or there is none of this GPU.
    """
    hardware = read_hardware(folder, read_manifest(folder))
    jobs = []
    # A donor may answer in more precisions than there are tables of.
    for tables in find_tables(measurements, hardware.gpu.name, measured_precisions(folder)):
        system = PublishedSystem(folder, tables.precision)
        for regressor in tables.regressors():
            for direction in tables.directions(regressor):
                system.regressor(operators_of(regressor)[0], direction)  # or an error, before the first second of work
        jobs += [Job(folder, tables, regressor) for regressor in tables.regressors()]
    jobs.sort(key=lambda job: -job.tables.size_bytes(job.regressor))
    with ProcessPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        columns = [column for job_columns in pool.map(run_job, jobs) for column in job_columns]
    columns.sort(key=lambda column: (column["regressor"] in COLLECTIVES, column["regressor"]))
    if not columns:
        raise TableError(f"{measurements}: its tables have no rows")
    operators = [column for column in columns if column["regressor"] not in COLLECTIVES]
    collectives = [column for column in columns if column["regressor"] in COLLECTIVES]
    return {
        "format": EVALUATION_FORMAT,
        "system": hardware.name,
        "unit": "percent of the measured time",
        "operators": _summary(operators),
        "collectives": _summary(collectives),
        "columns": columns,
    }
