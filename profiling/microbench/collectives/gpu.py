"""GPU of the collectives, as nvidia-smi reports it.

nccl-tests needs no torch, and a process that opened the GPU would hold memory which the binaries are to fill.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from microbench.collectives.errors import CollectiveError
from microbench.device import CAPABILITY_WITH_BF16, find_device, printable
from microbench.errors import MeasureError
from microbench.nvml import driver_branch, nvidia_smi, query_gpu

FIELDS = ("name", "driver_version", "memory.total", "compute_cap")
QUERY_S = 60.0
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        name: as operators' tables have it.
        driver: its branch, the number before the first dot.
        precision: the usual training precision on it; None where unknown.
        memory_bytes: total memory; None where unknown.
    """

    name: str
    driver: str | None
    precision: str | None
    memory_bytes: int | None = None


def listed_gpus(environment: dict[str, str]) -> list[str] | None:
    """Return the GPUs that CUDA_VISIBLE_DEVICES lists; None where it is not set and all are visible."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    return None if listed is None else [gpu.strip() for gpu in listed.split(",") if gpu.strip()]


def visible_gpus(environment: dict[str, str]) -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES counts them.

    Raises:
        CollectiveError: there is no GPU.
    """
    listed = listed_gpus(environment)
    if listed is not None:
        return listed
    lines = nvidia_smi("--list-gpus", timeout_s=QUERY_S)
    if lines is None:
        raise CollectiveError("no GPU here: nvidia-smi does not answer; on a CPU use --backend gloo or mpi")
    return [str(index) for index, line in enumerate(lines.splitlines()) if line.startswith("GPU")]


def gpu_of_nvidia_smi(environment: dict[str, str]) -> Gpu | None:
    """Return the first visible GPU; None where nvidia-smi is missing or does not answer."""
    visible = listed_gpus(environment)
    if visible == []:
        return None
    which = visible[0] if visible else None
    # Drivers before 510 do not know the compute capability.
    values = query_gpu(FIELDS, which, QUERY_S) or query_gpu(FIELDS[:-1], which, QUERY_S)
    if values is None or len(values) < len(FIELDS) - 1:
        return None
    name, driver, memory_mib, *capability = values  # a field that is refused reads "[N/A]"
    half = None
    if capability and capability[0].replace(".", "", 1).isdigit():
        half = "bf16" if float(capability[0]) >= CAPABILITY_WITH_BF16 else "fp16"
    return Gpu(printable(name), driver_branch(driver), half, int(memory_mib) * MIB if memory_mib.isdigit() else None)


def find_gpu(backend: str) -> Gpu:
    """Return the GPU that a backend measures on this node.

    Raises:
        MeasureError: there is no GPU, or no tool to find it.
    """
    gpu = gpu_of_nvidia_smi(dict(os.environ)) if backend == "nccl-tests" else None
    if gpu is not None:
        return gpu
    try:
        device = find_device("cuda")
    except MeasureError as error:
        if backend != "nccl-tests":
            raise
        raise MeasureError(f"no GPU here: nvidia-smi does not answer, and {error}") from None
    return Gpu(device.name, device.driver, device.precisions[0])
