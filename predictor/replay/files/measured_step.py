"""A rank's measured steps: a trace file of one step, with the samples of all and their provenance beside it.

The file has the Trace Event Format, as ``predictor.core.timeline.trace`` writes and reads it. Its spans are the parts
of the
timed step that is nearest the median, and the operators and collectives of a profiled step where there is one; its
``otherData`` is a ``StepProvenance``. Whoever runs training writes it; verification and calibration read it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, ValidationError

from predictor.core.base.files import write_whole
from predictor.core.base.read_yaml import first_problem
from predictor.core.timeline.spans import Span
from predictor.core.timeline.trace import StepTrace, TraceError, read_spans, trace_events
from predictor.replay.files.record_model import RecordError, RecordModel

DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"
PARTS = (DATA, FORWARD, BACKWARD, OPTIMIZER)
OPERATOR, COLLECTIVE = "operator", "collective"
FOLDER = "step_records"
PassName = Literal["forward", "recompute", "backward", "end"]


class OperatorTime(RecordModel):
    """All calls of one operator or collective within one pass of a step, over the profiled steps."""

    step_pass: PassName = Field(
        validation_alias=AliasChoices("pass", "step_pass"),
        serialization_alias="pass",
        description="end: reduction of gradients, also where it runs beside the backward pass, optimizer, gathering",
    )
    name: str = Field(min_length=1, description="as the predictor's tasks: ffn_up, all_reduce …")
    part: str = Field(
        default="", description="of a collective: tensor_parallel, data_parallel, pipeline_parallel; empty: not known"
    )
    count: float = Field(ge=0, description="calls in one step; of a message where it is sent")
    samples_us: tuple[float, ...] = Field(min_length=1, description="all calls of one step together, per profiled step")


class StepProvenance(RecordModel):
    """What was measured, and where; times in microseconds, one for each timed step, in the order of measurement."""

    format: str = Field(default="model-training-framework/measured-step/1", pattern="measured-step/1$")
    title: str
    step_us: float = Field(description="median over the timed steps, waiting for data included")
    samples_us: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1)
    parts_us: dict[str, tuple[float, ...]] = Field(description="data, forward, backward, optimizer of every sample")
    first_step: int = Field(description="number of the first timed step")
    warm_up: int = Field(description="steps before it in this process that were not timed")
    rank: int = Field(ge=0)
    world_size: int = Field(ge=1)
    pipeline_stage: int = Field(default=0, ge=0)
    num_micro_batches: int
    precision: str
    strategy: str
    device: str
    device_kind: str
    driver: str | None = Field(default=None, description="of a GPU")
    threads: int | None = Field(default=None, description="that computed on a CPU")
    host: str
    commit: str = Field(description="of the folder that the run was started in")
    versions: dict[str, str]
    configuration: dict[str, Any]
    config_hash: str
    finished: str = Field(description="UTC, ISO 8601")
    profiled_us: tuple[float, ...] = Field(default=(), description="whole profiled steps, apart from the timed ones")
    operators: tuple[OperatorTime, ...] = Field(default=(), description="of the profiled steps")


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """A record: the spans of the step nearest the median, and where they come from."""

    spans: list[Span]
    provenance: StepProvenance

    @property
    def part_spans(self) -> list[Span]:
        """Return the parts of the step: data, forward, backward, optimizer."""
        return [span for span in self.spans if span.category in PARTS]

    @property
    def profiled_spans(self) -> list[Span]:
        """Return the operators and collectives of a profiled step."""
        return [span for span in self.spans if span.category in (OPERATOR, COLLECTIVE)]


def record_path(folder: Path, rank: int) -> Path:
    """Return where a rank's record lies in a run's folder."""
    return folder / FOLDER / f"rank-{rank:05d}.json"


def read_measured_steps(path: Path) -> MeasuredSteps:
    """Read one rank's record.

    Raises:
        RecordError: it is not there, torn, or no such record.
    """
    try:
        spans = read_spans(path)
        other = json.loads(path.read_bytes()).get("otherData")
        provenance = StepProvenance.model_validate(other)
    except ValidationError as error:
        raise RecordError(f"{path} is no measured step: {first_problem(error)}") from None
    except (TraceError, AttributeError) as error:
        raise RecordError(f"{path} is no measured step: {str(error).splitlines()[0]}") from None
    samples = len(provenance.samples_us)
    for part, values in provenance.parts_us.items():
        if len(values) != samples:
            raise RecordError(f"{path} is no measured step: parts_us.{part} has {len(values)} of {samples} samples")
    return MeasuredSteps(spans, provenance)


def write_measured_steps(folder: Path, spans: list[Span], provenance: StepProvenance) -> Path:
    """Write one rank's record into a run's folder, whole or not at all, and return its path.

    Raises:
        OSError: it cannot be written.
    """
    document = trace_events(StepTrace(provenance.title, provenance.step_us, spans))
    document["otherData"] = provenance.model_dump(mode="json", by_alias=True)
    path = record_path(folder, provenance.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(document) + "\n")
    return path
