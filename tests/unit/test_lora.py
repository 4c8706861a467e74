"""Adapters: what trains, what a step runs and holds beside full fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from predictor.base.errors import ConfigError
from predictor.configuration.loading import prepare
from predictor.step.memory import step_memory
from predictor.step.prediction import predict
from predictor.workloads.kept_activations import kept_without_recomputation
from predictor.workloads.layer import backward_pass, forward_pass
from predictor.workloads.layout import Layout
from predictor.workloads.lora import Lora, LoraTarget
from predictor.workloads.switches import LayerKind
from predictor.workloads.tasks import Part
from predictor.workloads.transformer_step import transformer_step
from tests.unit.examples import full_form
from tests.unit.test_token_mixers import LATENT, MODEL, by_name, flops, run_of

LORA = Lora(16)
ATTENTION = Lora(16, (LoraTarget.QKV, LoraTarget.ATTENTION_OUTPUT))


def test_adapters_of_every_linear_layer() -> None:
    """Rank times inputs and outputs of qkv, attention's output, both matrices of the FFN."""
    widths = (1024 + 3 * 1024) + (1024 + 1024) + (1024 + 2 * 2816) + (2816 + 1024)
    assert LORA.parameters(MODEL, LayerKind()) == 16 * widths
    assert ATTENTION.parameters(LATENT, LayerKind()) == 16 * (
        (1024 + 384) + (384 + 16 * 192) + (1024 + 192) + (128 + 16 * 256) + (16 * 128 + 1024)
    )
    ranks = [LORA.parameters(MODEL, LayerKind(), tp) for tp in (1, 2)]
    assert ranks[0] == 2 * ranks[1]


def test_only_adapters_have_gradients_and_optimizer_states() -> None:
    run = run_of(MODEL, lora=LORA, layout=Layout(1, 1, 4, 8))
    parameters = run.rank_parameters(0)
    assert parameters.total == 8 * LORA.parameters(MODEL, LayerKind())
    padding = 2 * (MODEL.embedding_parameters() - MODEL.vocab_size * MODEL.hidden_size)
    assert parameters.held.total == MODEL.num_parameters() + padding + parameters.total
    (stage,) = transformer_step(run).stages
    (whole,) = transformer_step(replace(run, lora=None)).stages
    assert stage.states.optimizer == parameters.total * 12
    assert stage.states.gradients == parameters.total * 2
    assert stage.states.weights == whole.states.weights + parameters.total * 2
    sizes = [
        sum(task.shape[0] * task.times for task in end.calls() if task.name == "all_reduce")
        for end in (stage.end, whole.end)
    ]
    assert sizes[0] == pytest.approx(sizes[1] * parameters.total / (parameters.held.total - parameters.total))


def test_frozen_products_have_no_weight_gradients() -> None:
    run = run_of(MODEL)
    plain, adapted = (flops(backward_pass(of, LayerKind()).tasks) for of in (run, replace(run, lora=LORA)))
    products = [task for task in backward_pass(run, LayerKind()).tasks if task.operator.family == "linear"]
    narrow = [task for task in backward_pass(replace(run, lora=LORA), LayerKind()).tasks if "lora_" in task.name]
    assert adapted == pytest.approx(plain - flops(products) / 2 + flops(narrow))
    forward = by_name(forward_pass(replace(run, lora=LORA), LayerKind()).tasks)
    assert forward["lora_up"].shape == (2 * 4096, 16, 1024)


def test_inputs_of_layers_without_adapters_are_not_kept() -> None:
    run = replace(run_of(MODEL), model=replace(MODEL, fused_side_kernels=True))
    plain, everywhere, attention = (
        kept_without_recomputation(replace(run, lora=lora), LayerKind()) for lora in (None, LORA, ATTENTION)
    )
    tokens = 2 * 4096 * 2
    assert everywhere.total == plain.total + 4 * tokens * 16
    assert attention.total == plain.total + 2 * tokens * 16 - tokens * (1024 + 2816)


def test_one_rank_sends_nothing() -> None:
    run = run_of(MODEL, lora=LORA)
    tasks = forward_pass(run, LayerKind()).tasks + backward_pass(run, LayerKind()).tasks
    assert not [task for task in tasks if task.part is Part.TENSOR_PARALLEL]


def predicted(content: dict[str, Any]) -> tuple[float, float, float]:
    """Return a step's time in µs, the bytes of its fullest stage, and the FLOPs of a token."""
    loaded = prepare(content, Path())
    prediction = predict(loaded.run, loaded.system)
    fullest = max(stage.total for stage in step_memory(transformer_step(loaded.run)))
    return prediction.step.us, fullest, loaded.run.model_flops_per_token


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_a_step_with_adapters_is_faster_and_smaller(zero_stage: int) -> None:
    layout = {"data_parallel_size": 4, "zero_stage": zero_stage}
    full, adapted = (
        predicted(full_form(parallelism=layout, training=training)) for training in ({}, {"lora": {"rank": 16}})
    )
    assert adapted[0] < full[0]
    assert adapted[1] < full[1]
    assert 0.6 < adapted[2] / full[2] < 0.8


def test_adapters_of_experts_are_refused() -> None:
    moe = {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 512}
    with pytest.raises(ConfigError, match="adapters of experts are not modelled"):
        predicted(full_form(model={"moe": moe}, training={"lora": {"rank": 8}}))
