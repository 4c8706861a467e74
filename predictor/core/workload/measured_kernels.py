"""Kernels that some systems measured by themselves: fused ones, and the products of a backward pass apart.

A run says which kernels it fuses, a system which of them it measured. Others are timed by their bytes, and half of a
linear layer's backward pass is taken for either product.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from predictor.core.costs.operator import with_backward
from predictor.core.costs.published import PublishedSystem
from predictor.core.rows import HALF_OF_BACKWARD
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.tasks import Task, scaled
from predictor.core.workload.transformer import Transformer


def on_system(run: TrainingRun, system: PublishedSystem) -> TrainingRun:
    """Return a run that is timed by the kernels that its system measured; itself where there are none."""
    measured = system.measured_kernels
    return replace(run, model=_with_kernels(run.model, measured)) if measured else run


@lru_cache(maxsize=256)
def _with_kernels(model: Transformer, measured: frozenset[str]) -> Transformer:
    """Return a model that is timed by such kernels, with what followed from it before."""
    return replace(model, measured_kernels=measured)


def as_measured(model: Transformer, by_bytes: Task, own: Task) -> Task:
    """Return a fused kernel as an operator of its own where that was measured, else timed by its bytes."""
    return own._replace(launches=by_bytes.launches) if own.name in model.measured_kernels else by_bytes


def input_gradient(model: Transformer, task: Task) -> Task:
    """Return the product of a linear layer's backward pass that makes the gradient of its input."""
    return _product(model, task, 0)


def weight_gradient(model: Transformer, task: Task) -> Task:
    """Return the product of a linear layer's backward pass that makes the gradient of its weight."""
    return _product(model, task, 1)


def _product(model: Transformer, task: Task, index: int) -> Task:
    name = task.operator.gradient_operators[index]
    if name not in model.measured_kernels or task.operator.computed_in:
        return scaled([task], HALF_OF_BACKWARD)[0]
    return task._replace(operator=with_backward(task.operator, (name,)), launches=task.launches * HALF_OF_BACKWARD)
