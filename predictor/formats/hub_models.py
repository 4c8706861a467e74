"""Presets of models that other tools name as Hugging Face's hub does.

Source: the model ids that the presets name as the source of their shape, and those derived from these models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from predictor.core.schema.presets import find_preset, preset_names

# Endings of names whose models have the shape of the one without.
SAME_SHAPE = re.compile(
    r"-(?:base|instruct|chat|hf|it|pt|bf16|0324|v0\.1|instruct-2507|thinking-2507|0528|(?:unsloth-)?bnb-4bit)$"
)
# Beginnings that presets spell differently.
SPELLINGS = (
    (re.compile(r"^meta-llama-"), "llama-"),
    (re.compile(r"^llama-30b$"), "llama-33b"),  # as conversions call it
    (re.compile(r"^vicuna-(7b|13b)-v1\.5$"), r"llama2-\1"),  # trained on from it, as are those below
    (re.compile(r"^(?:zephyr-7b-beta|mistral-7b-(?:instruct-)?v0\.2)$"), "mistral-7b"),
    (re.compile(r"^deepseek-r1-distill-llama-"), "llama3.1-"),
    (re.compile(r"^deepseek-r1-distill-qwen-(14b|32b)$"), r"qwen2.5-\1"),
    # Their config.json has the sizes of Qwen 2.5's.
    (re.compile(r"^qwen2-(0\.5b|1\.5b|7b|72b)"), r"qwen2.5-\1"),
    (re.compile(r"^qwen2\.5-(?:coder-(0\.5b|1\.5b|3b|7b|14b|32b)|math-(1\.5b|7b|72b))"), r"qwen2.5-\1\2"),
    (re.compile(r"^llama-3\.3-70b"), "llama3.1-70b"),  # trained on from it
    (re.compile(r"^llama-(\d(?!\d*b))"), r"llama\1"),
    (re.compile(r"^gemma-(\d)-"), r"gemma\1-"),
    (re.compile(r"^olmo-(\d)-\d{4}-"), r"olmo\1-"),
    (re.compile(r"^nvidia-nemotron-"), "nemotron-"),
    (re.compile(r"^(nemotron-h-\d+b)-base-8k"), r"\1"),
    (re.compile(r"^bert-(base|large)-uncased"), r"bert-\1"),
    (re.compile(r"^phi-3-mini-4k"), "phi-3-mini"),
)
HUB_ID = re.compile(r"[\w.-]+/[\w.-]*\w")
# Models with another vocabulary than the one that their name is derived from.
OTHER_VOCABULARY = ("mixtral-8x22b-instruct-v0.1",)


def preset_of(name: str | None) -> str | None:
    """Return the preset of a model by its name on the hub, such as meta-llama/Meta-Llama-3-8B; None without one.

    >>> preset_of("meta-llama/Meta-Llama-3-8B")
    'llama3-8b'
    """
    if name is None:
        return None
    bare = last_part(name).lower()
    if bare in OTHER_VOCABULARY:
        return None
    known = preset_names()
    return next((spelled for spelled in _spelled(bare) if spelled in known), None)


def last_part(name: str) -> str:
    """Return a model's name without the folders in front, with either of two slashes."""
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1]


def hub_id(name: str) -> str | None:
    """Return the name on the hub of the model that a preset has its sizes from; None where its source names none.

    >>> hub_id("llama3-8b")
    'meta-llama/Meta-Llama-3-8B'
    """
    source = find_preset(name).source.replace("- ", "-")  # names that a line of the source ends in
    return next((found for found in HUB_ID.findall(source) if preset_of(found) == name), None)


def _spelled(bare: str) -> Iterator[str]:
    """Yield a name as presets spell it, with ever fewer of its endings."""
    while True:
        ours = bare
        for pattern, replacement in SPELLINGS:
            ours = pattern.sub(replacement, ours)
        yield ours
        shorter = SAME_SHAPE.sub("", bare)
        if shorter == bare:
            return
        bare = shorter
