"""Import measurement tables in the estimate-train-time layout.

``<cluster>/nccl/<gpu>_<name>_<precision>[_<nodes>_<gpus>].csv`` holds collectives: ``shape`` in elements of two bytes
(of one rank's shard for an all-gather), ``nodes``, ``GPUsPerNode`` and ``dur(us)``. A file without the last two
numbers may repeat the rows of those with them. ``<cluster>/operator/<gpu>_<name>_<precision>.csv`` holds the sizes of
the short form (mp, b, h, l, dim) and the durations ``F_dur(us)``, ``B_dur(us)`` or ``dur(us)``; rows become the
kernel shapes of the operator catalogue. Different (mp, dim, …) may give the same kernel shape; later modules group by
shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pandas as pd

from microbench.errors import TableError
from predictor.core.costs.catalogue import catalogue, families
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.folder import COLLECTIVE_FOLDER, OPERATOR_FOLDER
from predictor.core.costs.layer_call import LayerCall, padded_vocab_size
from predictor.core.costs.operator import KERNEL_MARK, Direction, Operator, Shape, in_kernel
from predictor.core.costs.work import ELEMENT_BYTES, PRECISION_BYTES, element_bytes
from predictor.core.hardware.hardware import Quantity
from predictor.core.schema.short_names import OPERATORS_BY_SHORT_NAME

COLLECTIVES_BY_SHORT_NAME = {
    "allreduce": "all_reduce",
    "allreduce_large": "all_reduce",
    "allgather": "all_gather",
    "allgather_large": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatter_large": "reduce_scatter",
    "p2p": "point_to_point",
}
FOLDERS = (OPERATOR_FOLDER, COLLECTIVE_FOLDER)
PRECISION_SUFFIX = re.compile(rf"_({'|'.join(PRECISION_BYTES)})(_\d+_\d+)?$")
NO_PEAK = (
    "tables in {precision} are not used: the data sheet has no peak of {gpu} in {precision} (gpu.peak_tflop_per_s)"
)
TABLE_VOCAB_SIZE = 50257
TENSORS_PER_LAYER = 12


@dataclass(frozen=True, slots=True)
class Row:
    """One measured call in one direction.

    Attributes:
        other_us: duration of the same call in the other direction.
        kernel: name of the kernel that ran, where the table has it.
        unusable: why this is no time of the kernels, known on reading; the gate drops the row with this reason.
    """

    operator: Operator
    table: str
    direction: Direction
    shape: Shape
    us: float
    other_us: float | None = None
    kernel: str = ""
    unusable: str | None = None

    @property
    def is_collective(self) -> bool:
        """Return whether the row is a collective's."""
        return self.operator.name in COLLECTIVES

    @property
    def column(self) -> str:
        """Return the name of the row's column: a table in one direction, or a collective over one topology."""
        if self.is_collective:
            return f"{self.table} {self.shape[1]}x{self.shape[2]}"
        return f"{self.table} {self.direction}"


def operators_of(regressor: str) -> list[Operator]:
    """Return the operators that a regressor answers for; attention in the implementation that its name names."""
    name, _, kernel = regressor.partition(KERNEL_MARK)
    return [COLLECTIVES[name]] if name in COLLECTIVES else [in_kernel(each, kernel) for each in families()[name]]


def shape_times(rows: Sequence[Row]) -> dict[tuple[Operator, Shape], float]:
    """Return the median time of every distinct shape."""
    times: dict[tuple[Operator, Shape], list[float]] = {}
    for row in rows:
        times.setdefault((row.operator, row.shape), []).append(row.us)
    return {key: median(values) for key, values in times.items()}


