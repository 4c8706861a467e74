"""Numerical check of a recorded step: a small copy of it against the reference implementation in fp32.

The small copy has every switch of the run and 2 layers of hidden size 128. It starts from the reference's weights and
takes three steps in the run's precision, and in fp32 besides, which tells an error of the code from one of rounding.

Tolerances. A result of fp32 may be off by the order of its sums, far below 1e-4 here. A bf16 value is rounded
to 8 bits, by u = 2⁻⁹ of itself at most; a gradient has passed some 30 rounded results forward and as many backward,
whose errors add like a random walk: √60 · u = 1.5 %. Three times that is allowed, since the worst of all parameters
counts. Of the loss, every token's is off by √30 · u of its logits, which are 0.3; the mean over 128 tokens by an
eleventh of that, 5e-5 of the loss, ln 512; 2⁻¹² is five times as much. The first steps of Adam move every weight by
nearly the learning rate in the direction of its gradient's sign. Where gradients are normally distributed and their
errors are r of them, a share of r / π of the signs flips, each an error of twice the move: √(4r / π) of the update.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from math import pi, sqrt
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from microbench.call import Tensor
from microbench.steps.record import Agreement
from microbench.steps.reference import Reference
from microbench.steps.training import TrainingStep
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.training_keys import Precision

LAYERS, HIDDEN, HEADS, LENGTH, VOCAB = 2, 128, 8, 64, 512
MICRO_BATCH_SIZE, MICRO_BATCHES = 2, 2
STEPS = 3
LOSS_TOLERANCE = {"fp32": 1e-5, "bf16": 2.0**-12}
GRADIENT_TOLERANCE = {"fp32": 1e-4, "bf16": 0.045}
# Added to every weight, so that no bias is zero and no norm's scale one.
DISTURBANCE = 0.02


def update_tolerance(gradient_tolerance: float) -> float:
    """Return how far an update may be off where every gradient is off by so much."""
    return sqrt(4.0 * gradient_tolerance / pi)


def small_copy(run: TrainingRun, precision: Precision) -> TrainingRun:
    """Return a run of the same kind of model, small enough to check."""
    model = run.model
    group = model.num_attention_heads // model.key_value_heads
    small = replace(
        model,
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=max(1, HEADS // group),
        head_width=0,
        ffn_hidden_size=max(8, HIDDEN * model.ffn_hidden_size // model.hidden_size // 8 * 8),
        sequence_length=LENGTH,
        num_position_embeddings=0,
        vocab_size=VOCAB,
    )
    return replace(
        run,
        model=small,
        layers_per_stage=(LAYERS,),
        micro_batch_size=MICRO_BATCH_SIZE,
        num_micro_batches=MICRO_BATCHES,
        precision=precision,
    )


def backend(device: str, precision: str) -> Any:
    """Return the attention that a step runs: flash, but plain for fp32 on a GPU, which flash does not take."""
    return SDPBackend.MATH if device == "cuda" and precision == "fp32" else SDPBackend.FLASH_ATTENTION


def relative_error(tensors: Iterable[Tensor], references: Iterable[Tensor]) -> float:
    """Return ‖tensors − references‖ ÷ ‖references‖ over all elements."""
    error = norm = 0.0
    for tensor, reference in zip(tensors, references, strict=True):
        error += float((tensor.detach().double() - reference.detach().double()).square().sum())
        norm += float(reference.detach().double().square().sum())
    return sqrt(error / norm) if norm else float(error > 0)


@lru_cache(maxsize=16)
def agreement(run: TrainingRun, device: str) -> Agreement:
    """Return how a small run agrees with its reference: first loss, first clipped gradients, weights after 3 steps.

    Args:
        run: as ``small_copy`` makes it, in the precision to check.
        device: cpu or cuda.
    """
    step = TrainingStep(run, device, backend(device, run.precision))
    names = step.parameter_names()
    step.load([weight + DISTURBANCE * torch.randn_like(weight) for weight in step.main_weights])
    start = [weight.detach().clone() for weight in step.main_weights]
    reference = Reference(run, dict(zip(names, start, strict=True)))
    loss_error, errors = 0.0, {}
    for index in range(STEPS):
        step.accumulate()
        loss, gradients = reference.accumulate(step.ids, step.targets)
        step.update()
        gradients = reference.update(gradients)
        if index == 0:
            loss_error = abs(float(step.loss) - loss) / loss
            errors = {n: relative_error([g], [gradients[n]]) for n, g in zip(names, step.gradients(), strict=True)}
    worst = max(errors, key=lambda name: errors[name])
    moved = [weight - old for weight, old in zip(step.main_weights, start, strict=True)]
    should = [weight - old for weight, old in zip(reference.weights.values(), start, strict=True)]
    gradient_tolerance = GRADIENT_TOLERANCE[run.precision]
    return Agreement(
        precision=run.precision,
        loss_error=loss_error,
        loss_tolerance=LOSS_TOLERANCE[run.precision],
        gradient_error=errors[worst],
        gradient_tolerance=gradient_tolerance,
        worst_parameter=worst,
        update_error=relative_error(moved, should),
        update_tolerance=update_tolerance(gradient_tolerance),
    )


def check(run: TrainingRun, device: str) -> tuple[Agreement, ...]:
    """Check a run's step on a small copy, in fp32 and in its own precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # some containers have TF32 switched on, which is no fp32
    try:
        precisions: dict[Precision, None] = dict.fromkeys(("fp32", run.precision))
        return tuple(agreement(small_copy(run, precision), device) for precision in precisions)
    finally:
        torch.set_float32_matmul_precision(before)
