"""On a GPU: float16 with a scaled loss learns, is clipped, and goes on bit by bit; bfloat16 is not far from float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning_fabric")

from llm_trainer.training import Trainer  # noqa: E402
from tests.llm_trainer import small  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU"),
]


def losses(folder: Path, **changes: Any) -> list[float]:
    """Train, and return the loss of every step."""
    tokenizer = small.tokenizer()
    samples = small.dataset(of=tokenizer)
    config = small.training_config(folder, **{"num_epochs": 3, "eval_strategy": "no", **changes})
    Trainer(small.model(), tokenizer, config, samples).train()
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["phase"] == "train"]


@pytest.mark.parametrize("amp_dtype", ["float16", "bfloat16"])
def test_mixed_precision_learns_as_float32_does(tmp_path: Path, amp_dtype: str) -> None:
    plain = losses(tmp_path / "plain")
    mixed = losses(tmp_path / "mixed", use_amp=True, amp_dtype=amp_dtype)
    assert mixed != plain
    assert mixed[-1] == pytest.approx(plain[-1], rel=0.05)
    assert mixed[-1] < mixed[0] - 1.0


def test_float16_goes_on_bit_by_bit(tmp_path: Path) -> None:
    changes = {"use_amp": True, "amp_dtype": "float16"}
    whole = losses(tmp_path / "whole", **changes)
    tokenizer = small.tokenizer()
    samples = small.dataset(of=tokenizer)
    config = small.training_config(tmp_path / "parts", num_epochs=3, eval_strategy="no", **changes)
    Trainer(small.model(), tokenizer, config, samples)._train_epoch()
    assert losses(tmp_path / "parts", **changes) == whole
