"""Rows of single kernels and collectives, as blocks and transforms make them."""

from __future__ import annotations

from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES, Topology, collective_shape
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Operator, Shape, in_kernel
from predictor.core.rows import Behind, Kept, Kind, Matrix, Module, Pass, Reads, Row, Split
from predictor.core.workload.tasks import BACKWARD, FORWARD, Part, Task, scalar_task, streamed


def both(operator: Operator, shape: Shape, times: float = 1.0) -> tuple[Pass, Pass]:
    """Return both directions of an operator on one shape."""
    forward, backward = operator.launches
    return Pass(FORWARD, shape, times, times * forward), Pass(BACKWARD, shape, times, times * backward)


def shaped(
    name: str,
    module: Module,
    operator: str,
    shape: Shape,
    kind: Kind = Kind.OTHER,
    times: float = 1.0,
    weights: float = 0,
    multiplications: float = 0.0,
    keeps: tuple[Kept, ...] = (),
) -> Row:
    """Return the row of a catalogue operator on a shape of its own."""
    timed_by = catalogue()[operator]
    passes = both(timed_by, shape, times)
    return Row(name, module, kind, timed_by, *passes, weights=weights, multiplications=multiplications, keeps=keeps)


def named(
    name: str,
    module: Module,
    call: LayerCall,
    kind: Kind = Kind.OTHER,
    weights: float = 0,
    keeps: tuple[Kept, ...] = (),
    kernel: str = "",
) -> Row:
    """Return the row of an operator whose shape follows from a layer's sizes; of attention in a named kernel."""
    timed_by = in_kernel(catalogue()[name], kernel)
    passes = both(timed_by, timed_by.shape_in(call))
    return Row(name, module, kind, timed_by, *passes, weights=weights, keeps=keeps)


def product(
    name: str,
    module: Module,
    operator: str,
    shape: tuple[int, int, int],
    split: Split,
    reads: Reads | None = None,
    biases: float = 0,
    keeps: tuple[Kept, ...] = (),
    matrix: Matrix | None = None,
    parts: tuple[float, ...] = (1.0,),
) -> Row:
    """Return the product of so many rows with one matrix.

    Args:
        name: its purpose.
        module: of the layer.
        operator: of the catalogue, that times it.
        shape: (rows, inputs, outputs) on one rank.
        split: of the matrix over tensor-parallel ranks.
        reads: its input as it is kept; None: another product's cast of it serves.
        biases: parameters beside the matrix on one rank.
        keeps: of its output.
        matrix: as adapters choose it.
        parts: see ``Row``.
    """
    timed_by = catalogue()[operator]
    forward, backward = timed_by.launches
    _, inputs, outputs = shape
    return Row(
        name,
        module,
        Kind.PRODUCT,
        timed_by,
        Pass(FORWARD, shape, 1.0, forward),
        Pass(BACKWARD, shape, 1.0, backward),
        split=split,
        matrix=matrix,
        weights=inputs * outputs + biases,
        multiplications=inputs * outputs,
        parts=parts,
        reads=reads,
        keeps=keeps,
    )


def stream(
    name: str,
    module: Module,
    call: LayerCall,
    size_bytes: tuple[float, float],
    launches: tuple[float, float] = (1, 1),
    kind: Kind = Kind.OTHER,
    weights: float = 0,
    keeps: tuple[Kept, ...] = (),
    multiplications: float = 0.0,
) -> Row:
    """Return the row of an element-wise kernel without measurements, by its bytes forward and backward; 0: none.

    See ``stream_task`` for how it is timed.
    """
    forward, backward = (
        Pass(FORWARD, *streamed(each, call, call.tokens), count) if each else None
        for each, count in zip(size_bytes, launches, strict=True)
    )
    return Row(
        name,
        module,
        kind,
        catalogue()["residual_add"],
        forward,
        backward,
        Part.SIDE_KERNELS,
        weights=weights,
        multiplications=multiplications,
        keeps=keeps,
    )


def _pass_of(task: Task) -> Pass:
    return Pass(task.direction, task.shape, task.times, task.launches)


def scalars(
    name: str, module: Module, elements: float, size_bytes: tuple[float, float], kernels: tuple[int, int], kind: Kind
) -> Row:
    """Return the row of kernels that load one number at a time; the host's launches are counted elsewhere if ``BIAS``.

    See ``scalar_task``.
    """
    forward, backward = (
        scalar_task(name, elements, each, count, launches=0 if kind is Kind.BIAS else count)
        for each, count in zip(size_bytes, kernels, strict=True)
    )
    return Row(name, module, kind, forward.operator, _pass_of(forward), _pass_of(backward), Part.SIDE_KERNELS)


def traffic(
    collective: str,
    module: Module,
    size_bytes: float,
    group: Topology,
    part: Part,
    times: tuple[float, float],
    kind: Kind = Kind.TRAFFIC,
    behind: Behind | None = None,
) -> list[Row]:
    """Return the row of a collective, so many times forward and backward; none in a group of one or without bytes."""
    if group.ranks < 2 or size_bytes <= 0:
        return []
    operator, shape = COLLECTIVES[collective], collective_shape(collective, size_bytes, group)
    forward, backward = (
        Pass(FORWARD, shape, count, count * operator.launches[0]) if count else None for count in times
    )
    return [Row(collective, module, kind, operator, forward, backward, part, behind=behind)]
