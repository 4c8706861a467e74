"""Models of NeMo 2 by the classes of their configurations, such as Llama31Config70B."""

from __future__ import annotations

import re

from predictor.core.schema.presets import preset_names

_CLASS = re.compile(r"^(.+?)Config(\w*)$")
# Presets whose names do not follow from that of the class.
# Source of the classes: NVIDIA/NeMo 2.4, nemo/collections/llm/gpt/model/.
NAMES = {
    "GPTConfig175B": "gpt3-175b",
    "MistralConfig7B": "mistral-7b",
    "MixtralConfig8x3B": None,
    "MixtralConfig8x7B": "mixtral-8x7b",
    "MixtralConfig8x22B": "mixtral-8x22b",
    "Llama31NemotronNano8BConfig": "llama3.1-8b",
    "Llama31Nemotron70BConfig": "llama3.1-70b",
    "GemmaConfig2B": "gemma-2b",
    "GemmaConfig7B": "gemma-7b",
    "DeepSeekV2Config": "deepseek-v2",
    "DeepSeekV2LiteConfig": "deepseek-v2-lite",
    "DeepSeekV3Config": "deepseek-v3",
    "Nemotron4Config15B": "nemotron-4-15b",
    "Nemotron4Config340B": "nemotron-4-340b",
    "NemotronHConfig8B": "nemotron-h-8b",
    "NemotronHConfig47B": "nemotron-h-47b",
    "NemotronHConfig56B": "nemotron-h-56b",
    "Llama4Experts16Config": None,  # with towers
    "Qwen3Config30B_A3B": "qwen3-30b-a3b",
    "Qwen3Config235B_A22B": "qwen3-235b-a22b",
    "Phi3ConfigMini": "phi-3-mini",
    "GPTOSSConfig20B": "gpt-oss-20b",
    "GPTOSSConfig120B": "gpt-oss-120b",
    "BaseMambaConfig2_7B": "mamba2-2.7b",
}
VERSION = re.compile(r"^([a-z]+?)(\d)(\d?)$")


def preset_of_class(name: str) -> str | None:
    """Return the preset of a configuration's class; None where it has none.

    >>> preset_of_class("Llama31Config70B")
    'llama3.1-70b'
    """
    if name in NAMES:
        return NAMES[name]
    found = _CLASS.match(name)
    if found is None:
        return None
    family, size = found[1].lower(), found[2].lower()
    version = VERSION.match(family)
    if version is not None:
        family = version[1] + ".".join(filter(None, version.groups()[1:]))
    size = {"500m": "0.5b", "1p5b": "1.5b", "1p7b": "1.7b", "600m": "0.6b"}.get(size, size)
    if family == "qwen2":
        family = "qwen2.5"  # the same sizes, of 0.5, 1.5, 7 and 72 billion parameters
    spelled = f"{family}-{size}"
    return spelled if spelled in preset_names() else None


# Models that are no plain decoders, by words in the names of their classes.
OTHERS = (
    (re.compile(r"T5"), "an encoder with a decoder"),
    (re.compile(r"Bert|Embedding|Rerank|Bidirectional"), "an encoder"),
    (re.compile(r"Hyena"), "whose Hyena layers are not modelled"),
    (re.compile(r"Super49B|Ultra253B"), "whose layers differ one by one, which is not read"),
    (
        re.compile(r"Neva|Llava|Mllama|VLM?(?![a-z])|Clip|Llama4|Qwen2VL|Avlm|Audio|Speech|Flux|Diffusion|DiT"),
        "with towers of other modalities, which are not read",
    ),
    (re.compile(r"HFAutoModel"), "Hugging Face's own code, which is not read; write the run for NeMo AutoModel"),
)


def refused_model(kind: str) -> str | None:
    """Return why a model cannot be predicted, by its classes; None where it may be."""
    return next((reason for words, reason in OTHERS if words.search(kind)), None)
