"""The collectives of a step: what they are, of which group, how large, and which gradients are in them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from predictor.traces.collective_names import collective_name
from predictor.traces.events import UNKNOWN, RankTrace
from predictor.traces.local_graph import NO_OPERATOR, Collective, TaskKind, TracedOperator, TracedTask
from predictor.traces.operators import GRADIENT
from predictor.traces.step_events import StepEvents

NAME, GROUP, RANKS, SIZE = "Collective name", "Process Group Name", "Process Group Ranks", "Group size"
ELEMENTS = ("In msg nelems", "Out msg nelems")
# Bytes of an element, by c10's names of types and those of ``record_param_comms``.
BYTES = {
    "float": 4, "double": 8, "int": 4, "long": 8, "long int": 8, "short": 2, "signed char": 1, "unsigned char": 1,
    "bool": 1, "half": 2, "c10::half": 2, "bfloat16": 2, "c10::bfloat16": 2, "byte": 1, "char": 1, "float32": 4,
    "float16": 2, "float64": 8, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
COMMUNICATES = re.compile(r"^(nccl|rccl|gloo|mpi|ucc|c10d):")


def collectives_of(
    trace: RankTrace, step: StepEvents, tasks: Sequence[TracedTask], operators: Sequence[TracedOperator]
) -> list[Collective]:
    """Return the collectives of a step, by start."""
    result = []
    orders: Counter[str] = Counter()
    buckets = _gradients(tasks, operators)
    for number, task in enumerate(tasks):
        if task.kind is not TaskKind.COLLECTIVE or task.event == UNKNOWN:
            continue
        says = _described(trace, step, task, operators)
        group = _text(says.get(GROUP))
        result.append(
            Collective(
                task=number,
                name=collective_name(_text(says.get(NAME)) or _title(trace, task, operators)),
                group=group,
                group_ranks=_ranks(says.get(RANKS)) or tuple(trace.groups.get(group, ())),
                size_bytes=_size_bytes(says),
                order=orders[group],
                gradients=buckets.get(task.operator, ()),
            )
        )
        orders[group] += 1
    return result


def _described(
    trace: RankTrace, step: StepEvents, task: TracedTask, operators: Sequence[TracedOperator]
) -> Mapping[str, object]:
    """Return the arguments that describe a collective: its own, then those of the operators around its launch."""
    says = dict(trace.events[task.event].args)
    operator = task.operator
    while operator != NO_OPERATOR:
        for key, value in trace.events[operators[operator].event].args.items():
            says.setdefault(key, value)
        operator = operators[operator].parent
    return says


def _title(trace: RankTrace, task: TracedTask, operators: Sequence[TracedOperator]) -> str:
    """Return the name that says best which collective it is: an operator's or annotation's around it, or its own."""
    operator = task.operator
    while operator != NO_OPERATOR:
        for name in (operators[operator].name, *reversed(operators[operator].scope)):
            if COMMUNICATES.match(name):
                return name
        operator = operators[operator].parent
    return task.name


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _ranks(value: object) -> tuple[int, ...]:
    """Return ranks of a list, or of its text, which the profiler shortens if it is long; () then."""
    text = _text(value)
    if "..." in text:
        return ()
    return tuple(int(rank) for rank in re.findall(r"\d+", text))


def _size_bytes(says: Mapping[str, object]) -> int:
    """Return the bytes of a collective's larger side; 0 where the trace does not say."""
    counts = [value for value in (says.get(key) for key in ELEMENTS) if isinstance(value, int)]
    if counts:
        return max(counts) * BYTES.get(_text(says.get("dtype")).lower(), 0)
    return max((size for size in _tensor_bytes(says.get("Input Dims"), says.get("Input type"))), default=0)


def _tensor_bytes(dims: object, types: object) -> list[int]:
    """Return the bytes of tensors by their dimensions and types."""
    if not isinstance(dims, list) or not isinstance(types, list):
        return []
    sizes = []
    for shape, dtype in zip(dims, types, strict=False):
        numel = 1
        flat = shape
        while isinstance(flat, list) and flat and isinstance(flat[0], list):
            flat = flat[0]
        if not isinstance(flat, list) or not flat or not all(isinstance(size, int) for size in flat):
            continue
        for size in flat:
            numel *= size
        sizes.append(numel * BYTES.get(_text(dtype).lower(), 0))
    return sizes


def _gradients(tasks: Sequence[TracedTask], operators: Sequence[TracedOperator]) -> dict[int, tuple[int, ...]]:
    """Return, by the operator that gave a collective during the backward pass, the operators whose gradients it has.

    These are the accumulations of gradients since the collective before it: a bucket is reduced once it is full.
    """
    rows: defaultdict[int, list[int]] = defaultdict(list)
    givers = {task.operator for task in tasks if task.kind is TaskKind.COLLECTIVE and task.operator != NO_OPERATOR}
    buckets: dict[int, tuple[int, ...]] = {}
    for number, operator in enumerate(operators):
        if operator.step_pass != "backward":
            continue
        if operator.name.startswith(GRADIENT):
            rows[0].append(number)
        if number in givers and rows[0]:
            buckets[number] = tuple(rows.pop(0))
    return buckets
