"""Models that other tools name as Hugging Face's hub does: presets, and sizes in the table ``hub_models.txt``.

Source: the model ids that presets and rows name as the source of their shape, and those derived from these models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from predictor.core.schema.presets import find_preset, preset, preset_names

TABLE = Path(__file__).with_suffix(".txt")
# The columns of the table that are keys of a config.json, by transformers' usual names.
COLUMNS = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
)
# Endings of names whose models have the shape of the one without: training that followed, formats of the weights, and
# longer contexts.
SAME_SHAPE = re.compile(
    r"[-_](?:base|instruct|chat|hf|it|pt|sft|dpo|rl|think|thinking|bf16|fp8|fp16|0324|0528|2507|v0\.1|0924|deduped"
    r"|(?:unsloth-)?bnb-4bit|gptq(?:-int[48]|-[48]bit)?|awq|int[48]|[48]bits?|\d+k|abliterated)$"
)
# Beginnings that presets spell differently.
SPELLINGS = (
    (re.compile(r"^meta-llama-"), "llama-"),
    (re.compile(r"^(?:llama-30b|vicuna-33b-v1\.3)$"), "llama-33b"),  # as conversions call it
    (re.compile(r"^(?:open_llama_|vicuna-)(7b|13b)(?:_v2|-v1\.[13])?$"), r"llama-\1"),
    (re.compile(r"^vicuna-(7b|13b)-v1\.5$"), r"llama2-\1"),  # trained on from it, as are those below
    (re.compile(r"^codellama-(7b|13b)-python$"), r"llama2-\1"),
    (re.compile(r"^(?:zephyr-7b-(?:alpha|beta)|mistral-7b-(?:instruct-)?v0\.2)$"), "mistral-7b"),
    (re.compile(r"^(?:deepseek-r1-distill-llama|hermes-3-llama-3\.1|llama-3\.1-nemotron)-"), "llama3.1-"),
    (re.compile(r"^deepseek-r1-distill-qwen-(7b|14b|32b)$"), r"qwen2.5-\1"),
    (re.compile(r"^deepseek-r1-0528-qwen3-8b$"), "qwen3-8b"),
    (re.compile(r"^deepseek-r1-zero$"), "deepseek-r1"),
    (re.compile(r"^deepseek-(?:coder-v2|v2\.5(?:-1210)?)(-lite)?"), r"deepseek-v2\1"),
    # Their config.json has the sizes of Qwen 2.5's.
    (re.compile(r"^qwen2-(?:math-)?(0\.5b|1\.5b|7b|72b)$"), r"qwen2.5-\1"),
    (re.compile(r"^qwen2\.5-(?:coder-(0\.5b|1\.5b|3b|7b|14b|32b)|math-(1\.5b|7b|72b))"), r"qwen2.5-\1\2"),
    (re.compile(r"^qwen2\.5-(7b|14b)-instruct-1m$"), r"qwen2.5-\1"),
    (re.compile(r"^(?:qwq|kimi-dev)-(32b|72b)(?:-preview)?$"), r"qwen2.5-\1"),
    (re.compile(r"^qwen3-coder-30b-a3b"), "qwen3-30b-a3b"),
    (re.compile(r"^llama-3\.3-70b"), "llama3.1-70b"),  # trained on from it
    (re.compile(r"^llama-(\d(?!\d*b))"), r"llama\1"),
    (re.compile(r"^tinyllama(?:[-_].*)?$"), "tinyllama-1.1b"),
    (re.compile(r"^(?:codegemma-(?:1\.1-)?|gemma-1\.1-)"), "gemma-"),
    (re.compile(r"^gemma-(\d)-"), r"gemma\1-"),
    (re.compile(r"^gpt-oss-safeguard-"), "gpt-oss-"),
    (re.compile(r"^olmo-(\d)-(?:\d{4}-)?"), r"olmo\1-"),
    (re.compile(r"^nvidia-nemotron-"), "nemotron-"),
    (re.compile(r"^(nemotron-h-\d+b)-base-8k"), r"\1"),
    (re.compile(r"^bert-(base|large)-uncased"), r"bert-\1"),
    (re.compile(r"^phi-3-mini-4k"), "phi-3-mini"),
    (re.compile(r"^phi-4-reasoning(?:-plus)?$"), "phi-4"),
    (re.compile(r"^bloomz-(560m|1b1|1b7|3b|7b1)(?:-mt|-p3)?$"), r"bloom-\1"),
    (re.compile(r"^bloomz?$"), "bloom-176b"),
    (re.compile(r"^(internlm2(?:_5)?)-chat-"), r"\1-"),
    (re.compile(r"^glm-z1-(9b|32b)-0414$"), r"glm-4-\1-0414"),
)
HUB_ID = re.compile(r"[\w.-]+/[\w.-]*\w")


class Known(NamedTuple):
    """A model that is known by its name.

    Attributes:
        section: the section ``model``, without a sequence length unless a preset has one.
        source: what has the sizes, for messages.
        notes: what a prediction of it leaves out.
        unsaid: what its sizes leave open.
    """

    section: dict[str, Any]
    source: str
    notes: tuple[str, ...] = ()
    unsaid: dict[str, str] = {}  # noqa: RUF012 - a default that nobody changes


def known_model(name: str | None) -> Known | None:
    """Return a model by its name on the hub: its preset, or the sizes of its config.json; None where it is not known.

    >>> known_model("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit").section
    {'preset': 'llama3.1-8b'}
    >>> known_model("TinyLlama/TinyLlama-1.1B-Chat-v1.0").section["num_layers"]
    22
    """
    found = _found(name)
    if found in preset_names():
        return Known({"preset": found}, f"the preset {found}")
    return _of_row(_rows()[found]) if found else None


def preset_of(name: str | None) -> str | None:
    """Return the preset of a model by its name on the hub, such as meta-llama/Meta-Llama-3-8B; None without one.

    >>> preset_of("meta-llama/Meta-Llama-3-8B")
    'llama3-8b'
    """
    found = _found(name)
    return found if found in preset_names() else None


def is_known(name: str | None) -> bool:
    """Return whether the sizes of a model are known by its name."""
    return bool(_found(name))


def _found(name: str | None) -> str:
    """Return the preset that a name means, or the name that its row has; empty: neither."""
    spelled = _spelled(last_part(name or "").lower())
    return next((ours for ours in spelled if ours in preset_names() or ours in _rows()), "")


def shape_of(model: dict[str, Any]) -> dict[str, Any]:
    """Return a section ``model`` with the keys of the preset that it names in place of its name."""
    own = {key: value for key, value in model.items() if key != "preset"}
    return {**preset(model["preset"]), **own} if "preset" in model else model


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


def rows() -> list[list[str]]:
    """Return the rows of the table: id, family, sizes, parameters in millions, further keys, further names."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return [line.split("|") for line in lines if line and not line.startswith("#")]


