"""Adam step with one sequence of kernels per tensor (torch.optim without foreach or fused)."""

from predictor.costs.streams import over_parameters

# At least: fp32 parameter, gradient and two moments read; parameter and moments written.
BYTES_PER_PARAMETER = 28

OPERATOR = over_parameters(
    "optimizer_step_looped",
    BYTES_PER_PARAMETER,
    source="Kingma and Ba 2014, arXiv:1412.6980; one loop iteration per tensor, in fp32",
)
