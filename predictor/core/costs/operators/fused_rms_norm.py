"""RMSNorm as one kernel a pass, as a compiler fuses it."""

from predictor.core.costs.layer_call import residual_stream
from predictor.core.costs.streams import over_elements

OPERATOR = over_elements(
    name="fused_rms_norm",
    dimensions=("tokens", "hidden"),
    layer_shape=residual_stream,
    passes=(2, 3),  # read and written; backward reads input and gradient and writes one
    rows=lambda shape: shape[0],
    launches=(1, 2),  # the gradient of the weight sums over tokens
    source="Zhang and Sennrich 2019, arXiv:1910.07467; fused by PyTorch torch/_inductor",
    where_measured=True,
)
