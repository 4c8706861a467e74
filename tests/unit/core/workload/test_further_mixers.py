"""Layers that are read of today's configurations: recurrences, gates, heads that differ, Mamba-2 beside attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor import predict
from predictor.core.base.errors import ConfigError
from predictor.core.costs.operator import Direction
from predictor.core.plan.loading import prepare
from tests.layers import backward_pass, forward_pass
from tests.unit.examples import full_form, model_of

SIZES: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "ffn_hidden_size": 4096,
    "sequence_length": 2048,
    "vocab_size": 32000,
    "activation": "swiglu",
}
RECURRENCE = {"projections": [[1024, 4096], [2048, 1024]], "vectors": 5000, "streamed": 12000}
MAMBA2 = {"num_heads": 16, "head_dim": 64, "state_size": 64}
WINDOWED = {"sliding_window": 256, "layer_types": ["sliding_attention", "full_attention"]}
CHANGES: dict[str, dict[str, Any]] = {
    "recurrence": {"layer_types": ["recurrence", "full_attention"], "recurrence": RECURRENCE},
    "head gate": {"attention_head_gate": True},
    "beside": {"mamba2": MAMBA2, "mamba2_beside_attention": True},
    "differential": {"differential_attention": True},
    "shared key values": {**WINDOWED, "full_attention": {"shared_key_values": True}},
    "wide heads": {**WINDOWED, "full_attention": {"head_dim": 256, "num_key_value_heads": 2}},
    "per-layer inputs": {"per_layer_inputs": {"width": 256, "vocab_size": 32000}},
    "attention experts": {"num_attention_heads": 8, "num_key_value_heads": 4, "attention_experts": 8},
}
LATENT = {"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}

CHOOSING = {
    "num_key_value_heads": None,
    "latent_attention": LATENT | {"indexer": {"num_heads": 4, "head_dim": 64, "top_k": 1024}},
}


def parameters(**changes: Any) -> int:
    """The parameters of the small model with keys changed."""
    return model_of(SIZES | changes).num_parameters()


def step_us(direction: Direction, layer: int, **changes: Any) -> float:
    """The time of one pass through one layer."""
    content = full_form(model=SIZES | changes, training={"precision": "bf16"}, parallelism={}) | {"system": "H100"}
    loaded = prepare(content, Path())
    make = forward_pass if direction is Direction.FORWARD else backward_pass
    tasks = make(loaded.run, loaded.run.model.kind(layer)).tasks
    return sum(task.times * loaded.system.cost(task.operator, task.direction, task.shape).us for task in tasks)


def test_a_recurrence_has_its_matrices_and_vectors() -> None:
    attention = (2 * 8 + 2 * 4) * 128 * 1024
    recurrence = 1024 * 4096 + 2048 * 1024 + 5000
    assert parameters(**CHANGES["recurrence"]) == parameters() + 2 * (recurrence - attention)


def test_a_gate_of_heads_is_one_column_per_head() -> None:
    assert parameters(attention_head_gate=True) == parameters() + 4 * 1024 * 8


def test_mamba_beside_attention_adds_itself_without_another_norm() -> None:
    inner, convolved = 1024, 1024 + 2 * 64
    mamba = 1024 * (inner + convolved + 16) + inner * 1024 + convolved * 5 + 3 * 16 + inner
    assert parameters(**CHANGES["beside"]) == parameters() + 4 * mamba
    plain = {"mamba2": MAMBA2 | {"gated_norm": False}, "mamba2_beside_attention": True}
    assert parameters(**plain) == parameters() + 4 * (mamba - inner)


def test_heads_differ_in_layers_that_see_all_keys() -> None:
    narrow, wide = (2 * 8 + 2 * 4) * 128 * 1024, (2 * 8 + 2 * 2) * 256 * 1024
    assert parameters(**CHANGES["wide heads"]) == parameters() + 2 * (wide - narrow)


@pytest.mark.parametrize("direction", list(Direction))
def test_keys_that_are_values_save_a_projection_in_layers_that_see_all(direction: Direction) -> None:
    shared = CHANGES["shared key values"]
    apart = shared | {"full_attention": {"head_dim": 128}}
    assert parameters(**apart) - parameters(**shared) == 2 * 4 * 128 * 1024
    assert step_us(direction, 1, **shared) < step_us(direction, 1, **apart)


def test_per_layer_inputs_have_a_table_for_every_layer() -> None:
    before = (32000 + 1024) * 4 * 256 + 256
    assert parameters(**CHANGES["per-layer inputs"]) == parameters() + before + 4 * (2 * 1024 * 256 + 1024)


def test_attention_experts_multiply_queries_and_outputs_and_a_token_meets_some() -> None:
    whole, met = parameters(**CHANGES["attention experts"]), model_of(SIZES | CHANGES["attention experts"])
    assert whole == parameters() + 4 * (2 * (8 * 4 - 8) * 128 * 1024 + 8 * 1024)
    assert met.num_parameters(active=True) == parameters() + 4 * 8 * 1024


def test_decays_of_channels_are_projected_at_once_or_through_a_rank() -> None:
    delta = {"num_key_heads": 8, "num_value_heads": 8, "key_head_dim": 64, "value_head_dim": 64}
    kinds = {"layer_types": ["gated_delta"], "num_key_value_heads": 8}
    plain = parameters(gated_delta=delta, **kinds)
    direct = parameters(gated_delta=delta | {"channel_decay": True}, **kinds)
    ranked = parameters(gated_delta=delta | {"channel_decay": True, "gate_rank": 64}, **kinds)
    assert direct == plain + 4 * (1024 * 512 - 1024 * 8 + 512 - 8)
    assert ranked == direct + 4 * (2 * (1024 + 512) * 64 - 2 * 1024 * 512)


def test_latent_attention_with_a_window_has_its_own_sizes() -> None:
    kinds = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"} | WINDOWED
    same = model_of(
        kinds | {"latent_attention": LATENT, "sliding_latent_attention": LATENT | {"num_attention_heads": 8}}
    )
    half = model_of(
        kinds | {"latent_attention": LATENT, "sliding_latent_attention": LATENT | {"num_attention_heads": 4}}
    )
    per_head = (64 + 32) * 1024 + 256 * (64 + 64) + 64 * 1024
    assert same.num_parameters() - half.num_parameters() == 2 * 4 * per_head


@pytest.mark.parametrize("name", ["head gate", "beside", "differential", "per-layer inputs", "attention experts"])
@pytest.mark.parametrize("direction", list(Direction))
def test_what_a_layer_has_more_takes_longer(name: str, direction: Direction) -> None:
    assert step_us(direction, 1, **CHANGES[name]) > step_us(direction, 1)


@pytest.mark.parametrize("direction", list(Direction))
def test_an_indexer_costs_its_scores_and_saves_the_keys_that_it_leaves_out(direction: Direction) -> None:
    plain = {"num_key_value_heads": None, "latent_attention": LATENT, "sequence_length": 16384}

    def with_keys(top_k: int) -> float:
        indexer = {"num_heads": 4, "head_dim": 32, "top_k": top_k}
        return step_us(direction, 0, **plain | {"latent_attention": LATENT | {"indexer": indexer}})

    assert with_keys(16384) > step_us(direction, 0, **plain)
    assert with_keys(2048) < with_keys(4096) < with_keys(16384)


@pytest.mark.parametrize("direction", list(Direction))
def test_a_recurrence_takes_longer_the_more_it_streams(direction: Direction) -> None:
    more = CHANGES["recurrence"] | {"recurrence": RECURRENCE | {"streamed": 48000}}
    assert step_us(direction, 0, **more) > step_us(direction, 0, **CHANGES["recurrence"])


def test_wide_heads_take_longer_in_their_layers_alone() -> None:
    wide = CHANGES["wide heads"] | {"full_attention": {"head_dim": 256}}
    assert step_us(Direction.FORWARD, 0, **wide) == step_us(Direction.FORWARD, 0, **WINDOWED)
    assert step_us(Direction.FORWARD, 1, **wide) > step_us(Direction.FORWARD, 1, **WINDOWED)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recurrence": RECURRENCE}, "no layer of model.layer_types is recurrence"),
        ({"layer_types": ["recurrence"]}, "it needs model.recurrence"),
        ({"mamba2_beside_attention": True}, "needs model.mamba2"),
        ({"full_attention": {"head_dim": 64}}, "it needs such layers"),
        ({"sliding_latent_attention": LATENT | {"num_attention_heads": 8}}, "needs model.latent_attention"),
        ({"layer_types": ["full_attention", "shared_index_attention"]}, "it needs model.latent_attention.indexer"),
        ({**CHOOSING, "layer_types": ["shared_index_attention"]}, "no layer before it has an indexer"),
    ],
)
def test_keys_without_their_layers_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_of(SIZES | changes)


@pytest.mark.parametrize(
    "name", ["recurrence", "wide heads", "shared key values", "per-layer inputs", "attention experts"]
)
def test_tensor_parallelism_of_them_is_refused(name: str) -> None:
    content = full_form(model=SIZES | CHANGES[name], parallelism={"tensor_parallel_size": 2})
    with pytest.raises(ConfigError, match=r"tensor_parallel_size is 2 with .*, which is not modelled; use 1"):
        prepare(content, Path())


@pytest.mark.parametrize("name", CHANGES)
def test_a_search_lays_out_what_a_configuration_may_ask_for(name: str) -> None:
    model = model_of(SIZES | CHANGES[name])
    for degree, splits in (("tensor", model.splits_layers), ("context", model.splits_samples)):
        content = full_form(model=SIZES | CHANGES[name], parallelism={f"{degree}_parallel_size": 2})
        content["model"] |= {"mamba2": MAMBA2 | {"num_groups": 2}} if name == "beside" else {}
        try:
            prepare(content, Path())
            refused = False
        except ConfigError:
            refused = True
        assert refused is not splits


@pytest.mark.parametrize("keys", [1024, 2048])
def test_a_prediction_says_that_sparse_attention_is_of_fused_kernels(keys: int) -> None:
    chosen = LATENT | {"indexer": {"num_heads": 4, "head_dim": 64, "top_k": keys}}
    model = SIZES | {"num_key_value_heads": None, "latent_attention": chosen}
    content = full_form(model=model, training={"precision": "bf16"}, parallelism={}) | {"system": "H100"}
    said = any("Sparse attention is predicted" in note for note in predict(content).to_dict()["notes"])
    assert said is (keys < 2048)
