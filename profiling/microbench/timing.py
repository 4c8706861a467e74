"""The one timing policy: how often, how cold and by which clock a call is timed.

- Warm-up runs until three calls in a row agree, so that clocks, allocator and lazily compiled kernels have settled.
- Before every timed pass a buffer larger than the last level of cache, or of the sweep's size, is overwritten: in
  a training step the rest of the model runs between two calls of one operator, so its inputs are cold.
- Forward and backward take turns, and a repetition is a pair: they are never sorted apart. The backward pass is
  ``torch.autograd.grad``: gradients are computed, not added to others, which is a kernel of its own.
- Calls of one batch take turns: a disturbance of a second costs each of them a sample, not one of them all of its.
- Repetitions go on until the median is known to ``precision`` (95 % interval of a median, 1.57 · IQR / √n: McGill,
  Tukey and Larsen 1978, doi:10.2307/2683468), or the time or number allowed is spent. Every sample is kept.
- On a GPU, device events time the pass twice: from an idle device, which counts the gaps while the host launches kernel
  after kernel; and behind a delay that keeps the device busy until the host is done, which leaves the kernels alone.
- On a CPU nothing is launched and the two would coincide, but the host may run somebody else in between. So a
  monotonic clock takes the whole, and with one thread the thread's own processor time stands for the kernels alone.
- A collective is timed in blocks of calls, each from a barrier on and as long as on its slowest rank; the first calls,
  which set up connections and buffers, decide how many make a block and are not kept. Its buffers are not flushed from
  the cache: a gradient bucket is sent as soon as it is computed. nccl-tests times by itself, as often as it is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from microbench.call import Call
from microbench.device import Device
from microbench.rows import Measurement, Status, interquartile_range
from predictor.costs.operator import Direction, Shape

STEADY_CALLS = 3
STEADY_WITHIN = 0.1
NOTCH = 1.57
FLUSH_TIMES_CACHE = 1.25
FLUSH_ELEMENT_BYTES = 4  # fp32, which a processor overwrites fastest
FIRST_DELAY_CYCLES = 2_000_000
LONGEST_DELAY_CYCLES = 1_000_000_000
DELAY_GROWTH = 4
LONGEST_REASON = 200
# Of collectives: calls in a pilot, and pilots.
PILOT_CALLS = 3
PILOTS = 3
SHORTEST_US = 1e-3
# Of nccl-tests: -n and -w.
NCCL_TESTS_ITERATIONS = 20
NCCL_TESTS_WARM_UP = 5


class Policy(BaseModel):
    """How much effort a row is worth; part of a sweep."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    precision: float = Field(gt=0, lt=1, description="wanted half-width of the median's 95 % interval, relative")
    fewest_samples: int = Field(ge=3, description="repetitions in any case, unless one takes longer than the budget")
    most_samples: int = Field(ge=3, description="repetitions at most")
    budget_ms: float = Field(gt=0, description="time for one call's repetitions, both directions")
    warmup_ms: float = Field(gt=0, description="time for warming up at most")
    flush_mb: float | None = Field(
        default=None, gt=0, description="overwritten before each pass, 10⁶ bytes (default: more than the last cache)"
    )
    batch: int = Field(
        default=1, ge=1, description="calls that take turns; more than one where others share the machine"
    )


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a collective is timed: so many blocks of calls, each about so long."""

    samples: int
    block_us: float
    most_calls: int

    def take(
        self, time_us: Callable[[int], float], slowest: Callable[[Sequence[float]], Sequence[float]]
    ) -> list[float]:
        """Return samples in µs per call; every rank gets the same.

        Args:
            time_us: runs so many calls in a row on this rank and returns their time.
            slowest: turns this rank's times into the longest of all ranks', one by one.
        """
        pilots = slowest([time_us(PILOT_CALLS) / PILOT_CALLS for _ in range(PILOTS)])
        calls = max(1, min(int(self.block_us / max(min(pilots), SHORTEST_US)), self.most_calls))
        return list(slowest([time_us(calls) / calls for _ in range(self.samples)]))


@dataclass(slots=True)
class Samples:
    """What one direction's repetitions took, in microseconds."""

    whole_us: list[float] = field(default_factory=list)
    kernel_us: list[float] = field(default_factory=list)

    def known_to(self, precision: float) -> bool:
        """Return whether the median's 95 % interval is narrow enough."""
        times = self.kernel_us or self.whole_us
        return NOTCH * interquartile_range(times) <= precision * median(times) * sqrt(len(times))


