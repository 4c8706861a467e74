"""The documented interface, item by item: symbols, arguments, defaults, values and types of layers."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from hugectr import Session, solver_parser_helper
from hugectr.dense.network import MODULES
from hugectr.exceptions import HugeCtrError
from predictor.recommender.hugectr.reading import read_hugectr
from predictor.recommender.workload.embedding import EmbeddingKind
from predictor.recommender.workload.layers import LAYER_TYPES, LossLayer
from predictor.recommender.workload.optimizer import OptimizerKind, Schedule, UpdateType
from tests.hugectr.specification import COMPANION, SPECIFICATION, inventory, names_of

pytestmark = pytest.mark.skipif(not SPECIFICATION.is_file(), reason="the specification is not at hand")

ITEMS = inventory()
SYMBOLS = [item for item in ITEMS if item.get("import_path")]
METHODS = [item for item in ITEMS if item["kind"] == "method"]
PARAMETERS = [item for item in ITEMS if item["kind"] == "param"]
SIGNATURES = [item for item in ITEMS if "signature" in item and item["signature"].startswith("(")]
OWNERS = {"DataReader": "hugectr.DataReader32", "LearningRateScheduler": "hugectr.LearningRateScheduler"}
# Kinds of items that say what files hold or programs do; the tests beside them hold those.
ELSEWHERE = {
    "doc_link", "mode_matrix", "file_format", "error", "config", "config_key", "behaviour", "limit", "format",
    "example", "dependency", "value_set",
}  # fmt: skip
SAMPLES = sorted((COMPANION / "samples").glob("*.json")) if SPECIFICATION.is_file() else []


def item_id(item: dict[str, Any]) -> str:
    return str(item["name"])


def imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def target(name: str) -> Any:
    """Return a callable by the inventory's name, such as ``Session.train`` or ``CreateParameterServer``."""
    owner, _, method = name.partition(".")
    paths = {item["name"].partition(".")[0]: item["import_path"] for item in SYMBOLS} | OWNERS
    symbol = imported(paths[owner])
    return getattr(symbol, method) if method else symbol


def plain(value: Any) -> Any:
    """Return a value with lists in place of tuples."""
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def test_every_kind_of_item_is_walked() -> None:
    walked = {"function", "class", "method", "param"}
    assert {item["kind"] for item in ITEMS} == walked | ELSEWHERE
    assert len(ITEMS) == 93


@pytest.mark.parametrize("item", SYMBOLS, ids=item_id)
def test_every_symbol_is_there(item: dict[str, Any]) -> None:
    assert callable(imported(item["import_path"]))


@pytest.mark.parametrize("item", METHODS, ids=item_id)
def test_every_method_is_there(item: dict[str, Any]) -> None:
    assert callable(target(item["name"]))


@pytest.mark.parametrize("item", PARAMETERS, ids=item_id)
def test_every_argument_has_its_documented_default(item: dict[str, Any]) -> None:
    owner, _, names = item["name"].rpartition(".")
    parameters = inspect.signature(target(owner)).parameters
    name = names.partition("|")[0]
    assert name in parameters
    assert parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
    if "default" in item:
        assert plain(parameters[name].default) == ast.literal_eval(item["default"])


@pytest.mark.parametrize("item", SIGNATURES, ids=item_id)
def test_arguments_stand_in_their_documented_order(item: dict[str, Any]) -> None:
    documented = item["signature"].partition(" ->")[0].strip("()")
    tree = ast.parse(f"def call({documented}): pass").body[0]
    assert isinstance(tree, ast.FunctionDef)
    names = [argument.arg for argument in tree.args.args]
    parameters = inspect.signature(target(item["name"])).parameters
    mine = [name for name in parameters if name != "self"]
    assert mine[: len(names)] == names
    for extra in mine[len(names) :]:
        assert parameters[extra].default is not inspect.Parameter.empty
    defaults = dict(zip(names[::-1], [ast.literal_eval(value) for value in tree.args.defaults[::-1]], strict=False))
    assert {name: parameters[name].default for name in defaults} == defaults


@pytest.mark.parametrize("scaler", [128.0, 256.0, 512.0, 1024.0])
def test_every_documented_scaler_is_taken(scaler: float) -> None:
    assert solver_parser_helper(use_mixed_precision=True, scaler=scaler).scaler == scaler


def test_other_scalers_are_refused() -> None:
    with pytest.raises(HugeCtrError, match="scaler is 100"):
        solver_parser_helper(use_mixed_precision=True, scaler=100.0)


def test_settings_cannot_be_changed() -> None:
    solver = solver_parser_helper(vvgpu=[[0, 1], [1, 2]])
    assert plain(solver.vvgpu) == [[0, 1], [1, 2]]
    with pytest.raises(AttributeError):
        solver.batchsize = 1


def test_every_documented_type_is_known() -> None:
    assert set(names_of("layer_types")) == set(LAYER_TYPES)
    losses = {name for name, layer in LAYER_TYPES.items() if issubclass(layer, LossLayer)}
    assert set(MODULES) | losses == set(LAYER_TYPES)
    assert set(names_of("embeddings")) == set(EmbeddingKind)
    assert set(names_of("optimizers")) <= set(OptimizerKind)
    assert set(names_of("update_types")) == set(UpdateType)


def test_learning_rates_follow_the_documented_formula() -> None:
    base, warmup, start, steps, power, end = 0.5, 10, 30, 20, 2.0, 1e-3
    schedule = Schedule(base, warmup, start, steps, power, end)
    for step in range(1, 70):
        if step <= warmup:
            rate = base * step / warmup
        elif step <= start:
            rate = base
        elif step <= start + steps:
            rate = max(end, base * ((start + steps - step) / steps) ** power)
        else:
            rate = end
        assert schedule.rate(step) == pytest.approx(rate)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_every_sample_configuration_is_read(path: Path) -> None:
    config = read_hugectr(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    kinds = [layer["type"] for layer in content["layers"][1:]]
    assert len(config.model.embeddings) + len(config.model.layers) == len(kinds)
    assert config.model.dense_parameters > 0


def test_a_session_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(HugeCtrError, match=r"nowhere.json does not exist"):
        Session(solver_parser_helper(), str(tmp_path / "nowhere.json"))
