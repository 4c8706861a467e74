"""Learning rates and settings of a run."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import hugectr
from hugectr.exceptions import HugeCtrError
from hugectr.schedule import LearningRateScheduler, get_learning_rate_scheduler
from hugectr.solver import solver_parser_helper
from predictor.recommender.workload.optimizer import Schedule
from tests.hugectr.model_made import ADAM, make


def documented(base: float, warmup: int, start: int, steps: int, power: float, end: float, step: int) -> float:
    if step <= warmup:
        return base * step / warmup
    if start == 0 or step <= start:
        return base
    if step <= start + steps:
        return max(end, base * float(((start + steps - step) / steps) ** power))
    return end


@pytest.mark.parametrize(("start", "end"), [(0, 0.0), (6, 0.0), (6, 0.4)])
def test_rates_follow_the_documented_formula(start: int, end: float) -> None:
    schedule = Schedule(2.0, warmup_steps=4, decay_start=start, decay_steps=5, decay_power=2.0, end=end)
    scheduler = LearningRateScheduler(schedule)
    rates = [scheduler.get_next() for _ in range(14)]
    assert rates == [documented(2.0, 4, start, 5, 2.0, end, step) for step in range(1, 15)]
    assert scheduler.get_step() == 14
    assert scheduler.get_lr() == rates[-1]


def test_rates_come_from_the_configuration(tmp_path: Path) -> None:
    sgd = {"type": "SGD", "sgd_hparam": {"learning_rate": 8.0, "warmup_steps": 4}}
    scheduler = get_learning_rate_scheduler(str(make(tmp_path, optimizer=sgd).config))
    assert [scheduler.get_next() for _ in range(5)] == [2.0, 4.0, 6.0, 8.0, 8.0]


def test_other_optimizers_have_one_rate(tmp_path: Path) -> None:
    scheduler = get_learning_rate_scheduler(str(make(tmp_path, optimizer=ADAM).config))
    assert [scheduler.get_next() for _ in range(3)] == [0.01] * 3


def test_missing_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(HugeCtrError, match=r"none\.json does not exist"):
        get_learning_rate_scheduler(str(tmp_path / "none.json"))


def test_configuration_without_an_optimizer_is_refused(tmp_path: Path) -> None:
    made = make(tmp_path)
    content = json.loads(made.config.read_text())
    del content["optimizer"]
    made.config.write_text(json.dumps(content))
    with pytest.raises(HugeCtrError, match="optimizer is missing"):
        get_learning_rate_scheduler(str(made.config))


DOCUMENTED = {
    "seed": 0, "max_eval_batches": 100, "batchsize_eval": 2048, "batchsize": 2048, "model_file": "",
    "dense_opt_states_file": "", "vvgpu": ((0,),), "use_mixed_precision": False, "enable_tf32_compute": False,
    "scaler": 1.0, "i64_input_key": False, "use_algorithm_search": True, "use_cuda_graph": True,
    "repeat_dataset": True, "embedding_files": (), "sparse_opt_states_file": (),
}  # fmt: skip


def test_defaults_are_the_documented_ones() -> None:
    solver = solver_parser_helper()
    assert {name: getattr(solver, name) for name in DOCUMENTED} == DOCUMENTED
    assert set(inspect.signature(solver_parser_helper).parameters) == set(DOCUMENTED) | {
        "sharding_plan",
        "eval_metrics",
    }


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        solver_parser_helper().seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batchsize": 5, "vvgpu": [[0, 1]]}, "batchsize is 5; it must be a multiple of the 2 GPUs in vvgpu"),
        ({"batchsize_eval": 0}, "batchsize_eval is 0; expected a whole number from 1 to"),
        ({"seed": -1}, "seed is -1"),
        ({"scaler": 512}, "scaler is 512; without use_mixed_precision it must be 1.0"),
        ({"scaler": 100, "use_mixed_precision": True}, "it must be one of 128, 256, 512, 1024"),
        ({"vvgpu": []}, r"vvgpu is \[\]; expected a list of GPU indices for each node"),
        ({"vvgpu": [[0, 0]]}, "a node names a GPU twice"),
        ({"vvgpu": [["0"]]}, "expected a list of GPU indices"),
        ({"repeat_dataset": 1}, "repeat_dataset is 1; expected True or False"),
        ({"model_file": None}, "model_file is None; expected the name of a file"),
        ({"embedding_files": 3}, "embedding_files is 3; expected the name of a file, or a list of them"),
        ({"eval_metrics": ["F1"]}, "eval_metrics has 'F1'; expected AUC or AverageLoss, each once"),
        ({"eval_metrics": ["AUC:high"]}, "expected a number behind the colon"),
    ],
)
def test_values_that_are_not_allowed_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HugeCtrError, match=message) as raised:
        solver_parser_helper(**arguments)
    assert "\n" not in str(raised.value)


def test_public_names_are_there_and_import_no_torch_by_themselves() -> None:
    assert all(callable(getattr(hugectr, name)) for name in hugectr.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        hugectr.Sesion  # noqa: B018
