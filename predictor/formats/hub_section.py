"""The parts of a run that tools around Hugging Face's models have in common: model, adapters, sharding, lengths."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.workload.frameworks import FSDP2
from predictor.formats.hub_models import known_model, last_part, shape_of
from predictor.formats.shell.words import is_unknown, shown

# A module of transformers' models by the linear layer of ours, in the order of ours.
MODULES = {
    "qkv": ("query_key_value", "c_attn", "qkv_proj", "Wqkv", "W_pack", "qkv"),
    "q": ("q_proj", "query", "wq"),
    "k": ("k_proj", "key", "wk"),
    "v": ("v_proj", "value", "wv"),
    "attention_output": ("o_proj", "wo"),
    "q_down": ("q_a_proj",),
    "q_up": ("q_b_proj",),
    "kv_down": ("kv_a_proj_with_mqa",),
    "kv_up": ("kv_b_proj",),
    "in_projection": ("in_proj", "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
    "out_projection": ("out_proj",),
    "ffn_up": ("gate_up_proj", "dense_h_to_4h", "fc1", "c_fc", "fc_in", "mlp_up"),
    "gate": ("gate_proj", "w1"),
    "up": ("up_proj", "w3"),
    "ffn_down": ("down_proj", "dense_4h_to_h", "fc2", "w2", "fc_out", "mlp_down"),
}
TARGETS = {module: target for target, modules in MODULES.items() for module in modules}
# Megatron-core's modules of several, beside those of transformers.
LINEARS = TARGETS | {
    "linear_qkv": "qkv",
    "linear_proj": "attention_output",
    "linear_fc1": "ffn_up",
    "linear_fc2": "ffn_down",
}
USUAL = ("q", "k", "v", "attention_output", "gate", "up", "ffn_down")  # of a decoder, where all have adapters

OF_PLAIN_ATTENTION = frozenset({"qkv", "q", "k", "v"})
OF_LATENT_ATTENTION = frozenset({"q_down", "q_up", "kv_down", "kv_up"})
OF_RECURRENCES = frozenset({"in_projection", "out_projection"})
RECURRENCES = frozenset({"mamba2", "gated_delta", "recurrence"})


def hub_section(name: Any, key: str, where: str, unsaid: dict[str, str], notes: list[str]) -> dict[str, Any]:
    """Return the section ``model`` of a model by its name; where it is not known, its config.json has to say it.

    Args:
        name: as the file has it.
        key: of the file, for messages.
        where: the file.
        unsaid: what the file leaves open.
        notes: notes so far.
    """
    known = known_model(name) if isinstance(name, str) and not is_unknown(last_part(name)) else None
    if known is not None:
        notes += [f"{where}: {key} is {name}, with the sizes of {known.source}", *known.notes]
        unsaid |= known.unsaid
        return dict(known.section)
    named = f"{key} is {shown(str(name))}, which has no preset" if name else f"{key} names no model"
    unsaid["model.num_layers"] = (
        f"{where}: {named}; take the model's config.json in front of this file (from: [config.json, {where}]), or"
    )
    return {}


def lora(rank: Any, patterns: Any, all_linear: bool, where: str, dropout: Any = 0.0) -> dict[str, Any]:
    """Return the key of ``training`` on adapters.

    Raises:
        ConfigError: their rank is no number, or a pattern names no linear layer that is known.
    """
    if type(rank) is not int or rank < 1:
        raise ConfigError(f"{where}: the rank of the adapters is {rank}; expected a whole number")
    named = [patterns] if isinstance(patterns, str) else list(patterns or [])
    if all_linear or "all-linear" in named or not named:
        targets = list(USUAL)
    else:
        held = {ours for name, ours in LINEARS.items() for pattern in named if _matches(name, str(pattern))}
        strange = [pattern for pattern in named if not any(_matches(name, str(pattern)) for name in LINEARS)]
        if strange:
            raise ConfigError(f"{where}: adapters are at {', '.join(map(str, strange))}; known: {', '.join(LINEARS)}")
        targets = [target for target in MODULES if target in with_output(held, named)]
        if not any(_matches(name, str(pattern)) and pattern == name for name in LINEARS for pattern in named):
            targets = [target for target in targets if target in USUAL]  # a wildcard means those that a model has
    own = {"dropout": float(dropout)} if isinstance(dropout, int | float) and dropout > 0 else {}
    return {"lora": {"rank": rank, "targets": targets, **own}}


def present(targets: list[str], model: dict[str, Any]) -> list[str]:
    """Return the targets that a model has, as Megatron-Bridge and PEFT pass over others; all where it is not known."""
    shape = shape_of(model)
    if "num_layers" not in shape:
        return targets
    types = set(shape.get("layer_types") or ["full_attention"])
    latent = shape.get("latent_attention")
    absent = set(OF_PLAIN_ATTENTION if latent or not types - RECURRENCES - {"none"} else ())
    absent |= set() if latent else OF_LATENT_ATTENTION
    absent |= {"q_down"} if latent and not latent.get("q_lora_rank") else set()
    absent |= set() if types & RECURRENCES or shape.get("mamba2_beside_attention") else OF_RECURRENCES
    return [target for target in targets if target not in absent]


def with_output(targets: set[str], names: list[Any]) -> set[str]:
    """Return targets with out_proj told apart: a recurrent layer's, or attention's where no other name is of either.

    Source: transformers' models: hybrids call attention's o_proj (Bamba, Jamba, Qwen3-Next, MiniMax), and those with
    an out_proj of attention have no other layers (OPT, BART, GPT-J, GPT-Neo, CodeGen).
    """
    others = any(str(name).rpartition(".")[2].startswith(("o_proj", "in_proj")) for name in names)
    if "out_projection" not in targets or others or "*" in "".join(map(str, names)):
        return targets
    return targets - {"out_projection"} | {"attention_output"}


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(f"model.layers.0.part.{name}", pattern) or pattern.endswith(f".{name}")


def fsdp(fp32_parameters: bool, fp32_gradients: bool = True, stays_gathered: bool = False) -> dict[str, Any]:
    """Return the keys of ``parallelism`` of torch's FSDP, which shards parameters."""
    keys = FSDP2.section("parallelism") | {"fp32_parameters": fp32_parameters, "fp32_gradients": fp32_gradients}
    return keys | ({"reshard_after_forward": False} if stays_gathered else {})


def replicas(gpus: int | None, ranks: int, where: str, unsaid: dict[str, str], asked: bool = False) -> dict[str, int]:
    """Return the replicas of a run, or ask for them.

    Args:
        gpus: of the run; None where nothing says them.
        ranks: of one replica.
        where: the file.
        unsaid: what the file leaves open.
        asked: the caller named the GPUs, not the file.

    Raises:
        ConfigError: the GPUs are no multiple of the ranks of a replica.
    """
    if gpus is None:
        unsaid["parallelism.data_parallel_size"] = f"{where} says no number of GPUs"
        return {}
    if gpus % ranks:
        named = "the run has" if asked else "the file names"
        raise ConfigError(f"{where}: {named} {gpus} GPUs; expected a multiple of the ranks of a replica, {ranks}")
    return {"data_parallel_size": gpus // ranks}
