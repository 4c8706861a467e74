"""The measured device: its name, library versions and state."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from microbench.errors import MeasureError
from microbench.fp8 import fp8_precisions
from microbench.nvml import driver_branch, gpu_session
from microbench.provenance import Session, now
from predictor.core.base.allocator import keep_freed_memory

# Packages that run no timed kernel; their versions are recorded, and may change while a table grows.
RECORDED = ("numpy", "mpi4py", "nvidia-ml-py", "triton")
CAPABILITY_WITH_BF16 = 8  # of NVIDIA GPUs, from Ampere on
# Of NVIDIA GPUs by the major number of their capability. Source: PTX ISA, the targets of mma, wgmma and tcgen05.
MATRIX_INSTRUCTIONS = {8: "mma", 9: "wgmma", 10: "tcgen05", 12: "mma"}
COMMIT_FILE = Path(__file__).with_name("COMMIT")  # in a copy that travels without its history
DIGEST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    Attributes:
        kind: as torch names it.
        name: letters, digits and dashes only, for file names.
        driver: the branch of a GPU's driver, the number before the first dot.
        cache_bytes: last level of cache.
        multiprocessors: of a GPU; torch's threads on a CPU.
        memory_bytes: the most that a call may use.
        precisions: those that it computes in without emulation, the default first.
        matrix_instruction: of the matrix units, as ``predictor.core.hardware.hardware.Gpu`` has it; None where not
        known.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    driver: str | None
    cache_bytes: int
    multiprocessors: int
    memory_bytes: int
    precisions: tuple[str, ...]
    matrix_instruction: str | None = None


def find_device(kind: str, threads: int = 1) -> Device:
    """Return the device to measure.

    Args:
        kind: cpu, cuda, or auto for a GPU where there is one.
        threads: of torch on a CPU; with two on shared cores, times are multiples of the scheduler's tick.

    Raises:
        MeasureError: torch is missing, the kind is unknown, or no GPU is there.
    """
    try:
        import torch
    except ImportError:
        raise MeasureError("torch is not installed; pip install 'estimate-train-time[profile]' brings it") from None

    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        keep_freed_memory()
        torch.set_num_threads(threads)
        return Device("cpu", processor_name(), None, last_cache_bytes(), threads, free_memory_bytes(), ("fp32",))
    if kind != "cuda":
        raise MeasureError(f"device is {kind}; expected cpu, cuda or auto")
    if not torch.cuda.is_available():
        raise MeasureError("device is cuda, but torch finds no GPU here; --device cpu measures the processor")
    properties = torch.cuda.get_device_properties(0)
    free, _ = torch.cuda.mem_get_info()
    cache = int(getattr(properties, "L2_cache_size", 0)) or 64 * 2**20
    # torch.cuda.is_bf16_supported() also counts the GPUs before Ampere, which emulate it.
    has_bf16 = torch.version.hip is not None or properties.major >= CAPABILITY_WITH_BF16
    half = ("bf16", "fp16") if has_bf16 else ("fp16",)
    name = printable(torch.cuda.get_device_name(0))
    driver = driver_branch(gpu_session().get("driver"))
    # After the others, so that fp8 is measured on request only.
    precisions = (*half, "fp32", *fp8_precisions((properties.major, properties.minor)))
    instruction = None if torch.version.hip else MATRIX_INSTRUCTIONS.get(properties.major)
    return Device("cuda", name, driver, cache, properties.multi_processor_count, int(free), precisions, instruction)


def printable(name: str) -> str:
    """Return a device's name in letters, digits and dashes."""
    return re.sub(r"[^A-Za-z0-9-]", "", name.replace("(R)", "").replace("(TM)", "")) or "unknown"


