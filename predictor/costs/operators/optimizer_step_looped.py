"""Adam step with one sequence of kernels per tensor (torch.optim without foreach or fused)."""

from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import Work

BYTES_PER_PARAMETER = 28


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Stream at least 28 bytes per parameter; each tensor launches its own dozen kernels."""
    parameters, tensors = shape
    return Work(0.0, float(parameters) * BYTES_PER_PARAMETER, (float(tensors),))


OPERATOR = Operator(
    name="optimizer_step_looped",
    dimensions=("parameters", "tensors"),
    work=_work,
    directions=(Direction.FORWARD,),
    extra_kinds=("count",),
    source="Kingma and Ba 2014, arXiv:1412.6980; one loop iteration per tensor, in fp32",
)
