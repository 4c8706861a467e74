"""More of anything is never faster and never needs less memory; what hides traffic or saves memory never costs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from predictor.core.step.breakdown import stage_parts
from predictor.core.step.prediction import Prediction
from tests.property.forms import EXPERTS, LAYERS, LENGTH, Sections, changed, forms, memory, predicted

# Regressors carry noise of some per cent, and tiles and waves make a kernel of a larger shape a little faster at times.
NOISE = 0.03
# Hidden traffic may be launched in another pass; where the host holds that one up, its launches count.
LAUNCHES = 0.002
Change = Callable[[Sections], list[Sections]]


def sizes(section: str, key: str, *values: object, **beside: Any) -> Change:
    """Return a key's values, each with the next, both beside further keys of the section."""
    return lambda content: [{section: {**beside, key: value}} for value in values]


def of_experts(**more: Any) -> Change:
    return lambda content: [{"model": {"moe": EXPERTS}}, {"model": {"moe": EXPERTS | more}}]


def in_place_gradients(content: Sections) -> list[Sections]:
    """Return gradients in either precision, both accumulated where they are reduced: no bucket is a copy of them."""
    fused = {"training": {"fused_gradient_accumulation": True}}
    return [{**fused, "parallelism": {"fp32_gradients": each}} for each in (False, True)]


def with_experts(content: Sections) -> bool:
    return "moe" in content["model"]


def plain(content: Sections) -> bool:
    return "latent_attention" not in content["model"]


def always(content: Sections) -> bool:
    return True


SLOWER: dict[str, tuple[Change, Callable[[Sections], bool]]] = {
    "longer samples": (sizes("model", "sequence_length", LENGTH, 2 * LENGTH), always),
    "larger micro-batches": (sizes("training", "micro_batch_size", 1, 2), always),
    "more micro-batches": (sizes("training", "num_micro_batches", 8, 16), always),
    "more layers": (sizes("model", "num_layers", 8, 16), always),
    "a larger vocabulary": (sizes("model", "vocab_size", 32768, 131072), always),
    "wider FFNs": (sizes("model", "ffn_hidden_size", 12288, 16384), lambda content: not with_experts(content)),
    "longer documents": (sizes("training", "document_tokens", 512, 2048), always),
    "wider windows": (sizes("model", "sliding_window", 512, 2048), plain),
    "more layers with a window left out": (sizes("model", "sliding_window_layers", 8, 4, sliding_window=512), plain),
    "a further prediction": (sizes("model", "num_mtp_layers", 0, 1), always),
    "more experts per token": (of_experts(experts_per_token=8), with_experts),
    "wider experts": (of_experts(expert_ffn_hidden_size=2048), with_experts),
    "shared experts": (of_experts(shared_expert_ffn_hidden_size=1024), with_experts),
    "a larger capacity": (
        lambda _: [{"model": {"moe": EXPERTS | {"capacity_factor": each}}} for each in (1.0, 2.0)],
        with_experts,
    ),
    "norms behind the branches": (sizes("model", "post_norms", False, True), always),
    "normalised queries and keys": (sizes("model", "qk_norm", "none", "per_head"), plain),
    "biases": (sizes("model", "biases", False, True), plain),
    "gradients in fp32": (in_place_gradients, always),
    "launches that block": (sizes("training", "blocking_launches", False, True), always),
}


def fullest(prediction: Prediction) -> float:
    return max(stage.total for stage in memory(prediction))


@pytest.mark.parametrize("name", SLOWER)
@given(content=forms())
@settings(max_examples=15)
def test_more_is_never_faster_nor_smaller(name: str, content: Sections) -> None:
    change, applies = SLOWER[name]
    assume(applies(content))
    less, more = (predicted(changed(content, each)) for each in change(content))
    assert more.step.us >= less.step.us * (1 - NOISE)
    assert fullest(more) >= fullest(less)


FASTER: dict[str, tuple[str, str]] = {
    "reductions beside the backward pass": ("parallelism", "overlap_gradient_reduction"),
    "gathers beside the forward pass": ("parallelism", "overlap_parameter_gather"),
    "sums over tensor-parallel ranks beside products": ("parallelism", "overlap_tensor_parallel"),
    "kernels of graphs": ("training", "cuda_graphs"),
    "fused accumulation": ("training", "fused_gradient_accumulation"),
    "fused rotation": ("model", "fused_rope"),
    "fused element-wise kernels": ("training", "compiled"),
}


@pytest.mark.parametrize("name", FASTER)
@given(content=forms())
@settings(max_examples=15)
def test_what_hides_or_fuses_is_never_slower(name: str, content: Sections) -> None:
    section, key = FASTER[name]
    assume(key != "compiled" or content["training"]["gemm_recipe"] is None)  # compiled, torchao casts, not the engine
    without, with_it = (predicted(changed(content, {section: {key: value}})) for value in (False, True))
    assert with_it.step.us <= without.step.us * (1 + LAUNCHES)


