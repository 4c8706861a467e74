"""Clocks of a timed pass: CPU time, or GPU events with and without host time.

On a GPU a pass is timed in two ways. From an idle device, which counts the gaps while the host launches kernel after
kernel. And behind a delay that keeps the device busy until the host has launched everything, which leaves the kernels
alone. The delay is the pass's own: as long as the host needed for it, lengthened where that was too short, and never
past ``LONGEST_DELAY_US``. A pass of more launches than the GPU's queue holds (about a thousand) cannot be launched
ahead by any delay: the host waits until the device has taken some. Such a pass is host-bound, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from microbench.device import Device
from microbench.nvml import gpu_state
from microbench.rows import DeviceState

FLUSH_ELEMENT_BYTES = 4  # fp32, which a processor overwrites fastest
# The delay over the host's time for a pass, and what is added for the events around it.
DELAY_MARGIN, DELAY_SLACK_US = 1.5, 30.0
DELAY_GROWTH = 4.0
LONGEST_DELAY_US = 50_000.0
MOST_FALLS = 2
KHZ_OF_MHZ, USUAL_CLOCK_KHZ = 1e3, 1_980_000


@dataclass(slots=True)
class Samples:
    """Times of the repetitions of one direction, in microseconds.

    Attributes:
        whole_us: wall time; on a GPU from an idle device.
        kernel_us: kernels alone.
        host_us: the host's time to launch the pass.
        fell_behind: number of times that even the longest delay was too short for the host.
    """

    whole_us: list[float] = field(default_factory=list)
    kernel_us: list[float] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)
    fell_behind: int = 0

    @property
    def host_bound(self) -> bool:
        """Return whether the host cannot launch the pass ahead of the device; falling behind once is chance."""
        return self.fell_behind >= MOST_FALLS

    @property
    def count(self) -> int:
        """Return how often the pass was timed."""
        return max(len(self.whole_us), len(self.kernel_us))

    @property
    def best_us(self) -> list[float]:
        """Return the times of the kernels alone where there are any, else of the whole."""
        return self.kernel_us or self.whole_us

    def forget_times(self) -> None:
        """Drop the warm-up's times, but keep the shortest host time and whether the host fell behind."""
        self.whole_us, self.kernel_us, self.host_us = [], [], self.host_us and [min(self.host_us)]


def host_us(run: Callable[[], object], times: int) -> float:
    """Return the time of so many runs in a row by the host's clock, in µs."""
    start = time.perf_counter_ns()
    for _ in range(times):
        run()
    return (time.perf_counter_ns() - start) / 1e3


def device_us(run: Callable[[], object], times: int) -> float:
    """Return the time of so many runs in a row on the GPU, from event to event, in µs."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def sleep_cycles(us: float) -> int:
    """Return the argument of ``torch.cuda._sleep`` for so long, at the GPU's highest clock."""
    import torch

    clock_khz = getattr(torch.cuda.get_device_properties(0), "clock_rate", 0) or USUAL_CLOCK_KHZ
    return int(us * clock_khz / KHZ_OF_MHZ)


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
        """Return this thread's time: budgets count it, so that a busy host leaves as many samples."""
        return time.thread_time()

    def state(self) -> DeviceState:
        """Return no state: a processor's is recorded once per session."""
        return DeviceState()

    def is_lost(self) -> bool:
        """Return False: a processor is never lost."""
        return False


class CudaClock:
    """Times a pass on a GPU, with and without the gaps between its kernels.

    Args:
        flush_bytes: overwritten before every pass.
        whole_samples: passes from an idle device; further ones time the kernels alone, which is what is fitted.
    """

    def __init__(self, flush_bytes: int, whole_samples: int) -> None:
        """Reserve the buffer that flushes the cache."""
        import torch

        self._cuda: Any = torch.cuda
        self._buffer = torch.zeros(flush_bytes // FLUSH_ELEMENT_BYTES, device="cuda")
        self._whole_samples = whole_samples
        self._start, self._end = (self._cuda.Event(enable_timing=True) for _ in range(2))

    def time(self, run: Callable[[], Any], samples: Samples) -> Any:
        """Run a pass with a cold cache, add its times to the samples, and return its last output."""
        output = None
        if len(samples.whole_us) < self._whole_samples or samples.host_bound:
            self._buffer.add_(1)
            self._cuda.synchronize()
            output, host_us, _ = self._between_events(run)
            samples.whole_us.append(self._elapsed_us())
            samples.host_us = samples.host_us or [host_us]
        if not samples.host_bound:
            del output  # two outputs at a time would need twice the memory
            output = self._behind_delay(run, samples)
        return output

    def seconds(self) -> float:
        """Return the time that budgets count."""
        return time.perf_counter()

    def state(self) -> DeviceState:
        """Return the GPU's current state."""
        return gpu_state()

    def is_lost(self) -> bool:
        """Return whether the device fails every call, as after an illegal access."""
        try:
            self._cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def _behind_delay(self, run: Callable[[], Any], samples: Samples) -> Any:
        """Run a pass behind a delay of the host's launch time; lengthen the delay where it was too short."""
        # The shortest: a first pass also loads kernels and allocates.
        delay_us = min(DELAY_MARGIN * min(samples.host_us) + DELAY_SLACK_US, LONGEST_DELAY_US)
        while True:
            self._buffer.add_(1)
            self._cuda._sleep(sleep_cycles(delay_us))
            output, host_us, was_ahead = self._between_events(run)
            if was_ahead:
                samples.kernel_us.append(self._elapsed_us())
                samples.host_us.append(host_us)
                return output
            if delay_us >= LONGEST_DELAY_US:
                samples.fell_behind += 1
                return output
            delay_us = min(delay_us * DELAY_GROWTH, LONGEST_DELAY_US)
            del output

    def _elapsed_us(self) -> float:
        return float(self._start.elapsed_time(self._end)) * 1e3

    def _between_events(self, run: Callable[[], Any]) -> tuple[Any, float, bool]:
        """Run between the two events; return the output, the host's µs, and whether the device had not yet begun."""
        self._start.record()
        begin = time.perf_counter()
        output = run()
        host_us = (time.perf_counter() - begin) * 1e6
        self._end.record()
        was_ahead = not self._start.query()
        self._cuda.synchronize()
        return output, host_us, was_ahead


Clock = CpuClock | CudaClock
