"""Goodput of a long training: what interruptions, restarts and checkpoints leave of its time."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, sqrt
from typing import NamedTuple

from predictor.core.hardware.hardware import System
from predictor.core.schema.sections import BudgetSection

MINUTES_PER_HOUR, SECONDS_PER_HOUR = 60.0, 3600.0
# GPU-hours between interruptions: 466, planned ones included, of a job on 16,384 H100s in 54 days.
# Source: Llama Team 2024, arXiv:2407.21783, section 3.3.4.
MTBF_PER_GPU_HOURS = 16_384 * 54 * 24 / 466
# From a failure to the first new step: detection and diagnosis take less than 10 minutes.
# Source: Jiang et al. 2024 (MegaScale), arXiv:2402.15627, section 4.
RESTART_MINUTES = 10.0
# Training waits until weights and optimizer states are in host memory, and writing goes on beside it.
# Source: MegaScale, section 4.4, two-stage checkpointing. Where the host link is not known, 25 GB/s are assumed, below
# the 31.5 GB/s of PCIe 4.0 x16.
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
# Below this share a training is said to make no progress, rather than how many times as long it takes.
LEAST_SHARE = 0.01
LARGEST_EXPONENT = 700.0  # of a double


class Saved(NamedTuple):
    """A training without interruptions, and what a checkpoint of it holds.

    Attributes:
        hours: of all steps.
        step_s: of one step.
        num_gpus: of the run; any failure stops it.
        gpu_bytes: of weights and optimizer on one GPU.
        whole_bytes: of one copy of them all.
    """

    hours: float
    step_s: float
    num_gpus: int
    gpu_bytes: float
    whole_bytes: float


@dataclass(frozen=True, slots=True)
class Goodput:
    """A training among interruptions.

    Attributes:
        share: time of steps that count over wall time; 0 where the training makes no progress.
        hours: wall time, with what interruptions and checkpoints cost; None where it makes no progress.
        failures: expected in that time; None where it makes no progress.
        checkpoint_interval_hours: between checkpoints.
        checkpoint_seconds: that training waits for one.
        checkpoint_gb: that one writes.
        write_seconds: until a checkpoint is in storage, beside training.
    """

    share: float
    hours: float | None
    failures: float | None
    checkpoint_interval_hours: float
    checkpoint_seconds: float
    checkpoint_gb: float
    write_seconds: float


def expected_share(interval: float, checkpoint: float, restart: float, mtbf: float) -> float:
    """Return the share of time that counts where failures are exponentially distributed; all times in one unit.

    Exact for any rate of failures, those that hit checkpoints and restarts included.
    Source: Daly 2006, doi:10.1016/j.future.2004.11.016, equation 20.

    >>> round(expected_share(1.0, 0.0, 0.0, 1e9), 6)
    1.0
    >>> expected_share(1e6, 1.0, 1.0, 1.0)
    0.0
    """
    if (interval + checkpoint + restart) / mtbf > LARGEST_EXPONENT:
        return 0.0
    return interval / (mtbf * exp(restart / mtbf) * expm1((interval + checkpoint) / mtbf))


def best_interval(checkpoint: float, mtbf: float) -> float:
    """Return the time between checkpoints that leaves the most; all times in one unit.

    Young's √(2 · checkpoint · MTBF) holds where a checkpoint is short against the MTBF; this is the higher order.
    Source: Daly 2006, equation 37.

    >>> round(best_interval(0.02, 100.0), 2)
    1.99
    """
    if checkpoint >= 2.0 * mtbf:
        return mtbf
    small = checkpoint / (2.0 * mtbf)
    return sqrt(2.0 * checkpoint * mtbf) * (1.0 + sqrt(small) / 3.0 + small / 9.0) - checkpoint


def goodput(saved: Saved, system: System, budget: BudgetSection) -> Goodput:
    """Return the goodput of a training.

    A checkpoint is no sooner than the one before is written, which an asynchronous writer waits for, and than a step;
    where nobody says how often, it is Daly's optimum, or several times that long. A training of less saves once, at its
    end. An interruption costs the restart, the checkpoint read back, and what was done while the last one was on its
    way into storage.

    Args:
        saved: the training.
        system: with its host link.
        budget: MTBF, restart, storage and checkpoint, where they are given.
    """
    mtbf = (budget.mtbf_per_gpu_hours or MTBF_PER_GPU_HOURS) / saved.num_gpus
    link = system.links.host_gb_per_s.value if system.links.host_gb_per_s is not None else HOST_GB_PER_S
    seconds = budget.checkpoint_seconds or max(saved.gpu_bytes / 1e9 / link, LEAST_CHECKPOINT_SECONDS)
    storage = budget.storage_gb_per_s or STORAGE_GB_PER_S_PER_GPU * saved.num_gpus
    write_seconds = saved.whole_bytes / 1e9 / storage
    checkpoint, write = seconds / SECONDS_PER_HOUR, write_seconds / SECONDS_PER_HOUR
    wanted = max(best_interval(checkpoint, mtbf), WRITES_APART * write)
    if budget.checkpoint_interval_minutes is not None:
        wanted = budget.checkpoint_interval_minutes / MINUTES_PER_HOUR
    interval = min(max(wanted, write, saved.step_s / SECONDS_PER_HOUR), saved.hours)
    restart = (budget.restart_minutes or RESTART_MINUTES) / MINUTES_PER_HOUR + 2.0 * write
    share = expected_share(interval, checkpoint, restart, mtbf)
    hours = saved.hours / share if share > LEAST_SHARE else None
    failures = None if hours is None else hours / mtbf
    share = 0.0 if hours is None else share
    return Goodput(share, hours, failures, interval, seconds, saved.whole_bytes / 1e9, write_seconds)


def goodput_notes(found: Goodput | None, budget: BudgetSection) -> list[str]:
    """Return what a goodput rests on, a sentence each; nothing of a single step."""
    if found is None:
        return []
    said = []
    if found.hours is None:
        said.append(
            f"The training makes no progress: less than {LEAST_SHARE:.0%} of its time is in steps that no interruption "
            "costs. Fewer GPUs, or other values of budget.mtbf_per_gpu_hours, restart_minutes, checkpoint_seconds and "
            "checkpoint_interval_minutes, change that."
        )
    if budget.mtbf_per_gpu_hours is None:
        said.append(
            f"Interruptions are assumed as often as in Llama 3's training, one in {MTBF_PER_GPU_HOURS:,.0f} GPU-hours "
            "(466 in 54 days on 16,384 H100). Others had more: OPT-175B's 992 A100 3 to 6 times as many per GPU-hour, "
            "and longer ones, so that by one account they computed 59 % of the time. budget.mtbf_per_gpu_hours and "
            "restart_minutes take your own."
        )
    given = budget.checkpoint_interval_minutes
    if given is not None and given < found.checkpoint_interval_hours * MINUTES_PER_HOUR:
        said.append(
            f"budget.checkpoint_interval_minutes is {given:g}, which is shorter than a step or than the "
            f"{found.write_seconds:.3g} s that writing a checkpoint of {found.checkpoint_gb:,.4g} GB takes: one every "
            f"{found.checkpoint_interval_hours * MINUTES_PER_HOUR:.3g} minutes is counted. budget.storage_gb_per_s "
            "takes the rate of your storage."
        )
    return said
