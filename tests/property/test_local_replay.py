"""Any step that a host, an autograd thread and two streams can run: its local graph replays as it was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.core.timeline.graph import replay_graph
from predictor.replay.critical import operator_shares
from predictor.replay.graph.gaps import gaps, idle_us_by_kind
from predictor.replay.graph.global_graph import global_graph
from predictor.replay.graph.local_graph import LocalGraph
from predictor.replay.graph.local_replay import graph_tasks_of, replay_local
from predictor.replay.whatif.traced_step import joined
from tests.unit.hand_made_traces import COMPUTE, ENGINE, MAIN, NCCL, HandMade

LATENCY_US = 7.25
STREAMS = (COMPUTE, NCCL)
NAMES = {COMPUTE: 7, NCCL: 20}


class Action(NamedTuple):
    """Something that a thread does: ``us`` is how long it, or what it starts, lasts."""

    what: str
    us: float
    stream: int = COMPUTE
    is_recorded: bool = True


@dataclass
class Machine:
    """A host and a GPU that run actions and record a trace of them."""

    made: HandMade = field(default_factory=HandMade)
    now: float = 0.0
    free: dict[int, float] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0.0))
    blocked: dict[int, float] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0.0))

    def run(self, actions: list[Action], row: int) -> None:
        for action in actions:
            getattr(self, action.what)(action, row)

    def python(self, action: Action, row: int) -> None:
        self.now += action.us

    def operator(self, action: Action, row: int) -> None:
        self.made.operator("aten::outer", self.now, self.now + 3 * action.us, row)
        self.made.operator("aten::inner", self.now + action.us, self.now + 2 * action.us, row)
        self.now += 3 * action.us

    def launch(self, action: Action, row: int) -> None:
        start = max(self.now + LATENCY_US, self.free[action.stream], self.blocked[action.stream])
        end = start + action.us
        name = "gemm" if action.stream == COMPUTE else "ncclDevKernel_AllReduce"
        self.made.launch(name, (self.now, self.now + 4.5), (start, end), action.stream, row)
        self.now += 5.0
        self.free[action.stream] = end + 1.125

    def synchronize(self, action: Action, row: int) -> None:
        ends = [event.end_us for event in self.made.events if event.row in STREAMS]
        end = max([self.now, *ends]) + 2.0
        self.made.call("cudaDeviceSynchronize", self.now, end, row)
        self.now = end + 0.5

    def synchronize_stream(self, action: Action, row: int) -> None:
        ends = [event.end_us for event in self.made.events if event.row == action.stream]
        end = max([self.now, *ends]) + 2.0
        call = self.made.call("cudaStreamSynchronize", self.now, end, row)
        if action.is_recorded:
            self.made.sync("Stream Sync", call, stream=NAMES[action.stream])
        self.now = end + 0.5

    def join(self, action: Action, row: int) -> None:
        """Let the stream wait for the other one."""
        (other,) = set(STREAMS) - {action.stream}
        record = self.made.call("cudaEventRecord", self.now, self.now + 1.0, row)
        wait = self.made.call("cudaStreamWaitEvent", self.now + 1.5, self.now + 2.0, row)
        if action.is_recorded:
            self.made.sync(
                "Stream Wait Event",
                wait,
                stream=NAMES[action.stream],
                wait_on_stream=NAMES[other],
                wait_on_cuda_event_record_corr_id=record,
            )
        self.blocked[action.stream] = max(self.blocked[action.stream], self.free[other] + 0.75)
        self.now += 2.5


MICROSECONDS = st.integers(1, 4000).map(lambda eighths: eighths / 8)
ACTIONS = st.builds(
    Action,
    st.sampled_from(["python", "operator", "launch", "launch", "synchronize", "synchronize_stream", "join"]),
    MICROSECONDS,
    st.sampled_from(STREAMS),
    st.booleans(),
)


def traced(forward: list[Action], backward: list[Action], optimizer: list[Action], tail_us: float) -> LocalGraph:
    machine = Machine()
    machine.run(forward, MAIN)
    if backward:
        machine.now += 11.0
        begin = machine.now
        machine.run(backward, ENGINE)
        machine.now += 1.0
        machine.made.operator("autograd::engine::evaluate_function: Backward0", begin, machine.now, ENGINE)
        machine.now += 9.0
    machine.run(optimizer, MAIN)
    machine.made.step(0.0, machine.now + tail_us)
    return machine.made.graph()


STEPS = st.builds(
    traced, st.lists(ACTIONS, max_size=12), st.lists(ACTIONS, max_size=8), st.lists(ACTIONS, max_size=6), MICROSECONDS
)


@given(STEPS)
@settings(max_examples=150)
def test_unchanged_replay_is_the_measured_step(local: LocalGraph) -> None:
    replay = replay_local(local)
    assert abs(replay.makespan_us - local.step_us) < 1e-6
    for span, task in zip(replay.spans, local.tasks, strict=True):
        assert abs(span.start_us - task.start_us) < 1e-6
        waits = [
            local.tasks[edge.task].start_us + local.tasks[edge.task].duration_us + edge.lag_us for edge in task.after
        ]
        assert abs(max(waits, default=0.0) - task.start_us) < 1e-6  # no edge violated, at least one tight


@given(STEPS, st.randoms(use_true_random=False), MICROSECONDS)
@settings(max_examples=100)
def test_longer_task_never_shortens_the_step(local: LocalGraph, random: Random, by_us: float) -> None:
    tasks = graph_tasks_of(local)
    place = random.randrange(len(tasks))
    before = replay_graph(tasks)
    tasks[place] = tasks[place]._replace(duration_us=tasks[place].duration_us + by_us)
    after = replay_graph(tasks)
    assert after.makespan_us >= before.makespan_us - 1e-6
    assert after.makespan_us <= before.makespan_us + by_us + 1e-6
    if place in before.critical_path:
        assert abs(after.makespan_us - before.makespan_us - by_us) < 1e-6


@given(STEPS)
@settings(max_examples=100)
def test_every_row_is_busy_or_idle_for_a_reason(local: LocalGraph) -> None:
    explained = gaps(local)
    for row in range(len(local.rows)):
        busy = sum(task.duration_us for task in local.tasks if task.row == row)
        assert abs(busy + sum(idle_us_by_kind(explained, row).values()) - local.step_us) < 1e-6


@given(STEPS)
@settings(max_examples=100)
def test_critical_path_adds_up_to_the_step(local: LocalGraph) -> None:
    step = joined(global_graph([local]))
    path, _ = operator_shares(step, step.replay())
    assert abs(sum(share.path_us for share in path) - local.step_us) < 1e-3 * (1 + len(local.tasks))  # left out: < 1 ns
