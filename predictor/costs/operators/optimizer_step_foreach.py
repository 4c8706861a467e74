"""Adam step with one kernel per operation over the whole list (torch.optim's foreach)."""

from predictor.costs.streams import over_parameters

# At least: fp32 parameter, gradient and two moments read; parameter and moments written.
BYTES_PER_PARAMETER = 28

OPERATOR = over_parameters(
    "optimizer_step_foreach",
    BYTES_PER_PARAMETER,
    source="Kingma and Ba 2014, arXiv:1412.6980; one kernel per operation, in fp32",
)
