"""Presets of models that other tools name as Hugging Face's hub does."""

from __future__ import annotations

import re

from predictor.configuration.presets import preset_names

# Endings of names whose models have the shape of the one without.
SAME_SHAPE = re.compile(r"-(?:base|instruct|chat|hf|it|pt|bf16|0324|v0\.1|instruct-2507|thinking-2507|0528)$")
# Beginnings that presets spell differently.
SPELLINGS = (
    (re.compile(r"^meta-llama-"), "llama-"),
    (re.compile(r"^nvidia-nemotron-"), "nemotron-"),
    (re.compile(r"^llama-(\d)"), r"llama\1"),
    (re.compile(r"^gemma-(\d)-"), r"gemma\1-"),
    (re.compile(r"^gpt-oss"), "gpt-oss"),
    (re.compile(r"^phi-3-mini-4k"), "phi-3-mini"),
)


def preset_of(name: str | None) -> str | None:
    """Return the preset of a model by its name on the hub, such as meta-llama/Meta-Llama-3-8B; None without one.

    >>> preset_of("meta-llama/Meta-Llama-3-8B")
    'llama3-8b'
    """
    if name is None:
        return None
    bare = name.rpartition("/")[2].lower()
    while (shorter := SAME_SHAPE.sub("", bare)) != bare:
        bare = shorter
    for spelled, ours in SPELLINGS:
        bare = spelled.sub(ours, bare)
    return bare if bare in preset_names() else None
