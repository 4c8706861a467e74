"""Notes on the host: its share of the step, whether its memory holds what is offloaded, and what to measure."""

from __future__ import annotations

from predictor.core.hardware.hardware import System
from predictor.core.hardware.host_memory import host_memory_gib
from predictor.core.hardware.host_processor import host_of
from predictor.core.step.composition import StepTime
from predictor.core.step.host_memory import node_host_bytes
from predictor.core.step.memory import GIB
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.step_tasks import StepTasks

BUFFERS = 1.5  # beside states; source: deepspeed/runtime/zero/stage3.py, additional_buffer_factor
WORTH_A_NOTE = 0.02  # of the step, that the device may wait for the host


def host_notes(prediction: StepTime, hardware: System) -> list[str]:
    """Return what a prediction says of its host: nothing where the device hardly waits for it."""
    host, waiting = host_of(hardware), prediction.host
    if host is None or waiting.high_us <= WORTH_A_NOTE * prediction.step.us:
        return []
    share = f"{waiting.us / prediction.step.us:.0%} of the step"
    if waiting.high_us > 1.05 * waiting.us:
        share += f", {waiting.low_us / 1e3:,.1f} to {waiting.high_us / 1e3:,.1f} ms"
    said = f"The GPU waits for the host's launches for {share}: modelled from launches on {host.name}, not measured."
    if not host.is_own:
        said += (
            " The nodes' processor is not known: `python -m microbench host` measures it in a minute, without a GPU, "
            "and prints a host section for the configuration."
        )
    return [said]


def host_memory_notes(step: StepTasks, run: TrainingRun, hardware: System) -> list[str]:
    """Return what offloading takes of a node's host memory; nothing where nothing is offloaded."""
    needed = node_host_bytes(step, run) / GIB
    if not needed:
        return []
    limit = host_memory_gib(hardware)
    takes = f"offloading takes {needed:,.0f} GiB of a node's host memory, {BUFFERS * needed:,.0f} with buffers"
    if limit is None:
        return [f"{takes[0].upper()}{takes[1:]}; what it has is not known: set cluster.host_memory_gib."]
    of = f"{takes}, and it has {limit.value:,.0f} GiB ({limit.source})"
    if needed > limit.value:
        return [f"Does not fit into host memory: {of}."]
    return [f"May not fit into host memory: {of}."] if BUFFERS * needed > limit.value else []
