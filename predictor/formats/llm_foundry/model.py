"""The MPT models of LLM Foundry.

Source of names and defaults: mosaicml/llm-foundry, llmfoundry/models/mpt/configuration_mpt.py,
models/utils/config_defaults.py and models/layers/ffn.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.formats.fields import Fields
from predictor.formats.shell.words import is_unknown, shown

NORMS = {
    "low_precision_layernorm": "layer_norm",
    "layernorm": "layer_norm",
    "low_precision_rmsnorm": "rms_norm",
    "rmsnorm": "rms_norm",
    "triton_rmsnorm": "fused_rms_norm",
}
ATTENTIONS = {"flash": "flash", "triton": "flash", "flex": "flash", "torch": "unfused"}
LOSSES = {"fused_crossentropy": "fused", "torch_crossentropy": "torch"}
FFNS = ("mptmlp", "mptglu", "mb_moe", "mb_dmoe", "torch_dmoe")
GLU_EXPERTS = ("mb_dmoe", "torch_dmoe")


@dataclass(slots=True)
class Named(Fields):
    """Fields whose values may come from outside the file, and whose sections are kept."""

    parts: dict[str, Named] = field(default_factory=dict)

    def get(self, key: str) -> Any:
        """Return a value, None after recording that it comes from outside."""
        value = Fields.get(self, key)
        if isinstance(value, str) and is_unknown(value):
            self.broken(
                ConfigError(
                    f"{self.where}: {self.prefix}{key} is {shown(value)}, which comes from outside; write its value"
                )
            )
            return None
        return value

    def open(self) -> list[str]:
        """Return the keys whose values come from outside the file."""
        return [self.written(key) for key, value in self.values.items() if isinstance(value, str) and is_unknown(value)]

    def part(self, key: str) -> Named:
        """Return a section, empty where it is absent; always the same one."""
        if key not in self.parts:
            section = self.section(key)
            self.parts[key] = Named(section.values, self.where, section.prefix, problems=self.problems)
        return self.parts[key]


def mpt(model: Named) -> dict[str, Any]:
    """Return the section ``model`` of an MPT model, without its sequence length.

    Raises:
        ConfigError: its attention or its FFN is not modelled.
    """
    attention, ffn = _attention_section(model), model.part("ffn_config")
    hidden, heads = model.whole("d_model", 2048), model.whole("n_heads", 16)
    expansion = model.real("expansion_ratio", model.real("mlp_ratio", 4.0))  # mlp_ratio in the first releases
    keys: dict[str, Any] = {
        "num_layers": model.whole("n_layers", 24),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": model.whole("vocab_size", 50368),
        "ffn_hidden_size": ffn.whole("ffn_hidden_size", int(hidden * expansion)),
        "biases": not model.switch("no_bias"),
        "tied_embeddings": model.switch("tie_word_embeddings", True),
        "normalization": NORMS[model.text("norm_type", "low_precision_layernorm", NORMS)],
        "loss": LOSSES[model.text("loss_fn", "fused_crossentropy", LOSSES)],
        "hidden_dropout": model.real("resid_pdrop", 0.0),
        **_attention(attention, heads),
        **_positions(model, attention),
    }
    model.get("max_seq_len")
    return keys | _ffn(ffn, keys["ffn_hidden_size"])


def _attention_section(model: Named) -> Named:
    """Return the keys of attention; the first releases have some of them beside the model's."""
    section = model.part("attn_config")
    older = {key: model.get(key) for key in ("attn_impl", "attn_pdrop", "alibi", "attn_qk_ln") if model.has(key)}
    if "attn_qk_ln" in older:
        older["qk_ln"] = older.pop("attn_qk_ln")
    section.values = {**older, **section.values}
    return section


def _attention(section: Named, heads: int) -> dict[str, Any]:
    kind = section.text("attn_type", "multihead_attention")
    shared = {"multihead_attention": heads, "multiquery_attention": 1, "grouped_query_attention": None}
    if kind not in shared:
        raise section.error("attn_type", f"expected {', '.join(shared)}")
    groups = shared[kind] or section.whole("kv_n_heads", heads)
    window = section.whole("sliding_window_size", -1, least=-1)
    keys: dict[str, Any] = {"attention": ATTENTIONS[section.text("attn_impl", "flash", ATTENTIONS)]}
    keys |= {"num_key_value_heads": groups} if groups != heads else {}
    keys |= {"qk_norm": "whole"} if section.switch("qk_ln") else {}
    keys |= {"qk_norm": True} if section.switch("qk_gn") else {}
    keys |= {"sliding_window": window} if window > 0 else {}
    return keys | {"attention_dropout": section.real("attn_pdrop", 0.0)}


def _positions(model: Named, attention: Named) -> dict[str, Any]:
    learned = model.switch("learned_pos_emb", True)
    if attention.switch("alibi"):
        return {"positions": "alibi", "rotary_fraction": 0.0}
    if attention.switch("rope"):
        return {"rotary_fraction": 1.0}
    return {"rotary_fraction": 0.0} if learned else {"positions": "none", "rotary_fraction": 0.0}


def _ffn(section: Named, width: int) -> dict[str, Any]:
    """Return the keys of the FFN: GELU unless said, gated in MPT's GLU and in dropless experts with mlp_type glu.

    Raises:
        ConfigError: its activation is not modelled.
    """
    kind = section.text("ffn_type", "mptmlp", FFNS)
    given = section.get("ffn_act_fn") or {"name": "gelu"}
    name = str(given.get("name")) if isinstance(given, dict) else str(given)
    gated = kind == "mptglu" or (kind in GLU_EXPERTS and section.text("mlp_type", "mlp") == "glu")
    activations = {("gelu", False): "gelu", ("gelu", True): "geglu", ("silu", True): "swiglu", ("relu", False): "relu"}
    if (name, gated) not in activations:
        raise section.error("ffn_act_fn", "expected gelu, relu, or silu with a gate")
    keys: dict[str, Any] = {"activation": activations[name, gated]}
    experts = section.optional_whole("moe_num_experts")
    if not kind.endswith("moe") or experts is None:
        return keys
    return keys | {
        "moe": {
            "num_experts": experts,
            "experts_per_token": section.whole("moe_top_k", 1),
            "expert_ffn_hidden_size": width,
        }
    }
