"""Power of a GPU: the clock of matrix products below the board's own limit, and a node's power beside its boards.

At the board's own limit the ratio is 1; what sustained load costs there is in ``sustained.py``. Below it, power is
static power and switching: P = P_static + c · V² · f. Between the lowest and the highest voltage, V follows f, so
switching goes with f to the power of two to three.
"""

from __future__ import annotations

from functools import lru_cache
from math import log
from pathlib import Path

from pydantic import Field

from predictor.core.base.read_yaml import read_mapping
from predictor.core.hardware.hardware import Gpu, Quantity

DATA = Path(__file__).with_name("node_power.yaml")
ASSUMED = "assumed"
# Share of the board's power that flows without switching: an idle H100 SXM draws about 70 W of 700, an A100 about 50
# to 60 W of 400 (nvidia-smi without load; leakage of a warm chip comes on top, so this is a lower bound).
STATIC_SHARE = 0.12
# Exponent of the clock in switching power: 3 where the voltage falls in proportion to the clock, 2 where half as much.
# Voltages of NVIDIA GPUs are constant at low clocks and linear, with an offset, above: Guerreiro et al. 2018,
# "GPGPU Power Modeling for Multi-Domain Voltage-Frequency Scaling", HPCA.
EXPONENT = 2.5
EXPONENT_RANGE = (2.0, 3.0)
# Clock over the full one below which the voltage may fall no further, so that the slow end of the interval falls with
# the power itself: assumed. Measured products needed up to 1.5 times the switching power of their limit, 0.85 of the
# clock (``costs/sustained.py``); what a lower limit does is extrapolated.
VOLTAGE_FLOOR = 0.6


class NodePower(Quantity):
    """A node's power beside its boards' limits, per GPU, with the least and the most of nodes that were measured."""

    low: float = Field(gt=0)
    high: float = Field(gt=0)


@lru_cache(maxsize=1)
def _sheets() -> dict[str, NodePower]:
    return {name: NodePower.model_validate(sheet) for name, sheet in read_mapping(DATA).items()}


def node_power_per_gpu_w(gpu: Gpu) -> NodePower:
    """Return a node's power beside the limits of its GPUs' boards, per GPU; assumed where no node was measured."""
    return _sheets().get(gpu.name, _sheets()[ASSUMED])


def _clock(switching: float, exponent: float) -> float:
    return float(switching ** (1.0 / exponent))


def static_power_w(gpu: Gpu) -> float | None:
    """Return what flows without switching; None where the board's power is not known."""
    return None if gpu.board_power_w is None else STATIC_SHARE * gpu.board_power_w.value


def switching_share(gpu: Gpu) -> float:
    """Return the switching power under a GPU's limit over that under its board's own."""
    if gpu.power_limit_w is None or gpu.board_power_w is None:
        return 1.0
    board, limit = gpu.board_power_w.value, gpu.power_limit_w.value
    static = STATIC_SHARE * board
    lowest = 0.05  # just above static power the clock is the lowest
    return min(1.0, max(lowest, (limit - static) / (board - static)))


def clock_ratio(gpu: Gpu) -> float:
    """Return the clock of matrix products under a GPU's power limit over that under its board's own; 1 without one."""
    return _clock(switching_share(gpu), EXPONENT)


def clock_log_error(gpu: Gpu) -> float:
    """Return the half width of what is not known about ``clock_ratio``, as a log."""
    switching = switching_share(gpu)
    slow, fast = (_clock(switching, exponent) for exponent in EXPONENT_RANGE)
    if slow < VOLTAGE_FLOOR:
        slow = VOLTAGE_FLOOR * switching / VOLTAGE_FLOOR ** EXPONENT_RANGE[0]
    return 0.5 * abs(log(fast / slow))
