"""Build the local dataflow graph of one step from one rank's trace.

The step begins when the host begins it and ends when the host leaves it or the last thing that it launched has ended,
whichever is later: that is ``step_us``, which an unchanged replay gives again. The facts have what else is read as the
time of a step, all in µs:

- ``host_us``: the annotation, from the host's begin to its end. Where the host waits for the GPU in every step, or is
  the slower one, this is the time of a step.
- ``gpu_end_us``: when the last kernel, copy or collective ended that the step launched.
- ``carried_us``: how long the GPU, or a thread of gloo, still ran what earlier steps had launched.
- ``period_us``: the time of a step among many: the host's, or the GPU's from ``carried_us`` to ``gpu_end_us`` where
  that is longer. Where a GPU lags behind its host this is less than ``step_us``.

They also count what is not explained:

- ``unexplained_gpu_starts``: late for no visible reason, by ``unexplained_gpu_us`` in all;
- ``contended_gpu_starts``: late while another stream had the GPU;
- ``inferred_events``: a stream waited for another one, by their times alone;
- ``unexplained_wakes``: a thread began to work and no other one stopped just then;
- ``waits_for_unknown``: calls that wait for events that the trace does not show;
- ``started_before_launch``: the clocks of host and GPU disagree;
- ``unlaunched_gpu_tasks``: nothing is known to have launched them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from predictor.core.base.collector import paused_collector
from predictor.replay.files.events import ON_GPU, UNKNOWN, Category, RankTrace, TraceEvent
from predictor.replay.graph.collectives_of import collectives_of, with_gradients
from predictor.replay.graph.host_tasks import add_thread, merged
from predictor.replay.graph.host_threads import Thread, read_thread, split
from predictor.replay.graph.local_graph import NO_OPERATOR, EdgeKind, LocalGraph, TaskKind, TracedOperator, TracedTask
from predictor.replay.graph.operators import OperatorTable, dtypes_of, operator_table, shapes_of
from predictor.replay.graph.pending_tasks import ROOT, PendingTasks
from predictor.replay.graph.step_events import C10D, StepEvents, step_events, worker_collectives
from predictor.replay.graph.steps import StepWindow, choose_step
from predictor.replay.graph.stream_edges import StreamEdges, add_stream_edges
from predictor.replay.graph.stream_waits import stream_waits
from predictor.replay.graph.streams import add_streams, submissions, typical_latencies
from predictor.replay.graph.sync_calls import SyncCalls, waiting_calls
from predictor.replay.graph.synchronization import Synchronization, Synchronizer
from predictor.replay.graph.thread_dependencies import idle_until_woken
from predictor.replay.graph.workers import add_worker_edges, add_workers, join_workers, waits_for_workers


def traced_operators(
    trace: RankTrace, step: StepEvents, table: OperatorTable, tasks: Sequence[TracedTask]
) -> list[TracedOperator]:
    """Return the operators of a step, by start.

    Args:
        trace: of a rank.
        step: of it.
        table: the step's operators.
        tasks: of the step, in their order.
    """
    own: list[list[int]] = [[] for _ in table.events]
    for number, task in enumerate(tasks):
        if task.operator != NO_OPERATOR:
            own[task.operator].append(number)
    for operator in reversed(range(len(own))):  # inner ones come after those around them
        parent = table.parents[operator]
        if parent != NO_OPERATOR:
            own[parent].extend(own[operator])
    on_gpu = bool(step.gpu) or trace.backend != "cpu"
    operators = []
    for operator, position in enumerate(table.events):
        event = trace.events[position]
        numbers = tuple(sorted(own[operator]))
        operators.append(
            TracedOperator(
                name=table.name(operator, event),
                step_pass=table.passes[operator],
                forward=table.forwards[operator],
                scope=table.scopes[operator],
                shapes=shapes_of(event.args),
                dtypes=dtypes_of(event.args),
                us=_us([tasks[number] for number in numbers], on_gpu),
                tasks=numbers,
                parent=table.parents[operator],
                external=event.external,
                event=position,
            )
        )
    return operators


def _us(tasks: Sequence[TracedTask], on_gpu: bool) -> float:
    """Return how long tasks compute: on a GPU its kernels, copies and collectives, otherwise the thread's."""
    if on_gpu:
        return sum(task.duration_us for task in tasks if task.kind not in (TaskKind.HOST, TaskKind.WAIT))
    return sum(task.duration_us for task in tasks if task.kind is TaskKind.HOST)


RUN_AS = {"allreduce": ("reducescatter",)}  # gloo reduces all and keeps a part


def ties(trace: RankTrace) -> dict[int, int]:
    """Return, of each GPU task and each collective of a worker thread, the position of what started it.

    A GPU task has a launch arrow from its runtime call; where the calls were not recorded, the external number of its
    operator. Workers take collectives in the order in which operators gave them.
    """
    events = trace.events
    by = {
        after: before
        for before, after, kind in trace.arrows
        if kind == "launch" and events[before].start_us <= events[after].end_us
    }
    operators: dict[int, int] = {}
    for position, event in enumerate(events):
        if event.category in ON_GPU:
            if position not in by and event.external in operators:
                by[position] = operators[event.external]
        elif event.category is Category.OPERATOR and event.external != UNKNOWN:
            operators[event.external] = position
    by.update(_ties_of_workers(events, worker_collectives(events)))
    return by


