"""Read a config.json of Hugging Face transformers: a model's shape, without a sequence length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from predictor.base.errors import ConfigError, nearest
from predictor.configuration.readers.fields import Fields
from predictor.configuration.readers.hugging_face_families import Family, Windows, families
from predictor.configuration.readers.known_keys import known_keys
from predictor.configuration.readers.result import Read

FORMAT = "Hugging Face config.json"
KEYS = "hugging_face"
GELUS = frozenset({"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "quick_gelu"})
SILUS = frozenset({"silu", "swish"})
# Keys without which a file describes no model; a class default for any of them is noted.
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")


def load_json(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        ConfigError: it does not parse, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no keys and values; expected a JSON object")
    return content


def read(path: Path) -> Read:
    """Read a model's shape. The file does not say the sequence length of a training.

    Raises:
        ConfigError: the family is unknown, or something that changes the cost is not modelled.
    """
    return _Reader(Fields(load_json(path), path.name)).read()


class _Reader:
    """One file being read: its fields, its family, and the notes so far."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.family = _family(fields)
        self.notes: list[str] = []

    def read(self) -> Read:
        self._refuse()
        model = {**self._sizes(), **self.family.fixed, **self._switches(), **self._dropouts(), **self._windows()}
        if self.family.has_experts:
            model |= self._experts(model["num_layers"])
        if absent := [self._name(key) for key in SIZES if not self.fields.has(self._name(key))]:
            self.notes.append(f"not in the file, so as in transformers' class: {', '.join(absent)}")
        self._note_the_rest()
        unsaid = {"model.sequence_length": f"{self.fields.where} says no sequence length"}
        return Read({"model": model}, tuple(self.notes), FORMAT, unsaid)

    def _name(self, key: str) -> str:
        return self.family.names.get(key, key)

    def _whole(self, key: str, least: int = 1) -> int:
        return self.fields.whole(self._name(key), self.family.defaults.get(key), least)

    def _real(self, key: str) -> float:
        return self.fields.real(self._name(key), float(self.family.defaults.get(key, 0.0)))

    def _switch(self, key: str) -> bool:
        return self.fields.switch(self._name(key), bool(self.family.defaults.get(key, False)))

    def _note_the_rest(self) -> None:
        known = known_keys(KEYS)
        rest = [key for key in self.fields.unused() if self.fields.values[key] and not known.is_irrelevant(key)]
        self.notes += [known.noted[key] for key in rest if key in known.noted]
        if unknown := [key for key in rest if key not in known.noted]:
            self.notes.append(f"not used, as unknown for {self.fields.values['model_type']}: {', '.join(unknown)}")

    def _refuse(self) -> None:
        for key, reason in known_keys(KEYS).refused.items():
            if self.fields.values.get(key):
                raise self.fields.error(key, reason)
        names = self.fields.get("architectures")
        if isinstance(names, list) and names and not any(str(name).endswith(LANGUAGE_MODELS) for name in names):
            raise self.fields.error(
                "architectures", "only language models (…ForCausalLM) are predicted; remove it to predict one"
            )

    def _sizes(self) -> dict[str, Any]:
        hidden, heads = self._whole("hidden_size"), self._whole("num_attention_heads")
        name = self._name("intermediate_size")
        ffn = self.fields.whole(name, self.family.defaults.get("intermediate_size", 4 * hidden))
        sizes: dict[str, Any] = {
            "num_layers": self._whole("num_hidden_layers"),
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "ffn_hidden_size": ffn,
            "vocab_size": self._whole("vocab_size"),
        }
        if "max_position_embeddings" in self.family.defaults:  # learned positions are parameters
            sizes["num_position_embeddings"] = self._whole("max_position_embeddings")
        # null means as many as there are query heads; an absent key means the class's default.
        key_value = self.fields.optional_whole("num_key_value_heads")
        if key_value is None and "num_key_value_heads" not in self.fields.values:
            key_value = self.family.defaults.get("num_key_value_heads")
        if key_value not in (None, heads):
            sizes["num_key_value_heads"] = key_value
        head_dim = self.fields.optional_whole("head_dim") or self.family.defaults.get("head_dim")
        if head_dim is not None and head_dim * heads != hidden:
            sizes["head_dim"] = head_dim
        if head_dim is None and hidden % heads:
            raise self.fields.error(self._name("num_attention_heads"), f"it must divide hidden_size, {hidden}")
        return sizes

    def _switches(self) -> dict[str, Any]:
        switches: dict[str, Any] = {
            "activation": self._activation(),
            "tied_embeddings": self._switch("tie_word_embeddings"),
        }
        if "rotary_fraction" not in self.family.fixed:
            switches["rotary_fraction"] = self._rotary_fraction()
        if "biases" not in self.family.fixed:
            switches["biases"] = self._biases()
        if self._switch("use_parallel_residual"):
            switches["parallel_residual"] = True
        return switches

    def _activation(self) -> str:
        # Gemma's files have hidden_activation, older files hidden_act as well.
        key = "hidden_activation" if self.fields.has("hidden_activation") else self._name("hidden_act")
        self.fields.used |= {"hidden_activation", self._name("hidden_act")}
        default = self.family.defaults.get("hidden_act", "silu")
        name = self.fields.text(key, default)
        if name in GELUS:
            return "geglu" if self.family.gated else "gelu"
        if name in SILUS and self.family.gated:
            return "swiglu"
        known = sorted(GELUS | SILUS if self.family.gated else GELUS)
        raise self.fields.error(key, f"expected one of {', '.join(known)}")

    def _rotary_fraction(self) -> float:
        default = float(self.family.defaults.get("rotary_fraction", 1.0))
        parameters = self.fields.values.get("rope_parameters")
        if isinstance(parameters, dict) and "partial_rotary_factor" in parameters:
            default = Fields(parameters, self.fields.where, "rope_parameters.").real("partial_rotary_factor", default)
        self.fields.used.add("rope_parameters")
        fraction = self.fields.real("rotary_pct", self.fields.real("partial_rotary_factor", default))
        if not 0.0 < fraction <= 1.0:
            raise ConfigError(f"{self.fields.where}: rotary_pct is {fraction}; expected a share above 0 and up to 1")
        return fraction

    def _biases(self) -> bool | str:
        model_type = self.fields.values["model_type"]
        if model_type == "gpt_neox":
            if not self.fields.switch("attention_bias", True):
                raise self.fields.error("attention_bias", "biases in the FFN alone are not modelled")
            return True
        if model_type == "qwen2_moe":
            return "qkv" if self._switch("qkv_bias") else False
        attention, ffn = self._switch("attention_bias"), self._switch("mlp_bias")
        if ffn and not attention:
            raise self.fields.error("mlp_bias", "biases in the FFN alone are not modelled")
        if attention and not ffn:
            self.notes.append("attention_bias: biases of queries, keys and values are counted, the output's is not")
        return True if ffn else "qkv" if attention else False

    def _dropouts(self) -> dict[str, float]:
        hidden = self._real("hidden_dropout") if self._name("hidden_dropout") != "hidden_dropout" else 0.0
        if self.fields.values["model_type"] == "gpt_neox":
            hidden = self.fields.real("hidden_dropout", self.fields.real("hidden_dropout_prob", 0.0))
            attention = self.fields.real("attention_dropout", self.fields.real("attention_probs_dropout_prob", 0.0))
        else:
            attention = self._real("attention_dropout")
        if self.fields.real("embd_pdrop", 0.0) and not hidden:
            self.notes.append("embd_pdrop: dropout of the embedding alone is not modelled")
        dropouts = {"attention_dropout": attention, "hidden_dropout": hidden}
        return {key: value for key, value in dropouts.items() if value}

    def _windows(self) -> dict[str, int]:
        layers = self._whole("num_hidden_layers")
        if self.family.windows is Windows.NONE:
            return {}
        is_on = self._window_is_on()
        window = self.fields.optional_whole("sliding_window", least=0)
        if window is None and "sliding_window" not in self.fields.values:
            window = self.family.defaults.get("sliding_window")
        windowed = self._windowed_layers(layers)
        if not is_on or not window or not windowed:
            return {}
        return {"sliding_window": window} | ({"sliding_window_layers": windowed} if windowed < layers else {})

    def _window_is_on(self) -> bool:
        if self.family.windows not in (Windows.UPPER, Windows.SWITCHED, Windows.UNCLEAR):
            return True
        is_on = self.fields.switch("use_sliding_window")
        if is_on and self.family.windows is Windows.UNCLEAR and not self.fields.has("layer_types"):
            raise self.fields.error(
                "use_sliding_window", "releases of transformers differ in which layers have it; add layer_types"
            )
        return is_on

    def _windowed_layers(self, layers: int) -> int:
        """Return the number of layers with a window, where ``sliding_window`` is set."""
        first_upper = self.fields.whole("max_window_layers", self.family.defaults.get("max_window_layers", 0), 0)
        period = self.fields.whole("sliding_window_pattern", self.fields.whole("_sliding_window_pattern", 6))
        types = self.fields.get("layer_types")
        if types is not None:
            return self._listed_windows(types, layers)
        if self.family.windows is Windows.UPPER:
            return max(0, layers - first_upper)
        if self.family.windows is Windows.ALTERNATING:
            return (layers + 1) // 2
        return layers - layers // period if self.family.windows is Windows.PATTERN else layers

    def _listed_windows(self, types: Any, layers: int) -> int:
        kinds = set(types) if isinstance(types, list) else {"?"}
        if not kinds <= {"sliding_attention", "full_attention"}:
            raise self.fields.error("layer_types", "only sliding_attention and full_attention are modelled")
        if len(types) != layers:
            raise ConfigError(f"{self.fields.where}: layer_types names {len(types)} layers; the model has {layers}")
        return int(types.count("sliding_attention"))

    def _experts(self, layers: int) -> dict[str, Any]:
        defaults = self.family.defaults
        key = "num_local_experts" if self.fields.has("num_local_experts") else "num_experts"
        experts: dict[str, Any] = {
            "num_experts": self.fields.whole(key, defaults["num_experts"]),
            "experts_per_token": self._whole("num_experts_per_tok"),
        }
        if "moe_intermediate_size" in defaults:
            experts["expert_ffn_hidden_size"] = self._whole("moe_intermediate_size")
            if dense := self._dense_layers(layers):
                experts["num_dense_layers"] = dense
        else:
            experts["expert_ffn_hidden_size"] = self._whole("intermediate_size")
        if "shared_expert_intermediate_size" in defaults and (
            shared := self._whole("shared_expert_intermediate_size", 0)
        ):
            experts |= {"shared_expert_ffn_hidden_size": shared, "shared_expert_gate": True}
        return {"moe": experts} if experts.get("num_dense_layers", 0) < layers else {}

    def _dense_layers(self, layers: int) -> int:
        """Return the number of dense layers at the start; dense layers elsewhere are not modelled."""
        listed = self.fields.get("mlp_only_layers") or []
        step = self.fields.whole("decoder_sparse_step", 1)
        if not isinstance(listed, list):
            raise self.fields.error("mlp_only_layers", "expected a list of layers")
        dense = [i for i in range(layers) if i in listed or (i + 1) % step]
        if dense != list(range(len(dense))):
            raise ConfigError(
                f"{self.fields.where}: mlp_only_layers and decoder_sparse_step make layers {dense[:8]} dense; only "
                "dense layers at the start are modelled"
            )
        return len(dense)


def _family(fields: Fields) -> Family:
    model_type = fields.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigError(f"{fields.where}: model_type is missing; known: {', '.join(families())}")
    if reason := known_keys(KEYS).unsupported.get(model_type):
        raise fields.error("model_type", reason)
    known = families()
    if model_type not in known:
        raise fields.error("model_type", f"it is not known.{nearest(model_type, known)} Known: {', '.join(known)}")
    return known[model_type]
