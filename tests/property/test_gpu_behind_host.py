"""A GPU that is behind its host: with other kernel times a replayed step takes what a run with them takes.

The runs are worked out call by call, without the timeline that is under test: a stream holds so many launches, and some
calls wait for the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.replay.answer import answered
from predictor.replay.files.events import Category, TraceEvent
from predictor.replay.graph.global_graph import global_graph
from predictor.replay.whatif.changes import Means
from predictor.replay.whatif.traced_step import TracedStep, joined
from tests.unit.hand_made_traces import COMPUTE, HandMade

QUEUE = 1024  # launches that a stream holds
STEPS = 6
LAUNCH_US, LATENCY_US, NEXT_US = 4.0, 6.0, 1.0
WAITS = ("none", "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "item")


@dataclass(frozen=True)
class Job:
    """Steps that are all alike.

    Attributes:
        kernels_us: of a step, over and over.
        launches: of a step.
        host_us: between two launches.
        wait: how the host waits for the GPU once in a step.
        at: part of the launches before it does.
        is_cut: the trace begins with its last step: what was launched before is known by its kernels only.
    """

    kernels_us: tuple[int, ...]
    launches: int
    host_us: int
    wait: str
    at: float
    is_cut: bool

    def durations(self, factor: float) -> Iterator[float]:
        return (factor * self.kernels_us[number % len(self.kernels_us)] for number in range(self.launches))


@dataclass
class Run:
    """A run of a job: when its steps began on the host, when the GPU ended them, and the trace."""

    made: HandMade = field(default_factory=HandMade)
    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def period_us(self) -> float:
        return max(self.ends[-1] - self.ends[-2], self.begins[-1] - self.begins[-2])


def run(job: Job, factor: float = 1.0) -> Run:
    made, done = Run(), [0.0]
    now = 0.0
    for number in range(STEPS):
        made.begins.append(now)
        for launch, us in enumerate(job.durations(factor)):
            if job.wait != "none" and launch == int(job.at * job.launches):
                now = wait(made.made, job.wait, now, done)
            now += job.host_us
            begin = now
            now = max(now, done[-QUEUE] if len(done) > QUEUE else 0.0) + LAUNCH_US
            start = max(now - LAUNCH_US + LATENCY_US, done[-1] + NEXT_US)
            done.append(start + us)
            made.made.launch("gemm", (begin, now), (start, done[-1]))
        made.made.step(made.begins[-1], now, number)
        made.ends.append(done[-1])
    made.begins.append(now)
    return made


def wait(made: HandMade, how: str, now: float, done: list[float]) -> float:
    """Let the host wait for all that it gave the GPU; return until when."""
    if how == "item":
        start = max(now + LATENCY_US, done[-1] + NEXT_US)
        done.append(start + 2.0)
        name = "Memcpy DtoH (Device -> Pageable)"
        made.launch(name, (now, done[-1] + 3.0), (start, done[-1]), category=Category.COPY, call="cudaMemcpyAsync")
        return done[-1] + 4.0
    end = max(now, done[-1]) + 3.0
    made.call(how, now, end)
    return end + 1.0


def traced(job: Job) -> TracedStep:
    made = run(job)
    if job.is_cut:
        made.made.events = [event for event in made.made.events if is_left(event, made.begins[-2])]
    return joined(global_graph([made.made.graph()]))


def is_left(event: TraceEvent, from_us: float) -> bool:
    return event.end_us > from_us if event.row == COMPUTE else event.start_us >= from_us


JOBS = st.builds(
    Job,
    st.lists(st.integers(20, 300), min_size=1, max_size=7).map(tuple),
    st.sampled_from([40, 150, 700]),
    st.integers(4, 40),
    st.sampled_from(WAITS),
    st.sampled_from([0.0, 0.3, 0.9]),
    st.booleans(),
)


@given(JOBS, st.sampled_from([0.5, 0.9, 2.0]))
@settings(max_examples=25, deadline=None)
def test_other_kernel_times_move_the_step_as_they_move_the_run(job: Job, factor: float) -> None:
    step = traced(job)
    begun = run(job).begins
    assert abs(step.measured_us - (begun[-1] - begun[-2])) < 1e-2
    assert abs(step.alone_us() - step.measured_us) < 1e-2
    answer = answered(step, [f"kernel:*=x{factor}"], Means())
    assert answer.after is not None
    period, changed = run(job).period_us(), run(job, factor).period_us()
    untold_us = LATENCY_US + NEXT_US * job.launches  # a trace without idle or without busy streams shows no latency
    assert abs(answer.before.step_us - period) < 0.02 * period + untold_us
    assert abs(answer.after.step_us - changed) < 0.02 * changed + untold_us
