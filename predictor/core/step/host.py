"""Host launch overhead per pass: time that the device waits for kernel launches.

Eager frameworks launch every kernel from one host thread. While kernels are long the device never notices; with small
micro-batches it finishes them faster than the host issues the next, and a pass takes as long as its launches. Where
the host waits for the device after every layer, launching and running take turns, and the launches come on top.

The cost of one launch is a system's own, read off its RoPE tables, an operator of ten kernels forward and eighteen
backward: the host's time to launch a pass where the table has it, else the duration at which shorter calls stop
getting shorter. A workload says how many launches a pass is worth
(``HostWork``); docs/adr/0005-host.md has their sources.
"""

from __future__ import annotations

from predictor.core.costs.calibration import factor
from predictor.core.hardware.hardware import System


def launch_us(system: System, launches: float, backward: bool) -> float:
    """Return the host time of so many launches, in microseconds; 0 on a system whose launches were not measured."""
    per_launch = system.host.get("launch_backward_us" if backward else "launch_forward_us")
    return 0.0 if per_launch is None else launches * per_launch.value * factor(system, "host")


def waiting_us(launching_us: float, device_us: float, synchronized: bool) -> float:
    """Return how long the device waits for the host in a pass that runs ``device_us`` of kernels.

    Args:
        launching_us: host time of the pass.
        device_us: time of its kernels.
        synchronized: host and device take turns; otherwise they overlap and the longer one decides.
    """
    return launching_us if synchronized else max(0.0, launching_us - device_us)
