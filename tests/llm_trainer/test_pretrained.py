"""Models come back from their folders, and those of transformers give the logits that they give there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_trainer.config import ModelConfig
from llm_trainer.exceptions import ModelConfigurationError
from llm_trainer.models import TransformerLM
from llm_trainer.models.hugging_face import read_model_config, take_weights, write_model_config
from llm_trainer.models.pretrained import CONFIG, INDEX, WEIGHTS, save_for_transformers
from tests.llm_trainer.test_model import LENGTH, VOCABULARY, kinds, model_of, tokens

transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None}
THEIRS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2_relu_narrow": {"activation_function": "relu", "n_inner": 40, "layer_norm_epsilon": 1e-3},
    "gpt2_untied": {"tie_word_embeddings": False},
    "llama": {},
    "llama_grouped": {"num_key_value_heads": 2},
    "llama_one_kv_head": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama_biases": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
    "llama_theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "hidden_act": "gelu"},
}


def theirs(name: str) -> Any:
    """A random model of transformers, every tensor of it unlike its initial value."""
    torch.manual_seed(0)
    if name.startswith("gpt2"):
        sizes = {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": LENGTH}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **sizes, **THEIRS[name]))
    else:
        sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 48}
        config = transformers.LlamaConfig(**SIZES, **sizes, max_position_embeddings=LENGTH, **THEIRS[name])
        model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def loaded(path: Path) -> TransformerLM:
    return TransformerLM.from_pretrained(path)


@pytest.mark.parametrize("name", THEIRS)
def test_logits_loss_and_gradients_are_those_of_transformers(name: str) -> None:
    model = theirs(name)
    config = read_model_config(model.config.to_dict())
    ours = TransformerLM(config)
    ours.load_state_dict(take_weights(config, model.state_dict()))
    ours.eval()
    assert ours.get_num_params() == model.num_parameters() == config.num_parameters
    expected, output = model(tokens(), labels=tokens()), ours(tokens(), labels=tokens())
    assert expected.logits.abs().max() > 1
    torch.testing.assert_close(output.logits, expected.logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(output.loss, expected.loss, atol=1e-5, rtol=0)
    output.loss.backward()
    expected.loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters(remove_duplicate=False)}
    for own, gradient in take_weights(config, gradients).items():
        torch.testing.assert_close(ours.get_parameter(own).grad, gradient, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", THEIRS)
def test_a_folder_of_transformers_is_loaded_and_written_back(name: str, tmp_path: Path) -> None:
    model = theirs(name)
    model.save_pretrained(tmp_path / "theirs")
    ours = loaded(tmp_path / "theirs")
    expected = model(tokens()).logits
    torch.testing.assert_close(ours(tokens()).logits, expected, atol=1e-4, rtol=0)
    save_for_transformers(ours, tmp_path / "back")
    back = type(model).from_pretrained(tmp_path / "back").eval()
    torch.testing.assert_close(back(tokens()).logits, expected, atol=1e-5, rtol=0)


def test_weights_in_several_files_and_without_a_prefix_are_loaded(tmp_path: Path) -> None:
    model = theirs("gpt2")
    model.transformer.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / INDEX).is_file()
    torch.testing.assert_close(loaded(tmp_path)(tokens()).logits, model(tokens()).logits, atol=1e-4, rtol=0)


@kinds
def test_a_saved_model_comes_back(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    model.save_pretrained(str(tmp_path / "new" / "folder"))
    back = loaded(tmp_path / "new" / "folder")
    assert back.config == model.config
    assert not back.training
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(back.state_dict()[name], tensor, atol=0, rtol=0)
    state = back.state_dict()
    is_tied = state["head.weight"].data_ptr() == state["embed.tokens.weight"].data_ptr()
    assert is_tied == model.config.tie_word_embeddings
    assert is_tied == ("head.weight" not in load_file(tmp_path / "new" / "folder" / WEIGHTS))


@kinds
def test_what_transformers_cannot_hold_is_refused(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    if kind in ("gpt2", "llama", "one_kv_head"):
        assert read_model_config(write_model_config(model.config)) == model.config
        return
    with pytest.raises(ModelConfigurationError, match=r"the model is neither gpt2 .* nor llama"):
        save_for_transformers(model, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def _without_config(folder: Path) -> None:
    (folder / CONFIG).unlink()


def _without_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def _cut_weights(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def _no_safetensors(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"")


def _cut_config(folder: Path) -> None:
    (folder / CONFIG).write_text((folder / CONFIG).read_text(encoding="utf-8")[:-20], encoding="utf-8")


def _change(folder: Path, **keys: Any) -> None:
    content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    (folder / CONFIG).write_text(json.dumps({**content, **keys}), encoding="utf-8")


def _wider(folder: Path) -> None:
    _change(folder, d_ff=64)


def _more_layers(folder: Path) -> None:
    _change(folder, n_layers=4)


def _fewer_layers(folder: Path) -> None:
    _change(folder, n_layers=2)


def _unknown_key(folder: Path) -> None:
    _change(folder, d_modle=32)


def _other_family(folder: Path) -> None:
    _change(folder, model_type="bert")


def _empty_index(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text("{}", encoding="utf-8")


def _missing_shard(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}', encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without_config, r"has no config\.json; expected a folder that save_pretrained wrote"),
        (_without_weights, r"has no model\.safetensors"),
        (_cut_weights, r"model\.safetensors is damaged"),
        (_no_safetensors, r"model\.safetensors is damaged"),
        (_cut_config, r"config\.json, line \d+, .*not YAML"),
        (_wider, r"the shape of layers\.0\.ffn\.up\.weight is \(48, 32\); config\.json asks for \(64, 32\)"),
        (_more_layers, r"the weights lack layers\.3\.attention_norm\.weight"),
        (_fewer_layers, r"config\.json has no place for layers\.2\."),
        (_unknown_key, r"d_modle is no field of ModelConfig\. Did you mean d_model\?"),
        (_other_family, r"model_type is 'bert'; weights can be taken from gpt2 and llama"),
        (_empty_index, r"has no weight_map"),
        (_missing_shard, r"has no model-00001-of-00002\.safetensors"),
    ],
)
def test_a_damaged_folder_is_one_line(damage: Any, message: str, tmp_path: Path) -> None:
    model_of().save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelConfigurationError, match=message) as caught:
        loaded(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigurationError, match="none is no folder"):
        loaded(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        (
            "llama",
            {"rope_parameters": {"rope_type": "llama3"}},
            "rope_type is 'llama3'; this model knows 'default' only",
        ),
        ("llama", {"rope_scaling": {"type": "linear"}, "rope_parameters": None}, "rope_type is 'linear'"),
        ("llama", {"mlp_bias": True}, "mlp_bias is True; it must equal attention_bias, False"),
        ("llama", {"head_dim": 16}, "head_dim is 16; it must be hidden_size / num_attention_heads, 8"),
        ("llama", {"hidden_act": "relu"}, "the activation is 'relu'; expected silu, gelu"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ("gpt2", {"activation_function": "tanh"}, "the activation is 'tanh'; expected gelu_new"),
    ],
)
def test_what_this_model_lacks_is_refused_by_name(name: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigurationError, match=message):
        read_model_config({**theirs(name).config.to_dict(), **keys})


def test_a_configuration_without_sizes_names_the_missing_one() -> None:
    with pytest.raises(ModelConfigurationError, match="n_embd is missing in the gpt2 configuration"):
        read_model_config({"model_type": "gpt2", "vocab_size": 10})


def test_16_bit_weights_are_loaded_in_fp32(tmp_path: Path) -> None:
    model = model_of()
    model.save_pretrained(tmp_path)
    halved = {name: tensor.bfloat16() for name, tensor in load_file(tmp_path / WEIGHTS).items()}
    save_file(halved, tmp_path / WEIGHTS)
    assert {parameter.dtype for parameter in loaded(tmp_path).parameters()} == {torch.float32}
    assert ModelConfig.load(tmp_path / CONFIG) == model.config
