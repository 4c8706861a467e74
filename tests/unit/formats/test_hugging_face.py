"""A config.json becomes the model that it is of: every family, its defaults, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.presets import find_preset, preset
from predictor.formats import read_named
from predictor.formats.hugging_face.reader import read, translate
from tests.unit.examples import model_of

DATA = Path(__file__).resolve().parents[2] / "data" / "readers" / "hugging_face"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))
SMALL = {
    "hidden_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "vocab_size": 1000,
}


def model(tmp_path: Path, **values: Any) -> dict[str, Any]:
    """The model that a config.json of these keys is of."""
    return dict(whole(tmp_path, **values).content["model"])


def whole(tmp_path: Path, **values: Any) -> Any:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return read(path)


@pytest.mark.parametrize("name", NAMES)
def test_published_file_is_the_preset_of_its_name(name: str) -> None:
    found = read(DATA / f"{name}.json")
    length = {"sequence_length": preset(name)["sequence_length"]}
    assert model_of(found.content["model"] | length) == model_of(preset(name))
    assert model_of(found.content["model"] | length).num_parameters() == find_preset(name).parameters
    assert found.notes == ()
    assert list(found.unsaid) == ["model.sequence_length"]


@pytest.mark.parametrize("name", NAMES)
def test_sequence_length_is_never_taken_from_max_position_embeddings(name: str) -> None:
    assert "sequence_length" not in read(DATA / f"{name}.json").content["model"]


# Defaults of transformers where a key is absent: they differ by family.
@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("llama", {"tied_embeddings": False, "biases": False, "activation": "swiglu"}),
        ("mistral", {"num_key_value_heads": 8, "sliding_window": 4096, "tied_embeddings": False}),
        ("mixtral", {"num_key_value_heads": 8, "tied_embeddings": False}),
        ("qwen2", {"num_key_value_heads": 32, "biases": "qkv", "tied_embeddings": False}),
        ("qwen3", {"head_dim": 128, "qk_norm": True, "tied_embeddings": False}),
        ("qwen3_moe", {"num_key_value_heads": 4, "qk_norm": True}),
        ("gemma", {"num_key_value_heads": 16, "head_dim": 256, "tied_embeddings": True, "activation": "geglu"}),
        (
            "gemma2",
            {"num_key_value_heads": 4, "layer_types": ["sliding_attention", "full_attention"], "post_norms": True},
        ),
        (
            "gemma3_text",
            {"layer_types": ["sliding_attention"] * 5 + ["full_attention"], "num_key_value_heads": 4, "qk_norm": True},
        ),
        ("gpt_neox", {"rotary_fraction": 0.25, "parallel_residual": True, "biases": True, "tied_embeddings": False}),
        ("phi3", {"rotary_fraction": 1.0, "tied_embeddings": False}),
    ],
)
def test_absent_key_takes_its_familys_default(model_type: str, expected: dict[str, Any], tmp_path: Path) -> None:
    found = model(tmp_path, model_type=model_type, **SMALL | {"num_attention_heads": 64, "hidden_size": 4096})
    assert {key: found.get(key) for key in expected} == expected


def test_null_key_value_heads_are_as_many_as_query_heads(tmp_path: Path) -> None:
    assert "num_key_value_heads" not in model(tmp_path, model_type="mistral", num_key_value_heads=None, **SMALL)


def test_null_window_is_none_and_absent_window_is_the_default(tmp_path: Path) -> None:
    assert "sliding_window" not in model(tmp_path, model_type="mistral", sliding_window=None, **SMALL)
    assert "sliding_window" not in model(tmp_path, model_type="phi3", **SMALL)


def test_qwen_window_needs_its_switch_and_covers_the_upper_layers(tmp_path: Path) -> None:
    keys = {"model_type": "qwen2", "sliding_window": 1024, "max_window_layers": 8, **SMALL}
    assert "sliding_window" not in model(tmp_path, use_sliding_window=False, **keys)
    windowed = model(tmp_path, use_sliding_window=True, **keys)
    assert windowed["sliding_window"] == 1024
    assert windowed["layer_types"] == ["full_attention"] * 8 + ["sliding_attention"] * 4


def test_listed_layers_overrule_the_pattern(tmp_path: Path) -> None:
    kinds = ["sliding_attention"] * 3 + ["full_attention"] * 9
    assert model(tmp_path, model_type="gemma2", layer_types=kinds, **SMALL)["layer_types"] == kinds
    full = model(tmp_path, model_type="gemma2", layer_types=["full_attention"] * 12, **SMALL)
    assert "sliding_window" not in full


@pytest.mark.parametrize("model_type", ["smollm3", "llama4_text", "exaone4", "cohere2"])
def test_every_fourth_layer_is_not_rotated(model_type: str, tmp_path: Path) -> None:
    """SmolLM3 says which layers, of the other families those are rotated that do not see all tokens."""
    keys = {**SMALL, "layer_types": None} | ({"sliding_window": 128} if model_type in ("exaone4", "cohere2") else {})
    assert model(tmp_path, model_type=model_type, **keys)["rotary_layers"] == [True, True, True, False]


def test_layers_of_smollm3_without_rotary_are_listed_one_by_one(tmp_path: Path) -> None:
    listed = {"model_type": "smollm3", **SMALL}
    assert model(tmp_path, no_rope_layers=[1, 0] * 6, **listed)["rotary_layers"] == [True, False]
    assert "rotary_layers" not in model(tmp_path, no_rope_layers=[1] * 12, **listed)
    with pytest.raises(ConfigError, match="a number for each of 12 layers"):
        model(tmp_path, no_rope_layers=[1, 0], **listed)


def test_feed_forward_of_gpt2_is_four_times_its_width_unless_said(tmp_path: Path) -> None:
    small = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    assert model(tmp_path, model_type="gpt2", **small)["ffn_hidden_size"] == 256
    assert model(tmp_path, model_type="gpt2", n_inner=100, **small)["ffn_hidden_size"] == 100


def test_rotated_share_is_read_under_all_its_names(tmp_path: Path) -> None:
    assert model(tmp_path, model_type="gpt_neox", rotary_pct=0.5, **SMALL)["rotary_fraction"] == 0.5
    assert model(tmp_path, model_type="phi3", partial_rotary_factor=0.75, **SMALL)["rotary_fraction"] == 0.75
    newer = {"rope_type": "default", "partial_rotary_factor": 0.4}
    assert model(tmp_path, model_type="phi3", rope_parameters=newer, **SMALL)["rotary_fraction"] == 0.4


def test_dense_layers_at_the_start_are_counted(tmp_path: Path) -> None:
    found = model(tmp_path, model_type="qwen3_moe", mlp_only_layers=[0, 1], **SMALL)
    assert found["moe"]["num_dense_layers"] == 2
    dense = model(tmp_path, model_type="qwen3_moe", mlp_only_layers=list(range(12)), **SMALL)
    assert "moe" not in dense


def test_shared_expert_of_zero_width_is_none(tmp_path: Path) -> None:
    found = model(tmp_path, model_type="qwen2_moe", shared_expert_intermediate_size=0, **SMALL)
    assert "shared_expert_ffn_hidden_size" not in found["moe"]


@pytest.mark.parametrize(
    ("attention", "ffn", "biases"),
    [(True, True, True), (True, False, "attention"), (False, True, "ffn"), (False, False, False)],
)
def test_biases_of_llama(attention: bool, ffn: bool, biases: object, tmp_path: Path) -> None:
    found = whole(tmp_path, model_type="llama", attention_bias=attention, mlp_bias=ffn, **SMALL)
    assert found.content["model"]["biases"] == biases
    assert found.notes == ()


def test_an_unknown_key_is_noted_unless_it_is_empty(tmp_path: Path) -> None:
    found = whole(tmp_path, model_type="llama", frobnicate=3, nothing=None, off=False, none=[], **SMALL)
    assert found.notes == ("not used, as unknown for llama: frobnicate",)


@pytest.mark.parametrize(
    "key", ["routed_expert_hidden_size", "num_kv_heads", "attn_res_block_size", "use_output_gate", "o_lora_rank"]
)
def test_an_unknown_key_that_may_be_a_size_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{key} is 8; it is unknown for llama and may be a size; remove it"):
        model(tmp_path, model_type="llama", **SMALL, **{key: 8})
    model(tmp_path, model_type="llama", **SMALL, **{key: None})


def test_sizes_of_the_class_are_noted(tmp_path: Path) -> None:
    found = whole(tmp_path, model_type="llama", hidden_size=4096)
    assert found.notes == (
        "not in the file, so as in transformers' class: num_hidden_layers, num_attention_heads, vocab_size",
    )


REFUSED = [
    ({"model_type": "deepseek_v4"}, "model_type is 'deepseek_v4'; its compressed attention and hyper-connections"),
    ({"model_type": "deepseek_v2"}, "num_experts_per_tok is missing; it is required"),
    ({"model_type": "nemotron_h"}, "hybrid_override_pattern is missing; it says what every layer is"),
    ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-X"}, "its letters are M * - E"),
    ({"model_type": "t5"}, "only decoders and encoders are predicted"),
    ({"model_type": "gemma4"}, "config.json#text_config is the language model alone"),
    ({"model_type": "marian", "is_encoder_decoder": True}, "only decoders and encoders are predicted"),
    ({"model_type": "step3p7", "text_config": {}}, "it is not known; a vision tower is not read"),
    ({"model_type": "smollm3", "use_sliding_window": True}, "releases of transformers differ"),
    ({"model_type": "mimo_v2_flash", "swa_head_dim": 64}, "differ from the others in another way than is modelled"),
    ({"model_type": "lama"}, "it is not known. Did you mean llama? Known: gpt2, gpt_neox, llama"),
    ({"architectures": ["LlamaForCausalLM"]}, "model_type is missing; known: gpt2"),
    ({"model_type": "llama", "quantization_config": {"bits": 4}}, "quantised weights are not modelled; remove it"),
    ({"model_type": "llama", "kv_lora_rank": 512}, "multi-head latent attention is read of families that have it only"),
    ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, "only language models"),
    ({"model_type": "llama", "hidden_act": "relu"}, "hidden_act is 'relu'; expected one of gelu"),
    ({"model_type": "gpt2", "activation_function": "silu"}, "activation_function is 'silu'; expected one of gelu"),
    ({"model_type": "llama", "hidden_size": "wide"}, "hidden_size is 'wide'; expected a whole number"),
    ({"model_type": "llama", "hidden_size": 4096.5}, "hidden_size is 4096.5; expected a whole number"),
    ({"model_type": "llama", "num_hidden_layers": 0}, "num_hidden_layers is 0; expected at least 1"),
    ({"model_type": "llama", "tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; expected true or false"),
    ({"model_type": "llama", "attention_dropout": "some"}, "attention_dropout is 'some'; expected a number"),
    ({"model_type": "llama", "hidden_size": 4095}, "num_attention_heads is 32, its default; it must divide"),
    ({"model_type": "aria_text", "mlp_bias": True}, "mlp_bias is True; biases of experts are not modelled"),
    ({"model_type": "afmoe", "attention_bias": True}, "of afmoe only false, null is modelled, not true"),
    ({"model_type": "gpt_neox", "rotary_pct": 1.5}, "rotary_pct is 1.5; expected a share above 0 and up to 1"),
    ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "layer_types names 1 layers; the model has 26"),
    ({"model_type": "gemma2", "layer_types": ["linear_attention"] * 26}, "only sliding_attention and full_attention"),
    ({"model_type": "gemma2", "layer_types": "all"}, "layer_types is 'all'; expected a list of 26 names of layers"),
    ({"model_type": ["llama"]}, "model_type is missing"),
    ({"model_type": "llama", "num_hidden_layers": 1e9}, "expected at most 10,000"),
    (
        {"model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": "4"}},
        "full_attn_layers is '4'; expected a list of layers",
    ),
    ({"model_type": "flint"}, "layer_types is missing; it says what every layer is"),
    ({"model_type": "qwen2_moe", "use_sliding_window": True}, "releases of transformers differ"),
    ({"model_type": "qwen2_moe", "mlp_only_layers": 3}, "mlp_only_layers is 3; expected a list of layers"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_what_cannot_be_predicted_is_refused_in_one_line(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        model(tmp_path, **values)
    assert str(caught.value).startswith("config.json: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000])
def test_file_that_is_no_object_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"is not JSON|holds no keys and values") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_the_format_of_a_release_is_noted_and_other_quantised_weights_are_refused(tmp_path: Path) -> None:
    release = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    found = whole(tmp_path, model_type="llama", quantization_config=release, **SMALL)
    assert found.notes == ("quantization_config: fp8 is the format of the release; predicted is training.precision",)
    with pytest.raises(ConfigError, match="quantised weights are not modelled"):
        whole(tmp_path, model_type="llama", quantization_config={"quant_method": "gptq", "bits": 4}, **SMALL)


BERT = {
    "model_type": "bert",
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 30522,
}


@pytest.mark.parametrize(
    ("head", "parameters"),
    [("BertForPreTraining", 110_106_428), ("BertForMaskedLM", 109_514_298), ("BertModel", 109_482_240)],
)
def test_bert_is_an_encoder_with_the_head_that_it_names(head: str, parameters: int, tmp_path: Path) -> None:
    found = model(tmp_path, architectures=[head], **BERT)
    assert found["causal"] is False
    assert model_of(found | {"sequence_length": 512}).num_parameters() == parameters


def test_bert_without_a_head_is_noted_and_never_a_decoder(tmp_path: Path) -> None:
    found = whole(tmp_path, **BERT)
    assert found.content["model"]["causal"] is False
    assert "no architectures: predicted with the head of masked language modelling, without a pooler" in found.notes
    for values in ({"is_decoder": True}, {"architectures": ["BertLMHeadModel"]}, {"add_cross_attention": True}):
        with pytest.raises(ConfigError, match="encoder"):
            whole(tmp_path, **BERT, **values)


def test_roberta_counts_its_one_token_type_and_shifted_positions(tmp_path: Path) -> None:
    values = BERT | {"model_type": "roberta", "vocab_size": 50265, "type_vocab_size": 1, "max_position_embeddings": 514}
    found = model(tmp_path, architectures=["RobertaForMaskedLM"], **values)
    assert model_of(found | {"sequence_length": 512}).num_parameters() == 124_697_433


def composite(tmp_path: Path, **values: Any) -> Path:
    """A config.json of a language model inside that of a vision and language model."""
    inner = {"model_type": "llama", **SMALL}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llava", "text_config": inner, "vision_config": {}, **values}))
    return path


def test_a_configuration_inside_another_is_read_where_it_is_asked_for(tmp_path: Path) -> None:
    composite(tmp_path, tie_word_embeddings=True)
    found = read_named("config.json#text_config", tmp_path)
    alone = model(tmp_path, model_type="llama", tie_word_embeddings=True, **SMALL)
    assert found.content["model"] == alone
    assert "config.json#text_config says no sequence length" in found.unsaid["model.sequence_length"]


def test_a_missing_part_is_refused_with_those_that_are_there(tmp_path: Path) -> None:
    composite(tmp_path)
    with pytest.raises(
        ConfigError, match=r"config\.json has no configuration decoder; it has text_config, vision_config"
    ):
        read_named("config.json#decoder", tmp_path)


LLAVA = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "patch_size": 14, "image_size": 336,
}  # fmt: skip


def test_a_vision_tower_without_its_sizes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"num_hidden_layers is missing.*#text_config is the language model alone"):
        read(composite(tmp_path))


def test_a_vision_tower_is_read_with_its_language_model(tmp_path: Path) -> None:
    found = read(composite(tmp_path, vision_config=LLAVA))
    assert found.content["model"]["vision"] == {
        "num_layers": 24, "hidden_size": 1024, "ffn_hidden_size": 4096, "num_attention_heads": 16, "patch_size": 14,
        "image_size": 336, "num_position_embeddings": 577, "patches_per_token": 1,
        "projection_widths": [SMALL["hidden_size"]], "other_parameters": 2 * 1024 + 2 * SMALL["hidden_size"],
    }  # fmt: skip
    assert set(found.unsaid) == {"model.sequence_length", "model.vision.images_per_sample"}
    said = {"model": {"sequence_length": 4096, "vision": {"images_per_sample": 2}}}
    assert found.still_unsaid(said) == {}


def test_images_of_any_size_leave_it_to_the_training(tmp_path: Path) -> None:
    tower = {"depth": 2, "embed_dim": 64, "num_heads": 4, "hidden_size": SMALL["hidden_size"], "patch_size": 14}
    inner = {"model_type": "qwen2_vl_text", **SMALL}
    found = read(composite(tmp_path, model_type="qwen2_vl", text_config=inner, vision_config=tower))
    assert "model.vision.image_size" in found.unsaid
    assert "image_size" not in found.content["model"]["vision"]


REFUSED_TOWERS = [
    ({"vision_config": {**LLAVA, "attention_types": 3}}, "attention_types is 3; it is unknown and may be a size"),
    ({"vision_feature_select_strategy": "full"}, "only default is modelled"),
    ({"vision_feature_layer": [-2, -1]}, "features of one layer are modelled"),
    ({"audio_config": {"layers": 2}}, "audio towers are not modelled"),
    ({"tie_word_embeddings": []}, "tie_word_embeddings is []"),
    ({"architectures": ["LlavaForTokenClassification"]}, "only language models (…ForConditionalGeneration)"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED_TOWERS)
def test_towers_of_other_kinds_are_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(composite(tmp_path, **{"vision_config": LLAVA, **values}))


def test_parts_that_disagree_on_tied_embeddings_are_refused(tmp_path: Path) -> None:
    inner = {"model_type": "llama", **SMALL, "tie_word_embeddings": True}
    with pytest.raises(ConfigError, match="tie_word_embeddings is False; and text_config has another"):
        read(composite(tmp_path, vision_config=LLAVA, text_config=inner, tie_word_embeddings=False))


def test_keys_of_a_section_count_as_if_they_stood_outside() -> None:
    """DBRX: 132 billion parameters, Databricks' announcement of March 2024."""
    content = {
        "model_type": "dbrx",
        "d_model": 6144,
        "n_layers": 40,
        "n_heads": 48,
        "vocab_size": 100352,
        "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    }
    model = translate(content, "config.json").content["model"]
    assert model["num_key_value_heads"] == 8
    assert model["moe"]["experts_per_token"] == 4
    assert model_of(model | {"sequence_length": 64}).num_parameters() == pytest.approx(132e9, rel=0.004)
