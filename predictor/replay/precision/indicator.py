"""Sensitivity of operators to precision: the variance that rounding adds to the gradients.

QSync's indicator of operator o in precision b (arXiv:2407.02327, the predictor's indicator; bytedance/QSync,
``qsync/Predictor/indicator.py``, GVAR) is

    Ω(o, b) = γ · (depth of the model − depth of o) · σ²_forward + depth of o · σ²_backward

for an operator that multiplies an input v by weights w. Forward, rounding v and w adds

    σ²_forward = ‖w‖² · q(v, b)² · D_v / 6 + ‖v‖² · q(w, b)² · D_w / 6

and backward, rounding v again and the output's gradient g, whose norm with respect to the weights is ∇w,

    σ²_backward = ‖∇w‖² · q(v, b)² · D_v / 6 + ‖v‖² · q(g, b)² · D_g / 6

D counts elements, ‖·‖ is the Frobenius norm. Stochastic rounding of a value that lies anywhere between two neighbours
at the distance q has the variance q² · p(1 − p), whose mean over p is q² / 6. In fixed point q is the scale, the
largest magnitude over 127. In floating point it is 2^e · 2^−m: e is the exponent of the root mean square, m the
bits of mantissa. fp32 adds nothing.

Where the paper leaves freedom, and where its code is another one:
- The code multiplies by the exponent where the variance has 2^(2e), and takes the exponent's absolute value, at most 5.
  Here it is 2^(2e), the sign included, since small values are rounded in small steps.
- It takes norms where squared norms belong; here they are squared.
- ε is 2^−9 for fp16 in it; here it is 2^−m, with 10 bits of fp16 and TF32, 7 of bf16, 3 of fp8 (E4M3).
- The backward of an int8 operator computes in fp16 in both: its input is rounded as in int8, its gradient as in fp16.
- An operator without weights has the term of its input alone, forward: q(v, b)² · D_v / 6.
- γ weighs the loss, 1 unless it is given.

Statistics are of one step, or means over several; whoever has the tensors writes them (``Statistics``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log2, sqrt
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from predictor.core.base.files import write_whole
from predictor.replay.files.record_model import RecordModel
from predictor.replay.precision.operator_graph import OperatorGraph, Precision
from predictor.replay.precision.rules import RULES, PrecisionRules

MANTISSA_BITS = {Precision.TF32: 10, Precision.FP16: 10, Precision.BF16: 7, Precision.FP8: 3}
INT8_LEVELS = 127
ROUNDED_UNIFORMLY = 6.0  # 1 / ∫ p(1 − p) dp
NotNegative = Annotated[float, Field(ge=0)]


class TensorStatistics(RecordModel):
    """One tensor."""

    numel: int = Field(ge=1, description="elements")
    norm: NotNegative = Field(description="Frobenius norm")
    largest: NotNegative = Field(description="largest magnitude")


class OperatorStatistics(RecordModel):
    """The tensors of one operator; what it does not have is absent."""

    label: str = Field(min_length=1, description="of the operator in the graph: aten::linear.3")
    module: str = Field(default="", description="of the model, where it is known")
    input: TensorStatistics
    weight: TensorStatistics | None = None
    weight_gradient: TensorStatistics | None = None
    output_gradient: TensorStatistics | None = None


class Statistics(RecordModel):
    """Statistics of a model's operators."""

    format: Literal["estimate-train-time/operator-statistics/1"] = "estimate-train-time/operator-statistics/1"
    model: str = ""
    steps: int = Field(default=1, ge=1, description="that the numbers are means over")
    operators: tuple[OperatorStatistics, ...]


def read_statistics(path: Path) -> Statistics:
    """Read statistics.

    Raises:
        RecordError: the file is not there, damaged, or holds something else.
    """
    return Statistics.read(path, "holds no statistics of operators")


