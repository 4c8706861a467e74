"""Names and shapes of transformers' GPT-2 and LLaMA, in both directions.

GPT-2 keeps its projections as (in, out), and query, key and value in one matrix; LLaMA keeps them as (out, in) and
apart. Here rows of query, key and value are grouped by key and value head.

Source: transformers, models/gpt2/modeling_gpt2.py and models/llama/modeling_llama.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from llm_trainer.config import ModelConfig
from llm_trainer.exceptions import ModelConfigurationError

GPT2, LLAMA = "gpt2", "llama"
HEAD, TOKENS, POSITIONS = "head.weight", "embed.tokens.weight", "embed.positions.weight"
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
}
GATED = {"silu": "swiglu", "gelu": "geglu"}
OUTER = {
    GPT2: {"embed.tokens": "transformer.wte", "embed.positions": "transformer.wpe", "norm": "transformer.ln_f"},
    LLAMA: {"embed.tokens": "model.embed_tokens", "norm": "model.norm"},
}
LAYERS = {GPT2: "transformer.h", LLAMA: "model.layers"}
INNER = {
    GPT2: {
        "attention_norm": "ln_1",
        "attention.output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn.up": "mlp.c_fc",
        "ffn.down": "mlp.c_proj",
    },
    LLAMA: {
        "attention_norm": "input_layernorm",
        "attention.output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn.up": "mlp.up_proj",
        "ffn.gate": "mlp.gate_proj",
        "ffn.down": "mlp.down_proj",
    },
}
PARTS = ("weight", "bias")
# Options that change the result, with the only value that this model has.
FIXED = {
    GPT2: {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    LLAMA: {},
}


def read_model_config(content: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration that transformers' config.json stands for.

    Raises:
        ModelConfigurationError: it is of another family, lacks a size, or has an option that this model lacks.
    """
    family = content.get("model_type")
    if family not in LAYERS:
        raise ModelConfigurationError(f"model_type is {family!r}; weights can be taken from {GPT2} and {LLAMA}")
    for key, value in FIXED[family].items():
        if content.get(key, value) != value:
            raise ModelConfigurationError(f"{key} is {content[key]!r}; this model knows {value!r} only")
    try:
        return _gpt2_config(content) if family == GPT2 else _llama_config(content)
    except KeyError as error:
        raise ModelConfigurationError(f"{error.args[0]} is missing in the {family} configuration") from None


def _activation(name: Any, known: Mapping[str, str]) -> str:
    if name not in known:
        raise ModelConfigurationError(f"the activation is {name!r}; expected {', '.join(known)}")
    return known[name]


def _gpt2_config(content: Mapping[str, Any]) -> ModelConfig:
    return ModelConfig(
        vocab_size=content["vocab_size"],
        d_model=content["n_embd"],
        n_heads=content["n_head"],
        n_layers=content["n_layer"],
        d_ff=content.get("n_inner") or 4 * content["n_embd"],
        max_seq_len=content["n_positions"],
        dropout=content.get("resid_pdrop", 0.1),
        attention_dropout=content.get("attn_pdrop", 0.1),
        activation=_activation(content.get("activation_function", "gelu_new"), ACTIVATIONS),
        init_std=content.get("initializer_range", 0.02),
        layer_norm_eps=content.get("layer_norm_epsilon", 1e-5),
        position_encoding="learned",
        tie_word_embeddings=content.get("tie_word_embeddings", True),
    )


def _llama_config(content: Mapping[str, Any]) -> ModelConfig:
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ModelConfigurationError(f"rope_type is {kind!r}; this model knows 'default' only")
    use_bias = content.get("attention_bias", False)
    if content.get("mlp_bias", False) != use_bias:
        raise ModelConfigurationError(f"mlp_bias is {not use_bias}; it must equal attention_bias, {use_bias}")
    d_head = content["hidden_size"] // content["num_attention_heads"]
    if (content.get("head_dim") or d_head) != d_head:
        raise ModelConfigurationError(
            f"head_dim is {content['head_dim']}; it must be hidden_size / num_attention_heads, {d_head}"
        )
    return ModelConfig(
        vocab_size=content["vocab_size"],
        d_model=content["hidden_size"],
        n_heads=content["num_attention_heads"],
        n_kv_heads=content.get("num_key_value_heads"),
        n_layers=content["num_hidden_layers"],
        d_ff=content["intermediate_size"],
        max_seq_len=content.get("max_position_embeddings", 2048),
        dropout=0.0,
        attention_dropout=content.get("attention_dropout", 0.0),
        activation=_activation(content.get("hidden_act", "silu"), GATED),
        init_std=content.get("initializer_range", 0.02),
        layer_norm_eps=content.get("rms_norm_eps", 1e-6),
        use_bias=use_bias,
        norm="rms_norm",
        position_encoding="rope",
        rope_theta=rope.get("rope_theta", content.get("rope_theta", 10000.0)),
        tie_word_embeddings=content.get("tie_word_embeddings", False),
    )


def family_of(config: ModelConfig) -> str:
    """Return the family of transformers that has this architecture.

    Raises:
        ModelConfigurationError: none of the known ones has.
    """
    if config.pre_norm and config.norm == "rms_norm" and config.positions == "rope" and config.is_gated:
        return LLAMA
    is_plain = not config.is_gated and config.use_bias and config.kv_heads == config.n_heads
    if config.pre_norm and config.norm == "layer_norm" and config.positions == "learned" and is_plain:
        return GPT2
    raise ModelConfigurationError(
        f"the model is neither {GPT2} (layer_norm, learned positions, biases, no gate) "
        f"nor {LLAMA} (rms_norm, rope, gated)"
    )


