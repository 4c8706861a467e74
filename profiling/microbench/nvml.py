"""State of the measured GPU from NVML: clocks, power, temperature, and the reasons for throttling.

Every field is queried separately: a field that a driver, a virtual machine or a permission refuses is left out, and the
others stay. nvidia-ml-py answers in microseconds; without it nvidia-smi is queried, once per session and not per call:
each field separately the first time, then those that it answers together.
Source: NVIDIA, "NVML API Reference Guide", device queries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from microbench.rows import DeviceState

QUERY_S = 20.0
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
# Bits of nvmlClocksEventReasons. Source: nvml.h, nvmlClocksEventReason*.
EVENT_REASONS = {
    0x1: "GPU idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
NOT_REPORTED = ("n/a", "not supported", "unknown error", "insufficient permissions")


def driver_branch(release: str | None) -> str | None:
    """Return a driver's branch, the number before the first dot of its release.

    >>> driver_branch("580.159.04"), driver_branch(None)
    ('580', None)
    """
    return (release or "").partition(".")[0] or None


def which_gpu() -> str | None:
    """Return the driver's identifier of torch's GPU 0; without torch, of the first visible GPU."""
    try:
        import torch

        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None) if torch.cuda.is_available() else None
    except ImportError:  # nccl-tests needs none
        uuid = None
    if uuid is not None:
        return f"GPU-{uuid}"
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or None


def reason_names(bits: int) -> tuple[str, ...]:
    """Return the names of clock event reasons; an unknown bit is its number.

    >>> reason_names(0x24)
    ('power cap', 'thermal slowdown')
    """
    return tuple(EVENT_REASONS.get(1 << i, f"{1 << i:#x}") for i in range(bits.bit_length()) if bits >> i & 1)


@dataclass(frozen=True, slots=True)
class Nvml:
    """A GPU behind nvidia-ml-py: the initialised library and the device's handle."""

    library: Any
    handle: Any

    def field(self, query: Callable[[Any, Any], Any]) -> Any:
        """Return the answer to a query; None where it is refused or this version of the library does not have it."""
        try:
            return query(self.library, self.handle)
        except (self.library.NVMLError, AttributeError):
            return None

    def state(self) -> DeviceState:
        """Return clock, power and temperature at this moment."""
        milliwatts = self.field(lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu))
        return DeviceState(
            self.field(lambda nvml, gpu: float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM))),
            None if milliwatts is None else milliwatts * MILLI,
            self.field(lambda nvml, gpu: float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))),
        )

    def event_reasons(self) -> int | None:
        """Return the bits of why the clock is not at its maximum at this moment."""
        reasons: int | None = self.field(lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
        if reasons is None:  # the name before driver 535
            reasons = self.field(lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
        return reasons

    def energy_j(self) -> float | None:
        """Return the energy that the GPU has used since the driver was loaded, in joules."""
        used: float | None = self.field(lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) * MILLI)
        return used

    def session(self) -> dict[str, str]:
        """Return everything that a session records."""
        clock, power, temperature = self.state()
        limit = self.field(lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementLimit(gpu) * MILLI)
        reasons = self.event_reasons()
        values = {
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
        return {
            name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in values.items() if value
        }


@cache
def nvml() -> Nvml | None:
    """Open the driver's library once; None where nvidia-ml-py or the driver is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return Nvml(pynvml, _handle(pynvml, which_gpu() or "0"))
    except pynvml.NVMLError:
        return None


def _handle(library: Any, gpu: str) -> Any:
    """Return the handle of a GPU by its number or identifier; of the only GPU, whatever it is called.

    A container or a virtual machine may show torch another identifier than the driver's library knows.
    """
    try:
        by_number = gpu.isdecimal()
        return library.nvmlDeviceGetHandleByIndex(int(gpu)) if by_number else library.nvmlDeviceGetHandleByUUID(gpu)
    except library.NVMLError:
        if library.nvmlDeviceGetCount() != 1:
            raise
        return library.nvmlDeviceGetHandleByIndex(0)


def nvidia_smi(*words: str, timeout_s: float = QUERY_S) -> str | None:
    """Return what nvidia-smi prints; None where it is missing, fails or does not answer."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        done = subprocess.run([command, *words], capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.strip()


def query_gpu(fields: Sequence[str], gpu: str | None, timeout_s: float = QUERY_S) -> list[str] | None:
    """Return nvidia-smi's value of each field of a GPU, by default the first; None where it knows not all of them."""
    which = ("-i", gpu) if gpu else ()
    query = (f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    answer = nvidia_smi(*which, *query, timeout_s=timeout_s)
    return [value.strip() for value in answer.splitlines()[0].split(",")] if answer else None


def _is_reported(value: str) -> bool:
    return not any(text in value.lower() for text in NOT_REPORTED)


@cache
def _answered(gpu: str | None) -> dict[str, str]:
    """Return nvidia-smi's name of every field that it answers; one unknown name fails a query of several."""
    names = {}
    for field, candidates in SMI_FIELDS.items():
        for name in candidates:
            values = query_gpu((name,), gpu)
            if values is not None and _is_reported(values[0]):
                names[field] = name
                break
    return names


def gpu_session() -> dict[str, str]:
    """Return the fields that the driver reports of the GPU."""
    opened = nvml()
    if opened is not None:
        return opened.session()
    gpu = which_gpu()
    names = _answered(gpu)
    values = query_gpu(tuple(names.values()), gpu) if names else None
    return {name: value for name, value in zip(names, values or (), strict=False) if _is_reported(value)}


def gpu_state() -> DeviceState:
    """Return the GPU's clock, power and temperature at this moment; none without nvidia-ml-py."""
    opened = nvml()
    return DeviceState() if opened is None else opened.state()