def write_statistics(path: Path, statistics: Statistics) -> None:
    """Write statistics.

    Raises:
        OSError: they cannot be written.
    """
    write_whole(path, statistics.model_dump_json(indent=1) + "\n")


def rounding_variance(tensor: TensorStatistics, precision: Precision) -> float:
    """Return the variance that rounding adds to a whole tensor: q² · D / 6.

    >>> rounding_variance(TensorStatistics(numel=6, norm=1.0, largest=127.0), Precision.INT8)
    1.0
    """
    return _step(tensor, precision) ** 2 * tensor.numel / ROUNDED_UNIFORMLY


def _step(tensor: TensorStatistics, precision: Precision) -> float:
    """Return the distance of neighbouring values in a precision, around the tensor's root mean square."""
    if precision is Precision.FP32 or tensor.norm == 0.0:
        return 0.0
    if precision is Precision.INT8:
        return tensor.largest / INT8_LEVELS
    exponent = floor(log2(tensor.norm / sqrt(tensor.numel)))
    return float(2.0 ** (exponent - MANTISSA_BITS[precision]))


def sensitivity(
    operator: OperatorStatistics,
    precision: Precision,
    depth: int,
    model_depth: int,
    gamma: float = 1.0,
    rules: PrecisionRules = RULES,
) -> float:
    """Return the indicator Ω of one operator in a precision; 0 in fp32.

    Args:
        operator: its statistics.
        precision: that it computes in.
        depth: of the operator in the graph.
        model_depth: largest depth in the graph.
        gamma: weight of the forward pass.
        rules: in what its backward computes.
    """
    data, weight, output_gradient = operator.input, operator.weight, operator.output_gradient
    gradients = precision if precision is Precision.TF32 else rules.gradient_of(precision)
    if weight is None:
        return gamma * (model_depth - depth) * rounding_variance(data, precision)
    forward = weight.norm**2 * rounding_variance(data, precision) + data.norm**2 * rounding_variance(weight, precision)
    backward = 0.0
    if operator.weight_gradient is not None:
        backward += operator.weight_gradient.norm**2 * rounding_variance(data, precision)
    if output_gradient is not None:
        backward += data.norm**2 * rounding_variance(output_gradient, gradients)
    return gamma * (model_depth - depth) * forward + depth * backward


def indicator(
    graph: OperatorGraph,
    statistics: Statistics,
    precisions: Sequence[Precision] = tuple(Precision),
    gamma: float = 1.0,
    rules: PrecisionRules = RULES,
) -> Mapping[str, Mapping[Precision, float]]:
    """Return the sensitivity of every operator that has statistics, by label and precision."""
    model_depth = max((node.depth for node in graph.nodes), default=0)
    depths = {node.label: node.depth for node in graph.nodes}
    return {
        operator.label: {
            precision: sensitivity(operator, precision, depths[operator.label], model_depth, gamma, rules)
            for precision in precisions
        }
        for operator in statistics.operators
        if operator.label in depths
    }


def indicator_without_statistics(graph: OperatorGraph) -> Mapping[str, Mapping[Precision, float]]:
    """Return a stand-in where no statistics were gathered: every tensor has the root mean square 1, and 4 at most.

    It orders operators by size and depth alone, so its numbers compare plans of one graph and nothing else.
    """
    return indicator(graph, Statistics(operators=tuple(_unit(graph))), tuple(Precision))


def _unit(graph: OperatorGraph) -> list[OperatorStatistics]:
    def tensor(numel: int) -> TensorStatistics:
        return TensorStatistics(numel=numel, norm=sqrt(numel), largest=4.0)

    operators = []
    for node in graph.nodes:
        if not node.choices:
            continue
        read, written = max(node.saved_numel, 1), max(node.output_numel, 1)
        weight = tensor(node.weight_numel) if node.weight_numel else None
        operators.append(
            OperatorStatistics(
                label=node.label,
                input=tensor(read),
                weight=weight,
                weight_gradient=weight,
                output_gradient=tensor(written),
            )
        )
    return operators
