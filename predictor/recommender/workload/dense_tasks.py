"""The operators of each dense layer, forward and backward, on one rank.

A layer without an operator of its own is timed by the bytes that it reads and writes, as copies of tensors.
"""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple

from predictor.core.costs.operator import Direction
from predictor.core.workload.tasks import BACKWARD, FORWARD, Part, Task, shaped_task
from predictor.recommender.workload.layers import (
    ELU,
    Add,
    BatchNorm,
    Cast,
    Concat,
    DenseLayer,
    DotProduct,
    Dropout,
    FmOrder2,
    FusedInnerProduct,
    InnerProduct,
    Interaction,
    LossLayer,
    MultiCross,
    ReduceSum,
    ReLU,
    Reshape,
    Sigmoid,
    Slice,
    TensorShape,
    WeightMultiply,
)
from predictor.recommender.workload.run import Engine, RecommenderRun

COPY_PASSES = 2  # a read and a write
# Of x' = x0 · (x U V + b) + x: three tensors read and one written; backward its gradient, x0 and x U V read and the
# gradients of x0, of x U V and of x added up or written.
DCN2_PASSES = (4, 7)
FP32_BYTES = 4


class LayerCall(NamedTuple):
    """One dense layer on one rank.

    Attributes:
        samples: of the rank.
        needs_gradient: some input is an embedding's, or follows weights; a layer that reads the data alone has no
            gradient to hand back.
    """

    run: RecommenderRun
    samples: int
    inputs: tuple[TensorShape, ...]
    outputs: tuple[TensorShape, ...]
    needs_gradient: bool

    @property
    def input_elements(self) -> int:
        """Return the elements of all inputs."""
        return self.samples * sum(shape.elements for shape in self.inputs)

    @property
    def output_elements(self) -> int:
        """Return the elements of all outputs."""
        return self.samples * sum(shape.elements for shape in self.outputs)


class LayerTasks(NamedTuple):
    """One layer's tasks; backward runs after those of later layers."""

    forward: list[Task]
    backward: list[Task]


def streamed(name: str, passes: float, elements: float, part: Part = Part.SIDE_KERNELS, launches: int = 1) -> Task:
    """Return an element-wise kernel of so many reads and writes of so many elements, as a copy of as many bytes."""
    copied = max(1, round(passes * elements / COPY_PASSES))
    return shaped_task("tensor_copy", (copied,), FORWARD)._replace(name=name, part=part, launches=launches)


def streamed_bytes(
    name: str, size_bytes: float, run: RecommenderRun, part: Part = Part.SIDE_KERNELS, launches: int = 1
) -> Task:
    """Return an element-wise kernel of so many bytes, whatever the precision of what it reads."""
    return streamed(name, 1.0, size_bytes / run.element_bytes, part, launches)


def gradient_sum(samples: int, shape: TensorShape, times: int) -> Task:
    """Return so many additions of a tensor's gradient to another of its gradients."""
    return shaped_task("residual_add", (samples * shape.rows, shape.columns), FORWARD, times)


def _both(name: str, *shape: int) -> LayerTasks:
    return LayerTasks([shaped_task(name, shape, FORWARD)], [shaped_task(name, shape, BACKWARD)])


def _linear(call: LayerCall, m: int, k: int, n: int, needs_gradient: bool) -> LayerTasks:
    """Return a product with weights; without a gradient of its input the backward pass has one product, not two.

    A measured backward pass of a small product is mostly autograd's time on the host. In a CUDA graph it is the
    products themselves. The weights' gradient has few results and long sums, which cuBLAS splits over blocks (split-K),
    so it is timed as the forward product, of as many FLOPs and bytes.
    """
    forward = shaped_task("mlp_linear", (m, k, n), FORWARD)
    if not call.run.cuda_graphs:
        return LayerTasks([forward], [shaped_task("mlp_linear", (m, k, n), BACKWARD, 1.0 if needs_gradient else 0.5)])
    of_data = forward._replace(shape=(m, n, k))
    return LayerTasks([forward], [forward, of_data] if needs_gradient else [forward])


