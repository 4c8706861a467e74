"""Adam step with one kernel per operation over the whole list (torch.optim's foreach)."""

from predictor.core.costs.streams import ADAM_BYTES, over_parameters

OPERATOR = over_parameters(
    "optimizer_step_foreach",
    ADAM_BYTES,
    source="Kingma and Ba 2014, arXiv:1412.6980; one kernel per operation, in fp32",
)
