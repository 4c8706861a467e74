"""State of the measured GPU from NVML: clocks, power, temperature, and the reasons for throttling.

Every field is queried separately: a field that a driver, a virtual machine or a permission refuses is left out, and the
others stay. nvidia-ml-py answers in microseconds; without it nvidia-smi is asked, once per session and not per call.
Source: NVIDIA, "NVML API Reference Guide", device queries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from typing import Any

from microbench.rows import DeviceState

QUERY_SECONDS = 20
MILLI = 1e-3
# Field of a session: nvidia-smi's names for it, the newest first.
SMI_FIELDS = {
    "driver": ("driver_version",),
    "sm_clock_mhz": ("clocks.sm",),
    "memory_clock_mhz": ("clocks.mem",),
    "max_sm_clock_mhz": ("clocks.max.sm",),
    "power_w": ("power.draw",),
    "power_limit_w": ("power.limit",),
    "temperature_c": ("temperature.gpu",),
    "clocks_event_reasons": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    "utilization_percent": ("utilization.gpu",),
}
UNSAID = ("n/a", "not supported", "unknown error", "insufficient permissions")


def driver_branch(release: str | None) -> str | None:
    """Return what of a driver's release identifies it, the number before the first dot.

    >>> driver_branch("580.159.04"), driver_branch(None)
    ('580', None)
    """
    return (release or "").partition(".")[0] or None


def which_gpu() -> str | None:
    """Return the GPU that torch calls 0 as the driver tells GPUs apart; without torch the first visible one."""
    try:
        import torch

        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None) if torch.cuda.is_available() else None
    except ImportError:  # nccl-tests needs none
        uuid = None
    if uuid is not None:
        return f"GPU-{uuid}"
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or None


class Nvml:
    """One GPU, asked through nvidia-ml-py."""

    def __init__(self, library: Any, handle: Any) -> None:
        """Keep an initialised library and a device's handle."""
        self._library, self._handle = library, handle

    def field(self, ask: Callable[[Any, Any], Any]) -> Any:
        """Return one answer, None where it is refused or this version of the library has no such question."""
        try:
            return ask(self._library, self._handle)
        except (self._library.NVMLError, AttributeError):
            return None

    def state(self) -> DeviceState:
        """Return clock, power and temperature at this moment."""
        milliwatts = self.field(lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu))
        return DeviceState(
            self.field(lambda nvml, gpu: float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM))),
            None if milliwatts is None else milliwatts * MILLI,
            self.field(lambda nvml, gpu: float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))),
        )

    def session(self) -> dict[str, str]:
        """Return everything that a session records."""
        clock, power, temperature = self.state()
        limit = self.field(lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementLimit(gpu) * MILLI)
        reasons = self.field(lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
        if reasons is None:  # the name before driver 535
            reasons = self.field(lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
        said = {
            "driver": self.field(lambda nvml, gpu: nvml.nvmlSystemGetDriverVersion()),
            "sm_clock_mhz": clock,
            "memory_clock_mhz": self.field(lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)),
            "max_sm_clock_mhz": self.field(lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM)),
            "power_w": power,
            "power_limit_w": limit,
            "temperature_c": temperature,
            "clocks_event_reasons": None if reasons is None else f"{reasons:#x}",
            "utilization_percent": self.field(lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
        }
        return {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in said.items() if value}


@cache
def nvml() -> Nvml | None:
    """Open the driver's library once; None where nvidia-ml-py or the driver is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        gpu = which_gpu() or "0"
        by_number = gpu.isdecimal()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(gpu)) if by_number else pynvml.nvmlDeviceGetHandleByUUID(gpu)
    except pynvml.NVMLError:
        return None
    return Nvml(pynvml, handle)


def _smi(field: str) -> str | None:
    """Ask nvidia-smi for one field; None where it cannot be asked or does not say."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    gpu = which_gpu()
    words = [command, *(["-i", gpu] if gpu else []), f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines or any(text in lines[0].lower() for text in UNSAID):
        return None
    return lines[0].strip()


def gpu_session() -> dict[str, str]:
    """Return the fields that the driver reports of the GPU."""
    opened = nvml()
    if opened is not None:
        return opened.session()
    said = {name: next(filter(None, map(_smi, fields)), None) for name, fields in SMI_FIELDS.items()}
    return {name: value for name, value in said.items() if value is not None}


def gpu_state() -> DeviceState:
    """Return clock, power and temperature of the GPU at this moment; nothing where only nvidia-smi could tell."""
    opened = nvml()
    return DeviceState() if opened is None else opened.state()
