"""Expand the short form of the configuration (documented API), nine numbers and operator lists, to the full form.

It describes a GPT-NeoX run on DeepSpeed with ZeRO-1: ``GPT_NEOX`` of ``workloads.frameworks``.
"""

from __future__ import annotations

from typing import Any

from predictor.core.base.errors import ConfigError, MissingKeyError, nearest
from predictor.core.plan.model import operators_of_a_layer
from predictor.core.schema.short_names import OPERATORS_BY_SHORT_NAME
from predictor.core.schema.software import recorded_in_full
from predictor.core.workload.frameworks import GPT_NEOX
from predictor.core.workload.run_choices import Conditions

TRAINING_CONFIG = ("pp", "mp", "dp", "b", "h", "l", "dim", "steps_per_update", "gpus_per_node")
REQUIRED = (
    "gpu_name",
    "operator_data_folder",
    "nccl_data_folder",
    "training_config",
    "comm_bucket",
    "encoders",
    "function_list",
    "encoder_function_list",
    "layernorm_name",
    "fwd_syncs",
    "bwd_syncs",
)
FULL = ("system", "model", "parallelism", "training", "from")  # sections and keys of the full form
# Result folders of the documented API; accepted and not used.
IGNORED = ("save_folder", "save_name")
# Keys by which other programs' files name one that they build on.
BASES = ("extends", "base_config", "base", "_base_", "inherits", "inherit_from", "parent", "defaults")
NORMS = {name: OPERATORS_BY_SHORT_NAME[name] for name in ("RMSlayernorm", "layernorm")}
# Full-form keys that a short form may set as well, by their section.
OVERRIDES = {
    "model": (
        "vocab_size",
        "ffn_hidden_size",
        "causal",
        "biases",
        "attention_dropout",
        "hidden_dropout",
        "tied_embeddings",
    ),
    "parallelism": ("layers_per_stage", "schedule", "zero_stage", "overlap_gradient_reduction", "blocking_transfers"),
    "training": ("precision", "recompute", "partition_activations", "synchronize_each_layer"),
}


def is_short(content: dict[str, Any]) -> bool:
    """Return whether a configuration is in the short form: it has none of the full form's sections."""
    return not set(FULL) & set(content)


def _translate(names: object, key: str) -> list[str]:
    """Return the operators of a list of short names.

    Raises:
        ConfigError: not a list of names, or one of them is unknown.
    """
    if not isinstance(names, list) or not names:
        raise ConfigError(f"{key} is {names!r}; expected a list of operator names")
    return [translate(name, key) for name in names]


def translate(name: object, key: str) -> str:
    """Return the operator that a short name stands for.

    Raises:
        ConfigError: none; the message lists them.
    """
    if not isinstance(name, str) or name not in OPERATORS_BY_SHORT_NAME:
        close = nearest(str(name), OPERATORS_BY_SHORT_NAME)
        known = ", ".join(OPERATORS_BY_SHORT_NAME)
        raise ConfigError(f"{key} names {name!r}, which is not an operator.{close} Known: {known}")
    return OPERATORS_BY_SHORT_NAME[name]


def listed_operators(content: dict[str, Any]) -> tuple[str, ...]:
    """Return the operators of function_list, which a system must have."""
    return tuple(_translate(content["function_list"], "function_list"))


def _attention(operators: tuple[str, ...]) -> str:
    """Return the attention kernels of a layer's operators."""
    if "flash_attention" in operators:
        return "flash"
    return "fused_softmax" if "causal_softmax" in operators else "unfused"


def _numbers(values: object) -> dict[str, Any]:
    if not isinstance(values, list) or len(values) != len(TRAINING_CONFIG):
        count = f"{len(values)} values" if isinstance(values, list) else repr(values)
        raise ConfigError(f"training_config has {count}; expected {len(TRAINING_CONFIG)}: {', '.join(TRAINING_CONFIG)}")
    numbers = dict(zip(TRAINING_CONFIG, values, strict=True))
    for name, value in numbers.items():
        if value is None:
            raise ConfigError(f"training_config has null for {name}; expected a whole number")
    return numbers


