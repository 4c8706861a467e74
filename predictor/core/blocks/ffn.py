"""The feed-forward network of a dense layer: an up-projection, with a gate where it has one, and a down-projection."""

from __future__ import annotations

from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operators.fused_swiglu import FUSED_GATE_PASSES
from predictor.core.kernel_rows import product, shaped, stream
from predictor.core.rows import COPY_PASSES, Kept, Kind, Matrix, Module, Reads, Role, Row, Split
from predictor.core.workload.architecture import Architecture
from predictor.core.workload.switches import Activation
from predictor.core.workload.tasks import ADD_PASSES

FUSED_GATE = "fused_swiglu"


def inner_bytes(model: Architecture, tokens: float, width: int, element_bytes: int) -> tuple[Kept, Kept]:
    """Return the inner products that an FFN keeps, and its non-linearity's outputs.

    Unfused, SiLU's own output is kept for the product with the gate.
    """
    gated = model.activation.gated
    outputs = 2 if gated and not model.fused_side_kernels else 1
    size_bytes = float(tokens * width * element_bytes)
    return Kept(Role.INNER, size_bytes * (2 if gated else 1)), Kept(Role.ACTIVATED, size_bytes * outputs)


def activation(model: Architecture, module: Module, call: LayerCall, shape: tuple[int, int], times: float = 1) -> Row:
    """Return the non-linearity over (tokens, width), so many times over."""
    gated = model.activation.gated
    if gated and model.fused_side_kernels and FUSED_GATE in model.measured_kernels:
        row = shaped(FUSED_GATE, module, FUSED_GATE, shape, Kind.ACTIVATION, times)
        return row.launched(times, times)
    if gated and model.fused_side_kernels:
        forward, backward = (shape[0] * shape[1] * passes * call.element_bytes * times for passes in FUSED_GATE_PASSES)
        return stream("fused_gate", module, call, (forward, backward), (times, times), Kind.ACTIVATION)
    name = "swiglu" if gated else "gelu"  # streams what the other element-wise ones do
    return shaped(name, module, name, shape, Kind.ACTIVATION, times)


def ffn(model: Architecture, module: Module, call: LayerCall, width: int, reads: Reads) -> list[Row]:
    """Return an FFN over all tokens of a rank.

    Args:
        model: its switches.
        module: of the layer.
        call: sizes of the layer.
        width: inner width on one rank.
        reads: input of its first product.
    """
    tokens, hidden = call.tokens, call.hidden_size
    columns = model.ffn_matrices - 1
    biased = model.biases.of_ffn
    inner, activated = inner_bytes(model, tokens, width, call.element_bytes)
    rows = [
        product(
            "ffn_up",
            module,
            "ffn_up",
            (tokens, hidden, width * columns),
            Split.COLUMN,
            reads,
            biases=width * columns if biased else 0,
            keeps=(inner,),
            matrix=Matrix.FFN_UP,
            parts=(1.0 / columns,) * columns,
        ),
        activation(model, module, call, (tokens, width))._replace(keeps=(activated,)),
        product(
            "ffn_down",
            module,
            "ffn_down",
            (tokens, width, hidden),
            Split.ROW,
            Reads(Role.ACTIVATED, tokens * width),
            biases=hidden if biased else 0,
            matrix=Matrix.FFN_DOWN,
        ),
    ]
    if model.activation is Activation.SQUARED_RELU and module is Module.MLP and not model.fused_side_kernels:
        # the square, a kernel behind the ReLU
        forward, backward = (tokens * width * passes * call.element_bytes for passes in (COPY_PASSES, ADD_PASSES))
        rows.insert(2, stream("square", module, call, (forward, backward), kind=Kind.ACTIVATION))
    return rows
