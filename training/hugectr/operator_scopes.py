"""The step's operators under the names of the predictor's tasks, for the profiler."""

from __future__ import annotations

from contextlib import AbstractContextManager

from model_training_framework.trainer.operator_scopes import operator, traffic
from predictor.recommender.workload.layers import DenseLayer
from predictor.recommender.workload.optimizer import OptimizerKind

__all__ = ["layer_scope", "operator", "optimizer_scope", "traffic"]

# Task of each type of dense layer; the others are losses.
LAYERS = {
    "Add": "add",
    "BatchNorm": "batch_norm",
    "Cast": "cast",
    "Concat": "tensor_copy",
    "DotProduct": "dot_product",
    "Dropout": "dropout",
    "ELU": "elu",
    "FmOrder2": "fm_order2",
    "FusedInnerProduct": "mlp_linear",
    "InnerProduct": "mlp_linear",
    "Interaction": "dot_interaction",
    "MultiCross": "cross_layer",
    "ReLU": "relu",
    "ReduceSum": "reduce_sum",
    "Reshape": "tensor_copy",
    "Sigmoid": "sigmoid",
    "Slice": "tensor_copy",
    "WeightMultiply": "weight_multiply",
}
LOSS = "loss"


def layer_scope(layer: DenseLayer) -> AbstractContextManager[object]:
    """Return the context in which a dense layer runs forward."""
    return operator(LAYERS.get(layer.TYPE, LOSS))


def optimizer_scope(kind: OptimizerKind) -> AbstractContextManager[object]:
    """Return the context in which an optimizer updates the dense weights."""
    return operator("optimizer_step" if kind is OptimizerKind.ADAM else f"{kind.lower()}_step")