class CpuClock:
    """Times a pass on the processor."""

    def __init__(self, device: Device, flush_bytes: int) -> None:
        """Reserve the buffer that flushes the cache."""
        import torch

        self._buffer = torch.zeros(flush_bytes // FLUSH_ELEMENT_BYTES)
        self._one_thread = device.multiprocessors == 1

    def time(self, run: Callable[[], Any], samples: Samples) -> Any:
        """Run a pass with a cold cache, add its time to the samples, and return its output."""
        self._buffer.add_(1)
        start, own_start = time.perf_counter_ns(), time.thread_time_ns()
        output = run()
        own_end, end = time.thread_time_ns(), time.perf_counter_ns()
        samples.whole_us.append((end - start) / 1e3)
        if self._one_thread:
            samples.kernel_us.append((own_end - own_start) / 1e3)
        return output

    def seconds(self) -> float:
        """Return the time that a budget is counted in: this thread's, so that a busy host leaves as many samples."""
        return time.thread_time()


class CudaClock:
    """Times a pass on a GPU, with and without the gaps between its kernels."""

    def __init__(self, flush_bytes: int) -> None:
        """Reserve the buffer that flushes the cache."""
        import torch

        self._cuda: Any = torch.cuda
        self._buffer = torch.zeros(flush_bytes // FLUSH_ELEMENT_BYTES, device="cuda")
        self._delay = FIRST_DELAY_CYCLES

    def time(self, run: Callable[[], Any], samples: Samples) -> Any:
        """Run a pass twice with a cold cache, add its two times to the samples, and return its last output."""
        self._buffer.add_(1)
        self._cuda.synchronize()
        output, start, end = self._between_events(run)
        samples.whole_us.append(start.elapsed_time(end) * 1e3)
        while self._delay <= LONGEST_DELAY_CYCLES:
            self._buffer.add_(1)
            self._cuda._sleep(self._delay)
            output, start, end = self._between_events(run, was_ahead := [False])
            if was_ahead[0]:
                samples.kernel_us.append(start.elapsed_time(end) * 1e3)
                break
            self._delay *= DELAY_GROWTH
        return output

    def seconds(self) -> float:
        """Return the time that a budget is counted in."""
        return time.perf_counter()

    def _between_events(self, run: Callable[[], Any], was_ahead: list[bool] | None = None) -> tuple[Any, Any, Any]:
        """Run between two events; say whether the host was done before the device began."""
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        output = run()
        end.record()
        if was_ahead is not None:
            was_ahead[0] = not start.query()
        self._cuda.synchronize()
        return output, start, end


Clock = CpuClock | CudaClock


def clock_for(device: Device, policy: Policy) -> Clock:
    """Return the device's clock."""
    flush_bytes = int(policy.flush_mb * 1e6 if policy.flush_mb else device.cache_bytes * FLUSH_TIMES_CACHE)
    return CudaClock(flush_bytes) if device.kind == "cuda" else CpuClock(device, flush_bytes)


def _no_memory(text: str) -> bool:
    text = text.lower()
    return "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text


class Timed:
    """A call that is being timed: its tensors, its samples, and what went wrong if something did."""

    def __init__(
        self, build: Callable[[], Call], shape: Shape, directions: tuple[Direction, ...], clock: Clock, policy: Policy
    ) -> None:
        """Build the call and warm it up; a shape that does not fit, or that no kernel takes, fails here."""
        self.shape = shape
        self._directions = directions
        self._clock = clock
        self._policy = policy
        self._call: Call | None = None
        self._gradients: tuple[Any, ...] = ()
        self._samples = self._empty()
        self._spent_s = 0.0
        self._failure: tuple[Status, str] | None = None
        self._guarded(lambda: self._warm_up(build))
        self._spent_s = 0.0

    @property
    def is_known(self) -> bool:
        """Return whether no further repetition is wanted."""
        taken = list(self._samples.values())
        count = len(taken[0].whole_us)
        known = count >= self._policy.fewest_samples and all(s.known_to(self._policy.precision) for s in taken)
        enough = known or count >= self._policy.most_samples or self._spent_s * 1e3 > self._policy.budget_ms
        return self._failure is not None or (enough and count > 0)

    def repeat(self) -> None:
        """Time every direction once more."""
        self._guarded(self._repeat)

    def rows(self) -> list[Measurement]:
        """Return one row per direction."""
        if self._failure is not None:
            status, reason = self._failure
            return [Measurement(self.shape, direction, (), reason, status) for direction in self._directions]
        assert self._call is not None
        return [
            Measurement(
                self.shape, direction, tuple(taken.whole_us), self._call.kernel, Status.OK, tuple(taken.kernel_us)
            )
            for direction, taken in self._samples.items()
        ]

    def _empty(self) -> dict[Direction, Samples]:
        return {direction: Samples() for direction in self._directions}

    def _guarded(self, run: Callable[[], None]) -> None:
        start = self._clock.seconds()
        try:
            run()
        except MemoryError as error:
            self._fail(Status.OUT_OF_MEMORY, str(error) or "out of memory")
        except (
            RuntimeError,
            ValueError,
        ) as error:  # what torch raises for a shape that a kernel refuses, or has no room for
            text = str(error).strip() or type(error).__name__
            self._fail(
                Status.OUT_OF_MEMORY if _no_memory(text) else Status.ERROR, text.splitlines()[0][:LONGEST_REASON]
            )
        self._spent_s += self._clock.seconds() - start

    def _fail(self, status: Status, reason: str) -> None:
        """Remember what went wrong and let go of every tensor."""
        self._failure, self._call, self._gradients = (status, reason), None, ()

    def _warm_up(self, build: Callable[[], Call]) -> None:
        self._call = build()
        deadline = self._clock.seconds() + self._policy.warmup_ms / 1e3
        self._repeat()
        while not _steady(self._samples) and self._clock.seconds() < deadline:
            self._repeat()
        self._samples = self._empty()

    def _repeat(self) -> None:
        assert self._call is not None
        output = self._clock.time(self._call.forward, self._samples[Direction.FORWARD])
        if Direction.BACKWARD in self._directions:
            self._clock.time(self._backward(output), self._samples[Direction.BACKWARD])

    def _backward(self, output: Any) -> Callable[[], Any]:
        """Return the backward pass of a forward pass that has just run; the gradient that enters it is made once."""
        assert self._call is not None
        if self._call.backward is not None:
            return self._call.backward
        import torch

        inputs = self._call.inputs
        outputs = output if isinstance(output, tuple) else (output,)
        self._gradients = self._gradients or tuple(torch.randn_like(tensor) for tensor in outputs)
        return lambda: torch.autograd.grad(outputs, inputs, self._gradients)


def _steady(samples: dict[Direction, Samples]) -> bool:
    """Return whether the last repetitions agree."""
    per_direction = [taken.kernel_us or taken.whole_us for taken in samples.values()]
    totals = [sum(times) for times in zip(*per_direction, strict=False)][-STEADY_CALLS:]
    return len(totals) == STEADY_CALLS and max(totals) <= min(totals) * (1.0 + STEADY_WITHIN)


def take_turns(calls: Sequence[Timed]) -> Iterator[Timed]:
    """Repeat every call until it is known, one repetition of each at a time; yield each as soon as it is."""
    pending = list(calls)
    while pending:
        yield from (call for call in pending if call.is_known)
        pending = [call for call in pending if not call.is_known]
        for call in pending:
            call.repeat()


# Of a whole training step: steps before the first timed one, and timed ones. Every step starts on an idle device, and
# nothing is flushed: a step of a model's size leaves no cache of the last one's.
STEP_WARM_UP = 3
STEP_SAMPLES = 10


@dataclass(frozen=True, slots=True)
class StepTime:
    """One training step, in microseconds.

    Attributes:
        device_us: from the first event to the last; on a CPU by the clock on the wall, like the parts.
        wall_us: from an idle device to an idle device, by the host's clock.
        parts_us: by name, each the sum of its pieces over micro-batches; together they are ``device_us``.
    """

    device_us: float
    wall_us: float
    parts_us: dict[str, float]


def time_step(run: Callable[[Callable[[str], None]], None], device_kind: str) -> StepTime:
    """Run a training step once and time it; the device is waited for before and behind it, and nowhere between.

    Args:
        run: the step; it calls what it is given with a part's name whenever a piece of that part has been launched.
        device_kind: cpu or cuda.
    """
    import torch

    cuda: Any = torch.cuda if device_kind == "cuda" else None

    def stamp() -> Any:
        if cuda is None:
            return time.perf_counter_ns()
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_us(start: Any, end: Any) -> float:
        return float((end - start) / 1e3 if cuda is None else start.elapsed_time(end) * 1e3)

    if cuda is not None:
        cuda.synchronize()
    began = time.perf_counter_ns()
    first = stamp()
    stamps: list[tuple[str, Any]] = []
    run(lambda part: stamps.append((part, stamp())))
    if cuda is not None:
        cuda.synchronize()
    wall_us = (time.perf_counter_ns() - began) / 1e3
    parts_us: dict[str, float] = {}
    before = first
    for part, after in stamps:
        parts_us[part] = parts_us.get(part, 0.0) + between_us(before, after)
        before = after
    return StepTime(between_us(first, before), wall_us, parts_us)
