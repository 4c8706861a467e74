"""Jobs that are written for torchtitan pass its own parser and build the stages that are predicted, in both series."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.plan.loading import prepare
from predictor.core.step.prediction import predict
from predictor.core.timeline.schedules import SCHEDULES
from predictor.formats.writers import WRITERS, written
from tests.written.judges import accepted, verdicts
from tests.written.questions import RUNS, layouts

MODELS = (
    *("llama3.2-1b", "llama3.1-8b", "llama3.1-70b", "llama3.1-405b", "qwen3-8b", "qwen3-32b"),
    *("qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b", "gpt-oss-120b"),
)


@pytest.mark.parametrize(("series", "newest"), [("0.2", "0.2.2"), ("0.3", "0.3.0")])
def test_sixty_questions_are_accepted_and_read_back_to_the_same_step(series: str, newest: str, tmp_path: Path) -> None:
    asked = layouts("torchtitan", MODELS)
    assert len(asked) == len(MODELS) * len(RUNS) == 60
    cases = []
    for number, layout in enumerate(asked):
        file = tmp_path / f"job_{number}{WRITERS['torchtitan'].suffixes[series]}"
        file.write_text(written(layout.configuration, "torchtitan", tmp_path, series), encoding="utf-8")
        loaded, again = (
            prepare(layout.configuration, tmp_path),
            prepare({"system": "H100", "from": str(file)}, tmp_path),
        )
        step = predict(loaded.run, loaded.system).step.us
        assert predict(again.run, again.system).step.us == pytest.approx(step, rel=1e-9), layout.name
        chunks, run = loaded.run.chunk_layers, loaded.run
        holders = [SCHEDULES[run.schedule].holder(at, len(chunks)) for at in range(len(chunks) * len(chunks[0]))]
        in_order = [chunks[stage][chunk] for stage, chunk in holders]
        cases.append(
            {
                "file": str(file),
                "world_size": layout.num_gpus,
                "num_layers": run.model.num_layers,
                "stages": in_order if len(chunks) > 1 else None,
            }
        )
    answers = verdicts(f"torchtitan-{newest}", "judge_torchtitan.py", cases, tmp_path)
    accepted([layout.name for layout in asked], answers)
