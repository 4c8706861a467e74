"""Time traced calls again, forward and backward, in several precisions that take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from microbench.timing import KERNEL_ERRORS
from microbench.traced.autocast import types_in
from microbench.traced.calls import OperatorCall
from microbench.traced.cold import ColdClock, enough
from microbench.traced.rebuild import Rebuilt, UnsupportedCallError, attributes_of, rebuild
from predictor.replay.precision.measured_costs import MeasuredOperator
from predictor.replay.precision.operator_graph import Precision

BUDGET_US = 100_000.0  # of one call in one precision, both passes
WARM_UPS = 2
IN_PLACE = "_"
Pass = Literal["forward", "backward"]
DIGITS = 3


@dataclass(slots=True)
class Remeasured:
    """Rows, and what could not be measured: the operator's name, its time in the step in µs and the reason."""

    rows: list[MeasuredOperator] = field(default_factory=list)
    unsupported: list[tuple[str, float, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Variant:
    """A call in one precision's types, with its samples in µs."""

    precision: str
    types: tuple[str, ...]
    forward: Rebuilt
    backward: Rebuilt | None
    samples: dict[Pass, list[float]] = field(default_factory=lambda: {"forward": [], "backward": []})


def _first_tensors(output: Any) -> list[Tensor]:
    """Return the outputs that gradients come back to."""
    outputs = output if isinstance(output, tuple | list) else (output,)
    return [tensor for tensor in outputs if isinstance(tensor, Tensor) and tensor.requires_grad]


def time_forward(rebuilt: Rebuilt, clock: ColdClock, with_gradient: bool) -> float:
    """Return the time of one forward pass in µs."""
    with torch.set_grad_enabled(with_gradient):
        us, _ = clock.time_us(rebuilt.forward, rebuilt.fresh)
    return us


def time_backward(rebuilt: Rebuilt, clock: ColdClock) -> float:
    """Return the time of one backward pass in µs.

    Raises:
        UnsupportedCallError: the output has no gradient.
    """
    outputs = _first_tensors(rebuilt.forward())
    if not outputs:
        raise UnsupportedCallError("its output has no gradient")
    gradients = [torch.ones_like(output) for output in outputs]

    def run() -> Any:
        return torch.autograd.grad(outputs, rebuilt.inputs, gradients, allow_unused=True)

    us, _ = clock.time_us(run, gradients)
    return us


def _variants(call: OperatorCall, precisions: Sequence[str], device: str) -> list[_Variant]:
    variants = []
    for precision in precisions:
        types = types_in(call, precision, device.partition(":")[0])
        if call.name.endswith(IN_PLACE):
            plain = replace(call, has_backward=False)
            forward = rebuild(plain, types, device)
            out_of_place = replace(call, name=call.name.removesuffix(IN_PLACE))
            backward = rebuild(out_of_place, types, device) if call.has_backward else None
        else:
            forward = rebuild(call, types, device)
            backward = forward if call.has_backward and forward.inputs else None
        variants.append(_Variant(precision, types, forward, backward))
    return variants


def _measure_round(variant: _Variant, clock: ColdClock) -> tuple[float, float | None]:
    forward_us = time_forward(variant.forward, clock, variant.backward is variant.forward)
    return forward_us, time_backward(variant.backward, clock) if variant.backward else None


def measure_call(
    call: OperatorCall, precisions: Sequence[str], clock: ColdClock, device: str
) -> list[MeasuredOperator]:
    """Return the rows of one call.

    Raises:
        UnsupportedCallError: it cannot be made again.
    """
    variants = _variants(call, precisions, device)
    for variant in variants:
        for _ in range(WARM_UPS):
            _measure_round(variant, clock)
    pending = list(variants)
    while pending:
        for variant in list(pending):
            forward_us, backward_us = _measure_round(variant, clock)
            variant.samples["forward"].append(forward_us)
            if backward_us is not None:
                variant.samples["backward"].append(backward_us)
            whole = [sum(pair) for pair in zip(*(s for s in variant.samples.values() if s), strict=True)]
            if enough(whole, BUDGET_US):
                pending.remove(variant)
    attributes = attributes_of(call)
    return [
        MeasuredOperator(
            operator=call.name,
            shapes=call.shapes,
            dtypes=variant.types,
            attributes=attributes,
            precision=Precision(variant.precision),
            step_pass=step_pass,
            samples_us=tuple(round(us, DIGITS) for us in samples),
        )
        for variant in variants
        for step_pass, samples in variant.samples.items()
        if samples
    ]


def measure_calls(
    calls: Sequence[OperatorCall],
    precisions: Sequence[str],
    clock: ColdClock,
    device: str,
    say: Callable[[str], None],
) -> Remeasured:
    """Measure every call; those that cannot be made again are listed with the reason."""
    result = Remeasured()
    for number, call in enumerate(calls, 1):
        try:
            rows = measure_call(call, precisions, clock, device)
        except (UnsupportedCallError, *KERNEL_ERRORS) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            result.unsupported.append((call.name, call.us, reason))
            continue
        result.rows += rows
        say(f"{number}/{len(calls)} {call.name}")
    return result
