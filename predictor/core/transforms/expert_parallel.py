"""Expert parallelism: tokens travel to their experts' ranks and back."""

from __future__ import annotations

from predictor.core.costs.layer_call import LayerCall
from predictor.core.rows import Behind, Kind, Module, Pass, Row
from predictor.core.workload.architecture import MixtureOfExperts
from predictor.core.workload.expert_exchange import ExpertDispatcher, exchange_tasks
from predictor.core.workload.layout import Layout
from predictor.core.workload.tasks import TRAFFIC


def with_exchange(
    rows: list[Row],
    experts: MixtureOfExperts,
    call: LayerCall,
    layout: Layout,
    dispatcher: ExpertDispatcher,
    alone: float,
) -> list[Row]:
    """Return a layer's rows with the exchange of tokens, in turn or beside its kernels.

    Overlapped, a micro-batch's forward pass runs beside the backward pass of an earlier one, and the traffic of either
    beside the products of the other. The first forward and the last backward passes of a rank have nothing beside them,
    as many as warm its pipeline up. Source: Megatron-LM core/pipeline_parallel/combined_1f1b.py.

    Args:
        rows: of the layer, as they run: compiled, in chunks.
        experts: of the model.
        call: sizes of the layer.
        layout: of the ranks.
        dispatcher: that moves the tokens.
        alone: share of the micro-batches whose traffic has nothing beside it; 1: it is not overlapped.
    """
    tasks = exchange_tasks(experts, call, layout, dispatcher)
    computing = Behind(tuple(row for row in rows if row.part not in TRAFFIC), slows=True)
    added = []
    for share, behind in ((alone, None), (1.0 - alone, computing)):
        for task in tasks if share > 0.0 else ():
            one = Pass(task.direction, task.shape, task.times * share, task.launches * share)
            added.append(
                Row(task.name, Module.DISPATCH, Kind.TRAFFIC, task.operator, one, one, task.part, behind=behind)
            )
    return added + rows  # the exchange begins before sums over tensor-parallel ranks
