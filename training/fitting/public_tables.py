"""Read kernel tables of others: ``<GPU>/{gemm,attention,moe,mla,nccl}.csv`` in aiconfigurator's layout.

The first line of a file is a comment: the GPU, the repository at a commit with the path of the original, its licence.
``latency_us`` is the collector's mean over calls; forward only. Tables of both directions (``training_tables``) go
before those of the forward pass. Rows become calls of the operator catalogue:

- gemm: (m, k) @ (k, n) in ``gemm_dtype``; every linear layer is this kernel, so the rows stand under ``ffn_up`` in the
  family ``linear``.
- attention: causal; with as many key-value heads as query heads and no window it is ``flash_attention``, else
  ``grouped_query_attention``.
- moe: the fused MLP of the experts that one of ``moe_ep_size`` ranks holds, each with its inner width split over
  ``moe_tp_size`` ranks.
- mla: DeepSeek's attention over ``num_heads`` of one rank, keys and values in 16 bits.
- gdn, mamba2: the recurrence of a gated delta layer and the scan of Mamba-2, without the convolution before them. Of
  several frameworks' kernels those of flash-linear-attention and of mamba_ssm, which training runs.
- encoder_attention: without a mask.
- deepep: ``exchange_rows``.
- nccl: in one node. ``message_size`` counts elements of two bytes as nccl-tests does: those of all ranks for all-gather
  and reduce-scatter, so that a rank's shard is that over ``num_gpus``; of one rank's buffer otherwise.

Source of the layout: github.com/ai-dynamo/aiconfigurator, the collectors' ``*_perf`` tables (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from fitting.tables import NO_PEAK, Row, Tables
from fitting.training_tables import CALLS, rows_of
from microbench.errors import TableError
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES, DEEPEP, SHARDED
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.work import ELEMENT_BYTES, STEP_PRECISIONS
from predictor.core.hardware.hardware import Quantity
from predictor.core.workload.architecture import MixtureOfExperts
from predictor.core.workload.expert_exchange import visited

# Read tables of DeepEP's exchange of tokens between experts' ranks: ``<GPU>/deepep.csv``. A row is a dispatch, in 8
# bits with a scale for each 128 elements, and a combine, in 16 bits. Both send a copy of a token to each rank, or
# between nodes to each node, that holds any of its experts: calls of one kind, of so many bytes.
# Multiprocessors that Megatron-LM gives it (--moe-deepep-num-sms) and DeepEP's own default (deep_ep/buffer.py,
# Buffer.num_sms).
MULTIPROCESSORS = 20
ELEMENTS_PER_SCALE, SCALE_BYTES = 128, 4
# Bytes of an element by the part of a row.
PARTS = {"dispatch": 1.0 + SCALE_BYTES / ELEMENTS_PER_SCALE, "combine": float(ELEMENT_BYTES)}
TRAYS_OF_FOUR = ("GB200", "GB300")
GPUS_PER_NODE = 8
# The precision of a kernel by the table's name for it.
PRECISIONS = {"bfloat16": "bf16", "half": "bf16"} | {name: name for name in ("fp8", "fp8_block", "mxfp8", "nvfp4")}
COLLECTIVE_NAMES = {"alltoall": "all_to_all"}
# How uneven the load of the experts is: the exponent of its power law, in hundredths; 0 is balanced.
# The top-k of random scores is balanced but for chance.
LOADS = {"balanced": 0, "random": 0, "power_law_1.01": 101, "power_law_1.2": 120}
LINEAR = "ffn_up"
# Nemotron's experts (hidden, inner, top-k, experts) have no gate (squared ReLU), except in the tables of vLLM 0.14.
# Source: config.json of NVIDIA-Nemotron-3 (mlp_hidden_act: relu2); seen as 1.5 times the rate of its neighbours.
UNGATED = frozenset({(2688, 1856, 6, 128), (1024, 2688, 22, 512), (2048, 5120, 22, 512)})
GATED_KERNEL = "vllm_fused_moe"
# Tables whose rows of one operator and precision are of one kernel; in the others a library picks it by the shape.
ONE_KERNEL = ("gemm", "mla")
# aiter's tables hold the fastest kernel of a search over libraries. In 16 bits training runs PyTorch's own choice.
SEARCHED, OWN_CHOICE = "aiter ", "aiter torch"
BY_SEARCH = "the fastest kernel of a search, not the library's own choice"
# GPUs whose name in the tables is not the device's: it lacks the family.
DEVICE_NAMES = {"AMDMI300X": "AMDInstinctMI300X", "AMDMI355X": "AMDInstinctMI355X"}
# Of several frameworks' encoders, the one whose other attention is taken. A twelfth of its rows: a hundred teach the
# fit what attention without a mask takes (10 % held out on H100, as with a third of the rows), and the held-out error
# of causal attention, which shares the fit, rises from 4.7 to 5.0 %; with a third to 5.5.
ENCODERS_OF = "vllm"
KEPT_OF = {"encoder_attention": 12}
# Flash-linear-attention's Triton kernels, which training runs, as TensorRT-LLM has them: in a CUDA graph. SGLang's take
# 1.2 to 1.6 times as long, on H200 up to five times as long as on H100; vLLM's are FlashInfer's.
DELTA_RULE, DELTA_CHUNK = ("trtllm", "chunk_gated_delta_rule"), 64
BOTH_DIRECTIONS = "_training"  # ends the name of a table of both directions
COMMENT = "# "
Record = dict[str, Any]
Call = tuple[str, Shape]  # name of an operator or a collective, and its shape


def exchange_rows(frame: pd.DataFrame, gpu: str) -> Iterator[Row]:
    """Yield the dispatches and combines that ran with as many multiprocessors as training gives them."""
    gpus = 4 if gpu.endswith(TRAYS_OF_FOUR) else GPUS_PER_NODE
    chosen = frame[(frame["dispatch_sms"] == MULTIPROCESSORS) & (frame["combine_sms"] == MULTIPROCESSORS)]
    for record in chosen.to_dict("records"):
        nodes, hidden = int(record["node_num"]), int(record["hidden_size"])
        experts = MixtureOfExperts(int(record["num_experts"]), int(record["topk"]), hidden)
        copies = record["num_tokens"] * visited(experts, nodes if nodes > 1 else gpus)
        for part, element_bytes in PARTS.items():
            us = float(record[f"{part}_transmit_us"] + record[f"{part}_notify_us"])
            shape = (int(copies * hidden * element_bytes), nodes, gpus)
            yield Row(COLLECTIVES[DEEPEP], f"{DEEPEP} {part}", Direction.FORWARD, shape, us)


def _gemm(row: Record) -> Call | None:
    return LINEAR, (int(row["m"]), int(row["k"]), int(row["n"]))


def _attention(row: Record) -> Call | None:
    batch, length, heads, kv_heads, width = (
        int(row[key]) for key in ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    )
    window = int(row.get("window_size", 0))
    if kv_heads == heads and not window:
        return "flash_attention", (batch, length, heads, width, 1)
    return "grouped_query_attention", (batch, length, heads, kv_heads, width, 1, window)


def _moe(row: Record) -> Call | None:
    tokens, hidden, inner, top_k, experts = (
        int(row[key]) for key in ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts")
    )
    ungated = row["kernel_source"] != GATED_KERNEL and (hidden, inner, top_k, experts) in UNGATED
    ungated = ungated or not row.get("use_g1u1", 1)
    inner //= int(row["moe_tp_size"])
    held = experts // int(row["moe_ep_size"])
    load = LOADS[row["distribution"]]
    return "expert_mlp", (tokens, hidden, inner, top_k, experts, held, load, int(not ungated))


def _mla(row: Record) -> Call | None:
    if row["kv_cache_dtype"] != row["mla_dtype"]:  # keys and values read from an 8-bit cache: not a training kernel
        return None
    return "mla_attention", (int(row["batch_size"]), int(row["isl"]), int(row["num_heads"]))


def _encoder_attention(row: Record) -> Call | None:
    if not str(row["framework_version"]).startswith(ENCODERS_OF):
        return None
    return "flash_attention", (*(int(row[key]) for key in ("batch_size", "isl", "num_heads", "head_dim")), 0)


def _gated_delta(row: Record) -> Call | None:
    if (str(row["framework_version"]).split()[0], row["kernel_source"]) != DELTA_RULE:
        return None
    names = ("batch_size", "seq_len", "num_v_heads", "head_k_dim", "head_v_dim")
    return "gated_delta_rule", (*(int(row[key]) for key in names), DELTA_CHUNK)


def _mamba2(row: Record) -> Call | None:
    if row["kernel_source"] != "mamba_chunk_scan_combined":
        return None
    names = ("batch_size", "seq_len", "nheads", "head_dim", "d_state", "n_groups", "chunk_size")
    return "ssd_scan", tuple(int(row[key]) for key in names)


def _nccl(row: Record) -> Call | None:
    op_name = str(row["op_name"])
    name = COLLECTIVE_NAMES.get(op_name, op_name)
    ranks = int(row["num_gpus"])
    elements = int(row["message_size"])
    share = ranks if name in SHARDED else 1
    return name, (elements * ELEMENT_BYTES // share, 1, ranks)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of table: the column with the precision, and the call that a row is; None for a row that is none.

    An empty column: all rows are in bf16.
    """

    precision_column: str
    call: Callable[[Record], Call | None]


