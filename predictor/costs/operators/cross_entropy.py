"""Vocabulary-parallel cross entropy on the logits of one rank, which most frameworks widen to fp32 first."""

from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import Work, elementwise_work

# Forward, any implementation reads the logits; backward it reads them again, or the softmax kept instead, and writes
# their gradient. Megatron-LM's steps read and write four times as much forward, which the fit finds out by itself.
PASSES = (1, 2)


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """PASSES over the logits, and a little of its own for each token."""
    tokens, vocab, logit_bytes = shape
    return elementwise_work(tokens * vocab, PASSES[direction is Direction.BACKWARD] * logit_bytes, (float(tokens),))


OPERATOR = Operator(
    name="cross_entropy",
    dimensions=("tokens", "vocab", "logit_bytes"),
    work=_work,
    extra_kinds=("count",),
    launches=(17, 7),
    byte_sizes="fixed",
    source="Megatron-LM vocab-parallel cross entropy; Shoeybi et al. 2019, arXiv:1909.08053",
)