def _check_keys(content: dict[str, Any]) -> None:
    known = [*REQUIRED, *IGNORED, *(key for keys in OVERRIDES.values() for key in keys)]
    if content and not content.keys() & set(known):
        given, close = ", ".join(map(str, content))[:80], nearest(str(next(iter(content))), FULL)
        if base := next((key for key in BASES if str(content.get(key)).endswith((".yaml", ".yml"))), None):
            raise ConfigError(
                f"{base}: {content[base]}, on which this file builds, is not read: put the keys of both into one file"
            )
        raise ConfigError(
            f"{given}: no key of a configuration, nor of a tool whose files are known.{close} "
            f"A configuration has {', '.join(FULL)} (docs/configuration.md); other tools' files: docs/readers.md; "
            "of a program of its own give --model NAME or config.json, --gpus N and --micro-batch-size N"
        )
    for key in content:
        if key not in known:
            raise ConfigError(f"{key} is not a known key.{nearest(key, known)} Known: {', '.join(known)}")
    for key in REQUIRED:
        if key not in content:
            raise MissingKeyError(f"{key} is missing; a configuration needs {', '.join(REQUIRED)}")
        if content[key] is None:
            raise ConfigError(f"{key} is null; a configuration needs a value for it")


def _layer_operators(names: object) -> tuple[str, ...]:
    """Return the operators that encoder_function_list names.

    Raises:
        ConfigError: not a list of names, or one of them is of no layer.
    """
    usable = operators_of_a_layer()
    operators = tuple(_translate(names, "encoder_function_list"))
    for operator in operators:
        if operator not in usable:
            short = next(name for name, inside in OPERATORS_BY_SHORT_NAME.items() if inside == operator)
            known = ", ".join(name for name, inside in OPERATORS_BY_SHORT_NAME.items() if inside in usable)
            raise ConfigError(f"encoder_function_list names {short}, not an operator of a layer. Known: {known}")
    return operators


def _model(content: dict[str, Any], n: dict[str, Any]) -> dict[str, Any]:
    layer = _layer_operators(content["encoder_function_list"])
    norm = NORMS.get(str(content["layernorm_name"]))
    if norm is None:
        raise ConfigError(f"layernorm_name is {content['layernorm_name']!r}; expected RMSlayernorm or layernorm")
    return {
        "num_layers": content["encoders"],
        "hidden_size": n["dim"],
        "num_attention_heads": n["h"],
        "sequence_length": n["l"],
        "normalization": norm,
        "attention": _attention(layer),
        "rotary_fraction": 1.0 if "rope" in layer else 0.0,
        "parallel_residual": content["fwd_syncs"] == 1,
        "layer_operators": layer,
        "forward_all_reduces": content["fwd_syncs"],
        "backward_all_reduces": content["bwd_syncs"],
    }


def expand(content: dict[str, Any]) -> dict[str, Any]:
    """Return the full form of a short one.

    Raises:
        MissingKeyError: a required key is absent.
        ConfigError: a key or an operator is unknown, a required value is null, or training_config has not nine values.
    """
    _check_keys(content)
    n = _numbers(content["training_config"])
    _translate(content["function_list"], "function_list")
    full: dict[str, Any] = {
        "system": content["operator_data_folder"],
        "gpu": content["gpu_name"],
        "model": _model(content, n),
        "parallelism": {
            "tensor_parallel_size": n["mp"],
            "pipeline_parallel_size": n["pp"],
            "data_parallel_size": n["dp"],
            "gpus_per_node": n["gpus_per_node"],
            **GPT_NEOX.section("parallelism"),
            "gradient_bucket_elements": content["comm_bucket"],
        },
        "training": {
            "micro_batch_size": n["b"],
            "num_micro_batches": n["steps_per_update"],
            **GPT_NEOX.section("training"),
            "conditions": Conditions.MODEL.value,  # the documented interface composes a step and adds nothing
        },
    }
    for section, keys in OVERRIDES.items():
        full[section].update({key: content[key] for key in keys if key in content})
    return recorded_in_full(full)