KINDS = {
    "gemm": Kind("gemm_dtype", _gemm),
    "attention": Kind("attn_dtype", _attention),
    "moe": Kind("moe_dtype", _moe),
    "mla": Kind("mla_dtype", _mla),
    "nccl": Kind("nccl_dtype", _nccl),
    "encoder_attention": Kind("attn_dtype", _encoder_attention),
    "gdn": Kind("", _gated_delta),
    "mamba2": Kind("", _mamba2),
}
ONE_PRECISION = "bf16"
EXCHANGE = "deepep"


def _operator(name: str) -> Operator | None:
    """Return an operator or a collective; None where neither catalogue has it."""
    return COLLECTIVES.get(name) or catalogue().get(name)


def header(path: Path) -> tuple[str, str]:
    """Return the GPU of a table, as the systems spell it, and the rest of its first line: where it comes from.

    Raises:
        TableError: the first line is no such comment.
    """
    with path.open(encoding="utf-8") as file:
        first = file.readline().rstrip("\n")
    gpu, separator, origin = first.removeprefix(COMMENT).partition("; ")
    if not first.startswith(COMMENT) or not separator:
        raise TableError(f"{path}: the first line is {first[:60]!r}; expected '# <GPU>; <origin>'")
    squeezed = gpu.replace(" ", "")
    return DEVICE_NAMES.get(squeezed, squeezed), origin