def _layer_shape(operator: Operator, row: dict[str, float], precision: str) -> Shape:
    """Return the kernel shape of a row of a layer operator's table; it does not depend on sizes that the table lacks.

    The loss was measured on logits in the table's precision; evidence: docs/adr/0018-least-bytes.md.
    """
    heads = int(row.get("h", row.get("mp", 1)))  # without heads in the table no shape depends on them
    hidden = int(row.get("dim", heads))
    call = LayerCall(
        micro_batch_size=int(row["b"]),
        sequence_length=int(row["l"]),
        hidden_size=hidden,
        num_attention_heads=heads,
        ffn_hidden_size=4 * hidden,
        vocab_size=TABLE_VOCAB_SIZE,
        tensor_parallel_size=int(row.get("mp", 1)),
        causal=False,
        logit_bytes=element_bytes(precision),
    )
    return operator.shape_in(call)


def stage_parameters(table: str, mp: int, dim: int, encoders: int) -> Shape:
    """Return (parameters, tensors) of the first, a middle or the last pipeline stage on one tensor-parallel rank."""
    parameters = 12 * dim * dim * encoders // mp
    tensors = TENSORS_PER_LAYER * encoders
    if not table.startswith("middleStage"):
        parameters += padded_vocab_size(TABLE_VOCAB_SIZE, mp) // mp * dim
        tensors += 1
    return parameters, tensors


def _shapes(operator: Operator, table: str, frame: pd.DataFrame, precision: str) -> list[Shape]:
    records = frame.to_dict("records")
    if operator.layer_shape is not None:
        return [_layer_shape(operator, {str(k): v for k, v in row.items()}, precision) for row in records]
    if operator.name == "optimizer_step_looped":
        return [(int(row["params"]), int(row["param_tensors"])) for row in records]
    return [stage_parameters(table, int(row["mp"]), int(row["dim"]), int(row["encoders"])) for row in records]


def operator_of(path: Path, gpu: str, precision: str) -> tuple[str, Operator]:
    """Return the short name in a table's file name and the operator or collective that it stands for.

    Raises:
        TableError: there is no such operator, or no such collective in a folder of collectives.
    """
    table = re.sub(rf"^{re.escape(gpu)}_|_{precision}(_\d+_\d+)?$", "", path.stem)
    is_collective = path.parent.name == COLLECTIVE_FOLDER
    names = COLLECTIVES_BY_SHORT_NAME if is_collective else OPERATORS_BY_SHORT_NAME
    if table not in names:
        kind = "collective" if is_collective else "operator"
        raise TableError(f"{path}: unknown {kind} {table!r}; known: {', '.join(sorted(names))}")
    return table, (COLLECTIVES if is_collective else catalogue())[names[table]]


def read_table(path: Path, gpu: str, precision: str) -> list[Row]:
    """Read the table of an operator, or of a collective in a folder of collectives.

    Raises:
        TableError: the file name, a column or a value is not of the layout.
    """
    table, operator = operator_of(path, gpu, precision)
    try:
        frame = pd.read_csv(path, dtype=float)
        if operator.name in COLLECTIVES:
            return _collective_rows(operator, table, frame)
        shapes = _shapes(operator, table, frame, precision)
    except (ValueError, KeyError, pd.errors.ParserError) as error:
        raise TableError(f"{path}: not a measurement table of {table}: {error}") from error
    columns = {"F_dur(us)": Direction.FORWARD, "B_dur(us)": Direction.BACKWARD}
    if operator.directions == (Direction.FORWARD,):
        columns = {("dur" if "dur" in frame else "dur(us)"): Direction.FORWARD}
    for column in columns:
        if column not in frame:
            raise TableError(f"{path}: no column {column!r}; there are {', '.join(frame.columns)}")
    rows = []
    for column, direction in columns.items():
        others = [frame[c] for c in columns if c != column] or [pd.Series([None] * len(frame), dtype=object)]
        rows += [
            Row(operator, table, direction, shape, float(us), None if other is None else float(other))
            for shape, us, other in zip(shapes, frame[column], others[0], strict=True)
        ]
    return rows


def _collective_rows(collective: Operator, table: str, frame: pd.DataFrame) -> list[Row]:
    values = frame[["shape", "nodes", "GPUsPerNode", "dur(us)"]].to_numpy()
    return [
        Row(collective, table, Direction.FORWARD, (int(size) * ELEMENT_BYTES, int(nodes), int(gpus)), float(us))
        for size, nodes, gpus, us in values
    ]


