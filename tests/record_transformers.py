"""Record what transformers ships: every language model's default configuration, its keys' defaults, its parameters.

    python -m tests.record_transformers      # needs torch and transformers

Models are built on PyTorch's meta device, which allocates nothing; weights that are tied count once. Beside each
default stand variants of it with four layers and one key changed, so that a reader cannot be right there alone.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
READERS = ROOT / "predictor/formats"
CLASS_DEFAULTS = READERS / "hugging_face" / "defaults.json"
DATA = ROOT / "tests" / "data" / "readers"
COUNTS = DATA / "transformers_defaults.json"
VARIANTS = DATA / "transformers_variants.json"
FEW_LAYERS = 4
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# Ends of keys that say tokens, scales and generation.
OF_NO_SIZE = (
    "_token_id",
    "_eps",
    "_epsilon",
    "_range",
    "use_cache",
    "_theta",
    "_coef",
    "scaling_factor",
    "_scaling",
    "topk_prob",
)
# Read as encoders, with the head of masked language modelling.
ENCODERS = (
    "bert",
    "data2vec-text",
    "ernie",
    "megatron-bert",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "xlm-roberta-xl",
)
# Inside vision and language models only.
LANGUAGE_PARTS = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text")

# Families of transformers' causal language models that are no decoder-only language models.
ENCODER_DECODERS = [
    "bart",
    "bigbird_pegasus",
    "blenderbot",
    "blenderbot-small",
    "marian",
    "mbart",
    "mvp",
    "pegasus",
    "plbart",
    "prophetnet",
    "whisper",
    "trocr",
    "musicgen",
    "musicgen_melody",
]
OF_ENCODERS = [
    "bert",
    "bert-generation",
    "big_bird",
    "camembert",
    "data2vec-text",
    "electra",
    "ernie",
    "megatron-bert",
    "rembert",
    "reformer",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "roformer",
    "xlm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xlnet",
    "xmod",
]
# Their configurations hold others: a vision or audio tower, or several models in one.
COMPOSITE = [
    "blt",
    "dots3_note",
    "emu3",
    "fuyu",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_assistant",
    "gemma4_unified",
    "gemma4_unified_assistant",
    "git",
    "got_ocr2",
    "llama4",
    "mllama",
    "moshi",
    "moss_transcribe_diarize",
    "phi4_multimodal",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen4_exp",
]
SAME_AS_ANOTHER = ("gpt-sw3",)  # model_type gpt2


def families() -> list[str]:
    """Return the model types of transformers' decoder-only language models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    left_out = {*ENCODER_DECODERS, *OF_ENCODERS, *COMPOSITE, *SAME_AS_ANOTHER}
    return [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in left_out]


def model_class(model_type: str) -> Any:
    """Return the class that trains a family."""
    import transformers
    from transformers.models.auto import modeling_auto

    masked, causal = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return getattr(transformers, (masked if model_type in ENCODERS else causal)[model_type])


def count(config: Any, build: Any) -> int | None:
    """Return the parameters of a configuration's model; None where transformers cannot build it."""
    import torch

    try:
        with torch.device("meta"):
            model = build(config)
        model.tie_weights()
    except Exception as error:  # noqa: BLE001 -- any failure of foreign code means that there is no such model
        print(f"{config.model_type}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
        return None
    return int(sum(parameter.numel() for parameter in model.parameters()))


def written(config: Any) -> dict[str, Any]:
    """Return what a configuration's file holds, without the keys that every one has."""
    content = json.loads(config.to_json_string(use_diff=True))
    return {key: value for key, value in content.items() if key not in ("transformers_version", "dtype")}


def takes_head_dim(model_type: str) -> bool:
    """Return whether a model whose class does not declare head_dim has heads of that width where a file gives it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type in (*ENCODERS, *LANGUAGE_PARTS):
        return False
    kind = CONFIG_MAPPING[model_type]
    if isinstance(getattr(kind, "head_dim", None), property):
        return False
    given = [count(kind.from_dict(keys), model_class(model_type)) for keys in ({}, {"head_dim": 24})]
    return given[1] not in (None, given[0])


def class_defaults(model_type: str) -> dict[str, Any]:
    """Return the values of a configuration class where a file has no key, and the further names of its keys."""
    from transformers import PretrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    of_all = {field.name for field in dataclasses.fields(PretrainedConfig)}
    kind = CONFIG_MAPPING[model_type]
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in of_all or field.name.endswith(OF_NO_SIZE):
            continue
        if field.default is not dataclasses.MISSING and isinstance(field.default, bool | int | float | str | None):
            values[field.name] = field.default
    if "head_dim" not in {*values, *kind.attribute_map} and takes_head_dim(model_type):
        values["head_dim"] = None
    return {"values": values, "aliases": dict(kind.attribute_map)}


def changes(config: Any) -> Iterator[dict[str, Any]]:
    """Yield changes of one key each: switches turned, sizes doubled, what is null set."""
    for key, value in class_defaults(config.model_type)["values"].items():
        if key in LAYER_KEYS or key == "max_position_embeddings":
            continue
        if isinstance(value, bool):
            yield {key: not value}
        elif isinstance(value, int) and value > 0:
            yield {key: 2 * value}
        elif value is None and key in ("head_dim", "num_key_value_heads", "n_inner", "intermediate_size"):
            yield {key: 8}


def variants(model_type: str) -> list[list[Any]]:
    """Return a family's variants: what is changed, and the parameters of the model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    layers = next((key for key in LAYER_KEYS if key in class_defaults(model_type)["values"]), None)
    few = {} if layers is None else {layers: FEW_LAYERS}
    found = []
    for change in ({}, *changes(kind())):
        try:
            config = kind(**few, **change)
        except Exception:  # noqa: BLE001 -- the class refuses the change
            continue
        parameters = count(config, model_class(model_type))
        if parameters is not None:
            found.append([few | change, parameters])
    return found


def record(path: Path, content: dict[str, Any]) -> None:
    """Write one line per family."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in content.items())
    path.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


def main() -> None:
    """Write the three files."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    warnings.filterwarnings("ignore")
    names = (*families(), *ENCODERS)
    record(CLASS_DEFAULTS, {name: class_defaults(name) for name in (*names, *LANGUAGE_PARTS)})
    defaults = {}
    for name in names:
        config = CONFIG_MAPPING[name]()
        parameters = count(config, model_class(name))
        if parameters is not None:
            defaults[name] = {"config": written(config), "parameters": parameters}
    record(COUNTS, defaults)
    if "--variants" in sys.argv:
        record(VARIANTS, {name: variants(name) for name in defaults})


if __name__ == "__main__":
    main()
