"""Adam step with one sequence of kernels per tensor (torch.optim without foreach or fused)."""

from predictor.core.costs.streams import ADAM_BYTES, over_parameters

OPERATOR = over_parameters(
    "optimizer_step_looped",
    ADAM_BYTES,
    source="Kingma and Ba 2014, arXiv:1412.6980; one loop iteration per tensor, in fp32",
)
