"""Configuration files: read strictly, read again when changed, written whole, laid over one another."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from model_training_framework.config import (
    ConfigurationError,
    ConfigurationManager,
    ExperimentConfig,
    ValidationError,
    files,
    manager,
)
from tests.launch.examples import COMPLETE, small


@pytest.fixture
def configs(tmp_path: Path) -> ConfigurationManager:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "base.yaml").write_text(COMPLETE)
    return ConfigurationManager(tmp_path)


def age(path: Path) -> None:
    """Date a file so that it counts as written long ago."""
    os.utime(path, ns=(10**18, 10**18))


def test_a_file_is_found_by_name_with_or_without_its_ending(configs: ConfigurationManager) -> None:
    content = configs.load_config("base")
    assert content == configs.load_config("base.yaml") == configs.load_config(configs.config_dir / "base.yaml")
    assert content["optimizer"]["eps"] == 1e-8
    assert configs.load_experiment("base").scheduler is not None


def test_a_missing_file_names_the_nearest(configs: ConfigurationManager) -> None:
    with pytest.raises(FileNotFoundError, match=r"configs/bse\.yaml does not exist\. Did you mean base\.yaml\?"):
        configs.load_config("bse.yaml")
    with pytest.raises(ConfigurationError):
        configs.load_config("bse.yaml")


def test_validation_raises_unless_it_is_not_wanted(configs: ConfigurationManager) -> None:
    path = configs.config_dir / "part.yaml"
    path.write_text("training: {batch_sise: 3}\n")
    with pytest.raises(ValidationError, match=r"part\.yaml: training\.batch_sise is not a known key"):
        configs.load_config("part")
    assert configs.load_config("part", validate=False) == {"training": {"batch_sise": 3}}


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.yaml", "a: [1\n", "not YAML"),
        ("a.yaml", "a: 1\na: 2\n", "a is given twice"),
        ("a.yaml", "", "is empty; expected keys and values"),
        ("a.yaml", "- 1\n", "holds a list; expected keys and values"),
        ("a.yaml", "a: &a [*a]\n", "nested too deeply"),
        ("a.yaml", "custom_params: {when: 2026-01-01}\n", r"custom_params\.when is datetime.*put dates in quotes"),
        ("a.json", "{", r"a\.json, line 1, column 2: not JSON"),
        ("a.json", '{"a": 1, "a": 2}', r"a\.json: a is given twice"),
        ("a.json", "[1]", r"holds \[1\]; expected keys and values"),
        ("a.json", "\udcff", "is no text; expected UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(configs: ConfigurationManager, name: str, text: str, line: str) -> None:
    (configs.config_dir / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigurationError, match=line) as caught:
        configs.load_config(name)
    assert "\n" not in str(caught.value)


def test_a_cached_file_is_read_once_and_again_when_it_changed(
    configs: ConfigurationManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configs.config_dir / "base.yaml"
    age(path)
    read: list[Path] = []
    real = files.read_file

    def counted(place: Path) -> dict[str, Any]:
        read.append(place)
        return real(place)

    monkeypatch.setattr(manager, "read_file", counted)
    assert configs.load_config("base")["seed"] == configs.load_config("base")["seed"] == 42
    assert len(read) == 1
    configs.load_config("base", use_cache=False)
    assert len(read) == 2
    path.write_text(COMPLETE.replace("seed: 42", "seed: 43"))
    assert configs.load_config("base")["seed"] == 43


def test_a_file_that_was_just_written_is_not_taken_from_the_cache(configs: ConfigurationManager) -> None:
    path = configs.config_dir / "base.yaml"
    status = path.stat()
    assert configs.load_config("base")["seed"] == 42
    path.write_text(COMPLETE.replace("seed: 42", "seed: 43"))  # same size and inode
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # within one tick of the clock
    assert configs.load_config("base")["seed"] == 43


def test_what_is_loaded_belongs_to_the_caller(configs: ConfigurationManager) -> None:
    age(configs.config_dir / "base.yaml")
    configs.load_config("base")["model"]["hidden_size"] = 1
    assert configs.load_config("base")["model"]["hidden_size"] == 512


@pytest.mark.parametrize(("name", "format_"), [("x.yaml", "yaml"), ("new/x.yml", "yaml"), ("x.json", "json")])
def test_a_saved_experiment_loads_as_it_was(configs: ConfigurationManager, name: str, format_: str) -> None:
    config = configs.load_experiment("base")
    path = configs.project_root / name
    configs.save_config(config, path, format=format_)
    assert configs.load_experiment(path) == config
    assert [one.name for one in path.parent.iterdir() if one.name.startswith(".")] == []


def test_a_file_that_cannot_be_written_keeps_the_old_content(configs: ConfigurationManager) -> None:
    path = configs.config_dir / "base.yaml"
    with pytest.raises(ConfigurationError, match=r"a is <object object .*expected text"):
        configs.save_config({"a": object()}, path)
    with pytest.raises(ConfigurationError, match=r"format is 'toml'; expected yaml or json"):
        configs.save_config({}, path, format="toml")
    with pytest.raises(ConfigurationError, match=r'ends in \.yaml, format is json; write format="yaml"'):
        configs.save_config({}, path, format="json")
    assert path.read_text() == COMPLETE


def test_composing_merges_mappings_replaces_the_rest_and_shares_nothing(configs: ConfigurationManager) -> None:
    base, over = small(custom_params={"a": {"b": [1]}}), {"custom_params": {"a": {"c": [2]}}, "tags": ["x"]}
    composed = configs.compose_configs(base, [over, {"scheduler": {"name": "cosine"}}], {"model.hidden_size": 64})
    assert composed["custom_params"] == {"a": {"b": [1], "c": [2]}}
    assert (composed["model"], composed["tags"]) == ({"name": "mlp", "hidden_size": 64}, ["x"])
    composed["custom_params"]["a"]["b"].append(3)
    composed["custom_params"]["a"]["c"].append(3)
    assert (base["custom_params"], over["custom_params"]) == ({"a": {"b": [1]}}, {"a": {"c": [2]}})
    assert base["model"] == {"name": "mlp"}
    assert ExperimentConfig.from_dict(composed).scheduler is not None


def test_files_compose_and_null_removes_a_section(configs: ConfigurationManager) -> None:
    (configs.config_dir / "short.yaml").write_text("training: {epochs: 1}\nscheduler: null\n")
    config = ExperimentConfig.from_dict(configs.compose_configs("base", ["short"], {"custom_params.my.key": 3}))
    assert (config.training.epochs, config.training.batch_size, config.scheduler) == (1, 32, None)
    assert config.custom_params == {"my": {"key": 3}}


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({"training.learning_rat": 1}, r"training\.learning_rat is not a known key\. Did you mean training\.learn"),
        ({"training": 1, "training.epochs": 3}, r"training\.epochs cannot be set: training is 1, which has no keys"),
        ({"seed.x": 1}, r"seed\.x is not a known key: seed has a value, not keys of its own"),
        ({"": 1}, r"'' is not a key; expected dotted names such as model\.hidden_size"),
        ({"model..name": 1}, r"'model\.\.name' is not a key"),
        ({3: 1}, r"3 is not a key"),
    ],
)
def test_a_wrong_parameter_override_is_refused(
    configs: ConfigurationManager, overrides: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigurationError, match=line):
        configs.compose_configs("base", parameter_overrides=overrides)


def test_grids_are_read_from_a_file(configs: ConfigurationManager) -> None:
    path = configs.config_dir / "grids.yaml"
    path.write_text("grids:\n- {name: rates, parameters: {training.learning_rate: [1e-3, 1e-4]}}\n")
    (grid,) = configs.load_grids("grids")
    assert list(grid.generate_permutations()) == [{"training.learning_rate": 1e-3}, {"training.learning_rate": 1e-4}]
    path.write_text("name: one\nparameters: {seed: 3}\n")
    with pytest.raises(ConfigurationError, match=r"grids\.yaml: seed has 3 in grid one; expected a list of values"):
        configs.load_grids("grids")


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(plain_values)
def test_any_value_comes_back_from_a_file_as_it_was(value: Any) -> None:
    with TemporaryDirectory() as folder:
        for format_ in ("yaml", "json"):
            path = Path(folder, f"x.{format_}")
            files.write_file({"key": value}, path, format_)
            assert files.read_file(path) == {"key": value}


@pytest.mark.parametrize("text", ["1e-8", "12e3", "24:00:00", "yes", "null", "1_000", "2026-01-01", "0x1f", "~", ""])
def test_text_that_looks_like_something_else_stays_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    files.write_file({"key": text}, path)
    assert files.read_file(path) == {"key": text}
    assert yaml.safe_load(path.read_text()) == {"key": text}
    files.write_file({"key": text}, path.with_suffix(".json"), "json")
    assert json.loads(path.with_suffix(".json").read_text()) == {"key": text}
