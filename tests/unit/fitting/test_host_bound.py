"""Tables whose calls mostly wait for the host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fitting.physics import fit_physics

Vector = NDArray[np.float64]
LAUNCH_US, US_PER_FLOP = 350.0, 1e-9


def table(host_share: float) -> tuple[Vector, Vector]:
    """Return terms and times of calls that take the longer of a host time that scatters and their FLOPs."""
    rng = np.random.default_rng(3)
    small = rng.uniform(size=1000) < host_share
    flops = np.where(small, rng.uniform(1e9, 2e11, size=1000), rng.uniform(5e11, 2e12, size=1000))
    host = LAUNCH_US * np.exp(rng.normal(scale=0.2, size=1000))
    us = np.maximum(host, US_PER_FLOP * flops)
    return np.column_stack([np.ones(1000), flops, np.zeros(1000)]), us


def test_calls_that_the_device_decides_extrapolate_at_its_rate() -> None:
    matrix, us = table(host_share=0.85)
    physics = fit_physics(matrix, us)
    assert physics.overlapped
    large = np.array([[1.0, 1e13, 0.0]])
    assert abs(physics.predict(large)[0] / (US_PER_FLOP * 1e13) - 1.0) < 0.05


def test_a_launch_that_runs_before_every_kernel_stays_a_sum() -> None:
    matrix, _ = table(host_share=0.85)
    us = LAUNCH_US + US_PER_FLOP * matrix[:, 1]
    assert not fit_physics(matrix, us).overlapped
