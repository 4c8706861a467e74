"""Notes on the host: how much of the step it may take, and what to measure where that is not known."""

from __future__ import annotations

from predictor.core.hardware.hardware import System
from predictor.core.hardware.host_processor import host_of
from predictor.core.step.composition import StepTime

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