@given(content=forms())
@settings(max_examples=30)
def test_replicas_share_the_batch_and_compute_no_longer(content: Sections) -> None:
    """With the same global batch, twice the replicas halve the micro-batches of each."""
    few = predicted(changed(content, {"training": {"num_micro_batches": 16}}))
    replicas = 2 * content["parallelism"]["data_parallel_size"]
    many = predicted(
        changed(content, {"training": {"num_micro_batches": 8}, "parallelism": {"data_parallel_size": replicas}})
    )
    assert few.run.global_batch_size == many.run.global_batch_size
    assert few.run.tokens_per_step == many.run.tokens_per_step
    assert max(many.timeline.busy) <= max(few.timeline.busy) * (1 + 1e-9)


@given(content=forms())
@settings(max_examples=20)
def test_adapters_cost_by_their_rank_and_train_faster_than_all_weights(content: Sections) -> None:
    everything = predicted(content)
    small, large = (
        predicted(changed(content, {"training": {"lora": {"rank": rank, "targets": ["attention_output"]}}}))
        for rank in (4, 256)
    )
    assert small.step.us <= large.step.us * (1 + NOISE)
    assert small.step.us <= everything.step.us
    assert fullest(small) <= fullest(large)
    assert fullest(small) <= fullest(everything)


@given(content=forms())
@settings(max_examples=20)
def test_states_and_activations_elsewhere_leave_memory_and_take_time(content: Sections) -> None:
    here = predicted(content)
    states = predicted(changed(content, {"training": {"offload_optimizer": 1.0}}))
    assert fullest(states) < fullest(here)
    assert states.step.us >= here.step.us
    if content["training"]["recompute"] != "full":
        layers = LAYERS // content["parallelism"]["pipeline_parallel_size"]
        layers //= content["parallelism"]["virtual_pipeline_parallel_size"]
        moved = predicted(changed(content, {"training": {"offload_activation_layers": layers}}))
        assert fullest(moved) <= fullest(here)
        assert moved.step.us >= here.step.us * (1 - 1e-9)


@given(content=forms(), stages=st.sampled_from([(0, 1), (1, 2), (2, 3)]))
@settings(max_examples=40)
def test_sharing_out_more_takes_less_memory(content: Sections, stages: tuple[int, int]) -> None:
    alone = changed(content, {"parallelism": {"pipeline_parallel_size": 1, "virtual_pipeline_parallel_size": 1}})
    less, more = (predicted(changed(alone, {"parallelism": {"zero_stage": stage}})) for stage in stages)
    states_of_less, states_of_more = (memory(each)[0].states for each in (less, more))
    assert states_of_more < states_of_less


@given(content=forms())
@settings(max_examples=30)
def test_tokens_travel_only_between_several_expert_ranks(content: Sections) -> None:
    travels = [stage.expert_parallel_us > 0 for stage in stage_parts(predicted(content))]
    assert travels == [content["parallelism"]["expert_parallel_size"] > 1] * len(travels)


@given(content=forms())
@settings(max_examples=20)
def test_one_expert_of_the_whole_width_is_an_ffn_and_a_router(content: Sections) -> None:
    dense = {**content["model"]}
    dense.pop("moe", None)
    alone = {"parallelism": {**content["parallelism"], "expert_parallel_size": 1}}
    width = dense["ffn_hidden_size"]
    one = {"num_experts": 1, "experts_per_token": 1, "expert_ffn_hidden_size": width}
    ffn = predicted({**content, **alone, "model": dense})
    routed = predicted({**content, **alone, "model": dense | {"moe": one}})
    assert routed.run.model.num_parameters() - ffn.run.model.num_parameters() == LAYERS * dense["hidden_size"]
    assert ffn.step.us <= routed.step.us * (1 + NOISE)
    assert routed.step.us <= 1.35 * ffn.step.us


@given(content=forms(), windowed=st.sets(st.integers(0, LAYERS - 1), min_size=1, max_size=LAYERS - 1))
@settings(max_examples=20)
def test_where_a_stage_has_its_windows_makes_no_difference(content: Sections, windowed: set[int]) -> None:
    assume(plain(content))
    one_stage = {"pipeline_parallel_size": 1, "virtual_pipeline_parallel_size": 1, "zero_stage": 1}
    steps = []
    for places in (windowed, set(range(len(windowed)))):
        types = ["sliding_attention" if layer in places else "full_attention" for layer in range(LAYERS)]
        model = {"layer_types": types, "sliding_window": 512}
        steps.append(predicted(changed(content, {"model": model, "parallelism": one_stage})).step.us)
    assert steps[0] == pytest.approx(steps[1], rel=1e-12)
