"""The device that is measured: its name, its versions and the state that it is in."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from microbench.errors import MeasureError
from microbench.provenance import Session, now

LIBRARIES = ("torch", "flash-attn", "mpi4py", "numpy")
GPU_STATE = (
    "clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "power.limit", "temperature.gpu",
    "clocks_throttle_reasons.active", "utilization.gpu",
)  # fmt: skip
QUERY_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    Attributes:
        kind: as torch names it.
        name: letters, digits and dashes only, since file names are made of it.
        driver: of a GPU.
        cache_bytes: last level of cache.
        multiprocessors: of a GPU; threads that torch uses on a CPU.
        memory_bytes: what a call may use at most.
        precisions: what it computes in without emulation, the usual one first.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    driver: str | None
    cache_bytes: int
    multiprocessors: int
    memory_bytes: int
    precisions: tuple[str, ...]


def require_torch() -> None:
    """Check that torch is there.

    Raises:
        MeasureError: it is not.
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MeasureError("torch is not installed; pip install 'estimate-train-time[profile]' brings it") from None


def find_device(kind: str, threads: int = 1) -> Device:
    """Return the device to measure.

    Args:
        kind: cpu, cuda, or auto for a GPU where there is one.
        threads: that torch may use on a CPU; two on shared cores snap to the scheduler's ticks.

    Raises:
        MeasureError: torch is missing, the kind is unknown, or no GPU is there.
    """
    require_torch()
    import torch

    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        torch.set_num_threads(threads)
        return Device("cpu", processor_name(), None, last_cache_bytes(), threads, free_memory_bytes(), ("fp32",))
    if kind != "cuda":
        raise MeasureError(f"device is {kind}; expected cpu, cuda or auto")
    if not torch.cuda.is_available():
        raise MeasureError("device is cuda, but torch finds no GPU here; --device cpu measures the processor")
    properties = torch.cuda.get_device_properties(0)
    free, _ = torch.cuda.mem_get_info()
    cache = int(getattr(properties, "L2_cache_size", 0)) or 64 * 2**20
    half = ("bf16", "fp16") if torch.cuda.is_bf16_supported() else ("fp16",)
    name = printable(torch.cuda.get_device_name(0))
    driver = _gpu_query("driver_version")
    return Device("cuda", name, driver, cache, properties.multi_processor_count, int(free), (*half, "fp32"))


def printable(name: str) -> str:
    """Return a device's name without what a file name should not have."""
    return re.sub(r"[^A-Za-z0-9-]", "", name.replace("(R)", "").replace("(TM)", "")) or "unknown"


def processor_name() -> str:
    """Return the processor's name as the kernel has it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for key in ("model name", "Model", "CPU part"):
            match = re.search(rf"^{key}\s*:\s*(.+)$", info.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            if match:
                return printable(match[1])
    return printable(platform.processor() or platform.machine())


def last_cache_bytes(default: int = 32 * 2**20) -> int:
    """Return the size of the processor's last level of cache; a usual one where the kernel does not say."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        sizes.append(int(text.rstrip("KM")) * (2**20 if text.endswith("M") else 2**10))
    return max(sizes, default=default)


def free_memory_bytes() -> int:
    """Return the memory that may be allocated without swapping."""
    info = Path("/proc/meminfo")
    match = (
        re.search(r"^MemAvailable:\s*(\d+) kB", info.read_text(encoding="ascii"), re.MULTILINE)
        if info.is_file()
        else None
    )
    return int(match[1]) * 1024 if match else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def library_versions() -> dict[str, str]:
    """Return the versions that a measurement depends on."""
    found = {"python": platform.python_version(), "kernel": f"{platform.system()} {platform.release()}"}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _gpu_query(fields: str) -> str | None:
    """Ask nvidia-smi about the GPU that torch calls 0; None where it cannot be asked."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    arguments = [command, *_which_gpu(), f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None


def _which_gpu() -> list[str]:
    """Return nvidia-smi's option for the GPU that torch calls 0; without a torch that sees one, for the first visible.

    nccl-tests needs no torch.
    """
    try:
        import torch

        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None) if torch.cuda.is_available() else None
    except ImportError:
        uuid = None
    if uuid is not None:
        return ["-i", f"GPU-{uuid}"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return ["-i", visible] if visible else []


def device_state(kind: str) -> dict[str, str]:
    """Return clocks, power, temperature and load, as far as the machine tells."""
    state = {"load": " ".join(f"{load:.2f}" for load in os.getloadavg())}
    if kind == "cuda":
        answer = _gpu_query(",".join(GPU_STATE))
        values = answer.split(",") if answer else []
        return state | {key: value.strip() for key, value in zip(GPU_STATE, values, strict=False)}
    info = Path("/proc/cpuinfo")
    if info.is_file():
        clocks = re.findall(r"^cpu MHz\s*:\s*(\S+)", info.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        state["clock_mhz"] = " ".join(clocks) or "not told"
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    state["governor"] = governor.read_text(encoding="ascii").strip() if governor.is_file() else "not told"
    return state


def commit() -> str:
    """Return the project's commit, or its version where it is installed without its history."""
    folder = Path(__file__).resolve().parent
    git = ["git", "-C", str(folder)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=20, check=False)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", str(folder)], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")


def new_session(kind: str) -> Session:
    """Return a session that starts now, on this host."""
    return Session(started=now(), host=socket.gethostname(), commit=commit(), state_before=device_state(kind))
