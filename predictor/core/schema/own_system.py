"""A system of one's own as a YAML file: a published system that it is like, and the numbers that differ.

    like: H100                      # its kernels and collectives, scaled by the ratio of the numbers below
    inter_node_gb_per_s: 25
    gpu: {name: H100-PCIe, memory_gib: 80, peak_tflop_per_s: 756, memory_bandwidth_gb_per_s: 2000}

Times scale as a transferred system's do (docs/adr/0013-transfer.md), and are marked analytic where they do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from predictor.core.base.errors import ConfigError
from predictor.core.base.fields import Count
from predictor.core.base.read_yaml import read_valid
from predictor.core.costs.published import PublishedSystem, with_hardware
from predictor.core.costs.work import PRECISION_BYTES
from predictor.core.hardware.hardware import Gpu, Quantity, System, check_range
from predictor.core.hardware.host_memory import host_memory_gb_per_s
from predictor.core.schema.host_section import HostSection, on_host

ENDINGS = (".yml", ".yaml")


def _quantity(value: object) -> object:
    """Accept a plain number beside a number with its source."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return {"value": value, "source": "the system's own file"}


def _possible(quantity: Quantity, info: ValidationInfo) -> Quantity:
    """Refuse a number that no machine has."""
    check_range(info.field_name or "", quantity.value)
    return quantity


def _precisions(value: object) -> object:
    """Refuse peaks of precisions that are not known."""
    unknown = [name for name in value if name not in PRECISION_BYTES] if isinstance(value, dict) else []
    if unknown and set(unknown) != set(Quantity.model_fields):
        known = ", ".join(PRECISION_BYTES)
        raise ValueError(f"{unknown[0]} is not a precision; known: {known}, or give one number, that of 16 bits")
    return value


Number = Annotated[Quantity, BeforeValidator(_quantity), AfterValidator(_possible)]
Name = Annotated[str, Field(min_length=1, max_length=100)]


class OwnPart(BaseModel):
    """Base of the file's parts: closed and immutable. Most runs have no such file: built on first use."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class OwnGpu(OwnPart):
    """What differs of the GPU."""

    name: Name | None = Field(default=None, description="of the GPU, for messages")
    peak_tflop_per_s: Annotated[Number | dict[str, Number] | None, BeforeValidator(_precisions)] = Field(
        default=None, description="dense matrix peak by precision, or that of 16 bits, which scales all others"
    )
    num_multiprocessors: Number | None = None
    memory_bandwidth_gb_per_s: Number | None = None
    l2_cache_mb: Number | None = None
    memory_gib: Number | None = None
    board_power_w: Number | None = None
    power_limit_w: Number | None = None
    rank_spread: Number | None = None


class OwnHost(HostSection):
    """The nodes' host; how much ranks slow each other is a run's, so a configuration says it."""

    slowdown: None = Field(default=None, description="in a configuration's host section")


class OwnSystem(OwnPart):
    """A system's file."""

    like: str = Field(min_length=1, description="published system whose kernels and collectives it runs")
    name: Name | None = Field(default=None, description="of the system; the file's if absent")
    gpu: OwnGpu = OwnGpu()
    gpus_per_node: Count | None = None
    gpus_per_domain: Count | None = Field(default=None, description="GPUs of one NVLink domain")
    intra_node_gb_per_s: Number | None = None
    inter_node_gb_per_s: Number | None = None
    host_gb_per_s: Number | None = None
    host_memory_gb_per_s: Number | None = Field(default=None, description="memory of one node's CPUs together")
    wiring: Literal["pairwise", "switch"] | None = None
    host: OwnHost = Field(default=OwnHost(), description="processor, or launches measured on it")


def is_system_file(name: str, base: Path) -> bool:
    """Return whether a system is given as a file of one's own."""
    return name.endswith(ENDINGS) and (base / name).is_file()


def read_own(path: Path) -> OwnSystem:
    """Read a system's file.

    Raises:
        ConfigError: it does not parse, a key is unknown, or a value is not possible.
    """
    own = read_valid(path, OwnSystem, ConfigError)
    return own.model_copy(update={"name": own.name or path.stem})


def _given(part: OwnPart, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(part, name)) is not None}


def _peaks(gpu: Gpu, own: OwnGpu) -> dict[str, Quantity]:
    """Return the peaks of all precisions: those given, or all by the factor of a given 16-bit peak."""
    if own.peak_tflop_per_s is None:
        return gpu.peak_tflop_per_s
    if isinstance(own.peak_tflop_per_s, dict):
        return {**gpu.peak_tflop_per_s, **own.peak_tflop_per_s}
    known = gpu.peak_tflop_per_s
    factor = own.peak_tflop_per_s.value / (known.get("bf16") or known.get("fp16") or next(iter(known.values()))).value
    source = own.peak_tflop_per_s.source
    return {name: Quantity(value=peak.value * factor, source=source) for name, peak in known.items()}


def own_hardware(hardware: System, own: OwnSystem) -> System:
    """Return a published system's hardware with the numbers of one's own.

    Raises:
        ConfigError: an NVLink domain holds no whole nodes.
    """
    of_gpu = tuple(name for name in OwnGpu.model_fields if name != "peak_tflop_per_s")
    gpu = hardware.gpu.model_copy(update={**_given(own.gpu, of_gpu), "peak_tflop_per_s": _peaks(hardware.gpu, own.gpu)})
    of_links = ("intra_node_gb_per_s", "inter_node_gb_per_s", "host_gb_per_s", "wiring")
    links = hardware.links.model_copy(update=_given(own, of_links))
    of_system = _given(own, ("name", "gpus_per_node", "gpus_per_domain"))
    memory = own.host_memory_gb_per_s or host_memory_gb_per_s(hardware)
    changed = hardware.model_copy(update={"gpu": gpu, "links": links, "host_memory_gb_per_s": memory, **of_system})
    if changed.reach % changed.gpus_per_node:
        raise ConfigError(
            f"{own.name}: gpus_per_domain is {changed.reach}; a domain holds whole nodes, so gpus_per_node, "
            f"{changed.gpus_per_node}, must divide it"
        )
    return on_host(changed, own.host, "the system's own file")


def own_system(system: PublishedSystem, own: OwnSystem) -> PublishedSystem:
    """Return a published system with the numbers of one's own; costs that depend on none keep time and source."""
    return with_hardware(system, own_hardware(system.hardware, own))
