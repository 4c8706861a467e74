"""Grids: every combination once, under a stable and safe name, and the base configuration stays as it was."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_training_framework.config import (
    ConfigurationError,
    ExperimentConfig,
    NamingStrategy,
    ParameterGrid,
    ParameterGridSearch,
    ValidationError,
    naming,
)
from model_training_framework.config.fields import LONGEST_NAME
from model_training_framework.config.naming import canonical, parameter_hash, short_keys
from tests.launch.examples import small, transformer

ROOT = Path(__file__).resolve().parents[2]
SAFE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+=,-]{{0,{LONGEST_NAME - 1}}}")


def grid_of(parameters: dict[str, list[Any]], name: str = "sweep") -> ParameterGrid:
    grid = ParameterGrid(name)
    for key, values in parameters.items():
        grid.add_parameter(key, values)
    return grid


def search_of(
    *grids: dict[str, list[Any]], base: dict[str, Any] | None = None, strategy: str = "hash_based"
) -> ParameterGridSearch:
    search = ParameterGridSearch(small() if base is None else base)
    for number, parameters in enumerate(grids):
        search.add_grid(grid_of(parameters, f"grid{number}"))
    search.set_naming_strategy(NamingStrategy(strategy))
    return search


def built(*grids: dict[str, list[Any]], **options: Any) -> list[ExperimentConfig]:
    return list(search_of(*grids, **options).generate_experiments())


def names(*grids: dict[str, list[Any]], **options: Any) -> list[str]:
    return [config.experiment_name for config in built(*grids, **options)]


def test_the_last_parameter_varies_fastest() -> None:
    grid = grid_of({"model.hidden_size": [1, 2], "training.batch_size": [3, 4]})
    grid.add_nested_parameter("optimizer.name", ["sgd"])
    assert grid.get_parameter_count() == 4
    assert [tuple(one.values()) for one in grid.generate_permutations()] == [
        (1, 3, "sgd"),
        (1, 4, "sgd"),
        (2, 3, "sgd"),
        (2, 4, "sgd"),
    ]


def test_a_grid_without_parameters_is_the_base_configuration_once() -> None:
    assert ParameterGrid("empty").get_parameter_count() == 1
    assert list(ParameterGrid("empty").generate_permutations()) == [{}]
    assert len(built({})) == 1
    assert built() == []


def test_values_reach_their_keys_and_every_section_is_kept() -> None:
    base = transformer(
        checkpoint={"save_top_k": 7}, preemption={"max_preemptions": 9}, performance={"num_workers": 5}, tags={}
    )
    base["tags"] = ["kept"]
    configs = built(
        {"training.learning_rate": [0.1, 0.2], "scheduler.name": ["cosine"], "custom_params.a.b": [1]}, base=base
    )
    assert [config.training.learning_rate for config in configs] == [0.1, 0.2]
    for config in configs:
        assert config.scheduler is not None
        assert config.slurm is not None
        assert config.prediction is not None
        assert (config.scheduler.name, config.custom_params) == ("cosine", {"a": {"b": 1}})
        assert (config.slurm.gres, config.prediction.system, config.tags) == ("gpu:4", "Perlmutter", ["kept"])
        assert (config.checkpoint.save_top_k, config.preemption.max_preemptions) == (7, 9)
        assert (config.performance.num_workers, config.training.max_steps) == (5, 1000)


def test_a_whole_section_can_be_a_value() -> None:
    configs = built({"scheduler": [None, {"name": "cosine", "warmup_steps": 5}]})
    assert configs[0].scheduler is None
    assert configs[1].scheduler is not None
    assert configs[1].scheduler.warmup_steps == 5


def test_the_base_may_lack_what_the_grid_sets() -> None:
    base = small()
    del base["training"]["learning_rate"]
    assert [config.training.learning_rate for config in built({"training.learning_rate": [1, 2]}, base=base)] == [1, 2]


def test_an_experiment_says_in_what_it_differs() -> None:
    first, second = search_of({"seed": [1, 2]}).experiments()
    assert (first.differs, second.differs, first.grid) == ({"seed": 1}, {"seed": 2}, "grid0")


def changeable(value: Any) -> list[Any]:
    """Return every list and mapping within a section."""
    if isinstance(value, dict):
        return [value, *(part for inner in value.values() for part in changeable(inner))]
    if isinstance(value, list):
        return [value, *(part for inner in value for part in changeable(inner))]
    return [part for key in getattr(value, "key_names", ()) for part in changeable(getattr(value, key))]


def test_no_two_experiments_share_a_part_that_can_be_changed() -> None:
    base = transformer(
        custom_params={"a": {"b": [1]}}, data={"preprocessing": {"crop": [1]}}, slurm={"modules": ["cuda"]}
    )
    base["prediction"]["config"] = {"model": {"x": [1]}}
    value: list[Any] = [{"deep": [1]}]
    search = search_of({"custom_params.c": [value, 2], "slurm.nodes": [1, 2], "seed": [1, 2]}, base=base)
    before = copy.deepcopy((base, value))
    configs = list(search.generate_experiments())
    parts = [{id(part) for part in changeable(config)} for config in [*configs, *search.generate_experiments()]]
    assert all(len(part) > 5 for part in parts)
    assert not any(one & other for one, other in combinations(parts, 2))
    configs[0].custom_params["a"]["b"].append(2)
    assert configs[0].slurm is not None
    configs[0].slurm.modules.append("x")
    value[0]["deep"].append(2)
    before[1][0]["deep"].append(2)
    assert (base, value) == before
    assert next(search.generate_experiments()).custom_params == {"a": {"b": [1]}, "c": [{"deep": [1]}]}


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("model.hiden_size", r"model\.hiden_size is not a known key\. Did you mean model\.hidden_size\?"),
        ("lr", r"lr is not a known key\. Did you mean training\.learning_rate\?"),
        ("model.hidden_size.x", r"model\.hidden_size has a value, not keys of its own"),
        ("experiment_name", r"experiment_name cannot be a parameter of grid sweep: a naming strategy makes it"),
        ("seed", r"seed is given twice in grid sweep; give all its values at once"),
        ("scheduler.name", r"scheduler\.name and scheduler of grid sweep overlap; vary one of them"),
    ],
)
def test_a_wrong_parameter_is_refused_when_it_is_added(key: str, line: str) -> None:
    grid = grid_of({"seed": [1], "scheduler": [None]})
    with pytest.raises(ConfigurationError, match=line):
        grid.add_parameter(key, [1])


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], "seed has no values in grid sweep; expected one at least"),
        ("12", "seed has '12' in grid sweep; expected a list of values"),
        (3, "seed has 3 in grid sweep; expected a list of values"),
        ([object()], "seed of grid sweep: expected text, a number"),
    ],
)
def test_values_must_be_a_list_of_what_a_file_can_hold(values: Any, line: str) -> None:
    with pytest.raises(ConfigurationError, match=line):
        ParameterGrid("sweep").add_parameter("seed", values)


def test_a_combination_that_is_not_allowed_is_named_before_any_experiment_is_given() -> None:
    search = search_of({"model.hidden_size": [64, 100], "model.num_heads": [4, 8]})
    line = (
        r"^model\.num_heads is 8: it must divide hidden_size, 100 \(with model\.hidden_size=100, model\.num_heads=8 of"
    )
    with pytest.raises(ValidationError, match=line):
        search.generate_experiments()


def test_a_slip_in_the_base_is_not_put_down_to_the_grid() -> None:
    with pytest.raises(ValidationError) as caught:
        built({"seed": [1, 2]}, base=small(model={"nme": "x"}))
    assert str(caught.value).startswith("model.nme is not a known key. Did you mean model.name?")
    assert "grid" not in str(caught.value)


@pytest.mark.parametrize(
    "grids",
    [
        ({"seed": [1, 2, 1]},),
        ({"seed": [1, 2]}, {"seed": [2, 3]}),
        ({"training.learning_rate": [1, 1.0]},),
        ({"seed": [5]}, {"seed": [5], "training.batch_size": [8]}),  # 8 is the base's
        ({"custom_params.a": [{"x": 1, "y": 2}, {"y": 2, "x": 1}]},),
        ({"custom_params.a": [1, 1.0]},),
        ({"custom_params.a": [[{"x": 1}], [{"x": 1.0}]]},),
    ],
)
@pytest.mark.parametrize("strategy", NamingStrategy)
def test_two_equal_experiments_are_both_named(grids: tuple[dict[str, list[Any]], ...], strategy: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^experiments \d and \d are the same: .* of grid grid\d and .* of grid"
    ):
        built(*grids, strategy=strategy)


def test_free_values_of_different_types_are_different() -> None:
    assert len(set(names({"custom_params.a": [1, True, "1", None, "None", [1], "[1]"]}))) == 7


def test_two_names_that_are_one_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "digest", lambda texts, digits=12: "0" * digits)
    with pytest.raises(
        ConfigurationError, match=r"experiments 1 and 2 would both be called small_0{12}: seed=1 of grid"
    ):
        built({"seed": [1, 2]})


def test_a_slip_of_too_many_experiments_is_refused() -> None:
    search = search_of({"seed": list(range(2000)), "training.max_steps": list(range(1, 2001))})
    with pytest.raises(ConfigurationError, match=r"^the grids make 4,000,000 experiments"):
        search.generate_experiments()


def test_hash_names_depend_on_the_parameters_alone() -> None:
    assert names({"seed": [1], "training.batch_size": [2]}) == names({"training.batch_size": [2], "seed": [1]})
    assert names({"training.learning_rate": [1]}) == names({"training.learning_rate": [1.0]})
    assert names({"seed": [1, 2]})[1] == names({"seed": [2, 3]})[0]
    assert re.fullmatch(r"small_[0-9a-f]{12}", names({"seed": [1]})[0])


def test_descriptive_names_say_keys_and_values() -> None:
    assert names(
        {"training.learning_rate": [1e-5], "model.name": ["a"], "optimizer.name": ["b"]}, strategy="descriptive"
    ) == ["small_learning_rate=1e-05_model.name=a_optimizer.name=b"]
    found = names({"scheduler": [None, {"name": "cosine"}], "optimizer.betas": [[0.9, 0.99]]}, strategy="descriptive")
    assert found[0] == "small_scheduler=none_betas=0.9-0.99"
    assert re.fullmatch(r"small_scheduler=cosine-[0-9a-f]{6}_betas=0.9-0.99", found[1])


def test_descriptive_names_stay_apart_where_their_texts_would_not() -> None:
    found = names({"custom_params.path": ["a b", "a_b", "A_b", "a/b", ""]}, strategy="descriptive")
    assert len({name.casefold() for name in found}) == 5
    assert all(SAFE.fullmatch(name) for name in found)
    long = names({"custom_params.path": ["x" * 200 + "1", "x" * 200 + "2"]}, strategy="descriptive")
    assert len(set(long)) == 2
    assert {len(name) for name in long} == {LONGEST_NAME}


def test_sequential_names_count_over_all_grids() -> None:
    assert names({"seed": [1, 2]}, {"seed": [3]}, strategy="sequential") == ["small_0000", "small_0001", "small_0002"]


def test_names_start_with_the_grid_where_the_base_has_none() -> None:
    base = small()
    del base["experiment_name"]
    assert names({"seed": [1]}, base=base, strategy="sequential") == ["grid0_0000"]
    assert names({"seed": [1]}, base=small() | {"experiment_name": "my run"}, strategy="sequential") == ["my_run_0000"]


def test_names_are_the_same_in_another_process_with_another_hash_seed() -> None:
    code = (
        "from tests.launch.test_grid import names\n"
        "g = {'custom_params.a': [{'x': 1, 'y': [2]}, 'b c'], 'seed': [1, 2]}\n"
        "print(*(names(g, strategy=s) for s in ('hash_based', 'descriptive', 'sequential')))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONPATH": ".:slurm", "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert "small_" in outputs.pop()


def test_the_published_hash_does_not_change() -> None:
    # Folders of experiments that ran are named so: another hash would run them again.
    assert parameter_hash({"training.learning_rate": 1e-3, "seed": 1}) == "a507c1844aa1"


def test_keys_are_shortened_as_far_as_they_stay_apart() -> None:
    keys = ["custom_params.a.b", "custom_params.b", "seed"]
    assert short_keys(keys) == {"custom_params.a.b": "a.b", "custom_params.b": "custom_params.b", "seed": "seed"}


def test_wrong_arguments_are_one_line() -> None:
    search = ParameterGridSearch(small())
    with pytest.raises(ConfigurationError, match="expected hash_based, descriptive, sequential"):
        search.set_naming_strategy("random")
    with pytest.raises(ConfigurationError, match="grid is 3; expected a ParameterGrid"):
        search.add_grid(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="base_config is 3; expected a mapping of sections"):
        ParameterGridSearch(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="the name of a grid is ' '; expected text"):
        search.create_grid(" ")


def test_a_grid_survives_a_file() -> None:
    grid = grid_of({"seed": [1, 2], "scheduler": [None]})
    again = ParameterGrid.from_dict(grid.to_dict())
    assert (again.name, again.parameters) == (grid.name, grid.parameters)
    with pytest.raises(ConfigurationError, match="parametres is not a known key of a grid"):
        ParameterGrid.from_dict({"name": "x", "parametres": {}})
    with pytest.raises(ConfigurationError, match=r"the name of a grid is \['x'\]; expected text"):
        ParameterGrid.from_dict({"name": ["x"], "parameters": {}})


NUMBERS = {
    "seed": st.integers(0, 2**32 - 1),
    "training.batch_size": st.integers(1, 10**6),
    "training.learning_rate": st.floats(1e-9, 1e3),
    "model.hidden_size": st.integers(1, 10**6),
    "custom_params.a.b": st.one_of(
        st.text(max_size=5), st.booleans(), st.integers(), st.floats(allow_nan=False), st.none()
    ),
    "optimizer.name": st.text("abcAB /%é", min_size=1, max_size=4),
    "slurm.nodes": st.integers(1, 100),
}


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, list[Any]]:
    keys = draw(st.lists(st.sampled_from(sorted(NUMBERS)), unique=True, max_size=4))
    return {key: draw(st.lists(NUMBERS[key], min_size=1, max_size=3, unique_by=canonical)) for key in keys}


@settings(max_examples=150, deadline=None)
@given(parameters(), st.sampled_from(sorted(NamingStrategy)))
def test_any_grid_makes_every_combination_once(grid: dict[str, list[Any]], strategy: str) -> None:
    base = small(slurm={"partition": "x"})
    before = copy.deepcopy(base)
    search = search_of(grid, base=base, strategy=strategy)
    experiments = search.experiments()
    assert len(experiments) == search.get_parameter_count() == grid_of(grid).get_parameter_count()
    assert len({experiment.config.experiment_name.casefold() for experiment in experiments}) == len(experiments)
    assert all(SAFE.fullmatch(experiment.config.experiment_name) for experiment in experiments)
    assert [experiment.differs for experiment in experiments] == list(grid_of(grid).generate_permutations())
    for experiment in experiments:
        assert ExperimentConfig.from_dict(experiment.config.to_dict()) == experiment.config
        content = experiment.config.to_dict()
        for key, value in experiment.differs.items():
            place: Any = content
            for part in key.split("."):
                place = place[part]
            assert place == value
    assert experiments == search.experiments()
    assert base == before
