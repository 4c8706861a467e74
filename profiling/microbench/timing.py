"""The timing policy: repetitions, cache flush and clock of a timed call.

- Warm-up runs until three calls in a row agree, so that clocks, allocator and lazily compiled kernels have settled.
- Before every timed pass a buffer larger than the last level of cache, or of the sweep's size, is overwritten: in
  a training step the rest of the model runs between two calls of one operator, so its inputs are cold. On a GPU it has
  at least 256 MB, several times any L2 cache.
- Forward and backward take turns, and a repetition is a pair: they are never sorted apart. The backward pass is
  ``torch.autograd.grad``: gradients are computed, not added to others, which is a kernel of its own. The graph is kept,
  since a clock may run a pass more than once.
- Calls of one batch take turns: a disturbance of a second costs each of them a sample, not one of them all of its.
- Repetitions go on until the median is known to ``precision`` (95 % interval of a median, 1.57 · IQR / √n: McGill,
  Tukey and Larsen 1978, doi:10.2307/2683468), or the time or number allowed is spent. Every sample is kept.
- On a GPU, device events time the pass in two ways, with and without the host's part: clocks.py. What is fitted is the
  kernels' time, so a pass is timed from an idle device ``fewest_samples`` times only.
- On a CPU nothing is launched and the two would coincide, but the host may run another process in between. So a
  monotonic clock takes the whole, and with one thread the thread's own processor time stands for the kernels alone.
- A collective is timed in blocks of calls, each from a barrier on and as long as on its slowest rank; the first calls,
  which set up connections and buffers, decide how many make a block and are not kept. Its buffers are not flushed from
  the cache: a gradient bucket is sent as soon as it is computed. nccl-tests times its calls itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Any

from pydantic import Field

from microbench.call import Call
from microbench.clocks import Clock, CpuClock, CudaClock, Samples
from microbench.device import Device
from microbench.provenance import Closed
from microbench.rows import DeviceState, Measurement, Status, interquartile_range
from predictor.core.costs.operator import Direction, Shape

SETTLED_CALLS = 3
SETTLED_WITHIN = 0.1
NOTCH = 1.57
FLUSH_TIMES_CACHE = 1.25
LEAST_GPU_FLUSH_BYTES = 256_000_000
LONGEST_REASON = 200
# Errors of a kernel for a shape that it does not support or has no memory for, and of another version's interface.
KERNEL_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, ImportError, LookupError, AssertionError)
NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
# Errors after which every later CUDA call of the process fails. Source: CUDA Runtime API, cudaError_t: those for which
# the process must be terminated and relaunched.
LOST_DEVICE = (
    "illegal memory access", "illegal instruction", "device-side assert", "misaligned address", "context is destroyed",
    "unspecified launch failure", "hardware stack error", "invalid program counter", "invalid address space",
    "uncorrectable ecc", "launch timed out", "operation not supported on global/shared address space",
)  # fmt: skip
# Of collectives: calls in a pilot, and pilots.
PILOT_CALLS = 3
PILOTS = 3
SHORTEST_US = 1e-3
# Of nccl-tests: -n and -w.
NCCL_TESTS_ITERATIONS = 20
NCCL_TESTS_WARM_UP = 5


class Policy(Closed):
    """Repetitions and time budget per row; part of a sweep."""

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
    """Timing of a collective: number and length of its blocks of calls."""

    samples: int
    block_us: float
    most_calls: int

    def take(
        self, time_us: Callable[[int], float], slowest: Callable[[Sequence[float]], Sequence[float]]
    ) -> list[float]:
        """Return samples in µs per call, the same on every rank.

        Args:
            time_us: runs so many calls in a row on this rank and returns their time.
            slowest: returns the element-wise maximum of all ranks' times.
        """
        pilots = slowest([time_us(PILOT_CALLS) / PILOT_CALLS for _ in range(PILOTS)])
        calls = max(1, min(int(self.block_us / max(min(pilots), SHORTEST_US)), self.most_calls))
        return list(slowest([time_us(calls) / calls for _ in range(self.samples)]))


def known_to(samples: Samples, precision: float) -> bool:
    """Return whether the median's 95 % interval is narrow enough."""
    times = samples.best_us
    return NOTCH * interquartile_range(times) <= precision * median(times) * sqrt(len(times))


def clock_for(device: Device, policy: Policy) -> Clock:
    """Return the device's clock."""
    flush_bytes = int(policy.flush_mb * 1e6 if policy.flush_mb else device.cache_bytes * FLUSH_TIMES_CACHE)
    if device.kind == "cpu":
        return CpuClock(device, flush_bytes)
    return CudaClock(max(flush_bytes, LEAST_GPU_FLUSH_BYTES), policy.fewest_samples)


