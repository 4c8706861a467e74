"""Layers over stages and chunks, by method, list or Megatron-LM's string; experts over the ranks that hold them."""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from predictor.core.base.errors import ConfigError
from predictor.core.base.sizes import LARGEST, must_divide
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.timeline.schedules import Schedule
from predictor.core.workload.partition import METHODS, chunk_layers, split_layers

GROUP = re.compile(r"\(([^()]*)\)\*(\d+)")
LETTER = re.compile(r"([A-Za-z|])\*(\d+)")
LETTERS = {"e": "embedding", "t": "layer", "m": "multi-token prediction", "l": "loss"}
KEY = "layers_per_stage"


def check_expert_parallel(model: ModelSection, layout: ParallelismSection) -> None:
    """Refuse expert parallelism that experts or ranks do not divide by.

    Raises:
        ConfigError: they do not, or there are no experts.
    """
    ep, etp = layout.expert_parallel_size, layout.expert_tensor_parallel_size
    if ep == 1 and etp is None:
        return
    if model.moe is None:
        key, value = ("expert_parallel_size", ep) if etp is None else ("expert_tensor_parallel_size", etp)
        raise ConfigError(f"{key} is {value}; the model has no experts (model.moe)")
    must_divide("expert_parallel_size", ep, "num_experts", model.moe.num_experts)
    if ep > 1 and (model.moe.load_imbalance or 1.0) > ep:
        raise ConfigError(
            f"model.moe.load_imbalance is {model.moe.load_imbalance:g}; with expert_parallel_size {ep} no rank can "
            f"have more than {ep} times the mean"
        )
    if etp in (None, layout.tensor_parallel_size):
        _check_unfolded(layout)
    else:
        _check_folded(layout, etp, etp * ep)


def _check_unfolded(layout: ParallelismSection) -> None:
    """Check that expert-parallel ranks are some of those that see other tokens."""
    ep, ranks = layout.expert_parallel_size, layout.data_parallel_size * layout.context_parallel_size
    must_divide("expert_parallel_size", ep, "data_parallel_size × context_parallel_size", ranks)
    inner = next(name for name in layout.rank_order if name in ("cp", "dp"))
    size = layout.context_parallel_size if inner == "cp" else layout.data_parallel_size
    if size % ep and ep % size:
        raise ConfigError(
            f"expert_parallel_size is {ep}; it must divide the innermost of the ranks that see other tokens ({inner}, "
            f"{size}), or be a multiple of it"
        )


def _check_folded(layout: ParallelismSection, etp: int, holding: int) -> None:
    """Check that the ranks that hold all experts once divide those of a stage, in the order in which these lie."""
    sizes = {
        "tp": layout.tensor_parallel_size,
        "cp": layout.context_parallel_size,
        "dp": layout.data_parallel_size,
    }
    key = "expert_tensor_parallel_size × expert_parallel_size"
    must_divide(key, holding, "tensor × context × data parallel size", prod(sizes.values()))
    inside = prod(sizes[name] for name in layout.rank_order[: layout.rank_order.index("pp")])
    nested = all(inside % size == 0 or size % inside == 0 for size in (etp, holding))
    if layout.pipeline_parallel_size > 1 and not nested:
        raise ConfigError(
            f"{key} is {holding}; it must divide the {inside} ranks of a stage that rank_order places side by side, or "
            "be a multiple of them"
        )


class Split(NamedTuple):
    """Layers of a pipeline.

    Attributes:
        stages: of every stage.
        chunks: of every stage's chunks; None where stages split theirs evenly.
        num_chunks: of every stage.
    """

    stages: tuple[int, ...]
    chunks: tuple[tuple[int, ...], ...] | None
    num_chunks: int


def parsed(text: str) -> list[str]:
    """Return the chunks of a string of layers in the model's order, each as its letters.

    Source: Megatron-LM core/transformer/pipeline_parallel_layer_layout.py: E embedding, t layer, m multi-token
    prediction, L loss, in any case; commas mean nothing, ``(…)*n`` and ``x*n`` repeat.

    Raises:
        ConfigError: a letter is not known, or a number is a slip.

    >>> parsed("Et*3|(tt|)*2L")
    ['ettt', 'tt', 'tt', 'l']
    """

    def repeated(match: re.Match[str]) -> str:
        times = int(match[2])
        if times > LARGEST["num_layers"]:
            raise ConfigError(f"{KEY} is {text!r}: {match[0]} is taken for a slip")
        return match[1] * times

    letters = LETTER.sub(repeated, GROUP.sub(repeated, re.sub(r"[,\s]", "", text.lower())))
    strays = sorted(set(letters) - set(LETTERS) - {"|"})
    if strays:
        known = ", ".join(f"{letter} ({what})" for letter, what in LETTERS.items())
        raise ConfigError(f"{KEY} is {text!r}: {strays[0]!r} is not known. Known: {known}, | between chunks, and *n")
    return letters.split("|")


