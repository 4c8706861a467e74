"""The parts of a step, predicted and measured, per pipeline stage.

The measured backward pass contains recomputation. Where the profiler saw what was recomputed, its operators' time,
scaled from the profiled to the timed steps, is taken out of it; elsewhere both are compared together. A recorder that
times a pipeline from its first forward to its last backward pass as a whole is compared with the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

from predictor.core.costs.cost import Cost
from predictor.core.step.composition import StepTime
from predictor.replay.files.measured_run import MeasuredRun
from predictor.replay.files.measured_step import BACKWARD, DATA, FORWARD, OPTIMIZER, PARTS
from predictor.replay.files.verified_run import PartOfStep

RECOMPUTE, WAITING = "recompute", "waiting"
BOTH = "recompute and backward"
PIPELINE = "pipeline, bubble included"
WORKING = (FORWARD, RECOMPUTE, BACKWARD)


def predicted_parts(prediction: StepTime, stage: int) -> dict[str, Cost]:
    """Return the parts of a stage's step that it works in, with traffic and host time that nothing hides.

    The backward pass includes the gradient reduction that ends behind it: PyTorch's DDP and FSDP wait for it before
    ``backward()`` returns (reducer.cpp, ``finalize_backward``; FSDP2's ``_root_post_backward_final_callback``). The
    optimizer's part includes the gathering of parameters. What the parts leave of the step is waiting: the bubble,
    messages between stages, and other stages' reduction and update.
    """
    count, timed = prediction.tasks.num_micro_batches, prediction.stages[stage]
    whole = timed.whole
    return {
        FORWARD: whole.forward.cost * count,
        RECOMPUTE: whole.recompute.cost * count,
        BACKWARD: (whole.backward.cost + whole.weight.cost) * count + timed.exposed_reduction,
        OPTIMIZER: timed.optimizer + timed.gather,
    }


def _recomputed_us(launch: MeasuredRun, stage: int) -> float | None:
    """Return the time that a stage recomputes; None where the profiler recorded no such operator."""
    ranks = launch.of_stage(stage)
    sums = [
        sum(median(operator.samples_us) for operator in rank.provenance.operators if operator.step_pass == RECOMPUTE)
        for rank in ranks
    ]
    if not any(sums):
        return None
    scale = launch.step_us / median(launch.profiled_us) if launch.profiled_us else 1.0
    return mean(sums) * scale


def measured_parts(launch: MeasuredRun, stage: int) -> dict[str, float]:
    """Return the measured parts of a stage's step in microseconds; a part that was not recorded is not there."""
    recorded = {part: us for part in PARTS if (us := launch.part_us(stage, part)) is not None}
    if len(recorded) == len(PARTS):
        recorded[WAITING] = max(0.0, launch.step_us - sum(recorded.values()))
    if recorded.get(FORWARD) and recorded.get(BACKWARD) == 0.0:
        recorded[PIPELINE] = recorded.pop(FORWARD)
        del recorded[BACKWARD]
    recomputed = _recomputed_us(launch, stage)
    if recomputed is not None and BACKWARD in recorded:
        recorded[RECOMPUTE] = min(recomputed, recorded[BACKWARD])
        recorded[BACKWARD] -= recorded[RECOMPUTE]
    return recorded


def _mean_parts(launches: Sequence[MeasuredRun], stage: int) -> dict[str, float]:
    """Return the mean of every part over the launches that recorded it."""
    measured = [measured_parts(launch, stage) for launch in launches]
    names = dict.fromkeys(name for parts in measured for name in parts)
    return {name: mean(parts[name] for parts in measured if name in parts) for name in names}


def compared_parts(prediction: StepTime, launches: Sequence[MeasuredRun]) -> list[PartOfStep]:
    """Return the parts of every stage, predicted beside measured."""
    rows = []
    for stage in range(len(prediction.stages)):
        predicted = {name: cost for name, cost in predicted_parts(prediction, stage).items() if cost.us > 0.0}
        measured = _mean_parts(launches, stage)
        waiting_us = max(0.0, prediction.step.us - sum(cost.us for cost in predicted.values()))
        if PIPELINE in measured:
            whole_us = waiting_us + sum(predicted.pop(name).us for name in WORKING if name in predicted)
            row = PartOfStep(stage=stage, name=PIPELINE, predicted_us=whole_us, measured_us=measured.pop(PIPELINE))
            rows.append(row)
            waiting_us = 0.0
        if RECOMPUTE in predicted and BACKWARD in measured and RECOMPUTE not in measured:
            predicted[BOTH] = predicted.pop(RECOMPUTE) + predicted.pop(BACKWARD)
            measured[BOTH] = measured.pop(BACKWARD)
        for name in (DATA, FORWARD, RECOMPUTE, BACKWARD, BOTH, OPTIMIZER):
            cost, us = predicted.get(name), measured.get(name)
            if cost is None and not us:
                continue
            ends = (None, None, None) if cost is None else (cost.us, cost.low_us, cost.high_us)
            row = PartOfStep(
                stage=stage, name=name, predicted_us=ends[0], low_us=ends[1], high_us=ends[2], measured_us=us
            )
            rows.append(row)
        row = PartOfStep(stage=stage, name=WAITING, predicted_us=waiting_us, measured_us=measured.get(WAITING))
        rows.append(row)
    return rows
