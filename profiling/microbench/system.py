"""Hardware description of this machine: the driver's report, and measured peaks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from microbench.attention import DEFAULT
from microbench.call import DTYPES, Maker
from microbench.clocks import device_us
from microbench.device import Device, library_versions
from microbench.errors import MeasureError
from microbench.linear import linear_call
from microbench.nvml import gpu_state
from microbench.provenance import now
from microbench.rows import DeviceState
from microbench.timing import KERNEL_ERRORS
from predictor.core.base.files import write_whole
from predictor.core.base.read_yaml import read_keys
from predictor.core.costs.work import FP8_PRECISIONS

# Rate of a matrix product after seconds without a pause, over its rate in single bursts. Operators are timed in bursts
# between idle moments, in which a GPU cools down and clocks up; a training step runs at the clocks that its power and
# its temperature allow for hours. The ratio of the two rates is the device's own, and is stored with the system. Inputs
# are random: zeros draw less power and run faster.
SIZE = 8192
WARM_UP, BURSTS, PAUSE_S = 3, 12, 0.05
BLOCK_S = 0.25  # a block of products without a look at the clock
SETTLED_SHARE = 0.5  # of the time, at its end: by then power and temperature have settled
PRODUCT_SIZES = {"cpu": (512, 1024), "cuda": (4096, 8192)}
COPY_CACHES = {"cpu": 2, "cuda": 8}  # a virtual machine may show the cache of a whole server, hundreds of MB
REPETITIONS = 12
# A bound for gating rows, so a quieter moment than the one that was measured must stay below it.
HEADROOM = 1.1
MEASURED = "measured here"
SYSTEM = "system.yaml"


@dataclass(frozen=True, slots=True)
class Sustained:
    """Rates of one matrix product of SIZE³.

    Attributes:
        burst_tflop_per_s: the median of single products, each after a pause.
        sustained_tflop_per_s: the median of blocks in the second half of a run without a pause.
        seconds: of that run.
        state: of the GPU at its end.
    """

    burst_tflop_per_s: float
    sustained_tflop_per_s: float
    seconds: float
    state: DeviceState

    @property
    def ratio(self) -> float:
        """Return the sustained rate over that of bursts."""
        return self.sustained_tflop_per_s / self.burst_tflop_per_s


def measure_sustained(device: Device, precision: str, seconds: float) -> Sustained:
    """Run one product in bursts, then without a pause for so long."""
    import torch

    a, b = (torch.randn(SIZE, SIZE, device=device.kind, dtype=getattr(torch, DTYPES[precision])) for _ in range(2))
    out = torch.empty_like(a)

    def product() -> object:
        return torch.mm(a, b, out=out)

    device_us(product, WARM_UP)
    bursts_us = []
    for _ in range(BURSTS):
        time.sleep(PAUSE_S)
        bursts_us.append(device_us(product, 1))
    block = max(1, int(BLOCK_S * 1e6 / median(bursts_us)))
    blocks_us: list[float] = []
    state = DeviceState()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or not blocks_us:
        blocks_us.append(device_us(product, block) / block)
        state = gpu_state()
    settled_us = blocks_us[int(len(blocks_us) * (1.0 - SETTLED_SHARE)) :]
    mflop = 2.0 * SIZE**3 / 1e6  # per µs: TFLOP/s
    return Sustained(mflop / median(bursts_us), mflop / median(settled_us), time.perf_counter() - start, state)


def _best_seconds(run: Callable[[], object], device: Device) -> float:
    import torch

    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        run()
        if device.kind == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_tflop_per_s(device: Device, precision: str) -> float:
    """Return the fastest matrix product's rate; in fp8, of matrices that are quantised already.

    Raises:
        RuntimeError: torch or its cuBLAS does not have the product.
    """
    import torch

    rates = []
    for size in PRODUCT_SIZES[device.kind]:
        run: Callable[[], object]
        if precision in FP8_PRECISIONS:
            run = linear_call((size, size, size), Maker(device.kind, precision)).forward
        else:
            dtype = getattr(torch, DTYPES[precision])
            a, b = (torch.randn(size, size, device=device.kind, dtype=dtype) for _ in range(2))
            run = partial(torch.matmul, a, b)
        rates.append(2.0 * size**3 / _best_seconds(run, device))
    return max(rates) / 1e12


def memory_bandwidth_gb_per_s(device: Device) -> float:
    """Return the fastest copy's rate, bytes read plus bytes written."""
    import torch

    size = COPY_CACHES[device.kind] * device.cache_bytes
    source = torch.ones(size, device=device.kind, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2.0 * size / _best_seconds(lambda: target.copy_(source), device) / 1e9


def _measured(value: float, what: str) -> dict[str, Any]:
    return {"value": float(f"{value * HEADROOM:.4g}"), "source": f"{MEASURED}: {what}, plus {HEADROOM - 1:.0%}"}


def network_gb_per_s() -> tuple[float, str] | None:
    """Return the rate of the fastest network interface and its source; None where the kernel reports none."""
    speeds = []
    for path in Path("/sys/class/net").glob("*/speed"):
        try:
            speeds.append((int(path.read_text(encoding="ascii")), path.parent.name))
        except (OSError, ValueError):  # an interface that is down, or virtual
            continue
    megabit, name = max(speeds, default=(0, ""))
    return (megabit / 8e3, f"/sys/class/net/{name}/speed") if megabit > 0 else None


def _links(bandwidth: dict[str, Any], device: Device) -> dict[str, Any]:
    bound = {"value": bandwidth["value"], "source": "no link is faster than memory: " + bandwidth["source"]}
    network = network_gb_per_s()
    between = {"value": network[0], "source": network[1]} if network else bound
    engine = {"engine": "processor"} if device.kind == "cpu" else {}
    return {"intra_node_gb_per_s": bound, "inter_node_gb_per_s": between, **engine}


def ranks_per_node(device: Device) -> int:
    """Return how many of the device a node has; on a CPU, processes that get a core each."""
    if device.kind == "cuda":
        import torch

        return int(torch.cuda.device_count())
    return max(1, len(os.sched_getaffinity(0)) // device.multiprocessors)


def read_datasheet(path: Path) -> dict[str, Any]:
    """Read a system file of ``training/systems`` that states a data sheet.

    Raises:
        MeasureError: it cannot be read, or lacks the GPU or its links.
    """
    hardware = read_keys(path, MeasureError).get("hardware")
    if not isinstance(hardware, dict) or not {"gpu", "links", "gpus_per_node"} <= hardware.keys():
        raise MeasureError(f"{path}: not a system file: hardware needs gpu, links and gpus_per_node")
    return hardware


def with_datasheet(document: dict[str, Any], sheet: dict[str, Any], device: Device) -> dict[str, Any]:
    """Return a described system with a data sheet's peaks and links; measured peaks are kept as notes.

    The sheet also names the donors of the links' efficiency, which one GPU cannot measure. A processor takes the links
    only, so that a GPU's workflow can be tried without a GPU.

    Raises:
        MeasureError: the sheet is of another GPU.
    """
    own, described = document["hardware"], sheet["gpu"].get("name")
    if described != device.name and device.kind != "cpu":
        raise MeasureError(
            f"device is {device.name}, the data sheet is of {described}; name the sheet of this GPU, or leave it out"
        )
    taken: dict[str, Any] = {key: sheet[key] for key in ("gpus_per_node", "links", "transfer") if key in sheet}
    if described == device.name:
        taken["gpu"] = {**own["gpu"], **sheet["gpu"]}
    peaks = {f"{precision}, TFLOP/s": peak for precision, peak in own["gpu"]["peak_tflop_per_s"].items()}
    if "memory_bandwidth_gb_per_s" in own["gpu"]:
        peaks = {"memory, GB/s": own["gpu"]["memory_bandwidth_gb_per_s"], **peaks}
    known = [f"{what}: {peak['value'] / HEADROOM:.4g} {MEASURED}" for what, peak in peaks.items()]
    known.append("links, and what collectives make of them: not measured, from the data sheet and other systems")
    provenance = document["provenance"] | {"known": [*document["provenance"]["known"], *known]}
    return {"hardware": own | taken, "provenance": provenance}


def sheet_of(device: Device, folder: Path) -> Path | None:
    """Return the data sheet of a device among those of a folder: of the same GPU, and named after it (H200, A100)."""
    for path in sorted(folder.glob("*.yaml")):
        if path.stem in device.name and read_datasheet(path)["gpu"].get("name") == device.name:
            return path
    return None


def _sustained(device: Device, seconds: float) -> dict[str, Any]:
    """Return the sustained rate of a matrix product over its rate in bursts, as a key of a system file's GPU."""
    result = measure_sustained(device, device.precisions[0], seconds)
    state = result.state
    seen = f"{state.sm_clock_mhz or '?'} MHz, {state.power_w or '?'} W, {state.temperature_c or '?'} °C at its end"
    source = (
        f"{MEASURED}: {device.precisions[0]} product of {SIZE}³, {result.sustained_tflop_per_s:.0f} TFLOP/s over "
        f"{result.seconds:.0f} s without a pause, {result.burst_tflop_per_s:.0f} in bursts; {seen}"
    )
    return {"sustained_product_ratio": {"value": round(result.ratio, 4), "source": source}}


INCOMPLETE = "not complete: the survey ended while the peaks were measured"
# An error of one peak costs that peak: a precision that torch, cuBLAS or the memory left refuses.
PEAK_ERRORS = (MemoryError, *KERNEL_ERRORS)


def identity(device: Device, name: str) -> dict[str, Any]:
    """Return a system file without a measured number: what the driver says of the device."""
    counted = (
        "torch.cuda.get_device_properties" if device.kind == "cuda" else "threads of one rank, torch.set_num_threads"
    )
    versions = ", ".join(f"{key} {value}" for key, value in library_versions(device.kind).items())
    return {
        "hardware": {
            "name": name,
            "gpus_per_node": ranks_per_node(device),
            "gpu": {
                "name": device.name,
                "num_multiprocessors": {"value": device.multiprocessors, "source": counted},
                "peak_tflop_per_s": {},
                "l2_cache_mb": {"value": device.cache_bytes / 1e6, "source": "last level of cache, as the device says"},
                **({"matrix_instruction": device.matrix_instruction} if device.matrix_instruction else {}),
            },
            "host": {},
            # Of the tables that ask for none; the sheet's is that of the tables it describes.
            **({"attention_kernel": str(DEFAULT)} if device.kind == "cuda" else {}),
        },
        "provenance": {
            "measured_by": "microbench, on this machine",
            "attribution": "own measurements",
            "known": [
                f"device {device.name}" + (f", driver {device.driver}" if device.driver else "") + f"; {versions}",
                f"described {now()}",
                INCOMPLETE,
            ],
            "not_stated": [],
        },
    }


def described(
    device: Device, name: str, say: Callable[[str], None], sustained_s: float = 0.0
) -> Iterator[dict[str, Any]]:
    """Yield a system file as ``python -m fitting fit --system`` reads it, before the first and after every measurement.

    A caller writes each: whatever ends the measurements, the rows of this device can be published with the last one.

    Args:
        device: the measured device.
        name: of the system.
        say: takes a line of progress; a peak that fails is left out, with one.
        sustained_s: how long a GPU runs a product without a pause, to see the clocks that it keeps up; 0: not at all.
    """
    document = identity(device, name)
    hardware, gpu = document["hardware"], document["hardware"]["gpu"]
    yield document

    def tried(what: str, measure: Callable[[], None]) -> Iterator[dict[str, Any]]:
        try:
            measure()
        except PEAK_ERRORS as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            say(f"{what} is not measured here and is left out: {reason}")
        else:
            yield document

    def bandwidth() -> None:
        gpu["memory_bandwidth_gb_per_s"] = _measured(memory_bandwidth_gb_per_s(device), f"best of {REPETITIONS} copies")
        hardware["links"] = _links(gpu["memory_bandwidth_gb_per_s"], device)

    def peak(precision: str) -> None:
        what = f"best of {REPETITIONS} matrix products"
        gpu["peak_tflop_per_s"][precision] = _measured(peak_tflop_per_s(device, precision), what)

    yield from tried("the memory's bandwidth", bandwidth)
    for precision in device.precisions:
        yield from tried(f"the peak in {precision}", partial(peak, precision))
    if device.kind == "cuda" and sustained_s > 0.0:
        yield from tried("the sustained clock", lambda: gpu.update(_sustained(device, sustained_s)))
    document["provenance"]["known"].remove(INCOMPLETE)
    yield document


def described_gpu(path: Path) -> str | None:
    """Return the name of the device that a system file describes; None where it describes none.

    Raises:
        MeasureError: it is not YAML.
    """
    hardware = read_keys(path, MeasureError).get("hardware")
    gpu = hardware.get("gpu") if isinstance(hardware, dict) else None
    return str(gpu["name"]) if isinstance(gpu, dict) and "name" in gpu else None


def is_complete(path: Path, device: Device) -> bool:
    """Return whether a system file describes this device with every peak that it has."""
    if not path.is_file() or described_gpu(path) != device.name:
        return False
    return INCOMPLETE not in path.read_text(encoding="utf-8")


def write_system(results: Path, document: dict[str, Any]) -> Path:
    """Write ``system.yaml`` into a results folder.

    Raises:
        MeasureError: the folder cannot be written.
    """
    path = results / SYSTEM
    try:
        results.mkdir(parents=True, exist_ok=True)
        write_whole(path, yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120))
    except OSError as error:
        raise MeasureError(f"{path}: {error.strerror}") from None
    return path