def failure_of(error: Exception, is_lost: Callable[[], bool]) -> tuple[Status, str]:
    """Return the status that an error stands for (out of memory, device lost, error) and its first line.

    Args:
        error: one of ``KERNEL_ERRORS``, or MemoryError.
        is_lost: returns whether the device is lost, where the error's text does not tell.
    """
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:LONGEST_REASON]
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(words in text for words in NO_MEMORY):
        return Status.OUT_OF_MEMORY, reason
    lost = any(words in text for words in LOST_DEVICE) or is_lost()
    return (Status.DEVICE_LOST if lost else Status.ERROR), reason


class Timed:
    """A call that is being timed: its tensors, its samples and its failure.

    Attributes:
        shape: of the call.
    """

    def __init__(
        self, build: Callable[[], Call], shape: Shape, directions: tuple[Direction, ...], clock: Clock, policy: Policy
    ) -> None:
        """Build the call and warm it up; an error of either becomes the rows' status."""
        self.shape = shape
        self._directions = directions
        self._clock = clock
        self._policy = policy
        self._call: Call | None = None
        self._gradients: tuple[Any, ...] = ()
        self._samples = {direction: Samples() for direction in directions}
        self._spent_s = 0.0
        self._failure: tuple[Status, str] | None = None
        self._guarded(lambda: self._warm_up(build))
        self._spent_s = 0.0

    @property
    def is_known(self) -> bool:
        """Return whether the medians are known well enough, or the budget is spent."""
        taken = list(self._samples.values())
        count = min(samples.count for samples in taken)
        known = count >= self._policy.fewest_samples and all(known_to(s, self._policy.precision) for s in taken)
        enough = known or count >= self._policy.most_samples or self._spent_s * 1e3 > self._policy.budget_ms
        return self._failure is not None or (enough and count > 0)

    def repeat(self) -> None:
        """Time every direction once more."""
        self._guarded(self._repeat)

    def finish(self) -> list[Measurement]:
        """Return a row per direction and free every tensor: the next call may need all memory."""
        state, kernel = self._clock.state(), self._call.kernel if self._call else ""
        self._call, self._gradients = None, ()
        if self._failure is not None:
            status, reason = self._failure
            return [Measurement(self.shape, direction, (), reason, status) for direction in self._directions]
        return [self._row(direction, taken, kernel, state) for direction, taken in self._samples.items()]

    def _row(self, direction: Direction, taken: Samples, kernel: str, state: DeviceState) -> Measurement:
        status = Status.HOST_BOUND if taken.host_bound and not taken.kernel_us else Status.OK
        host_us = median(taken.host_us) if taken.host_us else None
        times = tuple(taken.whole_us), tuple(taken.kernel_us)
        return Measurement(self.shape, direction, times[0], kernel, status, times[1], host_us, state)

    def _guarded(self, run: Callable[[], None]) -> None:
        start = self._clock.seconds()
        try:
            run()
        except (MemoryError, *KERNEL_ERRORS) as error:
            self._call, self._gradients = None, ()  # and the tensors that the traceback holds
            self._failure = failure_of(error.with_traceback(None), self._clock.is_lost)
        self._spent_s += self._clock.seconds() - start

    def _warm_up(self, build: Callable[[], Call]) -> None:
        self._call = build()
        deadline = self._clock.seconds() + self._policy.warmup_ms / 1e3
        self._repeat()
        while not _has_settled(self._samples) and self._clock.seconds() < deadline:
            self._repeat()
        for samples in self._samples.values():
            samples.forget_times()

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
        return lambda: torch.autograd.grad(outputs, inputs, self._gradients, retain_graph=True)


def _has_settled(samples: dict[Direction, Samples]) -> bool:
    """Return whether the last repetitions agree."""
    per_direction = [taken.best_us for taken in samples.values()]
    totals = [sum(times) for times in zip(*per_direction, strict=False)][-SETTLED_CALLS:]
    return len(totals) == SETTLED_CALLS and max(totals) <= min(totals) * (1.0 + SETTLED_WITHIN)


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
        parts_us: by name, each summed over micro-batches; together they are ``device_us``.
    """

    device_us: float
    wall_us: float
    parts_us: dict[str, float]


def time_step(run: Callable[[Callable[[str], None]], None], device_kind: str) -> StepTime:
    """Run a training step once and time it, with synchronisation before and after it only.

    Args:
        run: the step; it calls its argument with a part's name after each launch of that part.
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
