"""DoRA: an adapter's product and its matrix are scaled to a magnitude per output that trains.

Every forward pass makes the norms of the adapted matrix anew, W + BA by its rows: BA is the adapter's output on an
identity, and base weights in few bits are widened for it. With dropout the base's product runs a second time, on the
adapter's input. Norms have no gradient. A magnitude in fp32 widens what it multiplies, and gradients are narrowed.

Source: Liu et al. 2024, arXiv:2402.09353, section 4.3; huggingface/peft src/peft/tuners/lora/dora.py, DoraLinearLayer,
and variants.py, DoraLinearVariant.forward.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import both, stream
from predictor.core.rows import FP32_BYTES, Kept, Kind, Role, Row
from predictor.core.transforms.few_bits import QuantizedBase, widening


class Dora(NamedTuple):
    """Sizes of one adapter with magnitudes, ``times`` of its kind on a rank.

    Attributes:
        row: base product.
        place: in front of names in the breakdown.
        fp32: adapters are in fp32 beside 16 bits.
        drops: the adapter's input is dropped.
        base: of base weights in few bits.
        measured: see ``Row.input_gradient``.
    """

    row: Row
    place: str
    inputs: int
    outputs: int
    rank: int
    tokens: int
    times: float
    fp32: bool
    drops: bool
    base: QuantizedBase | None
    measured: Collection[str]


def _scaling_bytes(narrow: int, wide: int) -> tuple[int, int]:
    """Return the bytes per output element of scaling both products, forward and backward.

    Forward: base × (m − 1) and adapter × m read narrow and write wide numbers, the latter × the scale, their sum, its
    sum with the layer's output, and the cast of that to 16 bits. Backward: the gradient is widened; each of both
    products has two more, for its operands (the magnitude's is written and summed over tokens), whose activations'
    gradients are narrowed; the gradient of the scale; and the sum with that of the layer's output.
    """
    casts = narrow != wide
    forward = 2 * (narrow + wide) + 2 * wide + 3 * wide + (narrow + 2 * wide) + casts * (wide + narrow)
    of_each = 2 * wide + (narrow + 2 * wide + wide) + casts * (wide + narrow)
    return forward, casts * (narrow + wide) + 2 * of_each + 2 * wide + 3 * narrow


def dora_rows(one: Dora, call: LayerCall) -> list[Row]:
    """Return what magnitudes run beside an adapter's two products, in place of its addition."""
    row, element, times = one.row, call.element_bytes, one.times
    weights, out = one.inputs * one.outputs, one.tokens * one.outputs
    operator, module = catalogue()[row.operator.name], row.module
    on_identity = [
        Row(one.place + name, module, Kind.OTHER, operator, both(operator, shape, times)[0], None, split=row.split)
        for name, shape in (
            ("dora_down", (one.inputs, one.inputs, one.rank)),
            ("dora_up", (one.inputs, one.rank, one.outputs)),
        )
    ]
    # The identity is written, in fp32 and then narrowed; BA is scaled, added to the matrix, and read for its norms.
    identity = FP32_BYTES + (FP32_BYTES + element if one.fp32 and element < FP32_BYTES else 0)
    norms, launches = float(one.inputs**2 * identity + weights * 6 * element), 4.0
    if one.base is not None:
        each, more = widening(one.base, element)
        norms, launches = norms + weights * each, launches + more
    wide = FP32_BYTES if one.fp32 else element
    forward, backward = (times * out * each for each in _scaling_bytes(element, wide))
    kept = [Kept(Role.ADAPTER, float(2 * out * element * times))]  # both products, for the magnitude's gradient
    if one.drops and one.base is not None:  # the widened matrix, for the gradient of its second input
        kept.append(Kept(Role.ADAPTER, float(weights * element * times)))
    rows = [
        *on_identity,
        stream(one.place + "dora_norms", module, call, (norms * times, 0.0), (launches * times, 0)),
        stream(
            one.place + "dora_scaling",
            module,
            call,
            (forward, backward),
            (6 * times, 12 * times),
            weights=one.outputs * times,
            keeps=tuple(kept),
        ),
    ]
    if one.drops:
        passes = both(operator, (one.tokens, one.inputs, one.outputs), times)
        second = Row(one.place + "dora_base", module, Kind.PRODUCT, operator, *passes, split=row.split, trains=False)
        rows.append(second.input_gradient(one.measured))
    return rows
