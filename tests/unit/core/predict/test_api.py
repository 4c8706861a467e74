"""The documented interface, to the letter: names, signatures, defaults, types, exceptions."""

from __future__ import annotations

import inspect
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import estimate_train_time
from estimate_train_time import Predictor, data, one_batch_predict
from estimate_train_time.estimator import tools
from predictor.core.base.bundled import REGRESSORS_FOLDER, systems
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Source
from predictor.core.costs.operator import Direction
from predictor.core.costs.published import open_system
from tests.unit.examples import EXAMPLE, short_form, write

OPERATORS = "./regressors/Perlmutter/operator"
NCCL = "./regressors/Perlmutter/nccl"
A100 = "NVIDIAA100-SXM4-80GB"
ENCODER = (2, 4, 32, 4096, 4096)
NCCL_FOLDERS = ["self", "nccl_data_folder", "nccl_config_folder", "gpu_name"]
SIGNATURES = {
    one_batch_predict: ["config_path"],
    Predictor.__init__: ["self"],
    Predictor.operator_statistic: [
        *["self", "data_folder", "config_folder", "gpu_name", "function_list", "precision", "encoder_config"],
        "propagation",
    ],
    Predictor.mp_allreduce: [*NCCL_FOLDERS, "shape", "mp", "gpu_per_node"],
    Predictor.dp_allreduce: [*NCCL_FOLDERS, "shape", "mp", "dp", "gpu_per_node"],
    Predictor.dp_allgather: [*NCCL_FOLDERS, "shape", "mp", "dp", "gpu_per_node"],
    Predictor.pp_p2p: [*NCCL_FOLDERS, "shape", "mp", "dp", "pp", "gpu_per_node"],
    data.get_data_path: [],
    data.get_regressors_path: [],
    data.get_examples_path: [],
    tools.config_decoder: ["file_path"],
    tools.get_bundled_data_path: [],
    tools.get_bundled_regressors_path: ["cluster_name"],
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_signature(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert list(parameters) == SIGNATURES[function]
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults == ({"cluster_name": None} if function is tools.get_bundled_regressors_path else {})
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())


def test_version_is_the_distribution_s(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert estimate_train_time.__version__ == project["version"]


def test_step_is_a_plain_float_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    time_us = one_batch_predict(str(EXAMPLE))
    assert type(time_us) is float
    assert 1e6 < time_us < 1e8
    assert capsys.readouterr() == ("", "")


def test_exceptions_of_a_step(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        one_batch_predict(str(tmp_path / "absent.yml"))
    (tmp_path / "broken.yml").write_text("a: [1", encoding="utf-8")
    with pytest.raises(yaml.YAMLError):
        one_batch_predict(str(tmp_path / "broken.yml"))
    for key in ("encoders", "gpu_name", "training_config"):
        with pytest.raises(KeyError, match=key):
            one_batch_predict(str(write(short_form(**{key: None}), tmp_path / "missing.yml")))
    with pytest.raises(ValueError, match="expected 9"):
        one_batch_predict(str(write(short_form(training_config=[1] * 8), tmp_path / "eight.yml")))


@pytest.fixture
def predictor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predictor:
    monkeypatch.chdir(tmp_path)  # relative folders are found in the bundled data
    return Predictor()


def test_operators_are_timed_and_kept(predictor: Predictor, capsys: pytest.CaptureFixture[str]) -> None:
    assert predictor.operator_dict == {}
    args = (OPERATORS, OPERATORS, A100)
    flash = predictor.operator_statistic(*args, ["flash_atten"], "fp16", ENCODER, "fwd")
    backward = predictor.operator_statistic(*args, ["flash_atten"], "fp16", ENCODER, "bwd")
    gelu = predictor.operator_statistic(*args, ["gelu"], "fp16", ENCODER, "fwd")
    assert type(flash) is float
    assert 0 < gelu < flash < backward
    both = predictor.operator_statistic(*args, ["flash_atten", "gelu", "gelu"], "fp16", ENCODER, "fwd")
    assert both == pytest.approx(flash + 2 * gelu)
    assert predictor.operator_statistic(*args, ["flash_attention"], "fp16", ENCODER, "fwd") == flash
    assert predictor.operator_statistic(*args, [], "fp16", ENCODER, "fwd") == 0.0
    assert len(predictor.operator_dict) == 3
    assert all("flash_attention" in key or "gelu" in key for key in predictor.operator_dict)
    assert predictor.nccl_dict == {}
    assert capsys.readouterr() == ("", "")


def test_a_loss_is_of_logits_as_the_tables_have_them(predictor: Predictor) -> None:
    words = (OPERATORS, OPERATORS, A100, ["parallel_cross_entropy_128"], "fp16", ENCODER, "fwd")
    operator = catalogue()["cross_entropy"]
    narrow, wide = (
        open_system(REGRESSORS_FOLDER / "Perlmutter", "fp16").cost(operator, Direction.FORWARD, (16384, 25216, size))
        for size in (2, 4)
    )
    assert predictor.operator_statistic(*words) == pytest.approx(narrow.us)
    assert narrow.source is Source.INTERPOLATED
    assert wide.source is Source.EXTRAPOLATED
    assert 1.5 * narrow.us < wide.us < 2.1 * narrow.us


def test_two_systems_do_not_mix(predictor: Predictor) -> None:
    vista = "./regressors/Vista/operator"
    a100 = predictor.operator_statistic(OPERATORS, OPERATORS, A100, ["linear3"], "fp16", ENCODER, "fwd")
    gh200 = predictor.operator_statistic(vista, vista, "NVIDIAGH200120GB", ["linear3"], "fp16", ENCODER, "fwd")
    assert gh200 < a100
    assert len(predictor.operator_dict) == 2


def test_collectives(predictor: Predictor) -> None:
    args, elements = (NCCL, NCCL, A100), 4 * 4096 * 4096
    times = [
        predictor.mp_allreduce(*args, elements, 2, 4),
        predictor.dp_allreduce(*args, elements, 2, 2, 4),
        predictor.dp_allgather(*args, elements, 2, 2, 4),
        predictor.pp_p2p(*args, elements, 2, 2, 4, 4),
    ]
    assert all(type(time_us) is float and time_us > 0 for time_us in times)
    assert len(predictor.nccl_dict) == 3


def test_group_of_one_rank_takes_nothing(predictor: Predictor) -> None:
    args = (NCCL, NCCL, A100, 10**6)
    assert predictor.mp_allreduce(*args, 1, 4) == 0.0
    assert predictor.dp_allreduce(*args, 2, 1, 4) == 0.0
    assert predictor.dp_allgather(*args, 2, 1, 4) == 0.0
    assert predictor.pp_p2p(*args, 2, 2, 1, 4) == 0.0


def test_groups_lie_where_ranks_do(predictor: Predictor) -> None:
    args = (NCCL, NCCL, A100, 4 * 4096 * 4096)
    assert predictor.mp_allreduce(*args, 8, 4) > 2 * predictor.mp_allreduce(*args, 4, 4), "two nodes"
    assert predictor.dp_allreduce(*args, 4, 2, 4) > 2 * predictor.dp_allreduce(*args, 1, 2, 4), "stride of a node"
    assert predictor.pp_p2p(*args, 2, 1, 2, 4) < predictor.pp_p2p(*args, 2, 1, 4, 4), "four ranks fill one node"


def test_message_is_split_over_tensor_parallel_ranks(predictor: Predictor) -> None:
    whole = predictor.pp_p2p(NCCL, NCCL, A100, 2 * 10**7, 1, 4, 2, 4)
    assert predictor.pp_p2p(NCCL, NCCL, A100, 4 * 10**7, 2, 4, 2, 4) == whole


BAD_OPERATOR_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "propagation": ({"propagation": "dur"}, "'fwd' or 'bwd'"),
    "precision": ({"precision": "fp32"}, "measured in fp16"),
    "operator": ({"function_list": ["flash"]}, "flash_atten"),
    "optimizer": ({"function_list": ["firstStage_optimizer"]}, "once per layer"),
    "one name": ({"function_list": "gelu"}, "expected a list"),
    "heads": ({"encoder_config": (2, 4, 33, 4096, 4096)}, r"\(h\) is 33"),
    "ranks": ({"encoder_config": (5, 4, 32, 4096, 4096)}, r"Try 1, 2, 4, 8, 16 or 32\."),
    "zero": ({"encoder_config": (2, 0, 32, 4096, 4096)}, r"\(b\) is 0"),
    "four": ({"encoder_config": (2, 4, 32, 4096)}, "five numbers"),
    "fraction": ({"encoder_config": (2, 4, 32, 4096.5, 4096)}, "whole number"),
    "no list": ({"encoder_config": 5}, "encoder_config is 5; expected five numbers"),
    "text": ({"encoder_config": "24324"}, "expected five numbers"),
    "nothing": ({"encoder_config": None}, "expected five numbers"),
    "listed operator": ({"function_list": [["x"]]}, r"function_list names \['x'\]"),
    "listed propagation": ({"propagation": ["fwd"]}, "'fwd' or 'bwd'"),
    "listed precision": ({"precision": ["fp16"]}, r"precision is \['fp16'\]; expected a name"),
    "no precision": ({"precision": None}, "precision is None"),
    "no gpu": ({"gpu_name": None}, "gpu_name is None; Perlmutter was measured on"),
    "listed gpu": ({"gpu_name": [A100]}, "Published: .*Perlmutter"),
    "no folder": ({"data_folder": None}, "data_folder is None; expected a folder"),
    "gpu": ({"gpu_name": "V100"}, "Published: .*Perlmutter"),
    "folder": ({"data_folder": "./nowhere"}, "not a published system"),
    "other folder": ({"config_folder": "./regressors/Vista/operator"}, "one system"),
    "wrong kind": ({"data_folder": NCCL}, "expected the operator folder"),
}


@pytest.mark.parametrize("case", BAD_OPERATOR_CALLS)
def test_operator_call_that_is_refused(case: str, predictor: Predictor) -> None:
    changes, message = BAD_OPERATOR_CALLS[case]
    good: dict[str, Any] = {
        "data_folder": OPERATORS,
        "config_folder": OPERATORS,
        "gpu_name": A100,
        "function_list": ["gelu"],
        "precision": "fp16",
        "encoder_config": ENCODER,
        "propagation": "fwd",
    }
    with pytest.raises(ValueError, match=message):
        predictor.operator_statistic(**(good | changes))


@pytest.mark.parametrize(
    ("shape", "mp", "gpu_per_node"), [(0, 2, 4), (-1, 2, 4), (10, 0, 4), (10, 2, 0), (10, 2, 8), (1.5, 2, 4)]
)
def test_collective_call_that_is_refused(shape: int, mp: int, gpu_per_node: int, predictor: Predictor) -> None:
    with pytest.raises(ValueError, match=r"shape|mp|gpu_per_node"):
        predictor.mp_allreduce(NCCL, NCCL, A100, shape, mp, gpu_per_node)


def test_collective_call_without_a_gpu_is_refused(predictor: Predictor) -> None:
    for gpu_name in (None, 5, [A100]):
        with pytest.raises(ValueError, match="gpu_name is"):
            predictor.mp_allreduce(NCCL, NCCL, gpu_name, 10, 2, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [None, 5, ["config.yml"], b"config.yml"])
def test_path_that_is_none(path: Any) -> None:
    with pytest.raises(ValueError, match=r"config_path is .*; expected the path"):
        one_batch_predict(path)


def test_bundled_data() -> None:
    assert all(isinstance(path, Path) for path in (data.get_data_path(), data.get_examples_path()))
    assert Path(os.path.join(data.get_examples_path(), "llemma_7b_4_2_2_P.yml")).is_file()  # noqa: PTH118 as documented
    assert (data.get_regressors_path() / "Vista" / "operator").is_dir()
    assert tools.get_bundled_data_path() == str(data.get_data_path())
    assert tools.get_bundled_regressors_path() == str(data.get_regressors_path())
    for name in systems():
        assert Path(tools.get_bundled_regressors_path(name)).name == name
    with pytest.raises(
        ValueError, match=r"Published: .*Perlmutter, RTX_4090, RTX_6000_Ada, RTX_PRO_6000, Selene, V100, Vista"
    ):
        tools.get_bundled_regressors_path("perlmuter")


def test_config_decoder() -> None:
    config = tools.config_decoder(str(EXAMPLE))
    assert type(config) is dict
    assert config["training_config"] == [4, 2, 2, 4, 32, 4096, 4096, 8, 4]
