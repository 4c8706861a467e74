"""Gradient buckets: reductions of gradients, and the gradients in each.

A bucket is reduced in the backward pass once it is full, so it has the gradients accumulated since the one before. Not
every reduction there is one: tensor-parallel layers and SyncBatchNorm reduce gradients of activations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

from predictor.replay.graph.local_graph import NO_OPERATOR, Collective, TracedOperator, TracedTask
from predictor.replay.graph.operators import GRADIENT, REDUCER

REDUCES = frozenset({"all_reduce", "reduce_scatter", "reduce"})
# Bytes of an element, by c10's names of types and those of ``record_param_comms``.
BYTES = {
    "float": 4, "double": 8, "int": 4, "long": 8, "long int": 8, "short": 2, "signed char": 1, "unsigned char": 1,
    "bool": 1, "half": 2, "c10::half": 2, "bfloat16": 2, "c10::bfloat16": 2, "byte": 1, "char": 1, "float32": 4,
    "float16": 2, "float64": 8, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
SIZE_TOLERANCE = 0.05
# Gradients may be reduced in a type of half or twice the bytes: a hook that casts to fp16, main gradients in fp32.
WIDTHS = (1.0, 0.5, 2.0)
# A gradient of the next bucket may be there before the last one of this, so that sizes do not fit one by one.
OUT_OF_ORDER = 2.0

Group = tuple[str, tuple[int, ...]]
Reductions = Mapping[int, Sequence[Collective]]  # by the operator that gave them


def gradient_bytes(operator: TracedOperator) -> int:
    """Return the size of the gradient that an operator accumulates; 0 where the trace has no shapes."""
    numel = max((prod(shape) for shape in operator.shapes if shape), default=0)
    return numel * BYTES.get(operator.dtypes[0].lower() if operator.dtypes else "float", 4)


def buckets_of(
    tasks: Sequence[TracedTask], operators: Sequence[TracedOperator], collectives: Sequence[Collective]
) -> dict[int, tuple[int, ...]]:
    """Return, by the operator that gave a bucket, the operators whose gradients are in it.

    A reduction is a bucket if its bytes are those of the gradients since the bucket before, or if DDP's reducer gave
    it. Of a group whose reductions have the bytes of all gradients together, those of about the size of what was
    accumulated are buckets. Where sizes are unknown it is the largest group that reduces nothing in a forward pass.
    """
    reductions: defaultdict[int, list[Collective]] = defaultdict(list)
    for collective in collectives:
        giver = tasks[collective.task].operator
        if collective.name in REDUCES and giver != NO_OPERATOR and not collective.library:
            reductions[giver].append(collective)
    whole, likely = _whole_groups(operators, reductions), _likely_groups(operators, reductions)
    buckets: dict[int, tuple[int, ...]] = {}
    first = 0
    for number, gradients in _accumulated(operators, reductions):
        pending = tuple(gradient for gradient in gradients if gradient >= first)
        if pending and _is_bucket(number, pending, operators, reductions[number], whole, likely):
            buckets[number] = pending
            first = number
    return buckets


def _accumulated(operators: Sequence[TracedOperator], reductions: Collection[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield every operator that gave a reduction with the gradients accumulated before it since the forward pass."""
    gradients: list[int] = []
    for number, operator in enumerate(operators):
        if operator.step_pass == "forward":
            gradients = []  # those of a micro-batch before, which were not reduced
        is_backward = operator.step_pass == "backward" and operator.name.endswith(GRADIENT)
        if is_backward and "evaluate_function" not in operator.name:
            gradients.append(number)
        if number in reductions and gradients:
            yield number, gradients


def _is_bucket(
    number: int,
    gradients: Sequence[int],
    operators: Sequence[TracedOperator],
    given: Sequence[Collective],
    whole: Collection[Group],
    likely: Collection[Group],
) -> bool:
    operator = operators[number]
    outer = () if operator.parent == NO_OPERATOR else (operators[operator.parent].name,)
    if any(REDUCER.match(name) for name in (*operator.scope, *outer)):
        return True
    size = sum(collective.size_bytes for collective in given)
    expected = sum(gradient_bytes(operators[gradient]) for gradient in gradients)
    if not (size and expected):
        return _group(given[0]) in likely
    is_about_so_large = 1.0 / OUT_OF_ORDER <= size / expected <= OUT_OF_ORDER
    return _fits(size, expected) or (is_about_so_large and _group(given[0]) in whole)


def _fits(size_bytes: float, gradients_bytes: float) -> bool:
    return any(abs(size_bytes - width * gradients_bytes) <= SIZE_TOLERANCE * size_bytes for width in WIDTHS)


def _group(collective: Collective) -> Group:
    return collective.group, collective.group_ranks


def _whole_groups(operators: Sequence[TracedOperator], reductions: Reductions) -> set[Group]:
    """Return the groups whose reductions have the bytes of all gradients together."""
    reduced: defaultdict[Group, float] = defaultdict(float)
    gradients: defaultdict[Group, set[int]] = defaultdict(set)
    for number, accumulated in _accumulated(operators, reductions):
        group = _group(reductions[number][0])
        reduced[group] += sum(collective.size_bytes for collective in reductions[number])
        gradients[group].update(accumulated)
    return {
        group
        for group, size in reduced.items()
        if size and _fits(size, sum(gradient_bytes(operators[gradient]) for gradient in gradients[group]))
    }


def _likely_groups(operators: Sequence[TracedOperator], reductions: Reductions) -> set[Group]:
    """Return the largest groups that reduce nothing in a forward pass, as the layers of a tensor-parallel model do."""
    used = {_group(given[0]) for number, given in reductions.items() if operators[number].step_pass == "forward"}
    groups = {_group(given[0]) for given in reductions.values()} - used
    largest = max((len(ranks) for _, ranks in groups), default=0)
    return {group for group in groups if len(group[1]) == largest}
