"""Clip the fp32 gradients of a list of tensors to a norm over all of them."""

from predictor.core.costs.streams import over_parameters

# Read for the norm; read and written for the scaling.
BYTES_PER_PARAMETER = 12

OPERATOR = over_parameters(
    "gradient_clipping",
    BYTES_PER_PARAMETER,
    source="Pascanu et al. 2013, arXiv:1211.5063; torch.nn.utils.clip_grad_norm_",
)
