"""Host cost of one kernel launch: measured on the system or by the configuration, else by processor.

The host is what runs Python beside the GPU. Its time to launch a kernel is a property of the processor; how many
launches' worth of work a pass is, of the software (``workload/host_stacks.yaml``). ``host_processors.yaml`` has the
processors, each number with its source.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.read_yaml import read_mapping
from predictor.core.base.remembered import per_object
from predictor.core.hardware.hardware import HardwareModel, Quantity, System

DATA = Path(__file__).with_name("host_processors.yaml")
UNKNOWN = "unknown"
MEASURED = "measured"  # a system's processor whose launches were measured on it
# Source of a launch time that was copied from the donor of a system's operators: it says nothing of this host.
COPIED = "as on "
OF_ITSELF = (0.85, 1.15)  # interval of launches measured on the host itself: repetitions, and the driver's share


class Processor(HardwareModel):
    """The host's time per launch on one processor."""

    name: str
    kind: Literal["measured", "derived"] = Field(description="on this processor, or concluded from other evidence")
    forward: Quantity = Field(description="µs per launch forward")
    backward: Quantity = Field(description="µs per launch backward, by autograd's thread")
    least: float = Field(gt=0, le=1, description="low end of the interval over the value")
    most: float = Field(ge=1, description="high end of the interval over the value")


class OfSystem(HardwareModel):
    """Processor of a published system."""

    processor: str
    source: str


class _Sheet(HardwareModel):
    processors: dict[str, Processor]
    systems: dict[str, OfSystem]


class Launch(NamedTuple):
    """The host's time per launch in one direction, in µs, with its 90 % interval."""

    us: float
    low_us: float
    high_us: float


class Host(NamedTuple):
    """What is known of a system's host.

    Attributes:
        is_own: its launches were measured, or its processor was named; otherwise a published system's is assumed.
    """

    name: str
    forward: Launch
    backward: Launch
    source: str
    is_own: bool

    def launch(self, backward: bool) -> Launch:
        """Return the time per launch in one direction."""
        return self.backward if backward else self.forward


@lru_cache(maxsize=1)
def _sheet() -> _Sheet:
    return _Sheet.model_validate(read_mapping(DATA))


def processors() -> dict[str, Processor]:
    """Return all processors by name; ``unknown`` is among them."""
    return _sheet().processors


def check_processor(name: str) -> str:
    """Return the name of a known processor.

    Raises:
        ConfigError: it is not known.
    """
    if name not in processors():
        raise ConfigError(
            f"host.processor is {name}; no launch was measured on it.{nearest(name, processors())} Known: "
            f"{', '.join(processors())}; or measure yours: python -m microbench host"
        )
    return name


@lru_cache(maxsize=64)
def _by_processor(name: str, is_own: bool) -> Host:
    known = processors()[name]
    slowest = max(each.forward.value for each in processors().values())
    ends = []
    for quantity in (known.forward, known.backward):
        most = quantity.value * known.most
        most = most if is_own else max(most, slowest)
        ends.append(Launch(quantity.value, quantity.value * known.least, most))
    return Host(known.name, ends[0], ends[1], f"{known.kind}: {known.forward.source}", is_own)


def _measured(host: dict[str, Quantity]) -> Host:
    """Return the host of launches that were measured on it."""
    forward, backward = (host.get(f"launch_{direction}_us") for direction in ("forward", "backward"))
    known = forward or backward
    assert known is not None, "a host without launches"
    ends = [
        Launch(each.value, each.value * OF_ITSELF[0], each.value * OF_ITSELF[1])
        for each in (forward or known, backward or known)
    ]
    return Host("its own processor", ends[0], ends[1], known.source, is_own=True)


@per_object
def host_of(hardware: System) -> Host | None:
    """Return what a launch costs the host of a system; None where nothing launches kernels, as on a CPU.

    The configuration's own numbers come first, then the processor that it or the system names, then the processor of a
    published system by data sheet, then launches that the system's own tables hold.
    """
    if hardware.processor is not None and hardware.processor != MEASURED:
        return _by_processor(hardware.processor, is_own=True)
    if not hardware.host:
        return None
    if hardware.processor == MEASURED:
        return _measured(hardware.host)
    is_copy = any(quantity.source.startswith(COPIED) for quantity in hardware.host.values())
    base = hardware.calibration.base if hardware.calibration is not None else ""
    sheet = _sheet().systems.get(hardware.name) or _sheet().systems.get(Path(base).name)
    if sheet is not None:
        return _by_processor(sheet.processor, is_own=False)
    return _by_processor(UNKNOWN, is_own=False) if is_copy else _measured(hardware.host)