def _proc(name: str) -> str:
    """Return a file of Linux's /proc; empty on other systems."""
    path = Path("/proc", name)
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def process_age_s() -> float:
    """Return the time since this process was started, as the kernel has it; 0 on other systems than Linux.

    Source: proc(5): field 22 of /proc/self/stat is the start in clock ticks after boot, /proc/uptime the time since.
    """
    stat, uptime = _proc("self/stat"), _proc("uptime")
    if not (stat and uptime):
        return 0.0
    after_name = stat.rpartition(")")[2].split()  # begins with field 3; a name may hold spaces
    return max(0.0, float(uptime.split()[0]) - int(after_name[19]) / os.sysconf("SC_CLK_TCK"))


def processor_model() -> str:
    """Return the processor's model as the kernel has it."""
    for key in ("model name", "Model", "CPU part"):
        if values := re.findall(rf"^{key}\s*:\s*(.+)$", _proc("cpuinfo"), re.MULTILINE):
            return str(values[0]).strip()
    return platform.processor() or platform.machine()


def processor_name() -> str:
    """Return the processor's model for file names."""
    return printable(processor_model())


def last_cache_bytes() -> int:
    """Return the size of the processor's last level of cache; 32 MiB where the kernel does not report it."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        sizes.append(int(text.rstrip("KM")) * (2**20 if text.endswith("M") else 2**10))
    return max(sizes, default=32 * 2**20)


def free_memory_bytes() -> int:
    """Return the memory that may be allocated without swapping."""
    match = re.search(r"^MemAvailable:\s*(\d+) kB", _proc("meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _installed(names: Iterable[str]) -> dict[str, str]:
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def library_versions(kind: str) -> dict[str, str]:
    """Return the versions of the libraries whose kernels are timed: these may not change while a table grows.

    Without torch, as where MPI or nccl-tests alone are measured, that is mpi4py's.
    """
    try:
        import torch
    except ImportError:
        return _installed(["mpi4py"])
    versions = {"torch": str(torch.__version__)}
    if kind == "cpu":
        return versions
    versions["cuda"] = str(torch.version.cuda or torch.version.hip)
    if (cudnn := torch.backends.cudnn.version()) is not None:
        versions["cudnn"] = str(cudnn)
    cublas = _installed(f"nvidia-cublas{suffix}" for suffix in ("", "-cu13", "-cu12"))
    if cublas:  # else the CUDA release's own
        versions["cublas"] = next(iter(cublas.values()))
    return versions | _installed(["flash-attn", "flash-attn-3"])


def environment() -> dict[str, str]:
    """Return versions that may change between two runs into one table."""
    system = {"python": platform.python_version(), "kernel": f"{platform.system()} {platform.release()}"}
    return system | _installed(RECORDED)


def device_state(kind: str) -> dict[str, str]:
    """Return clocks, power, temperature and load, as far as the machine reports them."""
    state = {"load": " ".join(f"{load:.2f}" for load in os.getloadavg())}
    if kind == "cuda":
        return state | gpu_session()
    if cpuinfo := _proc("cpuinfo"):
        state["clock_mhz"] = " ".join(re.findall(r"^cpu MHz\s*:\s*(\S+)", cpuinfo, re.MULTILINE)) or "not reported"
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    state["governor"] = governor.read_text(encoding="ascii").strip() if governor.is_file() else "not reported"
    return state


def commit() -> str:
    """Return the project's commit: from COMMIT_FILE, else from git, else the version and a digest of the code.

    The digest covers microbench's own files, so that the same code has the same digest wherever it was copied.
    """
    if COMMIT_FILE.is_file():
        return COMMIT_FILE.read_text(encoding="utf-8").strip()
    folder = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", str(folder)) else "")
    except (OSError, subprocess.SubprocessError):
        return _digest(folder)


def _digest(folder: Path) -> str:
    digest = sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    release = _installed(["estimate-train-time"]).get("estimate-train-time", "not installed")
    return f"{release}, sources {digest.hexdigest()[:DIGEST_DIGITS]}"


def new_session(kind: str) -> Session:
    """Return a session that starts now, on this host."""
    return Session(
        started=now(),
        host=socket.gethostname(),
        commit=commit(),
        environment=environment(),
        state_before=device_state(kind),
    )