def _streams(name: str, forward: float, backward: float, elements: float, call: LayerCall) -> LayerTasks:
    """Return a layer by its reads and writes per element; no backward pass where nothing asks for its gradient."""
    after = [streamed(name, backward, elements)] if call.needs_gradient and backward else []
    return LayerTasks([streamed(name, forward, elements)] if forward else [], after)


@singledispatch
def layer_tasks(layer: DenseLayer, call: LayerCall) -> LayerTasks:
    """Return a layer's tasks."""
    raise AssertionError(f"{layer.TYPE} has no tasks")


@layer_tasks.register
def _(layer: Add, call: LayerCall) -> LayerTasks:
    """Inputs read and their sum written; backward its gradient is read and one per input written."""
    passes = (call.input_elements + call.output_elements) / call.output_elements
    return _streams("add", passes, passes, call.output_elements, call)


@layer_tasks.register
def _(layer: DotProduct, call: LayerCall) -> LayerTasks:
    """As a sum; backward reads the inputs too."""
    count = len(call.inputs)
    return _streams("dot_product", count + 1, 2 * count + 1, call.output_elements, call)


@layer_tasks.register
def _(layer: BatchNorm, call: LayerCall) -> LayerTasks:
    shape = call.inputs[0]
    return _both("batch_norm", call.samples * shape.rows, shape.columns)


@layer_tasks.register
def _(layer: Cast, call: LayerCall) -> LayerTasks:
    """fp32 on one side, the run's precision on the other."""
    passes = 1 + FP32_BYTES / call.run.element_bytes
    return _streams("cast", passes, passes, call.input_elements, call)


@layer_tasks.register
def _(layer: Concat, call: LayerCall) -> LayerTasks:
    """A copy; backward one too, but in PyTorch a view."""
    forward, backward = _copies(call.output_elements, call)
    return LayerTasks(forward, [] if call.run.engine is Engine.TORCHREC else backward)


