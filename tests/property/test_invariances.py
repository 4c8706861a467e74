"""Two ways to say the same run: they take the same time and the same memory, to the last digit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from predictor.core.costs.cost import Cost
from predictor.core.step.memory import StageMemory
from tests.property.forms import LAYERS, LENGTH, Sections, changed, forms, memory, predicted


def outcome(content: Sections) -> tuple[Cost, list[StageMemory]]:
    prediction = predicted(content)
    return prediction.step, memory(prediction)


def even_stages(content: Sections) -> Sections:
    stages = content["parallelism"]["pipeline_parallel_size"]
    return {"parallelism": {"layers_per_stage": [LAYERS // stages] * stages}}


def even_chunks(content: Sections) -> Sections:
    stages = content["parallelism"]["pipeline_parallel_size"]
    chunks = content["parallelism"]["virtual_pipeline_parallel_size"]
    return {"parallelism": {"layers_per_stage": [[LAYERS // stages // chunks] * chunks] * stages}}


def whole_group(content: Sections) -> Sections:
    shares = content["parallelism"]["zero_stage"] > 0
    return {"parallelism": {"zero_group_size": content["parallelism"]["data_parallel_size"]}} if shares else {}


def own_tensor_ranks(content: Sections) -> Sections:
    tensor = content["parallelism"]["tensor_parallel_size"]
    return {"parallelism": {"expert_tensor_parallel_size": tensor}} if "moe" in content["model"] else {}


def all_recomputed(content: Sections) -> Sections:
    chunk = content["parallelism"]["pipeline_parallel_size"] * content["parallelism"]["virtual_pipeline_parallel_size"]
    recomputes = content["training"]["recompute"] != "none"
    return {"training": {"recompute_num_layers": LAYERS // chunk}} if recomputes else {}


def said_kinds(content: Sections) -> Sections:
    ffn = "experts" if "moe" in content["model"] else "dense"
    return {"model": {"layer_types": ["full_attention"] * 2, "ffn_types": [ffn] * LAYERS}}


def said_heads(content: Sections) -> Sections:
    return {} if "latent_attention" in content["model"] else {"model": {"head_dim": 128}}


def window(content: Sections, tokens: int) -> Sections:
    return {} if "latent_attention" in content["model"] else {"model": {"sliding_window": tokens}}


def same(**sections: dict[str, Any]) -> Any:
    return lambda content: sections


SAME = {
    "layers of every stage": even_stages,
    "layers of every chunk": even_chunks,
    "a sharding group of all replicas": whole_group,
    "experts split as all else": own_tensor_ranks,
    "all layers of a chunk recomputed": all_recomputed,
    "kinds of layers that are all alike": said_kinds,
    "documents as long as the sample": same(training={"document_tokens": LENGTH}),
    "padding left out where there is none": same(training={"mean_sequence_length": LENGTH}),
    "a window as long as the sample": lambda content: window(content, LENGTH),
    "a window longer than the sample": lambda content: window(content, 2 * LENGTH),
    "a chunk as long as the sample": same(model={"layer_types": ["chunked_attention"], "attention_chunk": LENGTH}),
    "heads as wide as they are": said_heads,
    "weights that travel as they are": same(parallelism={"gather_precision": "bf16"}),
    "nothing offloaded": same(training={"offload_optimizer": 0, "offload_activation_layers": 0}),
    "no further predictions": same(model={"num_mtp_layers": 0}),
}


@pytest.mark.parametrize("name", SAME)
@given(content=forms())
@settings(max_examples=15)
def test_the_same_run_takes_the_same_time_and_memory(name: str, content: Sections) -> None:
    assert outcome(changed(content, SAME[name](content))) == outcome(content)
