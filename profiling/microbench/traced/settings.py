"""Settings of a recorded run, all of which two traces must share to be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from microbench.errors import MeasureError
from microbench.provenance import Closed
from predictor.core.base.files import write_whole
from predictor.core.base.read_yaml import first_problem

MODELS = ("vgg16", "resnet50", "bert", "roberta", "tiny")
OF_IMAGES = ("vgg16", "resnet50", "tiny")
PRECISIONS = ("fp32", "bf16", "fp16")
ANSWERS = 4  # of a multiple choice, as SWAG has them
IMAGE_LABELS = 1000
TINY_LABELS = 10
# Of the word lists that the published models have; the first ids are padding and marks.
VOCABULARY = {"bert": 30522, "roberta": 50265}
FIRST_WORD = 5

ModelName = Literal["vgg16", "resnet50", "bert", "roberta", "tiny"]
PrecisionName = Literal["fp32", "bf16", "fp16"]


class TensorSpec(Closed):
    """A synthetic tensor: normal numbers, or whole numbers of ``least`` to below ``limit``."""

    shape: tuple[int, ...] = Field(min_length=1)
    least: int = 0
    limit: int | None = Field(default=None, description="null: normal numbers in fp32")


class InputSpec(Closed):
    """Synthetic inputs of a model, drawn from a seed and the rank, so that every run has the same."""

    format: Literal["estimate-train-time/input-data/1"] = "estimate-train-time/input-data/1"
    model: ModelName
    seed: int = 0
    tensors: dict[str, TensorSpec] = Field(min_length=1, description="by the names of the model's arguments")


class TraceSettings(Closed):
    """One recorded run."""

    model: ModelName
    precision: PrecisionName = "fp32"
    ranks: int = Field(default=2, ge=1, description="data-parallel")
    batch: int = Field(default=4, ge=1, description="samples per rank")
    image: int = Field(default=224, ge=8, description="height and width in pixels, of a model of images")
    sequence: int = Field(default=128, ge=1, description="tokens, of a model of language")
    layers: int | None = Field(
        default=None, ge=1, description="encoder layers; of images, blocks or convolutions per stage; null: all"
    )
    width: int | None = Field(default=None, ge=8, description="hidden size; of images, channels of the first stage")
    steps: int = Field(default=3, ge=1, description="profiled")
    keep: Literal["all", "median", "fastest"] = Field(default="all", description="steps of each rank's trace")
    warm_up: int = Field(default=2, ge=1, description="steps before")
    threads: int = Field(default=1, ge=1, description="intra-op, of each rank")
    device: Literal["cpu", "cuda"] = "cpu"
    attention: Literal["sdpa", "eager"] = "sdpa"
    optimizer: Literal["sgd", "adamw"] = "sgd"
    input_data: InputSpec

    @property
    def name(self) -> str:
        """Return what messages call the run."""
        return f"{self.model} in {self.precision}"


class StepTimes(Closed):
    """Steps of one rank, in µs."""

    rank: int
    kept: tuple[int, ...] = Field(description="positions of the profiled steps that are in the trace")
    unprofiled_us: tuple[float, ...] = Field(description="before the profiled ones, by the host's clock")
    profiled_us: tuple[float, ...] = Field(description="all profiled ones; the profiler is a part of them")


class TraceRecord(Closed):
    """What a folder of traces holds, and what made it."""

    format: Literal["estimate-train-time/traced-run/1"] = "estimate-train-time/traced-run/1"
    settings: TraceSettings
    device: str
    versions: dict[str, str]
    host: str
    commit: str
    finished: str
    steps: tuple[StepTimes, ...]


def default_input(model: ModelName, batch: int, image: int, sequence: int) -> InputSpec:
    """Return the inputs that a model takes."""
    tensors: dict[str, TensorSpec]
    if model in OF_IMAGES:
        labels = TINY_LABELS if model == "tiny" else IMAGE_LABELS
        tensors = {
            "pixel_values": TensorSpec(shape=(batch, 3, image, image)),
            "labels": TensorSpec(shape=(batch,), limit=labels),
        }
    elif model == "bert":
        words = TensorSpec(shape=(batch, sequence), least=FIRST_WORD, limit=VOCABULARY[model])
        position = TensorSpec(shape=(batch,), limit=sequence)
        tensors = {"input_ids": words, "start_positions": position, "end_positions": position}
    else:
        words = TensorSpec(shape=(batch, ANSWERS, sequence), least=FIRST_WORD, limit=VOCABULARY[model])
        tensors = {"input_ids": words, "labels": TensorSpec(shape=(batch,), limit=ANSWERS)}
    return InputSpec(model=model, tensors=tensors)


def settings_of(values: dict[str, Any]) -> TraceSettings:
    """Return checked settings; what is None has its default.

    Raises:
        MeasureError: a value is out of its range, or the input is another model's.
    """
    given = {key: value for key, value in values.items() if value is not None}
    model = given["model"]
    given.setdefault("optimizer", "sgd" if model in OF_IMAGES else "adamw")
    if model == "tiny":
        given.setdefault("image", 16)
    fields = TraceSettings.model_fields
    sizes = [given.get(name, fields[name].default) for name in ("batch", "image", "sequence")]
    given.setdefault("input_data", default_input(model, *sizes))
    try:
        settings = TraceSettings.model_validate(given)
    except ValidationError as error:
        raise MeasureError(f"settings of {model}: {first_problem(error)}") from None
    if settings.input_data.model != model:
        raise MeasureError(f"--input is of {settings.input_data.model}; expected one of {model}")
    return settings


def read_input(path: Path) -> InputSpec:
    """Read a description of inputs.

    Raises:
        MeasureError: it is missing or damaged.
    """
    try:
        return InputSpec.model_validate_json(path.read_bytes())
    except OSError as error:
        raise MeasureError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        raise MeasureError(f"{path} is no description of inputs: {first_problem(error)}") from None


def read_record(folder: Path) -> TraceRecord:
    """Read what a folder of traces holds.

    Raises:
        MeasureError: it is missing or damaged.
    """
    path = folder / "record.json"
    try:
        return TraceRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise MeasureError(f"{path}: {error.strerror}; python -m microbench trace writes it") from None
    except ValidationError as error:
        raise MeasureError(f"{path} is no record of traces: {first_problem(error)}") from None


def write_json(path: Path, model: Closed) -> None:
    """Write a record atomically."""
    write_whole(path, model.model_dump_json(indent=1) + "\n")
