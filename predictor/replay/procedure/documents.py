"""Documents of the procedure below ``tmp_data``, as JSON; times in microseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError

from predictor.core.base.files import write_whole
from predictor.core.base.read_yaml import first_problem
from predictor.replay.files.record_model import RecordError, RecordModel
from predictor.replay.precision.operator_graph import Precision

Microseconds = Annotated[float, Field(ge=0)]
Elements = Annotated[int, Field(ge=0)]
Shapes = tuple[tuple[int, ...], ...]


class Provenance(RecordModel):
    """What a file was made from."""

    model_name: str
    file_name: str
    device_name: str = Field(description="as --device_name said")
    traced_device: str = Field(description="as the trace says; the backend where it does not")
    precision: Precision = Field(description="that the traced step computed in, or the most of it")
    step: str = Field(description="label of the step in the trace")
    target_trace_idx: int = Field(ge=0)
    rank: int = Field(ge=0)
    step_us: Microseconds = Field(description="measured")


class PathTask(RecordModel):
    """One task of the critical path."""

    task: int = Field(ge=0, description="position in the local graph, by start")
    name: str
    kind: str
    row: str = Field(description="thread or stream")
    start_us: Microseconds
    duration_us: Microseconds
    waits_for: str | None = Field(description="kind of the edge that started it; None at the start")


class CriticalPath(RecordModel):
    """``cng``: the longest path through the step, each task started by the one before it."""

    format: Literal["estimate-train-time/cng/1"] = "estimate-train-time/cng/1"
    origin: Provenance
    path_us: Microseconds = Field(description="of the replayed step")
    tasks: tuple[PathTask, ...]


class PathOperator(RecordModel):
    """One operator of the critical path: what it computes on and how long the path is in it."""

    operator: str
    step_pass: str
    scope: tuple[str, ...]
    shapes: Shapes
    dtypes: tuple[str, ...]
    calls: int = Field(ge=1, description="on the path, of the same shapes")
    on_path_us: Microseconds
    share: float = Field(ge=0, le=1, description="of the path")


class CriticalData(RecordModel):
    """``cng_data``: the data on the critical path, the operator with the largest share first."""

    format: Literal["estimate-train-time/cng-data/1"] = "estimate-train-time/cng-data/1"
    origin: Provenance
    path_us: Microseconds
    kinds_us: dict[str, Microseconds] = Field(description="of the path, by kind of task; lag: waiting between tasks")
    operators: tuple[PathOperator, ...]


class CastRow(RecordModel):
    """A cast on the way into an operator, measured as part of the step."""

    operator: str = Field(description="that casts: aten::_to_copy")
    step_pass: str
    shapes: Shapes
    us: Microseconds


class NodeRow(RecordModel):
    """One operator of the model, with what it took in the step."""

    label: str = Field(description="as in dag_graph_folder")
    operator: str
    depth: int = Field(ge=0)
    shapes: Shapes
    dtypes: tuple[str, ...]
    precision: Precision
    forward_us: Microseconds
    backward_us: Microseconds
    optimizer_us: Microseconds = Field(description="its part of the optimizer step, by the elements of its weights")
    weight_numel: Elements
    output_numel: Elements
    saved_numel: Elements
    casts: tuple[CastRow, ...] = ()


class NodeData(RecordModel):
    """``node_data``: every operator of the model with its times in one precision."""

    format: Literal["estimate-train-time/node-data/1"] = "estimate-train-time/node-data/1"
    origin: Provenance
    nodes: tuple[NodeRow, ...]
    optimizer_us: Microseconds
    other_us: Microseconds = Field(description="of operators of the step that belong to no operator of the model")


class DagNode(RecordModel):
    """One operator of the forward graph."""

    label: str
    operator: str
    depth: int = Field(ge=0, description="length of the longest way to it from the model's inputs")
    inputs: tuple[str, ...] = Field(description="labels of the operators whose outputs it takes")
    shapes: Shapes
    output_numel: Elements
    weight_numel: Elements
    choices: tuple[Precision, ...] = Field(description="precisions it can compute in; none: as its input is")
    same_as: str | None = Field(default=None, description="label of the first operator of an isomorphic block")


class ForwardGraph(RecordModel):
    """``fwd_graph`` and ``dag_graph_folder``: the operators of the forward pass, producers before consumers."""

    format: Literal["estimate-train-time/forward-graph/1"] = "estimate-train-time/forward-graph/1"
    model_name: str
    source: str = Field(description="file that it was made from")
    depth: int = Field(ge=0, description="of the deepest operator")
    nodes: tuple[DagNode, ...]


Document = TypeVar("Document", bound=RecordModel)


def write_document(path: Path, document: RecordModel) -> None:
    """Write a document.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(path, document.model_dump_json(indent=1) + "\n")


def read_document(path: Path, kind: type[Document]) -> Document:
    """Read a document.

    Raises:
        RecordError: it is damaged, or of another kind.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        raise RecordError(f"{path} is no {kind.__name__}: {first_problem(error)}; run analyse again") from None
