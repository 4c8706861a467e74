"""Layouts that Megatron-LM's own tests ran: groups of micro-batches, unfused latent attention, harmless arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.plan.loading import prepare
from predictor.core.schema.merging import merged
from predictor.core.step.prediction import predict
from predictor.formats.megatron.reader import read

STAGED = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 1 --vocab-size 1024 --bf16 --pipeline-model-parallel-size 4 "
    "--num-layers-per-virtual-pipeline-stage 1 "
)


def content_of(tmp_path: Path, arguments: str) -> dict[str, Any]:
    """Return what arguments of a run on four GPUs say."""
    path = tmp_path / "launch.sh"
    path.write_text(arguments, encoding="utf-8")
    return read(path, 4).content


@pytest.mark.parametrize(
    ("arguments", "schedule"),
    [
        ("--global-batch-size 5 --microbatch-group-size-per-virtual-pipeline-stage 5", "interleaved_1f1b/5"),
        ("--global-batch-size 10 --microbatch-group-size-per-virtual-pipeline-stage 5", "interleaved_1f1b/5"),
        ("--global-batch-size 8 --microbatch-group-size-per-virtual-pipeline-stage 4", "interleaved_1f1b"),
    ],
)
def test_groups_of_micro_batches_run_as_megatron_runs_them(arguments: str, schedule: str, tmp_path: Path) -> None:
    content = content_of(tmp_path, STAGED + arguments)
    loaded = prepare({"system": "H100", **content}, tmp_path)
    assert loaded.run.schedule == schedule
    assert predict(loaded.run, loaded.system).step.us > 0


def test_unfused_latent_attention_and_harmless_arguments_are_read(tmp_path: Path) -> None:
    latent = (
        "--multi-latent-attention --attention-backend unfused --global-batch-size 8 --position-embedding-type rope "
    )
    harmless = "--verify-integrity --async-ckpt-use-cpu-shm --fim-rate 0.5 --fim-data"
    content = content_of(tmp_path, f"{STAGED}{latent}{harmless}")
    unfused = prepare({"system": "H100", **content}, tmp_path)
    flash = prepare(merged({"system": "H100", **content}, {"model": {"attention": "flash"}}), tmp_path)
    times = [predict(loaded.run, loaded.system).step.us for loaded in (unfused, flash)]
    assert times[0] > times[1]
