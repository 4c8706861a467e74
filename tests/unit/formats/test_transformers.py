"""Every configuration that transformers ships is read with the parameters of its model, or refused by reason.

The data are recorded by ``python -m tests.record_transformers --variants``: the default configuration of every
decoder-only model class, variants of one changed key each, and the parameters of the models that transformers builds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.presets import find_preset, preset
from predictor.formats.hugging_face.families import families
from predictor.formats.hugging_face.reader import translate
from predictor.formats.known_keys import known_keys
from tests.unit.examples import model_of

DATA = Path(__file__).resolve().parents[2] / "data" / "readers"
DEFAULTS: dict[str, Any] = json.loads((DATA / "transformers_defaults.json").read_text(encoding="utf-8"))
VARIANTS: dict[str, Any] = json.loads((DATA / "transformers_variants.json").read_text(encoding="utf-8"))
PRESETS: dict[str, Any] = json.loads((DATA / "preset_configs.json").read_text(encoding="utf-8"))
PUBLISHED: dict[str, Any] = json.loads((DATA / "published_configs.json").read_text(encoding="utf-8"))
VISION: dict[str, Any] = json.loads((DATA / "published_vision_configs.json").read_text(encoding="utf-8"))
READ = sorted(DEFAULTS.keys() & set(families()))


def parameters(content: dict[str, Any]) -> int | None:
    """Return the parameters of a config.json; None where it is refused, in one line."""
    try:
        model = translate(content, "config.json").content["model"]
        return model_of(model | {"sequence_length": 64}).num_parameters()
    except ConfigError as error:
        refusal = str(error)
    assert "\n" not in refusal
    return None


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_shipped_default_is_read_exactly_or_refused(name: str) -> None:
    assert parameters(DEFAULTS[name]["config"]) in (None, DEFAULTS[name]["parameters"])


def test_nine_of_ten_shipped_defaults_are_read() -> None:
    refused = [name for name, shipped in DEFAULTS.items() if parameters(shipped["config"]) is None]
    assert len(refused) <= 0.1 * len(DEFAULTS), refused


@pytest.mark.parametrize("name", sorted(DEFAULTS.keys() - set(families())))
def test_a_family_that_is_not_read_is_refused_with_its_reason(name: str) -> None:
    reason = known_keys("hugging_face").unsupported[name]
    with pytest.raises(ConfigError, match=f"model_type is '{name}'; {reason}"):
        translate(DEFAULTS[name]["config"], "config.json")


@pytest.mark.parametrize("name", READ)
def test_a_changed_key_is_read_exactly_or_refused(name: str) -> None:
    wrong = [
        (changed, found, expected)
        for changed, expected in VARIANTS[name]
        if (found := parameters({"model_type": name, **changed})) not in (None, expected)
    ]
    assert wrong == []


def test_most_changed_keys_are_read() -> None:
    found = [parameters({"model_type": name, **changed}) for name in READ for changed, _ in VARIANTS[name]]
    assert sum(count is not None for count in found) >= 0.85 * len(found)


@pytest.mark.parametrize("name", READ)
def test_a_file_without_keys_is_the_default_of_its_class(name: str) -> None:
    """Lists of a whole file and rules for absent lists place the same layers."""
    try:
        bare = translate({"model_type": name}, "config.json")
        whole = translate(DEFAULTS[name]["config"], "config.json")
    except ConfigError:
        return
    assert bare.content == whole.content
    assert not [note for note in whole.notes if "not used" in note]


@pytest.mark.parametrize("name", PRESETS)
def test_sizes_of_a_published_configuration_are_those_of_its_preset(name: str) -> None:
    """The sizes are those that the models' own files state; keys without effect on them are left out."""
    found = translate(PRESETS[name], "config.json").content["model"]
    told = preset(name)
    assert (
        model_of(found | {"sequence_length": told["sequence_length"]}).num_parameters() == find_preset(name).parameters
    )
    spelled = {"positions", "num_position_embeddings", "sequence_length"}  # a preset may say them in another way
    assert {key: found.get(key) for key in told if key not in spelled} == {
        key: value for key, value in told.items() if key not in spelled
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_file_as_its_publisher_spells_it_has_the_published_parameters(name: str) -> None:
    """Counts are the Hub's, less what presets leave out of theirs; no key of such a file is unknown."""
    assert parameters(PUBLISHED[name]["config"]) == PUBLISHED[name]["parameters"]
    notes = translate(PUBLISHED[name]["config"], "config.json").notes
    assert not [note for note in notes if note.startswith("not used")]


@pytest.mark.parametrize("name", VISION)
def test_a_published_vision_model_has_the_parameters_that_transformers_builds(name: str) -> None:
    """Of any size of an image, where the file leaves it open."""
    model = dict(translate(VISION[name]["config"], "config.json").content["model"])
    model["vision"] = {"image_size": 4 * model["vision"]["patch_size"]} | model["vision"]
    assert model_of(model | {"sequence_length": 8192}).num_parameters() == VISION[name]["parameters"]


# Keys that the classes of other families have; counted as those have them, the model would be another.
FOREIGN = [
    ("bloom", {"head_dim": 32}),
    ("bloom", {"intermediate_size": 160}),
    ("gpt2", {"num_key_value_heads": 1}),
    ("gpt_neox", {"head_dim": 32}),
    ("qwen3_moe", {"shared_expert_intermediate_size": 64}),
    ("qwen3_moe", {"n_shared_experts": 1}),
    ("solar_open", {"first_k_dense_replace": 2}),
    ("deepseek_v3", {"moe_layer_freq": 2}),
]


@pytest.mark.parametrize(("name", "keys"), FOREIGN)
def test_a_key_of_another_family_is_refused_not_read(name: str, keys: dict[str, Any]) -> None:
    assert parameters({"model_type": name, **DEFAULTS[name]["config"], **keys}) is None


def test_a_width_of_heads_that_follows_from_others_may_stand_in_any_file() -> None:
    config = DEFAULTS["gpt_neox"]["config"]
    width = config["hidden_size"] // config["num_attention_heads"]
    assert parameters({**config, "head_dim": width}) == DEFAULTS["gpt_neox"]["parameters"]
