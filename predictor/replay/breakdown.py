"""Breakdown of a replayed step, in the terms of a predicted one.

Of everything that a rank does at an instant the first of these counts: its device computes; a collective or message
moves data (exposed: nothing hides it); it waits in a collective for other ranks; a thread prepares or launches work; a
thread waits for the device, or for another thread; nothing. So the parts of a rank add up to the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from predictor.core.report.stage_table import LABELS
from predictor.core.timeline.spans import Span
from predictor.replay.files.collective_names import EXPERTS, SERVES, TENSORS
from predictor.replay.graph.local_graph import CARRIED, Collective, OperatorPass, TaskKind
from predictor.replay.graph.matching import MESSAGE, MESSAGES
from predictor.replay.whatif.traced_step import ADDED, TracedStep, pass_of

FORWARD, BACKWARD, OPTIMIZER = LABELS["forward_us"], LABELS["backward_us"], LABELS["optimizer_us"]
HOST = LABELS["host_us"]
DATA_PARALLEL = LABELS["data_parallel_exposed_us"]
TENSOR_PARALLEL, PIPELINE = LABELS["tensor_parallel_us"], LABELS["pipeline_us"]
EXPERT_PARALLEL, GATHER = LABELS["expert_parallel_us"], LABELS["parameter_gather_us"]
# Beyond what a predicted step has.
OTHER, COPIES, WAITING = "other computation", "copies", "waiting for other ranks"
OTHER_TRAFFIC = "other traffic"
SYNC, IDLE = "waiting for synchronisation", "idle"

COMPUTING: dict[OperatorPass, str] = {"forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER, "other": OTHER}
TRAFFIC = (TENSOR_PARALLEL, EXPERT_PARALLEL, PIPELINE, DATA_PARALLEL, GATHER, OTHER_TRAFFIC)
# In the order in which they count where several happen at once.
PRIORITY = (FORWARD, BACKWARD, OPTIMIZER, OTHER, COPIES, *TRAFFIC, WAITING, HOST, SYNC, IDLE)
# In the order in which they are printed, that of a predicted step.
PRINTED = (
    *(FORWARD, BACKWARD, OTHER, COPIES, TENSOR_PARALLEL, EXPERT_PARALLEL, PIPELINE, OTHER_TRAFFIC, HOST, SYNC),
    *(DATA_PARALLEL, OPTIMIZER, GATHER, WAITING, IDLE),
)
RANK = {name: number for number, name in enumerate(PRIORITY)}
LAST_COMPUTING = RANK[COPIES]
FIRST_TRAFFIC, LAST_TRAFFIC = RANK[TRAFFIC[0]], RANK[TRAFFIC[-1]]

SERVED = {EXPERTS: EXPERT_PARALLEL, TENSORS: TENSOR_PARALLEL}
REPLICATED = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})


@dataclass(frozen=True, slots=True)
class RankParts:
    """One rank's step in microseconds.

    Attributes:
        parts: by their names, in the printed order; they add up to the step.
        hidden_us: traffic while the device computes; in none of the parts.
    """

    parts: dict[str, float]
    hidden_us: float

    @property
    def step_us(self) -> float:
        """Return the sum of the parts."""
        return sum(self.parts.values())

    @property
    def exposed_us(self) -> float:
        """Return the traffic that nothing hides."""
        return sum(self.parts[name] for name in TRAFFIC)


def traffic_of(collective: Collective, step_pass: OperatorPass, world_size: int) -> str:
    """Return what a traced collective is for, as far as its library, name, pass and group tell.

    Some libraries run nothing but experts' tokens, or tensors of a layer.
    Messages are pipeline traffic, an all-to-all moves experts' tokens; what the optimizer gathers are parameters. A
    group smaller than the job that works in a forward pass, and not with gradients, shares the tensors of a layer.
    NCCL's kernel of messages within more than two ranks, which may be an all-to-all, and barriers are other traffic.
    """
    if serves := SERVED.get(SERVES.get(collective.library, "")):
        return serves
    if collective.name in MESSAGES or (collective.name == MESSAGE and len(collective.group_ranks) == 2):
        return PIPELINE
    if collective.name == "all_to_all":
        return EXPERT_PARALLEL
    if collective.name == "all_gather" and step_pass == "optimizer":
        return GATHER
    if collective.name not in REPLICATED:
        return OTHER_TRAFFIC
    within = 1 < len(collective.group_ranks) < world_size
    if within and not collective.gradients and step_pass == "forward":
        return TENSOR_PARALLEL
    return DATA_PARALLEL


def _traffic_names(step: TracedStep) -> list[dict[int, str]]:
    """Return, for every rank, what each of its collectives is for, by the position of its task."""
    return [
        {
            collective.task: traffic_of(collective, pass_of(local, collective.task), local.world_size)
            for collective in local.collectives
        }
        for local in step.ranks
    ]


def _name(step: TracedStep, position: int, traffic: Sequence[dict[int, str]]) -> str:
    role = step.roles[position]
    if role.kind is TaskKind.COLLECTIVE:
        return traffic[role.rank].get(role.task, DATA_PARALLEL if role.task == ADDED else OTHER_TRAFFIC)
    if role.computes:
        return COPIES if role.kind is TaskKind.COPY else COMPUTING[role.step_pass]
    if role.kind is TaskKind.WAIT:
        return IDLE if role.task == ADDED else SYNC
    return HOST


def part_names(step: TracedStep) -> list[str]:
    """Return what part of a step every task counts to, where nothing that counts first runs beside it."""
    traffic = _traffic_names(step)
    return [_name(step, position, traffic) for position in range(len(step.tasks))]


def breakdown(
    step: TracedStep, spans: Sequence[Span], step_us: float, since_us: float | None = None
) -> list[RankParts]:
    """Return where every rank spends a step.

    Args:
        step: that was replayed.
        spans: of its tasks, in their order.
        step_us: how long it takes.
        since_us: when it begins, where it is one of many alike, which do in this one what it does before or after
            itself; None: it is alone, and work of earlier steps is other computation.
    """
    names = part_names(step)
    edges: list[list[tuple[float, int, int]]] = [[] for _ in step.ranks]

    def ran(rank: int, part: int, start_us: float, end_us: float) -> None:
        both = [(start_us, end_us)]
        for start, end in both if since_us is None else _within(start_us - since_us, end_us - since_us, step_us):
            edges[rank] += [(start, part, 1), (end, part, -1)]

    for position, span in enumerate(spans):
        if span.end_us > span.start_us and (since_us is None or span.name != CARRIED):
            ran(step.roles[position].rank, RANK[names[position]], span.start_us, span.end_us)
    for transfer, arrival in step.arrivals.items():
        arrived, begins = spans[arrival].end_us, spans[transfer].start_us
        if begins > arrived:
            ran(step.roles[transfer].rank, RANK[WAITING], arrived, begins)
    return [_swept(of_rank, step_us) for of_rank in edges]


def _within(start_us: float, end_us: float, period_us: float) -> list[tuple[float, float]]:
    """Return when something ran within a step that repeats, of which it is in one or reaches into the next."""
    lasts = end_us - start_us
    if lasts >= period_us:
        return [(0.0, period_us)]
    start = start_us % period_us
    end = start + lasts
    return [(start, end)] if end <= period_us else [(start, period_us), (0.0, end - period_us)]


def _swept(edges: list[tuple[float, int, int]], step_us: float) -> RankParts:
    """Return the parts of one rank from the starts (+1) and ends (−1) of what it did."""
    running = [0] * len(PRIORITY)
    lasted = [0.0] * len(PRIORITY)
    idle = RANK[IDLE]
    hidden_us = last = 0.0
    for at, part, change in sorted(edges, key=itemgetter(0)):
        now = min(at, step_us)
        if now > last:
            first = next((number for number, count in enumerate(running) if count), idle)
            lasted[first] += now - last
            if first <= LAST_COMPUTING and any(running[FIRST_TRAFFIC : LAST_TRAFFIC + 1]):
                hidden_us += now - last
            last = now
        running[part] += change
    lasted[idle] += max(0.0, step_us - last)
    return RankParts({name: lasted[RANK[name]] for name in PRINTED}, hidden_us)