def _ties_of_workers(events: Sequence[TraceEvent], given: Sequence[int]) -> dict[int, int]:
    """Return the operators of workers' collectives.

    Of each collective it is the first operator before it of its kind that has none yet: of its size, if there is one.
    An all-gather says the size of its input here and of its output there.
    """
    waiting: defaultdict[str, list[int]] = defaultdict(list)
    for position, event in enumerate(events) if given else ():
        if event.category is Category.OPERATOR and event.name.startswith(C10D):
            waiting[_kind(event.name)].append(position)
    by = {}
    for position in given:
        event = events[position]
        kind, numel = _kind(event.name), _numel(event)
        for name in (kind, *RUN_AS.get(kind, ())):
            before = [call for call in waiting[name] if events[call].start_us <= event.start_us]
            if before:
                by[position] = next((call for call in before if _numel(events[call]) == numel), before[0])
                waiting[name].remove(by[position])
                break
    return by


def _kind(name: str) -> str:
    """Return what a collective is, of ``c10d::allreduce_`` and ``gloo:all_reduce`` alike."""
    return name.rsplit(":", 1)[-1].replace("_", "").removesuffix("base").removesuffix("coalesced")


def _numel(event: TraceEvent) -> int:
    """Return the elements of a collective's first tensor; 0 where the trace does not say."""
    dims: object = event.args.get("Input Dims")
    while isinstance(dims, list) and dims and isinstance(dims[0], list):
        dims = dims[0]
    if not isinstance(dims, list) or not dims or not all(isinstance(size, int) for size in dims):
        return 0
    numel = 1
    for size in dims:
        numel *= size
    return numel


def local_graph(trace: RankTrace, step: int | None = None) -> LocalGraph:
    """Return the local dataflow graph of a step.

    Args:
        trace: of one rank.
        step: position among the steps of the trace (``steps.step_windows``); None: the one that ``choose_step`` picks.

    Raises:
        RecordError: there is no such step.
    """
    return graph_between(trace, choose_step(trace, step))


def graph_between(trace: RankTrace, window: StepWindow) -> LocalGraph:
    """Return the local dataflow graph of any part of a trace, such as an annotation, as of a step."""
    with paused_collector():
        return _graph(trace, window)


def _graph(trace: RankTrace, window: StepWindow) -> LocalGraph:
    events = step_events(trace, window.label, window.start_us, window.end_us, ties(trace))
    threads = _threads(trace, events)
    table = operator_table(trace, events, threads)
    lanes: dict[int, int] = {}
    pending = PendingTasks(max(events.main_row, 0), events.label)
    streams = add_streams(pending, trace, events, lanes)
    workers = add_workers(pending, trace, events)
    latencies = typical_latencies(trace, events)
    given = submissions(pending, trace, events, streams, latencies)
    launchers = {task: trace.events[events.launched_by[pending.tasks[task].event]].row for task in given}
    for thread in threads:
        thread.segments = split(thread.segments, (us for task, us in given.items() if launchers[task] == thread.row))
    calls = SyncCalls(trace, events, pending, streams)
    synchronization = Synchronizer(calls, given).read()
    _add_threads(pending, trace, events, threads, table, workers, synchronization)
    add_worker_edges(pending, trace, events, workers)
    edges = add_stream_edges(pending, trace, events, streams, stream_waits(calls), given, latencies)
    for task in range(1, len(pending.tasks)):
        if not pending.tasks[task].after and pending.tasks[task].start_us:
            pending.wait(task, ROOT, EdgeKind.ROW)
    _own_gpu_tasks(pending, trace, events, table)
    return _finished(trace, events, pending, table, lanes, _facts(trace, events, pending, edges, synchronization))


def _threads(trace: RankTrace, step: StepEvents) -> list[Thread]:
    """Cut the step's threads, the main one first."""
    cutting = frozenset(waiting_calls(trace, step) | set(step.launched_by.values()))
    rows = sorted(step.host, key=lambda row: (row != step.main_row, row))
    threads = [read_thread(trace.events, step, row, cutting) for row in rows]
    return [thread for thread in threads if thread.segments]


