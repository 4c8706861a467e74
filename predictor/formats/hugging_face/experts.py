"""The mixture of experts of a config.json."""

from __future__ import annotations

from typing import Any

from predictor.formats.hugging_face.config import Config


def experts(config: Config) -> dict[str, Any]:
    """Return the section ``moe`` of a model that has layers with experts.

    Raises:
        ConfigError: a size is missing, or a variant is not modelled.
    """
    found: dict[str, Any] = {
        "num_experts": config.whole("num_experts"),
        "experts_per_token": config.whole("num_experts_per_tok"),
        "expert_ffn_hidden_size": config.whole("moe_intermediate_size"),
    }
    latent = config.optional("moe_latent_size")
    if latent is not None:
        found["latent_size"] = latent
    shared = _shared_width(config)
    return found | config.family.moe | ({"shared_expert_ffn_hidden_size": shared} if shared else _no_gate(config))


def _no_gate(config: Config) -> dict[str, Any]:
    return {"shared_expert_gate": False} if config.family.moe.get("shared_expert_gate") else {}


def _shared_width(config: Config) -> int:
    """Return the inner width of all shared experts together; a key says it, or the number of them."""
    width = config.optional("shared_expert_intermediate_size", 0)
    number = config.optional("n_shared_experts", 0)
    if width is not None:
        return width if number is None else width * number
    return (number or 0) * config.whole("moe_intermediate_size")
