"""Host launch overhead per pass: time that the device waits for kernel launches.

Eager frameworks launch every kernel from one host thread. While kernels are long the device never notices; with small
micro-batches it finishes them faster than the host issues the next, and a pass takes as long as its launches. Where
the host waits for the device after every layer, launching and running take turns, and the launches come on top.

What one launch costs is known of the processor (``hardware/host_processor.py``); how many launches a pass is worth
(``HostWork``), of the software (``workload/host_stack.py``). docs/adr/0005-host.md has their sources.
"""

from __future__ import annotations

from predictor.core.costs.calibration import factor
from predictor.core.costs.cost import ZERO, Cost, Source
from predictor.core.hardware.hardware import System
from predictor.core.hardware.host_processor import host_of


def launch_cost(system: System, launches: float, backward: bool) -> Cost:
    """Return the host time of so many launches with its interval; none on a system whose launches are not known."""
    host = host_of(system)
    if host is None or not launches:
        return ZERO
    us, low_us, high_us = host.launch(backward)
    calibrated = launches * factor(system, "host")
    return Cost(calibrated * us, calibrated * low_us, calibrated * high_us, Source.EXTRAPOLATED)


def launch_us(system: System, launches: float, backward: bool) -> float:
    """Return the host time of so many launches, in microseconds; 0 on a system whose launches are not known."""
    return launch_cost(system, launches, backward).us


def waiting_us(launching_us: float, device_us: float, synchronized: bool) -> float:
    """Return how long the device waits for the host in a pass that runs ``device_us`` of kernels.

    Args:
        launching_us: host time of the pass.
        device_us: time of its kernels.
        synchronized: host and device take turns; otherwise they overlap and the longer one decides.
    """
    return launching_us if synchronized else max(0.0, launching_us - device_us)


def waiting(launching: Cost, device: Cost, synchronized: bool, least: Cost = ZERO, lead: Cost = ZERO) -> Cost:
    """Return how long the device waits for the host, with its interval, ``least`` or longer.

    The ends differ in what a launch costs alone: kernels take their predicted time in both.

    Args:
        launching: host time of the pass.
        device: time of its kernels.
        synchronized: host and device take turns.
        least: no shorter wait.
        lead: by which the host is ahead when the pass begins.
    """
    device_us = device.us
    us = max(least.us, waiting_us(launching.us, device_us, synchronized) - lead.us)
    low_us = max(least.low_us, waiting_us(launching.low_us, device_us, synchronized) - lead.low_us)
    high_us = max(least.high_us, waiting_us(launching.high_us, device_us, synchronized) - lead.high_us)
    return Cost(us, low_us, high_us, Source.EXTRAPOLATED if us else Source.MEASURED)


def lead(launching: Cost, device: Cost, share: float) -> Cost:
    """Return by how much the host is ahead of the device after a pass, a share of it; the ends as of ``waiting``."""
    us, low_us, high_us = (
        share * max(0.0, device.us - launching_us)
        for launching_us in (launching.us, launching.low_us, launching.high_us)
    )
    return Cost(us, low_us, high_us, Source.EXTRAPOLATED)
