"""One row of a table of published steps: typed cells, and a refusal that says which cell is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

UNSTATED = ("", "not stated", "none stated", "nan", "n/a")
NUMBER = re.compile(r"\s*~?([0-9][0-9.,]*)\s*(k\b)?")


class UnexpressedError(Exception):
    """A row that no configuration expresses; the text is the reason, the same for all such rows."""


class Row:
    """Cells of a row by column.

    Columns are those of ``step_times.csv`` and ``recent_step_times.csv``; a column that a table lacks is empty.
    """

    def __init__(self, cells: Mapping[str, str]) -> None:
        """Hold the cells."""
        self._cells = cells

    def text(self, column: str) -> str:
        """Return a cell; empty where it is absent."""
        return (self._cells.get(column) or "").strip()

    def has(self, column: str, *words: str) -> bool:
        """Return whether a cell contains any of the words, in any case."""
        cell = self.text(column).lower()
        return any(word.lower() in cell for word in words)

    def stated(self, column: str) -> bool:
        """Return whether a cell says anything."""
        return not self.text(column).lower().startswith(UNSTATED[1:]) and self.text(column) != ""

    def number(self, column: str) -> float:
        """Return the number at the start of a cell.

        Raises:
            UnexpressedError: there is none.
        """
        match = NUMBER.match(self.text(column))
        if match is None:
            raise UnexpressedError(f"{column} is not stated")
        return float(match[1].replace(",", "").rstrip(".")) * (1000.0 if match[2] else 1.0)

    def whole(self, column: str, default: int | None = None) -> int:
        """Return the whole number at the start of a cell, or the default of an empty one.

        Raises:
            UnexpressedError: there is none.
        """
        if default is not None and NUMBER.match(self.text(column)) is None:
            return default
        return round(self.number(column))


def dense_model(row: Row, **switches: Any) -> dict[str, Any]:
    """Return the model section of a dense transformer: sizes from their columns, and the switches given."""
    heads = row.whole("heads")
    sizes = {
        "num_layers": row.whole("layers"),
        "hidden_size": row.whole("hidden"),
        "num_attention_heads": heads,
        "ffn_hidden_size": row.whole("ffn"),
        "vocab_size": row.whole("vocab"),
        "sequence_length": row.whole("seq"),
    }
    if row.whole("kv_heads", heads) != heads:
        sizes["num_key_value_heads"] = row.whole("kv_heads")
    if row.text("head_dim"):
        sizes["head_dim"] = row.whole("head_dim")
    return {**sizes, **switches}


def layout(row: Row, **switches: Any) -> dict[str, Any]:
    """Return the parallelism section: sizes from their columns, and the switches given."""
    sizes = {
        "tensor_parallel_size": row.whole("tp", 1),
        "pipeline_parallel_size": row.whole("pp", 1),
        "data_parallel_size": row.whole("dp"),
        "context_parallel_size": row.whole("cp", 1),
        "virtual_pipeline_parallel_size": row.whole("vpp", 1),
        "gpus_per_node": row.whole("gpus_per_node"),
    }
    if row.whole("ep", 1) > 1:
        sizes["expert_parallel_size"] = row.whole("ep")
    if row.text("moe_experts") and row.whole("etp", row.whole("tp", 1)) != row.whole("tp", 1):
        sizes["expert_tensor_parallel_size"] = row.whole("etp")
    return {**sizes, **switches}


def _num_micro_batches(row: Row) -> int:
    """Return the micro-batches of a step: of their column, else what the global batch leaves to each replica.

    Raises:
        UnexpressedError: neither is stated, or replicas do not share the global batch evenly.
    """
    if row.stated("grad_accum") and row.whole("grad_accum") > 0:
        return row.whole("grad_accum")
    count, rest = divmod(row.whole("global_batch"), row.whole("micro_batch") * row.whole("dp"))
    if rest or not count:
        raise UnexpressedError("grad_accum is not stated or 0, and replicas do not share global_batch evenly")
    return count


def _in_32_bits(row: Row) -> dict[str, Any]:
    """Return the precision of a row that ran in 32 bits; empty where it did in 16, in those of its software."""
    word = row.text("precision").lower().partition(" ")[0]
    if word == "tf32":
        return {"precision": "fp32", "tf32": True}
    return {"precision": "fp32"} if word in ("fp32", "float32") else {}


def batch(row: Row, **switches: Any) -> dict[str, Any]:
    """Return the training section: batches from their columns, and the switches given; 32 bits where the row has them.

    Raises:
        UnexpressedError: the row does not say its batches.
    """
    batches = {"micro_batch_size": row.whole("micro_batch"), "num_micro_batches": _num_micro_batches(row)}
    return {**batches, **switches, **_in_32_bits(row)}
