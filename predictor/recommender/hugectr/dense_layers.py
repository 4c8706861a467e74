"""The dense layers of a HugeCTR configuration: JSON to ``DenseLayer``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from predictor.core.base.errors import ConfigError, nearest
from predictor.recommender.workload.layers import LAYER_TYPES, DenseLayer

# More is taken for a slipped key: ten times the widest layer and the most cross layers in print, and more.
LARGEST_COUNT = 1_000_000_000
LARGEST_LAYERS = 1_000
LARGEST_NUMBER = sys.float_info.max
COMMON = frozenset({"name", "type", "bottom", "top"})
Reading = tuple[str, str, Callable[[Any], Any]]


def _ranges(value: Any) -> tuple[tuple[int, int], ...]:
    return tuple((_count(start), _count(end)) for start, end in value)


def _pair(value: Any) -> tuple[int, int]:
    rows, columns = value
    return _count(rows), _count(columns)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("expected a whole number")
    if value > LARGEST_COUNT:
        raise ValueError(f"more than {LARGEST_COUNT:,} is taken for a slip")
    return value


def _positive(value: Any) -> int:
    if not _count(value):
        raise ValueError("expected a number above 0")
    return int(value)


def _cross_layers(value: Any) -> int:
    if _positive(value) > LARGEST_LAYERS:
        raise ValueError(f"more than {LARGEST_LAYERS:,} is taken for a slip")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_NUMBER:
        raise ValueError("expected a finite number")
    return float(value)


def _probability(value: Any) -> float:
    if not 0.0 <= _number(value) < 1.0:
        raise ValueError("expected a number from 0 to below 1")
    return float(value)


def _regularizer(value: Any) -> str:
    if value not in ("L1", "L2"):
        raise ValueError("expected L1 or L2")
    return str(value)


def _counts(value: Any) -> tuple[int, ...]:
    return tuple(map(_count, value))


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(map(_number, value))


LOSS: tuple[Reading, ...] = (("regularizer", "regularizer", _regularizer), ("lambda", "weight", _number))
FC: tuple[Reading, ...] = (("fc_param.num_output", "num_output", _positive),)
# Key in the JSON, with its section in front where it has one; field of the layer; how it is read.
READINGS: dict[str, tuple[Reading, ...]] = {
    "BatchNorm": (("bn_param.factor", "factor", _number), ("bn_param.eps", "eps", _number)),
    "BinaryCrossEntropyLoss": LOSS,
    "CrossEntropyLoss": LOSS,
    "Dropout": (("rate", "rate", _probability),),
    "ELU": (("elu_param.alpha", "alpha", _number),),
    "FmOrder2": (("out_dim", "out_dim", _positive),),
    "FusedInnerProduct": FC,
    "InnerProduct": FC,
    "MultiCross": (
        ("mc_param.num_layers", "num_layers", _cross_layers),
        ("mc_param.projection_dim", "projection_dim", _count),
    ),
    "MultiCrossEntropyLoss": (*LOSS, ("target_weight", "target_weight", _numbers)),
    "ReduceSum": (("axis", "axis", _count),),
    "Reshape": (("leading_dim", "leading_dim", _positive), ("selected", "selected", _counts)),
    "Slice": (("ranges", "ranges", _ranges),),
    "WeightMultiply": (("weight_dims", "weight_dims", _pair),),
}
REQUIRED = {
    "FmOrder2": ("out_dim",),
    "FusedInnerProduct": ("fc_param.num_output",),
    "InnerProduct": ("fc_param.num_output",),
    "MultiCross": ("mc_param.num_layers",),
    "MultiCrossEntropyLoss": ("target_weight",),
    "Slice": ("ranges",),
    "WeightMultiply": ("weight_dims",),
}
NUM_INPUTS = {
    "Add": None, "Concat": None, "DotProduct": None, "Interaction": 2,
    "BinaryCrossEntropyLoss": 2, "CrossEntropyLoss": 2, "MultiCrossEntropyLoss": 2,
}  # fmt: skip
# In files of other versions; they decide nothing here.
IGNORED = {
    "InnerProduct": {"fc_param.weight_init", "fc_param.bias_init"},
    "FusedInnerProduct": {"fc_param.weight_init", "fc_param.bias_init"},
}


def _names(layer: str, key: str, value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"layer {layer}: {key} is {value!r}; expected the name of a tensor, or a list of them")
    return tuple(names)


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer's own keys, those of a section with its name in front."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if key in COMMON:
            continue
        if isinstance(value, Mapping):
            flat.update({f"{key}.{inner}": inner_value for inner, inner_value in value.items()})
        else:
            flat[key] = value
    return flat


def dense_layer(content: Mapping[str, Any]) -> DenseLayer:
    """Return one dense layer.

    Raises:
        ConfigError: its type or a key is unknown, a key is missing, or a value is not allowed.
    """
    name, kind = content.get("name"), content.get("type")
    if not isinstance(kind, str) or kind not in LAYER_TYPES:
        raise ConfigError(
            f"layer {name}: type is {kind!r}, which is not a layer.{nearest(str(kind), LAYER_TYPES)} There are: "
            f"{', '.join(sorted(LAYER_TYPES))}"
        )
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a layer of type {kind} has no name")
    for key in ("bottom", "top"):
        if key not in content:
            raise ConfigError(f"layer {name}: {key} is missing")
    inputs, outputs = _names(name, "bottom", content["bottom"]), _names(name, "top", content["top"])
    needed = NUM_INPUTS.get(kind, 1)
    if needed is not None and len(inputs) != needed:
        raise ConfigError(f"layer {name} ({kind}): bottom names {len(inputs)} tensors; expected {needed}")
    if len(outputs) != 1 and kind != "Slice":
        raise ConfigError(f"layer {name} ({kind}): top names {len(outputs)} tensors; expected 1")
    return LAYER_TYPES[kind](name, inputs, outputs, **_options(name, kind, _flat(content)))


def _options(name: str, kind: str, flat: dict[str, Any]) -> dict[str, Any]:
    readings = {key: (field, read) for key, field, read in READINGS.get(kind, ())}
    options: dict[str, Any] = {}
    for key, value in flat.items():
        if key in IGNORED.get(kind, ()):
            continue
        if key not in readings:
            known = ", ".join(readings) or "none of its own"
            raise ConfigError(
                f"layer {name} ({kind}): {key} is not a key of it.{nearest(key, readings)} It has: {known}"
            )
        field, read = readings[key]
        try:
            options[field] = read(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"layer {name} ({kind}): {key} is {value!r}; {error}") from None
    for key in REQUIRED.get(kind, ()):
        if readings[key][0] not in options:
            raise ConfigError(f"layer {name} ({kind}): {key} is missing")
    return options
