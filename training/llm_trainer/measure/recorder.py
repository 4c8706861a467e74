"""Time steps as StepRecorder does, then profile some more and record what each operator of them took."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from llm_trainer.measure.operator_times import BACKWARD, FORWARD, Timed, operator_calls
from llm_trainer.models.operators import recording
from model_training_framework.trainer import StepRecorder
from model_training_framework.trainer.view import TrainerView
from predictor.timeline.pipeline import Stream
from predictor.timeline.spans import Span
from predictor.traces.measured_step import COLLECTIVE, OPERATOR, OperatorTime, PassName, StepProvenance

SETTLING_STEPS = 1  # the profiler's own start makes its first step slower
# Gloo's threads tell the profiler that a collective has ended only after those who wait for it go on; a profiler that
# has stopped by then leaves them to write into freed memory.
# Source: PyTorch, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, AsyncWork::finishWorkGloo.
TRAFFIC_ENDS_S = 0.1
STREAMS = {OPERATOR: f"{Stream.COMPUTE}, profiled", COLLECTIVE: f"{Stream.COMMUNICATION}, profiled"}


class OperatorRecorder(StepRecorder):
    """Records timed steps, and the operators and collectives of profiled steps after them."""

    def __init__(
        self,
        steps: int,
        warm_up: int,
        profiled: int,
        facts: dict[str, Any],
        is_last_stage: bool = False,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Say how many steps are let go, timed and profiled.

        Args:
            steps: timed.
            warm_up: let go before.
            profiled: behind the timed ones; one more between is let go.
            facts: fields of StepProvenance that the trainer does not know: pipeline_stage, threads, driver.
            names: the predictor's names of the model's operators, where they differ.
            is_last_stage: this rank's messages to its neighbours are gradients.
        """
        super().__init__(steps, warm_up)
        self._profiled = profiled
        self._facts = facts
        self._names = names or {}
        self._sends = BACKWARD if is_last_stage else FORWARD
        self._held: tuple[list[Span], StepProvenance] | None = None
        self._profiling = ExitStack()
        self._profiler: Any = None
        self._us_of_steps: list[float] = []
        self._calls: list[list[Timed]] = []
        self.num_steps = warm_up + steps + (SETTLING_STEPS + profiled if profiled else 0)

    def complete(self, trainer: TrainerView) -> None:
        """Keep the record of the timed steps until the profiled ones are there too."""
        spans, provenance = self.record(trainer)
        provenance = provenance.model_copy(update=self._facts)
        if not self._profiled:
            self.write(trainer, spans, provenance)
            return
        self._held = spans, provenance

    def on_step_end(self, trainer: TrainerView, global_step: int) -> None:
        """Take a timed step's marks, or a profiled step's operators."""
        if self._profiler is not None:
            self._stop(trainer.fabric.device.type == "cuda")
        if self._held is None:
            super().on_step_end(trainer, global_step)
        if self._held is not None and self.path is None:
            if len(self._calls) < SETTLING_STEPS + self._profiled:
                self._start(trainer.fabric.device.type == "cuda")
            else:
                self._write_with_operators(trainer, *self._held)

    def on_training_end(self, trainer: TrainerView, logs: dict[str, Any]) -> None:
        """Write what there is, where training ended early."""
        super().on_training_end(trainer, logs)
        self._profiling.close()
        if self._held is not None and self.path is None:
            self.write(trainer, *self._held)

    def _start(self, is_gpu: bool) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
        self._profiler = self._profiling.enter_context(profile(activities=activities))
        self._profiling.enter_context(recording())

    def _stop(self, is_gpu: bool) -> None:
        if is_gpu:
            torch.cuda.synchronize()
        time.sleep(TRAFFIC_ENDS_S)
        self._profiling.close()
        events = self._profiler.events()
        self._profiler = None
        calls = [
            call._replace(name=self._names.get(call.name, call.name))
            for call in operator_calls(events, is_gpu, self._sends)
        ]
        self._calls.append(calls)
        ends = [call.end_us for call in calls]
        self._us_of_steps.append(max(ends, default=0.0) - min((call.start_us for call in calls), default=0.0))

    def _write_with_operators(self, trainer: TrainerView, spans: list[Span], provenance: StepProvenance) -> None:
        steps = self._calls[SETTLING_STEPS:]
        provenance = provenance.model_copy(
            update={"operators": operator_times(steps), "profiled_us": tuple(self._us_of_steps[SETTLING_STEPS:])}
        )
        self.write(trainer, [*spans, *profiled_spans(steps[-1], provenance.rank)], provenance)


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
