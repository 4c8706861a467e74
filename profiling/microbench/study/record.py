"""Record of one stage of a study: one JSON file ``<folder>/<stage>.json``, rewritten atomically after every part.

So a study that is killed at any moment leaves every part that it had ended. Times are in microseconds, rates are
derived where they are shown. A part that failed is there with its reason, and the next study of the folder retries it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from microbench.errors import TableError
from microbench.provenance import Closed, Session
from microbench.rows import Measurement, Status
from predictor.core.base.files import write_whole
from predictor.core.base.read_yaml import first_problem
from predictor.core.costs.operator import Direction

FORMAT = "estimate-train-time/study/1"
Times = tuple[float, ...]
DIGITS = 3


def rounded(values: list[float] | Times) -> Times:
    """Return times as they are stored."""
    return tuple(round(value, DIGITS) for value in values)


class Pass(Closed):
    """One kernel in one direction, as ``timing.Timed`` measured it."""

    name: str = Field(description="attention's backend, or the form of a gradient product")
    kernel: str = Field(description="what ran; the reason where it failed")
    direction: Direction
    status: Status
    whole_us: Times = Field(description="from an idle GPU, gaps between launches included")
    kernel_us: Times = Field(description="kernels alone, behind a delay; the cache is cold")
    host_us: float | None = Field(description="host time to launch the pass on a busy GPU, median")
    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None


def pass_of(name: str, row: Measurement) -> Pass:
    """Return a measured row as it is stored."""
    return Pass(
        name=name,
        kernel=row.kernel,
        direction=row.direction,
        status=row.status,
        whole_us=rounded(row.samples_us),
        kernel_us=rounded(row.kernel_samples_us),
        host_us=row.host_us,
        **row.state._asdict(),
    )


class Attention(Closed):
    """Attention of one shape by every backend, forward and backward apart."""

    kind: Literal["attention"] = "attention"
    batch: int
    sequence: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    passes: tuple[Pass, ...]


class GradientProducts(Closed):
    """Products of one linear layer (m, k) @ (k, n): forward, input gradient, and forms of the weight gradient."""

    kind: Literal["gradient products"] = "gradient products"
    m: int = Field(description="tokens")
    k: int = Field(description="input features")
    n: int = Field(description="output features")
    passes: tuple[Pass, ...]


class Moment(Closed):
    """State of the GPU at one moment of a run; null where the driver does not report it."""

    at_s: float = Field(description="since the run began")
    sm_clock_mhz: float | None
    power_w: float | None = Field(description="as NVML averages it, over a second on GPUs from Ampere on")
    temperature_c: float | None
    energy_j: float | None = Field(description="since the driver was loaded: differences are exact")
    event_reasons: tuple[str, ...] | None = Field(description="why the clock is not at its maximum")


class Block(Closed):
    """Products in a row between two events; the next block follows without a pause."""

    end_s: float = Field(description="since the run began, by the host's clock when it saw the block's end")
    us: float = Field(description="per product")


class Sustained(Closed):
    """One product without a pause for seconds, after single ones with pauses."""

    kind: Literal["sustained product"] = "sustained product"
    precision: str
    m: int
    k: int
    n: int
    burst_us: Times = Field(description="single products, each after a pause")
    products_per_block: int
    blocks: tuple[Block, ...] = Field(min_length=1)
    moments: tuple[Moment, ...] = Field(description="one per block, the first before the run")


class Overlap(Closed):
    """A product beside a copy kernel whose programs hold SMs, each also alone; medians are for the reader to take."""

    kind: Literal["overlap"] = "overlap"
    m: int
    k: int
    n: int
    multiprocessors: int = Field(description="of the GPU")
    programs: int = Field(description="of the copy: SMs that it was asked to hold")
    held: int = Field(description="different SMs on which its programs ran, by the register %smid")
    copy_kernel: str
    product_alone_us: Times = Field(description="per product")
    product_beside_us: Times = Field(
        description="per product, the copy running from before the first to after the last"
    )
    copy_bytes: int = Field(description="copied by the short copy: read once, written once")
    copy_alone_us: Times
    copy_beside_us: Times = Field(description="of the short copy, products running until after its end")


class Launches(Closed):
    """Host time of one kind of launch while the GPU is held by a sleep."""

    kind: Literal["launches"] = "launches"
    name: str
    launches: int = Field(description="in a row, per sample")
    host_us: Times = Field(description="per launch; the GPU had not begun when the last one was queued")
    device_us: Times = Field(description="per launch on the GPU, in the same runs")


class Step(Closed):
    """One training step, launched kernel by kernel or as one CUDA graph."""

    kind: Literal["step"] = "step"
    name: str = Field(description="of profiling/steps")
    form: Literal["eager", "graph"]
    device_us: Times = Field(description="from the first to the last event of the step")
    wall_us: Times = Field(description="from an idle GPU to an idle GPU, by the host's clock")
    steps: int = Field(description="taken since the seed, the timed ones included")
    loss: float = Field(description="after so many steps: the same in both forms, but for the order of sums")


Measured = Annotated[Attention | GradientProducts | Sustained | Overlap | Launches | Step, Field(discriminator="kind")]


class Entry(Closed):
    """One part of a stage."""

    part: str = Field(description="its name, unique in the stage")
    status: Status
    reason: str = Field(default="", description="why there is no measurement")
    seconds: float = Field(description="that the part took")
    measured: Measured | None = None


class Machine(Closed):
    """Identity of the machine and its libraries; a study continues records of its own only."""

    device: str
    driver: str | None
    versions: dict[str, str]
    processor: str = Field(description="model name in /proc/cpuinfo")
    cores: int = Field(description="that this process may use")


class StageRecord(Closed):
    """The whole file."""

    format: Literal["estimate-train-time/study/1"] = "estimate-train-time/study/1"
    stage: str
    machine: Machine
    sessions: tuple[Session, ...] = Field(min_length=1)
    entries: tuple[Entry, ...] = ()

    def missing(self, parts: Sequence[str]) -> list[str]:
        """Return the parts that are not measured, those that failed before last: one of them may end the process."""
        status = {entry.part: entry.status for entry in self.entries}
        return sorted((part for part in parts if status.get(part) is not Status.OK), key=lambda part: part in status)

    def with_entry(self, entry: Entry) -> StageRecord:
        """Return the record with a part's outcome, in place of an earlier failure of it."""
        kept = tuple(known for known in self.entries if known.part != entry.part)
        return self.model_copy(update={"entries": (*kept, entry)})


def record_path(folder: Path, stage: str) -> Path:
    """Return the path of a stage's record."""
    return folder / f"{stage}.json"


def write_record(folder: Path, record: StageRecord) -> None:
    """Write a record atomically.

    Raises:
        TableError: the disk is full or gone; the record before it is kept.
    """
    path = record_path(folder, record.stage)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, record.model_dump_json() + "\n")
    except OSError as error:
        raise TableError(f"{path}: {error.strerror}; what was written before is kept") from None


def read_record(folder: Path, stage: str) -> StageRecord | None:
    """Read a stage's record; None where there is none.

    Raises:
        TableError: it is damaged, or of another format.
    """
    path = record_path(folder, stage)
    try:
        return StageRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise TableError(f"{path}: not a stage of a study: {first_problem(error)}") from None
    except OSError as error:
        raise TableError(f"{path}: {error.strerror}") from None
