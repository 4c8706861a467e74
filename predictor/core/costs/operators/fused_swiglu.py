"""SwiGLU as one kernel a pass: SiLU of the gate times the up-projection's output."""

from predictor.core.costs.layer_call import ffn_inner
from predictor.core.costs.streams import over_elements

# Reads and writes per element: forward both halves and the product; backward those, their gradients, the gradient.
FUSED_GATE_PASSES = (3, 5)

OPERATOR = over_elements(
    name="fused_swiglu",
    dimensions=("tokens", "width"),
    layer_shape=ffn_inner,
    passes=FUSED_GATE_PASSES,
    source="Shazeer 2020, arXiv:2002.05202; fused by PyTorch torch/_inductor",
    where_measured=True,
)
