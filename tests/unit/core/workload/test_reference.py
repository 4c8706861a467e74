"""Preference learning: a reference's passes without gradients beside every micro-batch, and reward models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import prepare
from predictor.core.step.memory import StageMemory, step_memory
from predictor.core.step.prediction import Prediction, predict
from predictor.core.workload.step_tasks import BlockTasks

LORA = {"rank": 16, "targets": ["q", "v"]}
LAYERS = 8


def predicted(model: dict[str, Any] | None = None, **training: Any) -> Prediction:
    """Return a prediction of a small model with the Trainer on 4 H100s."""
    content: dict[str, Any] = {
        "system": "H100",
        "model": {
            "num_layers": LAYERS,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "sequence_length": 2048,
            "vocab_size": 32000,
            **(model or {}),
        },
        "parallelism": {"data_parallel_size": 4, "zero_stage": training.pop("zero_stage", 0)},
        "training": {
            "micro_batch_size": 2,
            "num_micro_batches": 2,
            "precision": "bf16",
            "framework": "transformers",
            **training,
        },
    }
    loaded = prepare(content, Path.cwd())
    return predict(loaded.run, loaded.system)


def blocks(found: Prediction) -> tuple[BlockTasks, BlockTasks]:
    """Return the model's ends and one of its layers."""
    (ends, _), (layer, _), *_ = found.tasks.stages[0].chunks[0].blocks
    return ends, layer


def memory(found: Prediction) -> StageMemory:
    return step_memory(found.tasks)[0]


@pytest.mark.parametrize("passes", [1, 3])
def test_a_reference_runs_forward_alone(passes: int) -> None:
    none = predicted(recompute="full")
    some = predicted(recompute="full", reference_model="separate", reference_passes=passes)
    for alone, beside in zip(blocks(none), blocks(some), strict=True):
        assert beside.forward.flops == pytest.approx((1 + passes) * alone.forward.flops)
        assert beside.recompute.flops == alone.recompute.flops
        assert beside.backward.flops == alone.backward.flops
    (_, alone), (_, beside) = blocks(none), blocks(some)
    assert alone.host is not None
    assert beside.host is not None
    assert beside.host.backward == alone.host.backward
    assert alone.host.forward * (1 + 0.9 * passes) < beside.host.forward <= alone.host.forward * (1 + 1.2 * passes)
    flops = some.run.model_flops_per_token / none.run.model_flops_per_token
    assert flops == pytest.approx(1 + passes / 3)


@pytest.mark.parametrize(("zero_stage", "share"), [(0, 1.0), (3, 0.25)])
def test_a_second_model_takes_its_weights_in_memory(zero_stage: int, share: float) -> None:
    none, some = (predicted(zero_stage=zero_stage, reference_model=each) for each in (None, "separate"))
    weight_bytes = 4 if some.run.fp32_parameters else 2
    added = memory(some).weights - memory(none).weights
    assert added == pytest.approx(weight_bytes * none.run.stage_parameters(0) * share, rel=1e-6)
    assert memory(some).optimizer == memory(none).optimizer
    assert memory(some).working > memory(none).working  # its logits


def test_adapters_switched_off_are_a_reference_without_weights() -> None:
    none, off, two = (predicted(lora=LORA, reference_model=each) for each in (None, "adapters_off", "separate"))
    assert memory(off).weights == memory(none).weights
    assert memory(two).weights - memory(none).weights == pytest.approx(
        2 * (none.run.stage_parameters(0) - LAYERS * none.run.layer_parameters(none.run.kind(0)).total), rel=1e-6
    )
    times = [
        {task.name: sum(each.times for each in block.forward.tasks if each.name == task.name)
         for task in block.forward.tasks}
        for _, block in map(blocks, (none, off))
    ]  # fmt: skip
    assert times[1]["qkv_projection"] == 2 * times[0]["qkv_projection"]
    assert times[1]["lora_down"] == times[0]["lora_down"]
    assert off.modelled_us == pytest.approx(two.modelled_us)
    assert none.modelled_us < off.modelled_us < 2 * none.modelled_us


def test_weights_that_ranks_share_out_are_gathered_for_the_reference_too() -> None:
    none, some = (predicted(zero_stage=3, reference_model=each) for each in (None, "separate"))
    gathers = [
        [sum(task.times for task in block.forward.calls() if task.name == "all_gather") for block in blocks(found)]
        for found in (none, some)
    ]
    assert gathers[1] == [2 * times for times in gathers[0]]


def test_a_frozen_base_in_four_bits_is_widened_for_the_reference_too() -> None:
    lora = {**LORA, "quantized_base": "nf4"}
    none, some = (predicted(lora=lora, reference_model=each) for each in (None, "adapters_off"))
    widened = [
        sum(task.times for task in blocks(found)[1].forward.tasks if task.name == "dequantization")
        for found in (none, some)
    ]
    assert widened[1] == pytest.approx(2 * widened[0])


def test_a_reward_model_has_no_projection() -> None:
    language, reward = predicted(), predicted(model={"loss": "score"})
    projection = 32000 * 2048
    assert language.run.stage_parameters(0) - reward.run.stage_parameters(0) == projection
    names = {task.name for task in blocks(reward)[0].calls()}
    assert not {name for name in names if "lm_head" in name or "cross_entropy" in name}
    flops = language.run.model_flops_per_token - reward.run.model_flops_per_token
    assert flops == pytest.approx(6 * projection)
    assert memory(reward).total < memory(language).total


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"reference_model": "adapters_off"}, "the run has no adapters"),
        ({"reference_passes": 3}, r"training\.reference_model is absent"),
        ({"reference_model": "separate", "model": {"loss": "fused_linear"}}, "it makes no log-probability of a token"),
    ],
)
def test_what_cannot_have_a_reference_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        predicted(**keys)


def test_a_pipeline_has_no_reference() -> None:
    content = {
        "system": "H100",
        "model": {"preset": "llama3-8b"},
        "parallelism": {"pipeline_parallel_size": 2},
        "training": {"micro_batch_size": 1, "num_micro_batches": 4, "reference_model": "separate"},
    }
    with pytest.raises(ConfigError, match=r"pipeline_parallel_size is 2 with training\.reference_model"):
        prepare(content, Path.cwd())
