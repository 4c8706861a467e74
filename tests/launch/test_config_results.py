"""What became of a grid's experiments: counts, lines and JSON that say all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model_training_framework.config import (
    ExecutionMode,
    ExperimentConfig,
    ExperimentState,
    GridExperiment,
    GridSearchResult,
)
from tests.launch.examples import small


class Foreseen:
    def cells(self) -> dict[str, str]:
        return {"duration": "2 h"}

    def to_dict(self) -> dict[str, Any]:
        return {"hours": 2}


def experiment(name: str, state: ExperimentState, **rest: Any) -> GridExperiment:
    config = ExperimentConfig.from_dict(small() | {"experiment_name": name})
    return GridExperiment(config, {"seed": 1, "model.name": "x"}, state, **rest)


RESULT = GridSearchResult(
    ExecutionMode.SLURM,
    (
        experiment("new", ExperimentState.SUBMITTED, job_id="12_0", forecast=Foreseen(), folder=Path("out/new")),
        experiment("old", ExperimentState.SUBMITTED, job_id="7", is_new=False),
        experiment("big", ExperimentState.REFUSED, reason="it needs 90 GiB"),
        experiment("done", ExperimentState.COMPLETED, is_new=False),
    ),
    Path("out"),
    1.5,
)


def test_a_result_counts_what_this_call_submitted_and_what_went_wrong() -> None:
    assert (RESULT.total_experiments, RESULT.submitted_jobs, RESULT.success_rate) == (4, ["12_0"], 0.75)
    assert [one.name for one in RESULT.failed_submissions] == ["big"]
    assert [one.name for one in RESULT.in_state(ExperimentState.SUBMITTED)] == ["new", "old"]
    assert [config.experiment_name for config in RESULT.generated_experiments] == ["new", "old", "big", "done"]
    assert GridSearchResult(ExecutionMode.LOCAL).success_rate == 1.0


def test_a_row_says_name_differences_state_job_and_prediction_and_reasons_follow() -> None:
    assert str(RESULT).splitlines() == [
        "experiment  seed  name  state               job   duration",
        "new         1     x     submitted           12_0       2 h",
        "old         1     x     submitted, earlier  7",
        "big         1     x     refused",
        "done        1     x     completed, earlier",
        "big: it needs 90 GiB",
        "1 completed, 1 refused, 2 submitted",
    ]
    assert GridSearchResult(ExecutionMode.LOCAL).text() == "no experiments"


def test_a_result_is_json() -> None:
    content = json.loads(json.dumps(RESULT.to_dict()))
    assert (content["mode"], content["output_dir"], content["seconds"]) == ("slurm", "out", 1.5)
    assert content["experiments"][0] == {
        "experiment_name": "new",
        "state": "submitted",
        "is_new": True,
        "differs": {"seed": 1, "model.name": "x"},
        "folder": "out/new",
        "job_id": "12_0",
        "prediction": {"hours": 2},
        "reason": None,
    }
