"""Vocabulary-parallel cross entropy on the logits of one rank, in fp32."""

from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import Work, elementwise_work

LOGIT_BYTES = 4


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Maximum, exponential and sum each pass over the logits; backward scales them once."""
    tokens, vocab = shape
    passes = 4 if direction is Direction.FORWARD else 2
    return elementwise_work(tokens * vocab, passes * LOGIT_BYTES, (float(tokens),))


OPERATOR = Operator(
    name="cross_entropy",
    dimensions=("tokens", "vocab"),
    work=_work,
    extra_kinds=("count",),
    launches=(17, 7),
    byte_sizes="fixed",
    source="Megatron-LM vocab-parallel cross entropy; Shoeybi et al. 2019, arXiv:1909.08053",
)
