"""Configurations that are written for DeepSpeed pass its own parser, which reads the same sizes."""

from __future__ import annotations

import json
from pathlib import Path

from predictor.core.plan.loading import prepare
from predictor.formats.writers import written
from tests.written.judges import accepted, verdicts
from tests.written.questions import COUNT, layouts


def test_sixty_questions_are_accepted_in_the_same_sizes(tmp_path: Path) -> None:
    asked = layouts("deepspeed")
    assert len(asked) == COUNT
    cases = []
    for layout in asked:
        run = prepare(layout.configuration, tmp_path).run
        content = json.loads(written(layout.configuration, "deepspeed", tmp_path))
        sizes = {
            "train_micro_batch_size_per_gpu": run.micro_batch_size,
            "gradient_accumulation_steps": run.num_micro_batches,
            "zero_optimization_stage": run.zero_stage,
        }
        cases.append({"content": content, "replicas": run.layout.data_parallel_size, "sizes": sizes})
    answers = verdicts("deepspeed-0.19.8", "judge_deepspeed.py", cases, tmp_path)
    accepted([layout.name for layout in asked], answers)
