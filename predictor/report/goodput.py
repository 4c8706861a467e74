"""Goodput of a long training: what failures, restarts and checkpoints leave of its time."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt

from predictor.configuration.sections import BudgetSection
from predictor.costs.hardware import System

MINUTES_PER_HOUR, SECONDS_PER_HOUR = 60.0, 3600.0
# GPU-hours between interruptions: 419 unexpected ones of a job on 16,384 H100s in 54 days.
# Source: Llama Team 2024, arXiv:2407.21783, section 3.3.4 and table 5.
MTBF_PER_GPU_HOURS = 16_384 * 54 * 24 / 419
# From a failure to the first new step: detection and diagnosis take less than 10 minutes.
# Source: Jiang et al. 2024 (MegaScale), arXiv:2402.15627, section 4.
RESTART_MINUTES = 10.0
# Training waits until weights and optimizer states are in host memory, and writing goes on beside it.
# Source: MegaScale, section 4.4, two-stage checkpointing. Where the host link is not known, 25 GB/s are assumed, below
# the 31.5 GB/s of PCIe 4.0 x16.
HOST_GB_PER_S = 25.0


@dataclass(frozen=True, slots=True)
class Goodput:
    """A training among failures.

    Attributes:
        share: time of steps that count over wall time.
        hours: wall time, with what failures and checkpoints cost.
        failures: expected in that time.
        checkpoint_interval_hours: between checkpoints.
        checkpoint_seconds: that training waits for one.
    """

    share: float
    hours: float
    failures: float
    checkpoint_interval_hours: float
    checkpoint_seconds: float


def expected_share(interval: float, checkpoint: float, restart: float, mtbf: float) -> float:
    """Return the share of time that counts where failures are exponentially distributed; all times in one unit.

    Source: Daly 2006, doi:10.1016/j.future.2004.11.016, equation 20.

    >>> round(expected_share(1.0, 0.0, 0.0, 1e9), 6)
    1.0
    """
    return interval / (mtbf * exp(restart / mtbf) * (exp((interval + checkpoint) / mtbf) - 1.0))


def goodput(hours: float, num_gpus: int, states_bytes: float, system: System, budget: BudgetSection) -> Goodput:
    """Return the goodput of a training that takes so many hours without failures.

    The interval between checkpoints is Young's, √(2 · checkpoint · MTBF), unless the budget says another; a training
    of less than that saves once, at its end. Source: Young 1974, doi:10.1145/361147.361115.

    Args:
        hours: of all steps.
        num_gpus: of the run; any failure stops it.
        states_bytes: of weights and optimizer on one GPU.
        system: with its host link.
        budget: MTBF, restart and checkpoint, where they are given.
    """
    mtbf = (budget.mtbf_per_gpu_hours or MTBF_PER_GPU_HOURS) / num_gpus
    link = system.links.host_gb_per_s.value if system.links.host_gb_per_s is not None else HOST_GB_PER_S
    seconds = budget.checkpoint_seconds if budget.checkpoint_seconds is not None else states_bytes / 1e9 / link
    checkpoint, restart = seconds / SECONDS_PER_HOUR, (budget.restart_minutes or RESTART_MINUTES) / MINUTES_PER_HOUR
    if budget.checkpoint_interval_minutes is not None:
        interval = budget.checkpoint_interval_minutes / MINUTES_PER_HOUR
    else:
        interval = sqrt(2.0 * checkpoint * mtbf) or hours
    interval = min(interval, hours)
    share = expected_share(interval, checkpoint, restart, mtbf)
    return Goodput(share, hours / share, hours / share / mtbf, interval, seconds)
