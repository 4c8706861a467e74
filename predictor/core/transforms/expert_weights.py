"""Adapters that are added to the weights of experts, one parameter for all experts of a layer (PEFT).

Every forward pass adds the product of each expert's narrow matrices to its weights: a batched product that reads the
weights and writes their sum, which is kept for the gradient of the experts' input. Backward the sum has a gradient, as
if the weights trained, of which both narrow matrices' follow.

Source: huggingface/peft src/peft/tuners/lora/layer.py, ParamWrapper (_activate_lora, get_delta_factors).
"""

from __future__ import annotations

from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import both, stream
from predictor.core.rows import Kept, Kind, Role, Row

NAME = "expert_lora_sum"


def merged_rows(row: Row, rank: int, held: int, call: LayerCall) -> list[Row]:
    """Return what adds adapters of so wide a rank to the weights of a product of so many experts."""
    assert row.forward is not None
    *_, inputs, outputs = row.forward.shape
    operator, size_bytes = catalogue()[row.operator.name], held * inputs * outputs * call.element_bytes
    added = Row(
        NAME,
        row.module,
        Kind.ADAPTER,
        operator,
        *both(operator, (outputs, rank, inputs), float(held)),
        split=row.split,
        weights=held * rank * (inputs + outputs),
        routed=True,
        keeps=(Kept(Role.ADAPTER, float(size_bytes)),),
    )
    return [added.launched(1.0, 2.0), stream(NAME, row.module, call, (float(size_bytes), 0.0), (0, 0))]