@cache
def _rows() -> dict[str, list[str]]:
    """Return the rows by every name of theirs; the whole id counts before one of its endings is left out."""
    table: dict[str, list[str]] = {}
    for row in rows():
        for name in (last_part(row[0]).lower(), *row[-1].split()):
            for shorter in _shortened(name):
                table.setdefault(shorter, row)
    return table


def config_of(row: list[str]) -> dict[str, Any]:
    """Return the config.json that a row describes."""
    from predictor.formats.hugging_face.families import families, family  # only where it is needed, for a fast start

    _, model_type, *sizes, _, further, _ = row
    names = family(model_type).names if model_type in families() else {}
    content = {names.get(key, key): json.loads(size) for key, size in zip(COLUMNS, sizes, strict=True) if size}
    pairs = (pair.partition("=") for pair in further.split())
    return {"model_type": model_type, **content, **{key: json.loads(value) for key, _, value in pairs}}


def _of_row(row: list[str]) -> Known:
    from predictor.formats.hugging_face.reader import translate  # only where it is needed, for a fast start

    read = translate(config_of(row), row[0])
    unsaid = {key: why for key, why in read.unsaid.items() if key != "model.sequence_length"}
    return Known(read.content["model"], f"config.json of {row[0]}", read.notes, unsaid)


def _shortened(name: str) -> Iterator[str]:
    """Yield a name with ever fewer of its endings."""
    yield name
    while (shorter := SAME_SHAPE.sub("", name)) != name:
        yield shorter
        name = shorter


def _spelled(bare: str) -> Iterator[str]:
    """Yield a name as presets spell it, and as it stands, with ever fewer of its endings."""
    for shorter in _shortened(bare):
        ours = shorter
        for pattern, replacement in SPELLINGS:
            ours = pattern.sub(replacement, ours)
        yield ours
