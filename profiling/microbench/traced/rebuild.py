"""Make a traced call again: tensors of its shapes, strides and types, and the operator that its arguments fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from microbench.traced.autocast import STATISTICS, state_of
from microbench.traced.calls import ATEN, Argument, OperatorCall

DTYPES = {
    "float": torch.float32, "double": torch.float64, "c10::BFloat16": torch.bfloat16, "c10::Half": torch.float16,
    "long int": torch.int64, "long": torch.int64, "int": torch.int32, "short": torch.int16, "bool": torch.bool,
    "signed char": torch.int8, "unsigned char": torch.uint8,
}  # fmt: skip
DRAWN = 2**20  # random numbers that a larger tensor repeats
SCALE = 0.02  # of weights, as a model is initialised


class UnsupportedCallError(ValueError):
    """A call that cannot be made again; the message says why."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A call that can run as often as wanted.

    Attributes:
        forward: run the operator on its tensors.
        inputs: tensors whose gradients the backward pass computes.
        fresh: tensors that the operator before has just written: they are in the cache.
        held: every tensor, to be kept.
    """

    forward: Callable[[], Any]
    inputs: tuple[Tensor, ...]
    fresh: tuple[Tensor, ...]
    held: tuple[Tensor, ...]


def _spanned(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the elements of memory that a strided tensor spans."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _normal(count: int, dtype: torch.dtype, device: str, scale: float) -> Tensor:
    drawn = torch.randn(min(count, DRAWN), device=device).mul_(scale).to(dtype)
    if count <= DRAWN:
        return drawn
    return drawn.repeat(-(-count // DRAWN))[:count]


def make_tensor(argument: Argument, dtype: str, device: str, limit: int, scale: float) -> Tensor:
    """Return a tensor as traced: normal numbers, or whole ones below ``limit``.

    Raises:
        UnsupportedCallError: the type is unknown.
    """
    if dtype not in DTYPES:
        raise UnsupportedCallError(f"a tensor of type {dtype}")
    kind = DTYPES[dtype]
    strides = argument.strides if len(argument.strides) == len(argument.shape) else None
    count = _spanned(argument.shape, strides) if strides else torch.Size(argument.shape).numel()
    if kind.is_floating_point:
        flat = _normal(count, kind, device, scale)
    else:
        flat = torch.randint(0, 2 if kind is torch.bool else max(limit, 1), (count,), device=device).to(kind)
    return flat.as_strided(argument.shape, strides) if strides else flat.view(argument.shape)


def _fits(argument: Argument, formal: Any) -> bool:
    kind = str(formal.type)
    if argument.kind == "none":
        return kind.startswith("Optional") or formal.has_default_value()
    if argument.kind == "tensors":
        return "List[" in kind and "Tensor" in kind
    if argument.kind == "tensor":
        return "Tensor" in kind and "List[" not in kind
    return "Tensor" not in kind


def find_overload(name: str, arguments: Sequence[Argument]) -> Any:
    """Return the operator whose schema the arguments fit.

    Raises:
        UnsupportedCallError: there is none.
    """
    packet = getattr(torch.ops.aten, name.removeprefix(ATEN), None)
    for overload_name in packet.overloads() if packet is not None else ():
        overload = getattr(packet, overload_name)
        formals = overload._schema.arguments
        if len(formals) == len(arguments) and all(map(_fits, arguments, formals)):
            return overload
    raise UnsupportedCallError("no operator of that name takes such arguments")


def _index_limit(call: OperatorCall) -> int:
    """Return the number of rows or classes that whole numbers of the call point at."""
    shapes = [argument.shape for argument in call.arguments if argument.kind == "tensor" and argument.shape]
    if not shapes:
        return 2
    return shapes[0][0] if call.name == "aten::embedding" else shapes[0][-1]


def _value(argument: Argument, formal: Any) -> Any:
    """Return a value; that of a text, which the trace does not have, is the default."""
    if argument.kind == "value":
        return argument.value
    return None if str(formal.type).startswith("Optional") else formal.default_value


def rebuild(call: OperatorCall, types: Sequence[str], device: str) -> Rebuilt:
    """Return a call in the given types, one for each argument.

    An operator in place runs on a tensor without a gradient: its backward is measured as that of the operator that
    writes another tensor, whose kernel it shares.

    Raises:
        UnsupportedCallError: no operator takes these arguments, or a tensor cannot be made.
    """
    overload = find_overload(call.name, call.arguments)
    formals = overload._schema.arguments
    statistics, state = STATISTICS.get(call.name, ()), state_of(call.name)
    limit = _index_limit(call)
    values: list[Any] = []
    inputs, fresh, held = [], [], []
    for position, (argument, dtype) in enumerate(zip(call.arguments, types, strict=True)):
        if argument.kind == "tensors":
            parts = [
                make_tensor(Argument("tensor", shape), dtype or "float", device, limit, 1.0)
                for shape in argument.shapes
            ]
            differentiable = parts if call.has_backward else []
            values.append(parts)
        elif argument.kind == "tensor":
            scale = SCALE if position in state else 1.0
            tensor = make_tensor(argument, dtype, device, limit, scale)
            if position in statistics:
                tensor.fill_(1.0)
            parts = [tensor]
            wanted = call.has_backward and tensor.is_floating_point() and position not in statistics
            if call.gradients is not None and position < len(call.gradients):
                wanted = wanted and call.gradients[position]
            differentiable = parts if wanted and tensor.ndim else []
            values.append(tensor)
        else:
            values.append(_value(argument, formals[position]))
            continue
        held += parts
        if position not in state:
            fresh += parts
        inputs += [part.requires_grad_() for part in differentiable]
    keywords = {f.name: v for f, v in zip(formals, values, strict=True) if f.kwarg_only}
    positional = [v for f, v in zip(formals, values, strict=True) if not f.kwarg_only]
    return Rebuilt(lambda: overload(*positional, **keywords), tuple(inputs), tuple(fresh), tuple(held))


def attributes_of(call: OperatorCall) -> dict[str, str]:
    """Return what shapes do not say, as text, by the names of the operator's schema."""
    formals = find_overload(call.name, call.arguments)._schema.arguments
    return {
        formal.name: str(argument.value)
        for formal, argument in zip(formals, call.arguments, strict=True)
        if argument.kind == "value"
    }
