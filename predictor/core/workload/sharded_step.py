"""Traffic of ZeRO-3 once per step: weights stay gathered over a pipeline's micro-batches, and gradients whole.

The first micro-batch's forward pass waits for each unit's weights, and gradients are scattered unit by unit in the last
one's backward pass. What these passes do not hide lengthens the step, however many micro-batches lie between them.

Source: torch distributed/pipelining/stage.py, backward_maybe_with_nosync.
"""

from __future__ import annotations

from typing import NamedTuple

from predictor.core.workload.rank_parameters import RankParameters
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.sharding import gather_tasks, gradient_copies, scatter_tasks, weight_copies
from predictor.core.workload.tasks import Task, scaled


class SharedOnce(NamedTuple):
    """What a stage gathers and scatters once per step.

    Attributes:
        copies: kernels around both.
        units: gathered and scattered at once each.
    """

    gathers: list[Task]
    scatters: list[Task]
    copies: list[Task]
    units: int


def shared_once(run: TrainingRun, stage: int, parameters: RankParameters) -> SharedOnce:
    """Return what a stage of so many parameters gathers and scatters once, layer by layer and its root."""
    units = [(run.layer_parameters(kind), count) for kind, count in run.stage_kinds(stage).items()]
    layers = sum(held.dense * count for held, count in units)
    frozen = parameters.frozen_dense - sum(held.frozen_dense * count for held, count in units)
    if parameters.dense > layers or frozen:
        units.append((RankParameters(parameters.dense - layers, 0, frozen), 1))
    gathers: list[Task] = []
    scatters: list[Task] = []
    copies: list[Task] = []
    for held, count in units:
        gathers += scaled(gather_tasks(run, held), count)
        scatters += scaled(scatter_tasks(run, held), count)
        copies += scaled(weight_copies(run, held) + gradient_copies(run, held), count)
    return SharedOnce(gathers, scatters, copies, sum(count for _, count in units))