def _add_threads(
    pending: PendingTasks,
    trace: RankTrace,
    step: StepEvents,
    threads: Sequence[Thread],
    table: OperatorTable,
    workers: Sequence[int],
    synchronization: Synchronization,
) -> None:
    """Add the tasks of all threads, then what they waited for of each other and of the GPU."""
    woken = idle_until_woken(trace.events, step, threads)
    for_workers = waits_for_workers(pending, trace, step, threads, table)
    after_waits = []
    for thread in threads:
        row = thread.row
        idle = merged([*woken.get(row, ()), *synchronization.idle.get(row, ()), *for_workers.get(row, ())])
        after_waits += add_thread(pending, trace.events, table, thread, idle)
    for task, wait in after_waits:
        operator = table.of_event.get(wait.call, NO_OPERATOR)
        for before in wait.after:
            pending.wait(task, before, EdgeKind.SYNC, 0.0, wait.call, operator)
        for row in wait.threads:
            before = pending.last_by(row, wait.end_us)
            pending.wait(task, before, EdgeKind.WAKE)
            synchronization.late_wakes += pending.tasks[before].end_us < pending.tasks[task].start_us
    waited = {task for waits in for_workers.values() for wait in waits for task in wait.after}
    join_workers(pending, trace, step, table, [task for task in workers if task not in waited])


def _own_gpu_tasks(pending: PendingTasks, trace: RankTrace, step: StepEvents, table: OperatorTable) -> None:
    """Give what runs on streams and workers the operators that started it, and the runtime calls."""
    for pending_task in pending.tasks:
        if pending_task.operator == NO_OPERATOR and pending_task.event in step.launched_by:
            starter = step.launched_by[pending_task.event]
            pending_task.operator = table.of_event.get(starter, NO_OPERATOR)
            if trace.events[starter].category is Category.RUNTIME:
                pending_task.call = starter


def _facts(
    trace: RankTrace, step: StepEvents, pending: PendingTasks, edges: StreamEdges, synchronization: Synchronization
) -> dict[str, object]:
    """Return what is known of a step beside its graph; times in µs."""
    host_us = round(step.end_us - step.start_us, 3)
    carried_us = max(step.carried_us.values(), default=0.0)
    launched = {position for rows in (step.gpu, step.workers) for positions in rows.values() for position in positions}
    gpu_end_us = max(
        (pending_task.end_us for pending_task in pending.tasks if pending_task.event in launched), default=0.0
    )
    return {
        "path": str(trace.path),
        "notes": list(trace.notes),
        "host_us": host_us,
        "gpu_end_us": gpu_end_us,
        "carried_us": carried_us,
        "period_us": max(host_us, round(gpu_end_us - carried_us, 3)),
        "unexplained_gpu_starts": edges.unexplained,
        "unexplained_gpu_us": round(edges.unexplained_us, 3),
        "contended_gpu_starts": edges.contended,
        "inferred_events": edges.inferred,
        "unexplained_wakes": synchronization.late_wakes,
        "waits_for_unknown": synchronization.unknown,
        "started_before_launch": sum(
            trace.events[after].start_us < trace.events[before].start_us for after, before in step.launched_by.items()
        ),
        "unlaunched_gpu_tasks": sum(
            position not in step.launched_by for positions in step.gpu.values() for position in positions
        ),
    }


def _finished(
    trace: RankTrace,
    step: StepEvents,
    pending: PendingTasks,
    table: OperatorTable,
    lanes: Mapping[int, int],
    facts: Mapping[str, object],
) -> LocalGraph:
    used = {pending_task.row for pending_task in pending.tasks}
    is_gpu = {row: row >= len(trace.rows) or (row < len(trace.rows) and trace.rows[row].is_gpu) for row in used}
    order = sorted(used, key=lambda row: (row != step.main_row, is_gpu[row], lanes.get(row, row), row))
    place = {row: number for number, row in enumerate(order)}
    tasks = [task._replace(row=place[task.row]) for task in pending.in_order()]
    by_kind = Counter(task.kind.value for task in tasks)
    operators = traced_operators(trace, step, table, tasks)
    collectives = collectives_of(trace, step, table, tasks, operators)
    return LocalGraph(
        rank=trace.rank or 0,
        world_size=trace.world_size or 1,
        label=step.label,
        step_us=max(task.start_us + task.duration_us for task in tasks),
        begin_us=trace.begin_us + step.start_us,
        backend=trace.backend,
        device_name=trace.device_name,
        rows=_labels(trace, order, lanes),
        tasks=with_gradients(tasks, operators, collectives),
        operators=operators,
        collectives=collectives,
        facts={**facts, "tasks": dict(sorted(by_kind.items()))},
        host_us=round(step.end_us - step.start_us, 3),
    )


def _labels(trace: RankTrace, rows: Sequence[int], lanes: Mapping[int, int]) -> list[str]:
    """Return what a timeline calls the rows, each by another name."""
    if not trace.rows:
        return ["thread"] * len(rows)
    labels = []
    count: Counter[int] = Counter()
    plain = Counter(trace.rows[row].label for row in {lanes.get(row, row) for row in rows})
    for row in rows:
        of_trace = trace.rows[lanes.get(row, row)]
        where = "device" if of_trace.is_gpu else "process"
        label = of_trace.label if plain[of_trace.label] == 1 else f"{of_trace.label} ({where} {of_trace.process})"
        if row in lanes:
            count[lanes[row]] += 1
            label = f"{label}, lane {1 + count[lanes[row]]}"
        labels.append(label)
    return labels
