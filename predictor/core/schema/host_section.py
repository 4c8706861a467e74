"""The host of a configuration or of a system of one's own: its processor by name, or launches measured on it."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from predictor.core.hardware.hardware import Quantity, System, check_range
from predictor.core.hardware.host_processor import MEASURED, check_processor
from predictor.core.schema.section import Section


def _hardware_number(value: float, info: ValidationInfo) -> float:
    """Refuse a number of the hardware that no machine has."""
    check_range(info.field_name or "", value)
    return value


HardwareNumber = Annotated[float, Field(strict=True), AfterValidator(_hardware_number)]

LAUNCHES = ("launch_forward_us", "launch_backward_us")


class HostSection(Section):
    """The host, where it differs from the published system's; ``python -m microbench host`` writes it."""

    processor: Annotated[str, AfterValidator(check_processor)] | None = Field(
        default=None, description="of the nodes, one of host_processors.yaml; that of the system's data sheet if absent"
    )
    launch_forward_us: HardwareNumber | None = Field(
        default=None, description="host time per launch forward, driver included, in µs, of one process"
    )
    launch_backward_us: HardwareNumber | None = Field(default=None, description="the same backward; both or none")
    slowdown: float | None = Field(
        default=None,
        strict=True,
        ge=1.0,
        le=100.0,
        description="launches with all ranks of a node and the collector over those of one process; by framework if "
        "absent",
    )

    @model_validator(mode="after")
    def _one_source(self) -> HostSection:
        given = [name for name in LAUNCHES if getattr(self, name) is not None]
        if len(given) == 1:
            missing = next(name for name in LAUNCHES if name not in given)
            raise ValueError(f"{given[0]} without {missing}; python -m microbench host measures both")
        if given and self.processor is not None:
            raise ValueError("give a processor or launches measured on it, not both")
        return self

    @property
    def of_system(self) -> HostSection:
        """Return what of it is the system's: all but the slowdown, which is the run's."""
        return self.model_copy(update={"slowdown": None})

    @property
    def is_as_published(self) -> bool:
        """Return whether the system's host stays as it is published."""
        return self.of_system == AS_PUBLISHED_HOST


AS_PUBLISHED_HOST = HostSection()


def on_host(hardware: System, host: HostSection, source: str) -> System:
    """Return a system's hardware with the host of a configuration.

    Args:
        hardware: of the system.
        host: of the configuration.
        source: of its numbers.
    """
    if host.processor is not None:
        return hardware.model_copy(update={"processor": host.processor})
    numbers = {
        name: Quantity(value=value, source=f"{source}, host.{name}")
        for name in LAUNCHES
        if (value := getattr(host, name)) is not None
    }
    return hardware.model_copy(update={"processor": MEASURED, "host": numbers}) if numbers else hardware