def write_model_config(config: ModelConfig) -> dict[str, Any]:
    """Return transformers' config.json of a model.

    Raises:
        ModelConfigurationError: neither GPT-2 nor LLaMA has this architecture.
    """
    family = family_of(config)
    activations = GATED if family == LLAMA else ACTIVATIONS
    activation = next(theirs for theirs, ours in activations.items() if ours == config.activation)
    common = {
        "model_type": family,
        "vocab_size": config.vocab_size,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    if family == GPT2:
        return common | {
            "architectures": ["GPT2LMHeadModel"],
            "n_embd": config.d_model,
            "n_head": config.n_heads,
            "n_layer": config.n_layers,
            "n_inner": config.d_ff,
            "n_positions": config.max_seq_len,
            "resid_pdrop": config.dropout,
            "embd_pdrop": config.dropout,
            "attn_pdrop": config.attention_dropout,
            "activation_function": activation,
            "layer_norm_epsilon": config.layer_norm_eps,
        }
    return common | {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": config.d_model,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_heads,
        "num_hidden_layers": config.n_layers,
        "intermediate_size": config.d_ff,
        "max_position_embeddings": config.max_seq_len,
        "attention_dropout": config.attention_dropout,
        "hidden_act": activation,
        "rms_norm_eps": config.layer_norm_eps,
        "attention_bias": config.use_bias,
        "mlp_bias": config.use_bias,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
    }


def _names(config: ModelConfig, family: str) -> dict[str, str]:
    """Return transformers' names of all modules but query, key and value, by ours."""
    names = dict(OUTER[family])
    for layer in range(config.n_layers):
        for ours, theirs in INNER[family].items():
            names[f"layers.{layer}.{ours}"] = f"{LAYERS[family]}.{layer}.{theirs}"
    return names


def _is_transposed(family: str, ours: str, part: str) -> bool:
    return family == GPT2 and part == "weight" and ours.endswith(("attention.output", "ffn.up", "ffn.down"))


def take_weights(config: ModelConfig, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state of TransformerLM from one of transformers.

    Args:
        config: as ``read_model_config`` returns it.
        theirs: state dictionary of GPT2LMHeadModel or LlamaForCausalLM; buffers in it are left out.

    Raises:
        ModelConfigurationError: a weight is missing.
    """
    family = family_of(config)
    bare = family == GPT2 and "wte.weight" in theirs  # the published gpt2 was saved without its head

    def weight(name: str) -> Tensor:
        name = name.removeprefix("transformer.") if bare else name
        if name not in theirs:
            raise ModelConfigurationError(f"{name} is missing among the {family} weights")
        return theirs[name]

    ours: dict[str, Tensor] = {}
    for own, name in _names(config, family).items():
        for part in _parts(own, config):
            tensor = weight(f"{name}.{part}")
            ours[f"{own}.{part}"] = tensor.t() if _is_transposed(family, own, part) else tensor
    for layer in range(config.n_layers):
        prefix = f"{LAYERS[family]}.{layer}"
        for part in _parts("attention.qkv", config):
            if family == GPT2:
                whole = weight(f"{prefix}.attn.c_attn.{part}")
                three = (whole.t() if part == "weight" else whole).chunk(3)
            else:
                three = tuple(weight(f"{prefix}.self_attn.{name}_proj.{part}") for name in "qkv")
            ours[f"layers.{layer}.attention.qkv.{part}"] = _grouped(config, *three)
    ours[HEAD] = ours[TOKENS] if config.tie_word_embeddings else weight("lm_head.weight")
    return ours


def give_weights(config: ModelConfig, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state of transformers from one of TransformerLM; a tied head is left out.

    Raises:
        ModelConfigurationError: neither GPT-2 nor LLaMA has this architecture.
    """
    family = family_of(config)
    theirs: dict[str, Tensor] = {}
    for own, name in _names(config, family).items():
        for part in _parts(own, config):
            tensor = ours[f"{own}.{part}"]
            theirs[f"{name}.{part}"] = (tensor.t() if _is_transposed(family, own, part) else tensor).contiguous()
    for layer in range(config.n_layers):
        prefix = f"{LAYERS[family]}.{layer}"
        for part in _parts("attention.qkv", config):
            three = _ungrouped(config, ours[f"layers.{layer}.attention.qkv.{part}"])
            if family == GPT2:
                whole = torch.cat(three)
                theirs[f"{prefix}.attn.c_attn.{part}"] = (whole.t() if part == "weight" else whole).contiguous()
            else:
                for name, tensor in zip("qkv", three, strict=True):
                    theirs[f"{prefix}.self_attn.{name}_proj.{part}"] = tensor.contiguous()
    if not config.tie_word_embeddings:
        theirs["lm_head.weight"] = ours[HEAD]
    return theirs


def _parts(module: str, config: ModelConfig) -> tuple[str, ...]:
    """Return the names of a module's tensors: weight and, where it has one, bias."""
    has_bias = config.use_bias and not module.startswith("embed")
    return PARTS if has_bias and not (module.endswith("norm") and config.norm == "rms_norm") else PARTS[:1]


def _grouped(config: ModelConfig, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return rows of query, key and value grouped by key and value head."""
    rest = query.shape[1:]
    parts = [part.reshape(config.kv_heads, -1, config.d_head, *rest) for part in (query, key, value)]
    return torch.cat(parts, dim=1).reshape(-1, *rest)


def _ungrouped(config: ModelConfig, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value of grouped rows."""
    rest = qkv.shape[1:]
    group = config.n_heads // config.kv_heads
    parts = qkv.reshape(config.kv_heads, group + 2, config.d_head, *rest).split((group, 1, 1), dim=1)
    query, key, value = (part.reshape(-1, *rest) for part in parts)
    return query, key, value
