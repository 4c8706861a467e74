"""Events of one rank's trace, as PyTorch's profiler (Kineto) names them, whatever version and device wrote it.

Source: PyTorch profiler and Kineto, libkineto/src/output_json.cpp and libkineto/include/ActivityType.h.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple


class Category(StrEnum):
    """What an event is; the older and newer spellings of the profiler are one here."""

    OPERATOR = "cpu_op"
    ANNOTATION = "user_annotation"
    RUNTIME = "cuda_runtime"  # calls of the CUDA or HIP runtime and driver
    KERNEL = "kernel"
    COPY = "gpu_memcpy"
    SET = "gpu_memset"
    SYNC = "cuda_sync"  # what a stream or the host waits for, where the profiler was asked to record it
    GPU_ANNOTATION = "gpu_user_annotation"
    PYTHON = "python_function"
    OTHER = "other"


REPLAY_OF = "replay_of"  # key in ``otherData`` of a trace that a replay wrote
ON_GPU = frozenset({Category.KERNEL, Category.COPY, Category.SET})
UNKNOWN = -1


class TraceEvent(NamedTuple):
    """Something that ran on a host thread or a GPU stream; times in microseconds from the trace's first event.

    Attributes:
        row: host thread, or device and stream, that ran it: a position in ``RankTrace.rows``.
        correlation: ties a runtime call to what it started on the GPU; UNKNOWN: none.
        external: ties what runs on a GPU to the operator that started it; UNKNOWN: none.
        sequence: of an operator that autograd recorded, and of its backward; UNKNOWN: none.
        args: what else the trace says, by the keys of newer versions: ``Input Dims``, ``Input type``.
    """

    name: str
    category: Category
    row: int
    start_us: float
    end_us: float
    correlation: int = UNKNOWN
    external: int = UNKNOWN
    sequence: int = UNKNOWN
    args: Mapping[str, object] = {}


class Row(NamedTuple):
    """Where events run one after the other, or nested.

    Attributes:
        is_gpu: a stream of a GPU; otherwise a host thread.
        process: process id of a thread, device of a stream.
        name: thread id, or number of the stream.
    """

    is_gpu: bool
    process: str
    name: str

    @property
    def label(self) -> str:
        """Return what a timeline calls it."""
        return f"stream {self.name}" if self.is_gpu else f"thread {self.name}"


class Arrow(NamedTuple):
    """A dependency that the trace draws from one event to another: positions in ``RankTrace.events``.

    Attributes:
        kind: ``launch`` (runtime call to what it started on a GPU), ``sync`` (runtime call to the event of category
            SYNC that records its wait), ``fwdbwd`` (forward to backward operator); another one as the trace names it.
    """

    before: int
    after: int
    kind: str


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's trace.

    Attributes:
        path: it was read from.
        rank: of the process; None where the trace does not say.
        world_size: ranks of the job; None likewise.
        backend: cuda, rocm or cpu: what computed; another accelerator as the trace names it: xpu, mtia.
        device_name: of the GPU; empty where unknown or on a CPU.
        events: by start, those that enclose others first.
        rows: where they ran.
        arrows: between them.
        begin_us: the trace's first event on the clock of the trace, to compare ranks.
        notes: what could not be used, one line each: a torn end, events without times.
        groups: ranks of the process groups by name, where the trace lists them.
        is_replay: it was written by a replay, not by a profiler.
    """

    path: Path
    rank: int | None
    world_size: int | None
    backend: str
    device_name: str
    events: Sequence[TraceEvent]
    rows: Sequence[Row]
    arrows: Sequence[Arrow]
    begin_us: float
    notes: Sequence[str] = ()
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    is_replay: bool = False
