"""Scripts that are written for a Hugging Face Trainer pass accelerate's and transformers' own parsers, in all sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.plan.loading import prepare
from predictor.core.step.prediction import predict
from predictor.formats.writers import written
from tests.written.judges import accepted, verdicts
from tests.written.questions import RUNS, layouts

MODELS = (
    *("llama3-8b", "llama3.2-1b", "llama2-70b", "mistral-7b", "mixtral-8x7b", "qwen3-30b-a3b"),
    *("qwen2.5-7b", "gemma2-9b", "gpt2-xl", "bloom-7b1", "deepseek-v2-lite", "olmo2-7b"),
)


def test_sixty_questions_are_accepted_and_read_back_to_the_same_step(tmp_path: Path) -> None:
    asked = layouts("transformers", MODELS)
    assert len(asked) == len(MODELS) * len(RUNS) == 60
    cases: list[dict[str, Any]] = []
    for number, layout in enumerate(asked):
        script, loaded = (
            written(layout.configuration, "transformers", tmp_path),
            prepare(layout.configuration, tmp_path),
        )
        file = tmp_path / f"run_{number}.sh"
        file.write_text(script, encoding="utf-8")
        again, run = prepare({"system": "H100", "from": str(file)}, tmp_path), loaded.run
        step = predict(run, loaded.system).step.us
        assert predict(again.run, again.system).step.us == pytest.approx(step, rel=1e-9), layout.name
        launch = {"num_processes": layout.num_gpus, "num_machines": layout.num_gpus // 8, "mixed_precision": "bf16"}
        sizes = {
            "per_device_train_batch_size": run.micro_batch_size,
            "gradient_accumulation_steps": run.num_micro_batches,
            "gradient_checkpointing": run.recompute == "full",
            "fsdp": True if run.zero_stage else None,
            "bf16": True,
        }
        cases.append({"script": script, "launch": launch, "sizes": sizes})
    assert {case["sizes"]["fsdp"] for case in cases} == {True, None}
    answers = verdicts("accelerate-1.15.0", "judge_trainer.py", cases, tmp_path)
    accepted([layout.name for layout in asked], answers)
