"""What readers of reinforcement learning have in common: the trained model's update, and what its step leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.megatron.reader import from_options
from predictor.formats.megatron_bridge.model import named_section
from predictor.formats.megatron_bridge.options import to_options
from predictor.formats.shell.words import is_unknown

# Stages of other lengths than the rest.
OF_STAGES = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
# Of Megatron-core, as both tools spell them.
DEGREES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
)
MOST_SHOWN = 12  # keys of the rollout that a note lists


def flattened(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested keys as dotted ones."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def number(value: Any) -> int | None:
    """Return a whole number, also one that a command line has as text; None where a file leaves it to a run."""
    if isinstance(value, str) and not is_unknown(value) and value.strip().lstrip("-").isdigit():
        return int(value)
    return value if type(value) is int else None


def left_out(where: str, keys: list[str], what: str) -> list[str]:
    """Return a note on a part of the run that the prediction of its update leaves out, with its keys."""
    if not keys:
        return []
    more = f" and {len(keys) - MOST_SHOWN} others" if len(keys) > MOST_SHOWN else ""
    return [f"{where}: {what} is not predicted: {', '.join(keys[:MOST_SHOWN])}{more}"]


def longest(where: str, prompt: int, response: int, drops_padding: bool) -> str:
    """Return the note on the length of samples."""
    padded = "" if drops_padding else ", which the others are padded to"
    return (
        f"{where}: samples are predicted at {prompt + response:,} tokens, prompt and answer at their longest{padded}; "
        "set training.mean_sequence_length to the mean of yours"
    )


def tokens_to_samples(tokens: int, length: int, where: str, key: str, notes: list[str]) -> int:
    """Return the samples of a micro-batch that is filled up to a number of tokens."""
    samples = max(1, tokens // length)
    notes.append(
        f"{where}: {key} fills micro-batches up to {tokens:,} tokens, {samples} of the longest samples; of shorter "
        "ones more fit"
    )
    return samples


def megatron_update(
    sections: dict[str, dict[str, Any]],
    model: dict[str, Any],
    where: str,
    problems: Problems,
    notes: list[str],
    gpus: tuple[int | None, bool],
) -> Read:
    """Return an update that Megatron-core runs, from settings in the sections of Megatron-Bridge.

    Args:
        sections: of the settings.
        model: the section ``model``, a preset or nothing, with the length of samples.
        where: the file, for messages.
        problems: record of what is wrong.
        notes: notes so far.
        gpus: of the run, and whether the caller named them.
    """
    sections["model"] = {"cross_entropy_fusion_impl": "native", "moe_token_dispatcher_type": "alltoall"} | sections[
        "model"
    ]
    options = to_options(sections, where, problems.lines, notes)
    options.values = {**options.values, "seq-length": model["sequence_length"]}
    stages = [key for key in OF_STAGES if options.has(key)] if not {"preset", "num_layers"} & model.keys() else []
    options.values = {key: value for key, value in options.values.items() if key not in stages}
    held = problems.part(dict[str, Any](), named_section, options, model, notes)
    read = from_options(options, problems, notes, gpus[0], gpus[1], held)
    read.content["training"]["framework"] = "megatron-lm"
    read.unsaid.pop("model.vocab_size", None)
    if stages:
        named = ", ".join(options.named(key) for key in stages)
        read.unsaid["parallelism.layers_per_stage"] = (
            f"{where}: {named} count from the layers of a model without a preset"
        )
    return read


def asked(read: Read, unsaid: dict[str, str]) -> Read:
    """Return what a file says without the stand-ins of keys that it leaves open."""
    content = {name: dict(keys) for name, keys in read.content.items()}
    for key in unsaid:
        section, _, name = key.partition(".")
        content.get(section, {}).pop(name, None)
    return replace(read, content=content, unsaid={**read.unsaid, **unsaid})
