"""The end of a step: all stages update once the last has reduced its gradients."""

from __future__ import annotations

from predictor.timeline.step_end import end_of_step


def test_the_last_reduction_starts_every_update() -> None:
    end = end_of_step(finished=[10.0, 6.0, 9.0], exposed=[1.0, 6.0, 0.5], closing=4.0)
    assert end.reduced == [11.0, 12.0, 9.5]
    assert end.critical_stage == 1
    assert end.updating == 12.0
    assert end.step == 16.0


def test_a_stage_waits_for_later_reductions_and_longer_updates() -> None:
    end = end_of_step([10.0, 6.0], [1.0, 2.0], closing=4.0)
    assert end.waiting(0, optimizer=3.0, gather=1.0) == 0.0
    assert end.waiting(1, optimizer=2.0, gather=0.5) == (11.0 - 8.0) + (4.0 - 2.5)