@lru_cache(maxsize=16)
def read_rows(path: Path, precision: str) -> tuple[Row, ...]:
    """Return the rows of a table in one precision; those of operators that the catalogue lacks are left out.

    Raises:
        TableError: a column or a value is not of the layout.
    """
    kind = KINDS.get(path.stem)
    try:
        frame = _in_precision(pd.read_csv(path, comment="#"), _precision_column(path), precision)
        frame = frame[:: KEPT_OF.get(path.stem, 1)]
        if path.stem == EXCHANGE:
            return tuple(exchange_rows(frame, header(path)[0]))
        if kind is None:
            return tuple(rows_of(path.stem, frame, precision, header(path)[0]))
        records = [{str(key): value for key, value in record.items()} for record in frame.to_dict("records")]
        rows = (_row(path.stem, kind, record) for record in records)
        return tuple(row for row in rows if row is not None)
    except (ValueError, KeyError, pd.errors.ParserError) as error:
        raise TableError(f"{path}: not a table of {path.stem}: {error!r}") from error


def _in_precision(frame: pd.DataFrame, column: str, precision: str) -> pd.DataFrame:
    """Return the rows of a table in a precision; a table without such a column has one."""
    if not column:
        return frame if precision == ONE_PRECISION else frame[:0]
    return frame[frame[column].map(PRECISIONS) == precision]


def _row(table: str, kind: Kind, record: Record) -> Row | None:
    call = kind.call(record)
    operator = _operator(call[0]) if call is not None else None
    if call is None or operator is None:
        return None
    source = str(record["kernel_source"])
    is_searched = source.startswith(SEARCHED)
    kernel = source if table in ONE_KERNEL and not is_searched else ""
    name = operator.name if operator.name in COLLECTIVES else table
    in_16_bits = table == "gemm" and PRECISIONS[str(record["gemm_dtype"])] in STEP_PRECISIONS
    why = BY_SEARCH if is_searched and in_16_bits and source != OWN_CHOICE else None
    return Row(operator, name, Direction.FORWARD, call[1], float(record["latency_us"]), kernel=kernel, unusable=why)


