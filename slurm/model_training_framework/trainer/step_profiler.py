"""Profile steps: durations of every operator and collective."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from model_training_framework.trainer.operator_scopes import recording
from model_training_framework.trainer.operator_times import BACKWARD, FORWARD, SUM_OPERATORS, Timed, operator_calls
from predictor.core.timeline.pipeline import Stream
from predictor.core.timeline.spans import Span
from predictor.replay.files.measured_step import COLLECTIVE, OPERATOR, OperatorTime, PassName, StepProvenance

SETTLING_STEPS = 1  # the profiler's own start makes its first step slower
# Gloo's threads tell the profiler that a collective has ended only after those who wait for it go on; a profiler that
# has stopped by then leaves them to write into freed memory.
# Source: PyTorch, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, AsyncWork::finishWorkGloo.
TRAFFIC_ENDS_S = 0.1
STREAMS = {OPERATOR: f"{Stream.COMPUTE}, profiled", COLLECTIVE: f"{Stream.COMMUNICATION}, profiled"}


class StepProfiler:
    """Profiles one step after another."""

    def __init__(
        self,
        steps: int,
        is_gpu: bool = False,
        sends: PassName = FORWARD,
        names: Mapping[str, str] | None = None,
        beside: Mapping[str, str] = SUM_OPERATORS,
    ) -> None:
        """Say how many steps are profiled.

        Args:
            steps: behind one that is let go; 0 for none.
            is_gpu: times are those of kernels.
            sends: pass of this rank's messages to its neighbours.
            names: the predictor's names of the model's operators, where they differ.
            beside: kernels within an operator's backward pass that are operators of their own.
        """
        self._beside = beside
        self.is_gpu = is_gpu
        self._steps = steps
        self._sends = sends
        self._names = names or {}
        self._open = ExitStack()
        self._profiler: Any = None
        self._us_of_steps: list[float] = []
        self._calls: list[list[Timed]] = []
        self.num_steps = SETTLING_STEPS + steps if steps else 0

    @property
    def is_open(self) -> bool:
        """Return whether a step is being profiled."""
        return self._profiler is not None

    @property
    def is_done(self) -> bool:
        """Return whether all steps are profiled."""
        return len(self._calls) >= self.num_steps

    def start(self) -> None:
        """Begin to profile a step."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.is_gpu else [])]
        self._profiler = self._open.enter_context(profile(activities=activities))
        self._open.enter_context(recording())

    def stop(self) -> None:
        """End the profiled step and take its operators."""
        if self.is_gpu:
            torch.cuda.synchronize()
        time.sleep(TRAFFIC_ENDS_S)
        self._open.close()
        events = self._profiler.events()
        self._profiler = None
        calls = [
            call._replace(name=self._names.get(call.name, call.name))
            for call in operator_calls(events, self.is_gpu, self._sends, self._beside)
        ]
        self._calls.append(calls)
        ends = [call.end_us for call in calls]
        self._us_of_steps.append(max(ends, default=0.0) - min((call.start_us for call in calls), default=0.0))

    def close(self) -> None:
        """Leave a step that does not end."""
        self._open.close()

    def added(self, spans: list[Span], provenance: StepProvenance) -> tuple[list[Span], StepProvenance]:
        """Return a record of timed steps with the operators of the profiled ones."""
        steps = self._calls[SETTLING_STEPS:]
        told = {"operators": operator_times(steps), "profiled_us": tuple(self._us_of_steps[SETTLING_STEPS:])}
        return [*spans, *profiled_spans(steps[-1], provenance.rank)], provenance.model_copy(update=told)


def operator_times(steps: Sequence[Sequence[Timed]]) -> tuple[OperatorTime, ...]:
    """Return every operator's calls of each step together, the longest first."""
    sums: dict[tuple[PassName, str, str], list[float]] = defaultdict(lambda: [0.0] * len(steps))
    counts: dict[tuple[PassName, str, str], int] = defaultdict(int)
    for position, calls in enumerate(steps):
        for call in calls:
            key = call.step_pass, call.name, call.part
            sums[key][position] += call.us
            counts[key] += 1
    times = []
    for (step_pass, name, part), us in sums.items():
        # An operator has several nodes in the backward graph; it runs as often as in the forward pass.
        has_nodes = step_pass == BACKWARD and not part and (FORWARD, name, part) in counts
        calls_of = FORWARD if has_nodes else step_pass
        count = counts[calls_of, name, part] / len(steps)
        times.append(OperatorTime(step_pass=step_pass, name=name, part=part, count=count, samples_us=tuple(us)))
    return tuple(sorted(times, key=lambda time: -sum(time.samples_us)))


def profiled_spans(calls: Sequence[Timed], rank: int) -> list[Span]:
    """Return one profiled step's operators and collectives, from the start of the first."""
    begin = min((call.start_us for call in calls), default=0.0)
    spans = []
    for call in calls:
        category = COLLECTIVE if call.part else OPERATOR
        details = {"pass": call.step_pass, **({"part": call.part} if call.part else {})}
        times = (call.start_us - begin, call.end_us - begin)
        spans.append(Span(call.name, rank, STREAMS[category], *times, category=category, details=details))
    return spans
