"""What the host adds to a layer's pass: launching that the device waits for.

Eager frameworks launch every kernel from one host thread. While kernels are long the device never notices; with small
micro-batches it finishes them faster than the host issues the next, and a pass takes as long as its launches. Where
the host waits for the device after every layer, launching and running take turns, and the launches come on top.

The cost of one launch is a system's own, read off its RoPE tables, an operator of ten kernels forward and eighteen
backward: the host's time to launch a pass where the table has it, else the duration at which shorter calls stop
getting shorter. Counts and their sources: docs/adr/0005-host.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from predictor.costs.hardware import System
from predictor.workloads.tasks import Task

# Views, module calls, autograd functions and random-state bookkeeping of one layer's pass, as launches' worth of host
# time.
LAYER_OVERHEAD = 10.0
# Without a graph to record (the forward pass of a recomputed layer) an operation costs the host a little less.
WITHOUT_GRAPH = 0.85


def launch_us(system: System, tasks: Sequence[Task], backward: bool, records_graph: bool = True) -> float:
    """Return the host time of one layer's pass, in microseconds; 0 on a system whose launches nobody measured."""
    per_launch = system.host.get("launch_backward_us" if backward else "launch_forward_us")
    if per_launch is None:
        return 0.0
    launches = LAYER_OVERHEAD + sum(task.launches for task in tasks)
    return launches * per_launch.value * (1.0 if records_graph else WITHOUT_GRAPH)


def waiting_us(launching_us: float, device_us: float, synchronized: bool) -> float:
    """Return how long the device waits for the host in a pass that runs ``device_us`` of kernels.

    Args:
        launching_us: host time of the pass.
        device_us: time of its kernels.
        synchronized: host and device take turns; otherwise they overlap and the longer one decides.
    """
    return launching_us if synchronized else max(0.0, launching_us - device_us)
