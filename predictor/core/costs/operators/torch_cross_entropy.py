"""PyTorch's cross entropy on the logits of one rank: log-softmax, then the logarithm of each target's probability."""

from predictor.core.costs.layer_call import logits
from predictor.core.costs.operator import Direction, Operator, Shape, StandIn
from predictor.core.costs.work import Work

# Least passes over the logits, as of any cross entropy: read them; read them again, or what was kept, and write their
# gradient.
PASSES = (1, 2)
# Passes of the kernels over those of Megatron-LM's single operations, which a system has that did not measure this one.
# Forward: 2 over 8 (largest, difference 2, exponential 2, sum, quotient 2). Backward: 4 (zeros, gradient and
# log-softmax read, gradient written) over 2 (softmax scaled in place).
# Source: PyTorch, aten/src/ATen/native/SoftMax.cpp, LossNLL.cpp; Megatron-LM core/tensor_parallel/cross_entropy.py.
PASSES_OF_DONOR = {Direction.FORWARD: 2 / 8, Direction.BACKWARD: 4 / 2}


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """PASSES over the logits; ``extras``: tokens."""
    tokens, vocab, logit_bytes = shape
    passes = PASSES[direction is Direction.BACKWARD]
    return Work(0.0, float(tokens * vocab * passes * logit_bytes), (float(tokens),))


def _stand_in(shape: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
    """The vocabulary-parallel one of the same size, in proportion to the passes."""
    return StandIn("cross_entropy", shape, PASSES_OF_DONOR[direction])


OPERATOR = Operator(
    name="torch_cross_entropy",
    dimensions=("tokens", "vocab", "logit_bytes"),
    work=_work,
    layer_shape=logits,
    at_ends=True,
    extra_kinds=("count",),
    launches=(2, 3),
    byte_sizes="fixed",
    stand_in=_stand_in,
    source="torch.nn.functional.cross_entropy; PyTorch aten/src/ATen/native/LossNLL.cpp",
)
