"""The sections of a full-form configuration file, validated with one-line errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from predictor.core.base.errors import ConfigError, MissingKeyError, nearest
from predictor.core.base.fields import Count
from predictor.core.base.read_yaml import first_error, reason, shown
from predictor.core.base.sizes import both_names
from predictor.core.schema.host_section import AS_PUBLISHED_HOST, HardwareNumber, HostSection
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.section import Section, section_in, section_keys
from predictor.core.workload.run_choices import Conditions
from predictor.core.workload.training_keys import TrainingKeys


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)  # a base alone
class BatchKeys:
    """Batch of a step: one of both. A run has the micro-batches that follow."""

    num_micro_batches: Annotated[Count | None, Field(description="micro-batches per step and replica")] = None
    global_batch_size: Annotated[Count | None, Field(description="samples per step; or give num_micro_batches")] = None


# Inherited keys come in the order of the last base first: a message names those of the batch beside micro_batch_size.
class TrainingSection(Section, TrainingKeys, BatchKeys):  # type: ignore[misc]  # frozen by its configuration
    """One step."""

    document_tokens: Count | None = Field(
        default=None, description="mean tokens of the documents packed into a sample; attention stays inside one"
    )
    mean_sequence_length: Count | None = Field(
        default=None, description="mean tokens of a sample whose padding is left out; model.sequence_length if absent"
    )
    conditions: Conditions | None = Field(
        default=None,
        description="tuned: as vendors' benchmarks run; ordinary: as users' runs come out; model: the model alone, "
        "without what it leaves out; if absent tuned for a named framework with published tuned runs, else ordinary",
    )


class ClusterSection(Section):
    """The cluster, where it differs from the published system."""

    power_limit_w: HardwareNumber | None = Field(default=None, description="power limit of one GPU")
    memory_bandwidth_gb_per_s: HardwareNumber | None = Field(default=None, description="of one GPU's memory")
    memory_gib: HardwareNumber | None = Field(default=None, description="memory of one GPU")
    intra_node_gb_per_s: HardwareNumber | None = Field(
        default=None, description="links of a GPU inside its node, per direction"
    )
    inter_node_gb_per_s: HardwareNumber | None = Field(
        default=None, description="a GPU's share of the network, per direction"
    )
    host_gb_per_s: HardwareNumber | None = Field(
        default=None, description="between host memory and one GPU, per direction"
    )
    host_memory_gb_per_s: HardwareNumber | None = Field(default=None, description="memory of one node's CPUs together")
    host_memory_gib: HardwareNumber | None = Field(default=None, description="host memory of one node")
    network_oversubscription: float = Field(
        default=1.0,
        strict=True,
        ge=1.0,
        le=1000.0,
        description="bandwidth of the nodes over that of the network's core",
    )
    gpus_per_domain: Count | None = Field(default=None, description="GPUs of one NVLink domain; the system's if absent")
    rank_spread: HardwareNumber | None = Field(
        default=None,
        description="standard deviation of the time of computing over GPUs; 0.015 if absent",
    )


def _waits(value: object) -> object:
    """Refuse checkpoints that cost nothing, which would be taken all the time."""
    if isinstance(value, int | float) and value <= 0:
        raise ValueError("expected more than 0 seconds; leave it out for a checkpoint that is written beside training")
    return value


HOURS_OF_A_DAY = 24


def _by_hour(value: object) -> object:
    """Take a list for the hours of a day, from midnight."""
    if isinstance(value, list):
        if len(value) != HOURS_OF_A_DAY:
            raise ValueError(f"expected a number, or {HOURS_OF_A_DAY} of the hours from midnight, not {len(value)}")
        return tuple(value)
    return value


PerKwh = Annotated[float, Field(strict=True, ge=0, le=1e6)]
ByHour = Annotated[PerKwh | tuple[PerKwh, ...] | None, BeforeValidator(_by_hour)]


class BudgetSection(Section):
    """Cost of a whole training; no effect on the time of a step."""

    train_tokens: float | None = Field(default=None, strict=True, gt=0, le=1e18, description="tokens to train on")
    price_per_gpu_hour: float | None = Field(default=None, strict=True, ge=0, le=1e6, description="in any currency")
    power_per_gpu_w: float | None = Field(
        default=None,
        strict=True,
        gt=0,
        le=1e5,
        description="mean draw of a GPU with its share of the node; board's limit and a node's share if absent",
    )
    energy_price_per_kwh: ByHour = Field(
        default=None, description="in any currency; a number, or 24 of the hours from midnight"
    )
    carbon_kg_per_kwh: ByHour = Field(
        default=None, description="CO2 equivalent of a kWh; a number, or 24 of the hours from midnight"
    )
    start_hour: float | None = Field(
        default=None, strict=True, ge=0, lt=HOURS_OF_A_DAY, description="hour of the day at which the training begins"
    )
    mtbf_per_gpu_hours: float | None = Field(
        default=None,
        strict=True,
        gt=0,
        le=1e12,
        description="GPU-hours between interruptions; those that clusters of the GPU's generation counted if absent",
    )
    recovery: Literal["automatic", "manual"] = Field(
        default="automatic", description="who finds a failed node and restarts the job: machines, or people on call"
    )
    detection_minutes: float | None = Field(
        default=None,
        strict=True,
        ge=0,
        le=1e5,
        description="from a failure until its node is known, in the mean; of published teams that recover alike if "
        "absent, about 10",
    )
    hang_timeout_minutes: float | None = Field(
        default=None,
        strict=True,
        ge=0,
        le=1e5,
        description="time-out of collectives, by which 13 % of failures are found; 10, PyTorch's and Megatron-LM's, if "
        "absent; no effect beside detection_minutes",
    )
    restart_minutes: float | None = Field(
        default=None, strict=True, gt=0, le=1e5, description="from there to the first new step; 10 if absent"
    )
    spare_nodes: int | None = Field(
        default=None,
        strict=True,
        ge=0,
        le=1_000_000,
        description="ready beside the job; as many as suffice 99 % of the time if absent",
    )
    repair_hours: float | None = Field(
        default=None, strict=True, gt=0, le=1e5, description="that a failed node is out, in the mean; 118 if absent"
    )
    without_spares: Literal["wait", "shrink"] = Field(
        default="wait", description="no spare left: wait for a repair, or go on with fewer nodes"
    )
    planned_stops_per_month: float | None = Field(
        default=None, strict=True, ge=0, le=1e4, description="maintenance and changes in a month; 8 if absent"
    )
    rollbacks_per_month: float | None = Field(
        default=None,
        strict=True,
        ge=0,
        le=1e4,
        description="returns to an earlier checkpoint as the loss diverges, in a month; 0 if absent",
    )
    planned_stop_hours: float | None = Field(
        default=None, strict=True, gt=0, le=1e4, description="length of a planned stop; that of a restart if absent"
    )
    slow_share: float | None = Field(
        default=None, strict=True, ge=0, le=10, description="time that slow nodes add to steps, as a share; 0 if absent"
    )
    checkpoint_seconds: Annotated[float | None, BeforeValidator(_waits)] = Field(
        default=None,
        strict=True,
        gt=0,
        le=1e6,
        description="that training waits for a checkpoint; states over the host link, 6.3 s at least, if absent",
    )
    checkpoint_async: bool | None = Field(
        default=None, strict=True, description="whether a checkpoint is written beside training; true if absent"
    )
    storage_gb_per_s: float | None = Field(
        default=None,
        strict=True,
        gt=0,
        le=1e9,
        description="checkpoints written or read by all GPUs together; 0.122 for each GPU if absent",
    )
    checkpoint_interval_minutes: float | None = Field(
        default=None, strict=True, gt=0, le=1e7, description="between checkpoints; Daly's optimum if absent"
    )
    least_checkpoint_interval_minutes: float | None = Field(
        default=None,
        strict=True,
        gt=0,
        le=1e7,
        description="between checkpoints that Daly's optimum may be; 5 if absent",
    )


NO_BUDGET = BudgetSection()
AS_PUBLISHED = ClusterSection()


class RunConfig(Section):
    """A configuration file in its full form."""

    system: str = Field(description="published system by name, or the path of its folder")
    gpu: str | None = Field(default=None, description="its GPU; checked if given")
    model: ModelSection
    parallelism: ParallelismSection = ParallelismSection()
    training: TrainingSection
    budget: BudgetSection = NO_BUDGET
    cluster: ClusterSection = Field(default=AS_PUBLISHED, description="where it differs from the published system")
    host: HostSection = Field(default=AS_PUBLISHED_HOST, description="processor, or launches measured on it")


def _known_keys(location: tuple[str | int, ...]) -> list[str]:
    """Return the keys that are legal where a validation error occurred."""
    section: type = RunConfig
    for part in location:
        inside = section_in(section, str(part))
        if inside is None:
            break
        section = inside
    return list(section_keys(section))


def explain(error: ValidationError, is_short: bool = False) -> ConfigError | MissingKeyError:
    """Return an error of pydantic's as one line with the remedy.

    Args:
        error: of the validation.
        is_short: the configuration has the short form, which has no sections.
    """
    first = first_error(error)
    parts = [str(part) for part in first["loc"] if not str(part).startswith(("tuple[", "literal["))]
    depth = max((i for i, part in enumerate(parts) if not part.isdigit()), default=0)
    section = "" if is_short else "".join(f"{part}." for part in parts[:depth])
    where = section + both_names(parts[depth]) + "".join(f" [{part}]" for part in parts[depth + 1 :])
    known = _known_keys(first["loc"][:-1])
    if first["type"] == "missing":
        return MissingKeyError(f"{where} is missing; it is required")
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return ConfigError(f"{where} is not a known key.{nearest(parts[depth], known)} Known here: {', '.join(known)}")
    value = shown(first["input"])
    if first["type"] in ("model_type", "dataclass_type"):
        return ConfigError(f"{where} is {value}; it needs keys: {', '.join(_known_keys(first['loc']))}")
    return ConfigError(f"{where} is {value}: {reason(first)}")


def section_of(name: str) -> type[Section]:
    """Return the class of a section by its key."""
    kind = RunConfig.model_fields[name].annotation
    assert isinstance(kind, type)
    assert issubclass(kind, Section)
    return kind


def validate(content: dict[str, Any], is_short: bool = False) -> RunConfig:
    """Check a full-form configuration; ``is_short`` where it was expanded from a short one.

    Raises:
        MissingKeyError: a required key is absent.
        ConfigError: a key is unknown or a value is not allowed.
    """
    try:
        return RunConfig.model_validate(content)
    except ValidationError as error:
        raise explain(error, is_short) from None