def _of_string(text: str, num_layers: int, num_mtp_layers: int) -> list[int]:
    """Return the layers of a string's chunks, in the model's order, multi-token prediction left out.

    Raises:
        ConfigError: the string is not of this model on these stages.
    """
    chunks = parsed(text)
    whole = "".join(chunks)
    if whole.count("t") != num_layers:
        raise ConfigError(f"{KEY} is {text!r}: it has {whole.count('t')} layers (t); num_layers is {num_layers}")
    if (whole[:1], whole[-1:], whole.count("e"), whole.count("l")) != ("e", "l", 1, 1):
        raise ConfigError(f"{KEY} is {text!r}: it must begin with its only E and end with its only L")
    if whole.count("m") != num_mtp_layers:
        raise ConfigError(f"{KEY} is {text!r}: it has {whole.count('m')} m; num_mtp_layers is {num_mtp_layers}")
    if not chunks[-1].endswith("m" * num_mtp_layers + "l"):
        raise ConfigError(f"{KEY} is {text!r}: multi-token prediction (m) must stand before L, in its chunk")
    return [chunk.count("t") for chunk in chunks]


def _counted(num_layers: int, virtual_stages: int, layout: ParallelismSection) -> list[int]:
    """Return an even split over all chunks in the model's order, whose first and last have a layer less for their ends.

    Source: Megatron-LM megatron/training/arguments.py, --account-for-embedding-in-pipeline-split.

    Raises:
        ConfigError: the chunks do not divide the layers and what counts as one.
    """
    embedding, loss = layout.embedding_counts_as_layer, layout.loss_counts_as_layer
    share, rest = divmod(num_layers + embedding + loss, virtual_stages)
    layers = [share] * virtual_stages
    layers[0] -= embedding
    layers[-1] -= loss
    if rest or min(layers) < 0 or (virtual_stages > 1 and not share):
        name = "embedding_counts_as_layer" if embedding else "loss_counts_as_layer"
        raise ConfigError(
            f"{name} is true; with it the model has {num_layers + embedding + loss} layers, which the "
            f"{virtual_stages} chunks of all stages must divide"
        )
    return layers


def _placed(layers: list[int], schedule: Schedule, stages: int) -> list[list[int]]:
    """Return the layers of every stage's chunks from those of the chunks in the model's order.

    Raises:
        ConfigError: the stages do not divide the chunks.
    """
    if len(layers) % stages:
        raise ConfigError(f"{KEY} has {len(layers)} chunks; pipeline_parallel_size, {stages}, must divide them")
    num_chunks = len(layers) // stages
    return [[layers[schedule.virtual_stage(s, chunk, stages)] for chunk in range(num_chunks)] for s in range(stages)]


def _of_lists(given: list[list[int]], num_layers: int, stages: int) -> Split:
    """Return a split that is given per chunk.

    Raises:
        ConfigError: it does not add up.
    """
    sizes = {len(chunks) for chunks in given}
    if len(given) != stages or len(sizes) != 1 or not min(sizes) or sum(map(sum, given)) != num_layers:
        raise ConfigError(
            f"{KEY} is {given}; it needs {stages} lists (pipeline_parallel_size) of as many chunks each, whose layers "
            f"add up to {num_layers} (num_layers)"
        )
    return Split(tuple(map(sum, given)), tuple(map(tuple, given)), sizes.pop())


def _checked_chunks(split: Split, layout: ParallelismSection) -> Split:
    """Return a split whose chunks are as many as the configuration says, where it says so."""
    said = layout.virtual_pipeline_parallel_size
    if "virtual_pipeline_parallel_size" in layout.model_fields_set and said != split.num_chunks:
        raise ConfigError(f"virtual_pipeline_parallel_size is {said}; {KEY} has {split.num_chunks} chunks per stage")
    return split


def split_of(layout: ParallelismSection, model: ModelSection, schedule: Schedule, num_chunks: int) -> Split:
    """Return how a configuration splits its layers over its stages and their chunks.

    Args:
        layout: of the configuration.
        model: whose layers are split.
        schedule: places the chunks.
        num_chunks: of every stage, unless ``layers_per_stage`` says otherwise.

    Raises:
        ConfigError: the split does not add up, or keys contradict each other.
    """
    given, stages, num_layers = layout.layers_per_stage, layout.pipeline_parallel_size, model.num_layers
    counts = layout.embedding_counts_as_layer, layout.loss_counts_as_layer
    if any(counts) and given != "uniform":
        name = "embedding_counts_as_layer" if counts[0] else "loss_counts_as_layer"
        raise ConfigError(f"{name} is true; it needs layers_per_stage: uniform, and that is {given!r}")
    if any(counts) and stages > 1:
        counted = _counted(num_layers, stages * num_chunks, layout)
        return _of_lists(_placed(counted, schedule, stages), num_layers, stages)
    if isinstance(given, str) and given not in METHODS:
        placed = _placed(_of_string(given, num_layers, model.num_mtp_layers), schedule, stages)
        return _checked_chunks(_of_lists(placed, num_layers, stages), layout)
    nested = [list(chunks) for chunks in given if isinstance(chunks, tuple)]
    if nested:
        return _checked_chunks(_of_lists(nested, num_layers, stages), layout)
    flat = given if isinstance(given, str) else [layers for layers in given if isinstance(layers, int)]
    return Split(tuple(split_layers(flat, num_layers, stages)), None, num_chunks)


def check_chunks(split: Split, layout: ParallelismSection) -> None:
    """Check that stages can split their layers into chunks, none of them empty unless a list says so.

    Raises:
        ConfigError: they cannot.
    """
    if split.chunks is None:
        for stage in range(len(split.stages)):
            chunk_layers(split.stages, stage, split.num_chunks, least=int(isinstance(layout.layers_per_stage, str)))
