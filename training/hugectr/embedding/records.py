"""Rows as records: the form in which a table, its files and unloaded rows exchange them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hugectr.embedding.missed_steps import moves_all_rows
from hugectr.embedding.update_rules import RowStates, keeps_last_step
from predictor.recommender.workload.optimizer import Optimizer

Records = npt.NDArray[Any]


def record_type(optimizer: Optimizer | None, width: int) -> np.dtype[Any]:
    """Return the type of a row's record: key, slot, vector, optimizer states, step of the last update."""
    fields: list[Any] = [("key", "<i8"), ("slot", "<u8"), ("vector", "<f4", (width,))]
    num_states = 0 if optimizer is None else optimizer.kind.num_states
    fields += [(f"state{number}", "<f4", (width,)) for number in range(num_states)]
    if keeps_last_step(optimizer):
        fields.append(("last_step", "<i8"))
    return np.dtype(fields)


def stored_type(optimizer: Optimizer | None, width: int) -> np.dtype[Any]:
    """Return the type of a record of a row that may wait: where steps move all rows, with the steps that it took."""
    record = record_type(optimizer, width)
    return np.dtype([*record.descr, ("reached", "<i8")]) if moves_all_rows(optimizer) else record


def _columns(table: RowStates) -> dict[str, torch.Tensor]:
    columns = {"vector": table.weights}
    columns |= {f"state{number}": state for number, state in enumerate(table.states)}
    if table.last_step is not None:
        columns["last_step"] = table.last_step
    return columns


def take(table: RowStates, rows: slice, keys: torch.Tensor, slots: torch.Tensor) -> Records:
    """Return the records of rows, with their keys and slots."""
    missed_steps = table.missed_steps
    kind = (record_type if missed_steps is None else stored_type)(table.optimizer, table.weights.shape[1])
    records = np.empty(rows.stop - rows.start, kind)
    if missed_steps is not None:
        records["reached"] = missed_steps.count
    records["key"] = keys.cpu().numpy()
    records["slot"] = slots.cpu().numpy()
    for name, column in _columns(table).items():
        records[name] = column[rows].cpu().numpy()
    return records


def put(table: RowStates, rows: torch.Tensor, records: Records) -> None:
    """Set rows to the fields that the records have."""
    for name, column in _columns(table).items():
        if name in (records.dtype.names or ()):
            column[rows] = torch.from_numpy(np.ascontiguousarray(records[name])).to(column.device)


def reset(table: RowStates, rows: slice) -> None:
    """Set the optimizer's states of rows to those before the first step."""
    for state in table.states:
        state[rows] = table.initial_state
    if table.last_step is not None:
        table.last_step[rows] = 0
