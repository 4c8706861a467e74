"""Rows of embedding layers on another number of GPUs than the solver's: the model stays, its room per GPU changes."""

from __future__ import annotations

from dataclasses import replace

from predictor.recommender.hugectr.reading import HugeCtrConfig
from predictor.recommender.workload.embedding import EmbeddingKind, EmbeddingLayer
from predictor.recommender.workload.model import Recommender


def solver_gpus(config: HugeCtrConfig) -> int | None:
    """Return the number of GPUs that the solver lists; None without a solver."""
    return None if config.solver is None else sum(len(node) for node in config.solver.gpu)


def _is_by_gpu(layer: EmbeddingLayer) -> bool:
    """Return whether the room on each GPU, and not the slots' sizes, says how many rows there are."""
    return layer.rows_per_gpu > 0 and (layer.kind is EmbeddingKind.DISTRIBUTED or not layer.slot_rows)


def _on(layer: EmbeddingLayer, before: int, num_gpus: int) -> EmbeddingLayer:
    """Return a layer with the rows of ``before`` GPUs on so many; a localized layer uses at most one GPU a slot."""
    if not _is_by_gpu(layer):
        return layer
    if layer.kind is not EmbeddingKind.DISTRIBUTED:
        before, num_gpus = min(before, layer.num_slots), min(num_gpus, layer.num_slots)
    return replace(layer, rows_per_gpu=-(-layer.rows_per_gpu * before // num_gpus))


def model_on(config: HugeCtrConfig, num_gpus: int) -> Recommender:
    """Return the model on so many GPUs, with the vocabulary that it has on the solver's; as it is without a solver."""
    before = solver_gpus(config)
    if before is None or before == num_gpus:
        return config.model
    return replace(config.model, embeddings=tuple(_on(layer, before, num_gpus) for layer in config.model.embeddings))


def vocabulary_assumptions(config: HugeCtrConfig, num_gpus: int) -> list[str]:
    """Return what is assumed of rows that the file counts by GPU, a sentence for all layers of one sort."""
    layers = [layer.name for layer in config.model.embeddings if _is_by_gpu(layer)]
    before = solver_gpus(config)
    if not layers or before == num_gpus:
        return []
    names = ", ".join(layers)
    if before is None:
        return [f"max_vocabulary_size_per_gpu of {names} is as in the file on every GPU; no solver says of how many."]
    return [f"{names}: as many rows as on the solver's {before} GPUs, {before}/{num_gpus} of the file's on every GPU."]
