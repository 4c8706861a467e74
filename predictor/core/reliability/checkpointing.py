"""Checkpoints of a job: how often, how long training waits for one, and how long it takes to write and to read."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from predictor.core.hardware.hardware import System
from predictor.core.reliability.job import MINUTES_PER_HOUR, SECONDS_PER_HOUR, Job
from predictor.core.reliability.reliability import Reliability
from predictor.core.schema.sections import BudgetSection

# Training waits until weights and optimizer states are in host memory, and writing goes on beside it.
# Source: MegaScale, arXiv:2402.15627, section 4.4, two-stage checkpointing. Where the host link is not known, 25 GB/s
# are assumed, below the 31.5 GB/s of PCIe 4.0 x16.
HOST_GB_PER_S = 25.0
# The least that training waits, however small its states are: barriers, planning and serialization. MegaScale says
# "several seconds". Source: PyTorch's blog, "Reducing Model Checkpointing Times by Over 10x with PyTorch Distributed
# Asynchronous Checkpointing" (2024): 6.3 seconds in the mean for a model of 7B parameters.
LEAST_CHECKPOINT_SECONDS = 6.3
# A GPU's share of the storage, written or read: 2 TB/s sustained beside 16,384 GPUs.
# Source: Llama Team 2024, arXiv:2407.21783, section 3.3.1 (Tectonic).
STORAGE_GB_PER_S_PER_GPU = 2000.0 / 16_384
# Times that writing takes from one checkpoint to the next, where nobody says how often: assumed, so that storage is
# busy with checkpoints a quarter of the time at most.
WRITES_APART = 4.0
# Nobody is advised to save more often. Meta's clusters save hourly, and "frequent checkpoints" there are one every 5
# minutes. Source: Kokolis et al. 2025, arXiv:2410.21680 (HPCA 2025).
LEAST_INTERVAL_MINUTES = 5.0


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """Checkpoints of a job.

    Attributes:
        interval_hours: of training between checkpoints.
        pause_hours: that training waits for one.
        write_hours: until one is in storage; an interruption before loses it.
        read_hours: until one is read back after an interruption.
        size_gb: that one writes.
    """

    interval_hours: float
    pause_hours: float
    write_hours: float
    read_hours: float
    size_gb: float


def best_interval(checkpoint: float, mtbf: float) -> float:
    """Return the time between checkpoints that leaves the most; all times in one unit.

    Young's √(2 · checkpoint · MTBF) holds where a checkpoint is short against the MTBF; this is the higher order.
    Source: Daly 2006, doi:10.1016/j.future.2004.11.016, equation 37.

    >>> round(best_interval(0.02, 100.0), 2)
    1.99
    """
    if checkpoint >= 2.0 * mtbf:
        return mtbf
    small = checkpoint / (2.0 * mtbf)
    return sqrt(2.0 * checkpoint * mtbf) * (1.0 + sqrt(small) / 3.0 + small / 9.0) - checkpoint


def checkpointing_of(job: Job, reliability: Reliability, budget: BudgetSection, system: System) -> Checkpointing:
    """Return the checkpoints of a job.

    A checkpoint is no sooner than the one before is written, and than a step; where nobody says how often, it is Daly's
    optimum, no sooner than the least interval and than several times the writing. A job of less saves once, at its end.

    Args:
        job: what is saved.
        reliability: the mean time between its failures decides the optimum.
        budget: storage and checkpoint, where they are given.
        system: with its host link.
    """
    link = system.links.host_gb_per_s.value if system.links.host_gb_per_s is not None else HOST_GB_PER_S
    storage = budget.storage_gb_per_s or STORAGE_GB_PER_S_PER_GPU * job.num_gpus
    write = job.whole_bytes / 1e9 / storage / SECONDS_PER_HOUR
    pause = max(job.gpu_bytes / 1e9 / link, LEAST_CHECKPOINT_SECONDS) / SECONDS_PER_HOUR
    if budget.checkpoint_async is False:
        pause += write
    if budget.checkpoint_seconds is not None:
        pause = budget.checkpoint_seconds / SECONDS_PER_HOUR
    least = (budget.least_checkpoint_interval_minutes or LEAST_INTERVAL_MINUTES) / MINUTES_PER_HOUR
    wanted = max(best_interval(pause, reliability.mtbf_hours(job.num_gpus)), WRITES_APART * write, least)
    if budget.checkpoint_interval_minutes is not None:
        wanted = budget.checkpoint_interval_minutes / MINUTES_PER_HOUR
    interval = min(max(wanted, write, job.step_s / SECONDS_PER_HOUR), job.hours)
    hidden = 0.0 if budget.checkpoint_async is False else write
    return Checkpointing(interval, pause, hidden, write, job.whole_bytes / 1e9)
