"""Experts that arguments of Megatron-LM describe, and the layers that have them.

Source of names and defaults: NVIDIA/Megatron-LM, megatron/training/arguments.py, _add_moe_args and
moe_freq_type; megatron/core/models/gpt/gpt_layer_specs.py (moe_layer_pattern).
"""

from __future__ import annotations

import ast
import re
from typing import Any

from predictor.formats.megatron.options import Options

LARGEST = 10_000  # layers; more is a slip


def experts(options: Options, model: dict[str, Any]) -> dict[str, Any]:
    """Return the key ``moe`` of a model with experts.

    Raises:
        ConfigError: --moe-layer-freq is no pattern of the layers, or one that is not modelled.
    """
    count = options.optional_whole("num-experts")
    width = options.whole("moe-ffn-hidden-size", model["ffn_hidden_size"])
    top_k = options.whole("moe-router-topk", 2)
    shared = options.whole("moe-shared-expert-intermediate-size", 0, least=0)
    gate = options.switch("moe-shared-expert-gate") or options.switch("moe-use-shared-expert-gate")
    capacity = options.real("moe-expert-capacity-factor", 0.0)
    frequency = options.get("moe-layer-freq")
    latent = options.optional_whole("moe-latent-size")
    has_bias = options.switch("moe-router-enable-expert-bias")
    if count is None:
        return {}
    keys: dict[str, Any] = {"num_experts": count, "experts_per_token": top_k, "expert_ffn_hidden_size": width}
    if shared:
        keys |= {"shared_expert_ffn_hidden_size": shared, "shared_expert_gate": gate}
    kinds: dict[str, Any] = {}
    if "ffn_types" not in model:
        pattern = _pattern(options, frequency, model["num_layers"])
        dense = pattern.index(1)
        if 0 in pattern[dense:]:
            kinds = {"ffn_types": ["experts" if has_experts else "dense" for has_experts in pattern]}
        elif dense:
            keys["num_dense_layers"] = dense
    if has_bias:
        keys["router_bias"] = True
    if latent:
        keys["latent_size"] = latent
    if capacity > 0:
        keys["capacity_factor"] = capacity
    return {"moe": keys, **kinds}


def _pattern(options: Options, frequency: Any, layers: int) -> list[int]:
    """Return a 1 for every layer with experts and a 0 for every other.

    Raises:
        ConfigError: it is no pattern, or does not name every layer, or none of them has experts.
    """
    pattern = layer_pattern(frequency, layers)
    if pattern is None:
        raise options.error(
            "moe-layer-freq", "expected a period such as 2, or a list such as ([0]*1+[1]*31) of zeros and ones"
        )
    if len(pattern) != layers:
        raise options.error("moe-layer-freq", f"it names {len(pattern)} layers; the model has {layers}")
    if 1 not in pattern:
        raise options.error("moe-layer-freq", "no layer has experts; leave out --num-experts")
    return pattern


def layer_pattern(frequency: Any, layers: int) -> list[int] | None:
    """Return a 1 for every layer with experts and a 0 for every other; None for what is no pattern.

    Args:
        frequency: a period n, of which the first layer has experts; a list; or the text of either, lists joined by +
            and repeated by *, in brackets and quotes as a shell needs them. Absent: every layer.
        layers: of the model.
    """
    if frequency is None:
        return [1] * layers
    text = str(frequency).strip("'\" ")
    if re.fullmatch(r"\d+(?:[\s,]+\d+)+", text):
        text = f"[{','.join(re.findall('[0-9]+', text))}]"
    try:
        value = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return None
    if isinstance(value, int):
        return [1 if layer % value == 0 else 0 for layer in range(layers)] if value > 0 else None
    return value if set(value) <= {0, 1} else None


def _value(node: ast.expr) -> int | list[int]:
    """Return the value of whole numbers, and of lists of them that are joined and repeated.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        items = [_value(item) for item in node.elts]
        if all(isinstance(item, int) for item in items):
            return [item for item in items if isinstance(item, int)]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, int):
            left, right = right, left
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int) and right <= LARGEST:
            return (left * right)[: LARGEST + 1]
    raise ValueError(ast.dump(node))
