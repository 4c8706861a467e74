"""Configuration of operators: ours in ``operators.yaml``, a user's beside it.

The keys are those of the documented procedure (QSync's predictor, "Add new custom kernel").
"""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import first_problem, read_keys
from predictor.replay.files.record_model import RecordModel
from predictor.replay.precision.operator_graph import Precision
from predictor.replay.precision.work_of_shapes import WorkKind

OWN = Path(__file__).with_name("operators.yaml")
EIGHT_BITS = frozenset({Precision.FP8, Precision.INT8})


class OperatorConfig(RecordModel):
    """Operators to track, their backward, which can change precision, and their names in other precisions."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    ops_to_track: tuple[str, ...] = Field(default=(), description="forward operators that a graph is made of")
    aten_op_to_bwd_mapper: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="backward operators of a forward one, in lower case"
    )
    bit_width_changeable_nodes: tuple[str, ...] = Field(default=(), description="whose precision can be chosen")
    grad_required_bwds: dict[str, int] = Field(
        default_factory=dict, description="gradients that a backward operator, in lower case, accumulates"
    )
    special_aten_mapping: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="other names of an operator: its kernels in other precisions"
    )
    fp32_nodes: dict[Literal["cuda", "rocm", "cpu"], tuple[str, ...]] = Field(
        default_factory=dict, description="operators that autocast keeps in fp32, by device; rocm is as cuda"
    )
    implement_limit_ops: tuple[str, ...] = Field(default=(), description="without an 8-bit kernel")
    weights: dict[str, tuple[int, ...]] = Field(
        default_factory=dict, description="inputs that are weights, by position"
    )
    work: dict[str, WorkKind] = Field(default_factory=dict, description="which work an operator does")
    saves: dict[str, Literal["inputs", "output", "both", "mask"]] = Field(
        default_factory=dict, description="what the backward of an operator keeps"
    )

    @field_validator("special_aten_mapping", mode="before")
    @classmethod
    def _lists(cls, mapping: Any) -> Any:
        """Accept one name for a list of one."""
        if not isinstance(mapping, dict):
            return mapping
        return {name: [others] if isinstance(others, str) else others for name, others in mapping.items()}

    @field_validator("aten_op_to_bwd_mapper")
    @classmethod
    def _lower_case(cls, mapper: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, backward in mapper.items():
            for operator in backward:
                if operator != operator.lower():
                    raise ValueError(f"{name} has the backward operator {operator}; write it as {operator.lower()}")
        return mapper

    @cached_property
    def tracked(self) -> frozenset[str]:
        """Return the operators to track; those that a mapping names are tracked with it."""
        names = set(self.ops_to_track)
        for name, others in self.special_aten_mapping.items():
            if name in names:
                names.update(others)
        return frozenset(names)

    @cached_property
    def _families(self) -> dict[str, str]:
        """Return, for each name of a mapping, the first name of the operator."""
        family: dict[str, str] = {}
        for name, others in self.special_aten_mapping.items():
            joined = {family.get(other, other) for other in (name, *others)}
            first = family.get(name, name)
            family.update(dict.fromkeys((name, *others), first))
            family.update({other: first for other, of in list(family.items()) if of in joined})
        return family

    def family(self, name: str) -> str:
        """Return the name that all names of an operator share."""
        return self._families.get(name, name)

    def names(self, name: str) -> tuple[str, ...]:
        """Return all names of an operator, itself first."""
        family = self.family(name)
        others = (other for other in self._families if self._families[other] == family)
        return tuple(dict.fromkeys((name, family, *others)))

    def of(self, mapping: dict[str, Any], name: str) -> Any:
        """Return what a mapping says of an operator under any of its names; None where it says nothing."""
        return next((mapping[other] for other in self.names(name) if other in mapping), None)

    def is_changeable(self, name: str) -> bool:
        """Return whether an operator's precision can be chosen."""
        return any(other in self.bit_width_changeable_nodes for other in self.names(name))

    def stays_fp32(self, name: str, backend: str) -> bool:
        """Return whether autocast keeps an operator in fp32 on a device."""
        nodes = self.fp32_nodes.get("cpu" if backend == "cpu" else "cuda", ())
        return any(other in nodes for other in self.names(name))

    def choices(self, name: str, backend: str, wanted: tuple[Precision, ...]) -> tuple[Precision, ...]:
        """Return which of the wanted precisions an operator can compute in; none: as its inputs are."""
        if self.stays_fp32(name, backend):
            return (Precision.FP32,)
        if not self.is_changeable(name):
            return ()
        limited = any(other in self.implement_limit_ops for other in self.names(name))
        return tuple(precision for precision in wanted if not (limited and precision in EIGHT_BITS))


@cache
def own_operators() -> OperatorConfig:
    """Return what the project knows of operators."""
    return read_operators()


def read_operators(*files: Path) -> OperatorConfig:
    """Return what the project knows of operators, extended by files of the same keys.

    Raises:
        ConfigError: a file is not there, damaged, or has an entry that is no such entry; one line.
    """
    content: dict[str, Any] = {}
    for path in (OWN, *files):
        added = read_keys(path, ConfigError)
        try:
            OperatorConfig.model_validate(added)
        except ValidationError as error:
            raise ConfigError(f"{path}: {first_problem(error)}") from None
        for key, value in added.items():
            known = content.get(key)
            if isinstance(known, dict):
                content[key] = known | value
            elif isinstance(known, list):
                content[key] = [*known, *(entry for entry in value if entry not in known)]
            else:
                content[key] = value
    return OperatorConfig.model_validate(content)