def is_public(folder: Path) -> bool:
    """Return whether a folder, or one directly below it, holds tables of this layout."""
    return next(_files(folder), None) is not None


def _files(folder: Path) -> Iterator[Path]:
    """Yield the tables in a folder and in those directly below it, sorted."""
    for path in sorted([*folder.glob("*.csv"), *folder.glob("*/*.csv")]):
        if path.stem in {*KINDS, *CALLS, EXCHANGE}:
            with path.open(encoding="utf-8") as file:
                if file.read(len(COMMENT)) == COMMENT:
                    yield path


@dataclass(frozen=True, slots=True)
class PublicTables(Tables):
    """The tables of one GPU and precision in one folder."""

    files: tuple[Path, ...] = ()

    def paths(self) -> dict[str, list[Path]]:
        """Return the files of each regressor that has rows in this precision."""
        result: dict[str, list[Path]] = {}
        for path in self.files:
            names = {row.operator.regressor_name for row in read_rows(path, self.precision)}
            for name in sorted(names):
                result.setdefault(name, []).append(path)
        return result

    def directions(self, regressor: str) -> tuple[Direction, ...]:
        """Return the passes that have rows."""
        there = {row.direction for row in self.rows(regressor)}
        return tuple(direction for direction in Direction if direction in there)

    def launch_quantities(self) -> dict[str, Quantity] | None:
        """Return no host times: an inference kernel's mean says nothing of a training host's launches."""
        return {}

    def rows(self, regressor: str) -> list[Row]:
        """Read a regressor's rows.

        Raises:
            TableError: a table cannot be read.
        """
        rows = [row for path in self.files for row in read_rows(path, self.precision)]
        return [row for row in rows if row.operator.regressor_name == regressor]


def find_public(path: Path, gpu: str, precisions: Sequence[str], say: Callable[[str], None]) -> list[Tables]:
    """Return the tables of a GPU per precision that the data sheet has a peak of.

    Args:
        path: the folder of one GPU's tables, or its parent.
        gpu: the device, as ``header`` spells it.
        precisions: those that may be fitted.
        say: takes a line for each precision in the tables that is not among them.

    Raises:
        TableError: no table is of this GPU, or those of more than one folder are.
    """
    named = [(file, header(file)[0]) for file in _files(path)]
    folders = sorted({file.parent for file, name in named if name == gpu})
    # A table of a whole node names its folder, not the device.
    files = [file for file, name in named if name == gpu or (file.parent in folders and name == file.parent.name)]
    if len(folders) != 1:
        there = ", ".join(str(folder) for folder in folders) or ", ".join(sorted({name for _, name in named}))
        raise TableError(f"{path}: expected one folder with tables of {gpu}; there are {there}")
    held = {file: _precisions(file) for file in files}
    there_are = {precision for found in held.values() for precision in found}
    for precision in sorted(there_are - set(precisions)):
        say(NO_PEAK.format(precision=precision, gpu=gpu))
    fitted = [precision for precision in precisions if precision in there_are]
    return [PublicTables(folders[0], gpu, precision, _of_training(held, precision)) for precision in fitted]


def _of_training(held: dict[Path, set[str]], precision: str) -> tuple[Path, ...]:
    """Return the tables with rows in a precision, without those of the forward pass that one of both replaces."""
    files = [file for file, precisions in held.items() if precision in precisions]
    both = {file.stem.removesuffix(BOTH_DIRECTIONS) for file in files if file.stem.endswith(BOTH_DIRECTIONS)}
    return tuple(file for file in files if file.stem not in both)


def _precision_column(path: Path) -> str:
    if path.stem in KINDS:
        return KINDS[path.stem].precision_column
    return "dtype" if path.stem in CALLS else ""


def _precisions(path: Path) -> set[str]:
    """Return the precisions of a table's rows."""
    column = _precision_column(path)
    if not column:
        return {ONE_PRECISION}
    names = pd.read_csv(path, comment="#")[column].unique()
    return {PRECISIONS[name] for name in names if name in PRECISIONS}