def tables_of(path: Path, gpu: str) -> dict[str, list[Path]]:
    """Return the tables of a GPU by precision, in ``path`` itself and in the folders directly below it.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder of measurements")
    result: dict[str, list[Path]] = {}
    for file in sorted(file for kind in FOLDERS for below in ("", "*/") for file in path.glob(f"{below}{kind}/*.csv")):
        match = PRECISION_SUFFIX.search(file.stem)
        if match and file.name.startswith(f"{gpu}_"):
            result.setdefault(match[1], []).append(file)
    return result


def find_imported(path: Path, gpu: str, precisions: Sequence[str], say: Callable[[str], None]) -> list[Tables]:
    """Return the tables of every measured precision; ``say`` takes a line for each one that is not in ``precisions``.

    Raises:
        FileNotFoundError: there is no such folder.
        TableError: no folder, or more than one, has tables of this GPU in one of these precisions.
    """
    files = tables_of(path, gpu)
    if not files.keys() & set(precisions):
        known = sorted({file.name.split("_")[0] for file in path.glob("**/operator/*.csv")})
        raise TableError(
            f"{path}: no table operator/{gpu}_*_{{{','.join(precisions)}}}.csv; tables there are of "
            f"{', '.join(known) or 'no GPU'}"
        )
    for precision in sorted(files.keys() - set(precisions)):
        say(NO_PEAK.format(precision=precision, gpu=gpu))
    return [Tables.find(path, gpu, precision) for precision in precisions if precision in files]


@dataclass(frozen=True, slots=True)
class Tables:
    """The measurement tables of one GPU and precision below a cluster's folder."""

    folder: Path
    gpu: str
    precision: str

    @classmethod
    def find(cls, path: Path, gpu: str, precision: str) -> Tables:
        """Return the tables of ``path`` itself, or of the cluster folder below it that has this GPU.

        Raises:
            FileNotFoundError: there is no such folder.
            TableError: no folder, or more than one, has tables of this GPU.
        """
        folders = sorted({file.parent.parent for file in tables_of(path, gpu).get(precision, ())})
        if len(folders) != 1:
            where = ", ".join(str(folder) for folder in folders) or "no folder"
            raise TableError(f"{path}: {where} holds tables of {gpu} in {precision}; expected exactly one folder")
        return cls(folders[0], gpu, precision)

    def paths(self) -> dict[str, list[Path]]:
        """Return the files of each regressor.

        Raises:
            TableError: a file is of no operator or collective that the catalogue knows.
        """
        result: dict[str, list[Path]] = {}
        for path in tables_of(self.folder, self.gpu).get(self.precision, ()):
            if path.parent.parent == self.folder:
                operator = operator_of(path, self.gpu, self.precision)[1]
                result.setdefault(operator.regressor_name, []).append(path)
        return result

    def regressors(self) -> list[str]:
        """Return the regressors that have a table."""
        return sorted(self.paths())

    def directions(self, regressor: str) -> tuple[Direction, ...]:
        """Return the passes that a regressor's tables hold."""
        return operators_of(regressor)[0].directions

    def launch_quantities(self) -> dict[str, Quantity] | None:
        """Return the host time of a launch; None where only the fits determine it."""
        return None

    def attention_kernel(self) -> str | None:
        """Return the implementation of attention that the rows name; None in tables of others."""
        return None

    def reference_us(self) -> dict[int, Quantity]:
        """Return the reference kernel's time by processes; none in tables of others."""
        return {}

    def size_bytes(self, regressor: str) -> int:
        """Return the size of a regressor's tables."""
        return sum(path.stat().st_size for path in self.paths()[regressor])

    def rows(self, regressor: str) -> list[Row]:
        """Read a regressor's rows; a collective's repeated rows once.

        Raises:
            TableError: a table cannot be read.
        """
        rows = [row for path in self.paths()[regressor] for row in read_table(path, self.gpu, self.precision)]
        if regressor not in COLLECTIVES:
            return rows
        return list({(row.table, row.shape, row.us): row for row in rows}.values())
