"""Small steps and made-up records of them, for the tests of recording and comparing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from microbench.provenance import Session
from microbench.rows import Status
from microbench.steps.configuration import StepConfig, read_step
from microbench.steps.record import Kernels, Measured, Memory, StepRecord, StepSample, read_record
from predictor.core.plan.loading import load
from predictor.core.step.prediction import predict

NO_TORCH = "torch is not installed: pip install -e .[profile]"
GPT = {"normalization": "layer_norm", "rotary_fraction": 0.0, "biases": True, "tied_embeddings": True}
LLAMA = {"normalization": "fused_rms_norm", "activation": "swiglu", "num_key_value_heads": 2}
UNFUSED = {"normalization": "rms_norm", "num_key_value_heads": 4, "biases": "qkv"}
FAMILIES = {"gpt": GPT, "llama": LLAMA, "unfused": UNFUSED}
TINY = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "sequence_length": 32, "vocab_size": 200}


def content(model: dict[str, Any], precision: str = "bf16") -> dict[str, Any]:
    return {
        "system": "H200",
        "model": TINY | model,
        "parallelism": {"zero_stage": 0, "fp32_gradients": True},
        "training": {"framework": "pytorch", "micro_batch_size": 2, "num_micro_batches": 2, "precision": precision},
    }


def written(folder: Path, name: str, value: dict[str, Any]) -> StepConfig:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(value), encoding="utf-8")
    return read_step(path)


def predicted_us(path: Path) -> float:
    run, system = load(path)
    return predict(run, system).modelled_us


def sample(step_us: float) -> StepSample:
    return StepSample(
        device_us=step_us,
        wall_us=step_us * 1.02,
        forward_us=step_us * 0.3,
        backward_us=step_us * 0.6,
        optimizer_us=step_us * 0.1,
    )


def measured(step_us: float) -> Measured:
    return Measured(
        parameters=1,
        warm_up=(),
        samples=tuple(sample(step_us * factor) for factor in (0.98, 1.0, 1.03)),
        loss=10.0,
        memory=Memory(allocated=10 * 2**30, reserved=12 * 2**30),
        kernels=Kernels(count=3, time_us=step_us * 0.9, by_category=(), longest=()),
    )


def record_of(config: StepConfig, found: Measured | None, status: Status = Status.OK, reason: str = "") -> StepRecord:
    return StepRecord(
        name=config.name,
        status=status,
        reason=reason,
        configuration=config.content,
        config_hash=config.hash,
        device="NVIDIAH200",
        device_kind="cuda",
        driver="1",
        versions={},
        settings={},
        session=Session(started="2026-01-01T00:00:00+00:00", host="node", commit="0", state_before={}),
        measured=found,
    )


def recorded(out: Path) -> dict[str, StepRecord]:
    return {path.stem: read_record(path) for path in sorted((out / "steps").glob("*.json"))}
