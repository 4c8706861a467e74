"""Vocabulary-parallel cross entropy on the logits of one rank, which most frameworks widen to fp32 first."""

from predictor.core.costs.layer_call import logits
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.work import Work

# Least passes over the logits: read forward; read again (or the softmax kept instead) and their gradient written
# backward. Megatron-LM reads and writes four times as much forward, which the fitted time per byte includes.
PASSES = (1, 2)


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """PASSES over the logits; ``extras``: tokens."""
    tokens, vocab, logit_bytes = shape
    passes = PASSES[direction is Direction.BACKWARD]
    return Work(0.0, float(tokens * vocab * passes * logit_bytes), (float(tokens),))


OPERATOR = Operator(
    name="cross_entropy",
    dimensions=("tokens", "vocab", "logit_bytes"),
    work=_work,
    layer_shape=logits,
    at_ends=True,
    extra_kinds=("count",),
    launches=(17, 7),
    byte_sizes="fixed",
    source="Megatron-LM vocab-parallel cross entropy; Shoeybi et al. 2019, arXiv:1909.08053",
)
