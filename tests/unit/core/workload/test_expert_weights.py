"""Adapters that PEFT adds to the weights of all experts of a layer (target_parameters)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import prepare
from predictor.core.step.memory import step_memory
from predictor.core.step.prediction import Prediction, predict
from predictor.core.workload.step_tasks import BlockTasks
from predictor.core.workload.tasks import Task

EXPERTS, HIDDEN, WIDTH, RANK, LAYERS = 8, 1024, 512, 16, 4
WEIGHTS = EXPERTS * HIDDEN * 3 * WIDTH
LORA: dict[str, Any] = {
    "rank": RANK,
    "targets": ["q", "v", "ffn_up", "ffn_down"],
    "share_expert_adapters": False,
    "expert_weights": True,
}


def predicted(model: dict[str, Any] | None = None, lora: dict[str, Any] | None = None, **training: Any) -> Prediction:
    moe = {"num_experts": EXPERTS, "experts_per_token": 2, "expert_ffn_hidden_size": WIDTH}
    content: dict[str, Any] = {
        "system": "H100",
        "model": {
            "num_layers": LAYERS,
            "hidden_size": HIDDEN,
            "num_attention_heads": 8,
            "sequence_length": 2048,
            "vocab_size": 32000,
            "activation": "swiglu",
            "moe": moe,
            **(model or {}),
        },
        "parallelism": {"zero_stage": 0, "tensor_parallel_size": training.pop("tensor_parallel_size", 1)},
        "training": {
            "micro_batch_size": 1,
            "num_micro_batches": 1,
            "framework": "transformers",
            "lora": {**LORA, **(lora or {})},
            **training,
        },
    }
    if content["parallelism"]["tensor_parallel_size"] > 1:
        content["parallelism"]["sequence_parallel"] = True
    loaded = prepare(content, Path.cwd())
    return predict(loaded.run, loaded.system)


def layer(found: Prediction) -> BlockTasks:
    return found.tasks.stages[0].chunks[0].blocks[1][0]


def named(tasks: list[Task], name: str) -> list[Task]:
    return [task for task in tasks if task.name == name]


def test_every_pass_sums_weights_and_adapters() -> None:
    found = layer(predicted())
    sums = [task for task in named(found.forward.tasks, "expert_lora_sum") if len(task.shape) == 3]
    assert {(task.shape, task.times) for task in sums} == {
        ((2 * WIDTH, RANK, HIDDEN), EXPERTS),
        ((HIDDEN, RANK, WIDTH), EXPERTS),
    }
    reads = [task for task in named(found.forward.tasks, "expert_lora_sum") if len(task.shape) == 2]
    assert sum(3 * 2 * task.shape[0] * task.shape[1] * task.times for task in reads) == pytest.approx(2 * WEIGHTS)


def test_sums_are_kept_and_have_a_gradient() -> None:
    inside, beside = (predicted(lora={"expert_weights": each, "fp32": False}) for each in (True, False))
    products = [
        sum(task.operator.work(task.shape, task.direction, 1).flops * task.times for task in found.backward.tasks
            if task.name in ("expert_up", "expert_down"))
        for found in map(layer, (inside, beside))
    ]  # fmt: skip
    assert products[0] == pytest.approx(2 * products[1])  # gradients of inputs and of sums
    kept = layer(inside).memory.kept - layer(beside).memory.kept
    assert kept == pytest.approx(2 * WEIGHTS, rel=0.02)  # beside them narrow activations alone are kept
    assert layer(inside).memory.working - layer(beside).memory.working >= 2 * WEIGHTS
    whole = step_memory(predicted(recompute="full").tasks)[0].activations
    assert whole < step_memory(inside.tasks)[0].activations - LAYERS * 2 * WEIGHTS * 0.9


def test_parameters_are_those_of_adapters_beside() -> None:
    inside, beside = (predicted(lora={"expert_weights": each}).run for each in (True, False))
    kind = inside.kind(0)
    adapters = EXPERTS * RANK * ((HIDDEN + 2 * WIDTH) + (WIDTH + HIDDEN))
    assert inside.layer_parameters(kind).routed == beside.layer_parameters(kind).routed == adapters
    assert inside.layer_parameters(kind).frozen_routed == WEIGHTS


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": {"moe": None}}, "the model has no experts"),
        ({"lora": {"dropout": 0.1}}, r"with training\.lora\.dropout"),
        ({"lora": {"dora": True}}, r"with training\.lora\.dora"),
        ({"lora": {"share_expert_adapters": True}}, r"with training\.lora\.share_expert_adapters"),
        ({"tensor_parallel_size": 2}, "with tensor_parallel_size 2"),
    ],
)
def test_what_peft_does_not_have_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        predicted(**keys)
