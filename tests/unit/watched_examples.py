"""A run of torchtitan that loses a rank's speed: its health, its steps and its prediction, by hand."""

from __future__ import annotations

from random import Random

from predictor.watch.events import Step
from predictor.watch.health import Change, ChangeKind, Expected, Explanation, Finding, Health, State
from predictor.watch.series import StepSeries

AT = 1_796_000_000.0
EXPECTED = Expected(
    seconds=1.6,
    low_s=1.3,
    high_s=1.9,
    calibrated_s=1.64,
    calibrated_low_s=1.6,
    calibrated_high_s=1.68,
    parts={"forward": 0.4, "recompute": 0.3, "backward": 0.9},
    tokens=524_288.0,
    samples=64.0,
    sequence_length=8192,
    flops=3.0e16,
    peak_flops_per_second=6.4e16,
    memory_bytes=2.1e10,
    memory_limit_bytes=8.5e10,
    num_gpus=64,
    source="llama-8b.yml on H100",
)
SLOW_RANK = Finding(
    Change(ChangeKind.JUMP, 401, None, 1.64, 0.36, 72.0, 200),
    (
        Explanation(
            "slow_rank",
            "one slow rank",
            0.84,
            ("rank 5 takes 18 % longer than the median rank",),
            "times of every rank beside the network's counters",
            "drain the node of rank 5",
        ),
        Explanation("network", "network", 0.12),
        Explanation("not explained", "not explained", 0.01),
    ),
)
CHECKPOINTS = Finding(
    Change(ChangeKind.PERIODIC, 100, 600, 1.64, 3.0, 18.0, 6, 100.0),
    (Explanation("checkpoint", "checkpoint", 0.97, ("the log names them",)),),
    is_expected=True,
)
SLOWER = Health(
    State.SLOWER,
    EXPECTED,
    first_step=1,
    last_step=600,
    steps=600,
    last_at=AT - 2.0,
    median_s=2.0,
    low_s=1.97,
    high_s=2.03,
    spread=0.01,
    trend=0.02,
    tokens_per_second=262_144.0,
    mfu=0.234,
    parts={"forward": 0.5, "backward": 1.4, "data": 0.01},
    findings=(SLOW_RANK, CHECKPOINTS),
    lost_s=72.0,
    lost_to_come_s=7200.0,
    remaining_steps=20_000,
    end_at=AT + 40_000.0,
    restarts=1,
    notes=("The log says so <b>.",),
)
HEALTHY = Health(
    State.HEALTHY, first_step=1, last_step=600, steps=600, median_s=1.64, low_s=1.6, high_s=1.68, spread=0.01
)
WAITING = Health(State.WAITING)


def series(slower_from: int = 401, steps: int = 600, seed: int = 0, most: int = 4096) -> StepSeries:
    """Return the steps of a run that is slower from a step on: 2.0 s instead of 1.64 s, one step in 100 3 s more."""
    random, found = Random(seed), StepSeries(most)
    for number in range(1, steps + 1):
        level = 2.0 if number >= slower_from else 1.64
        found.take(Step(number, level * random.gauss(1.0, 0.01) + (3.0 if number % 100 == 0 else 0.0)))
    return found