@layer_tasks.register
def _(layer: Slice, call: LayerCall) -> LayerTasks:
    """Copies; in PyTorch views, whose gradients are written into zeros of the whole input's size and added up."""
    if call.run.engine is Engine.HUGECTR:
        return _copies(call.output_elements, call)
    if not call.needs_gradient:
        return LayerTasks([], [])
    (given,), count = call.inputs, len(call.outputs)
    written = count * call.input_elements + 2 * call.output_elements
    sums = [gradient_sum(call.samples, given, count - 1)] if count > 1 else []
    return LayerTasks([], [shaped_task("tensor_copy", (written // COPY_PASSES,), FORWARD), *sums])


@layer_tasks.register
def _(layer: Reshape, call: LayerCall) -> LayerTasks:
    """A view, unless it selects slots."""
    return _copies(call.output_elements, call) if layer.selected else LayerTasks([], [])


def _copies(elements: int, call: LayerCall) -> LayerTasks:
    forward = shaped_task("tensor_copy", (elements,), FORWARD)
    backward = [shaped_task("tensor_copy", (elements,), BACKWARD)] if call.needs_gradient else []
    return LayerTasks([forward], backward)


@layer_tasks.register
def _(layer: Dropout, call: LayerCall) -> LayerTasks:
    return _unary("dropout", call)


@layer_tasks.register
def _(layer: ReLU, call: LayerCall) -> LayerTasks:
    return _unary("relu", call)


@layer_tasks.register
def _(layer: ELU, call: LayerCall) -> LayerTasks:
    return _unary("relu", call, "elu")


@layer_tasks.register
def _(layer: Sigmoid, call: LayerCall) -> LayerTasks:
    return _unary("relu", call, "sigmoid")


def _unary(operator: str, call: LayerCall, name: str = "") -> LayerTasks:
    """Return an element-wise layer; one with a name of its own is timed as the operator, which moves the same bytes."""

    def task(direction: Direction) -> Task:
        plain = shaped_task(operator, (call.output_elements,), direction)
        return plain._replace(name=name, part=Part.SIDE_KERNELS) if name else plain

    return LayerTasks([task(FORWARD)], [task(BACKWARD)] if call.needs_gradient else [])


@layer_tasks.register
def _(layer: FmOrder2, call: LayerCall) -> LayerTasks:
    shape = call.inputs[0]
    return _both("fm_order2", call.samples * shape.rows, shape.columns // layer.out_dim, layer.out_dim)


@layer_tasks.register
def _(layer: InnerProduct, call: LayerCall) -> LayerTasks:
    shape = call.inputs[0]
    return _linear(call, call.samples * shape.rows, shape.columns, layer.num_output, call.needs_gradient)


@layer_tasks.register
def _(layer: FusedInnerProduct, call: LayerCall) -> LayerTasks:
    """The product and its activation; the activation always has a gradient to hand to the weights."""
    shape = call.inputs[0]
    forward, backward = _linear(call, call.samples * shape.rows, shape.columns, layer.num_output, call.needs_gradient)
    elements = (call.output_elements,)
    return LayerTasks(
        [*forward, shaped_task("relu", elements, FORWARD)], [shaped_task("relu", elements, BACKWARD), *backward]
    )


@layer_tasks.register
def _(layer: Interaction, call: LayerCall) -> LayerTasks:
    embedding = call.inputs[1]
    return _both("dot_interaction", call.samples, embedding.rows + 1, embedding.columns)


@layer_tasks.register
def _(layer: MultiCross, call: LayerCall) -> LayerTasks:
    """Cross layers by their own operator; with a projection two products each and what combines them."""
    shape = call.inputs[0]
    rows, width, rank = call.samples * shape.rows, shape.columns, layer.projection_dim
    if not rank:
        one = _both("cross_layer", rows, width)
        sums = [gradient_sum(call.samples, shape, layer.num_layers)]  # every layer has a gradient for x0
        return LayerTasks(_repeated(one.forward, layer.num_layers), _repeated(one.backward, layer.num_layers) + sums)
    down, up = _linear(call, rows, width, rank, True), _linear(call, rows, rank, width, True)
    combine = [streamed("cross_combine", passes, rows * width) for passes in DCN2_PASSES]
    forward = [*down.forward, *up.forward, combine[0]]
    backward = [combine[1], *up.backward, *down.backward]
    return LayerTasks(_repeated(forward, layer.num_layers), _repeated(backward, layer.num_layers))


def _repeated(tasks: list[Task], times: int) -> list[Task]:
    return [task._replace(times=task.times * times, launches=task.launches * times) for task in tasks]


@layer_tasks.register
def _(layer: ReduceSum, call: LayerCall) -> LayerTasks:
    moved = call.input_elements + call.output_elements
    return _streams("reduce_sum", 1.0, 1.0, moved, call)


@layer_tasks.register
def _(layer: WeightMultiply, call: LayerCall) -> LayerTasks:
    """Columns read and vectors written; backward the vectors' gradients and the columns read, for both gradients."""
    moved = call.input_elements + call.output_elements
    back = call.output_elements + (2 if call.needs_gradient else 1) * call.input_elements
    return LayerTasks([streamed("weight_multiply", 1.0, moved)], [streamed("weight_multiply", 1.0, back)])


@layer_tasks.register
def _(layer: LossLayer, call: LayerCall) -> LayerTasks:
    """Predictions and labels read, gradients written at once; a regularizer reads all weights and adds to gradients."""
    forward = [streamed("loss", 1.5, call.input_elements)]
    if not layer.regularizer:
        return LayerTasks(forward, [])
    weights = sum(
        rows * columns
        for other in call.run.model.layers
        if isinstance(other, InnerProduct)
        for rows, columns in other.weights(call.run.model.inputs_of(other))
    )
    forward.append(streamed_bytes("regularizer", FP32_BYTES * weights, call.run))
    return LayerTasks(forward, [streamed_bytes("regularizer", 3 * FP32_BYTES * weights, call.run)])
