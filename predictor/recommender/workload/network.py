"""The dense network of a recommender as tasks: its bottom, which needs no embedding, and all above."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from predictor.core.workload.tasks import Task
from predictor.recommender.workload.dense_tasks import LayerCall, LayerTasks, gradient_sum, layer_tasks
from predictor.recommender.workload.run import RecommenderRun


class Network(NamedTuple):
    """All dense layers of one rank.

    Attributes:
        before: tasks of layers that need no embedding: the bottom network.
        after: of all others.
    """

    before: LayerTasks
    after: LayerTasks


def network_tasks(run: RecommenderRun) -> Network:
    """Return the dense network's tasks on one rank, in the order of the configuration; backward in the reverse.

    The gradients of a tensor that several layers read are added up.
    """
    model, samples = run.model, run.batch_per_gpu
    readers = Counter(name for layer in model.layers for name in layer.inputs)
    follows = {embedding.output for embedding in model.embeddings}
    needs = set(follows)

    def sums_of(names: Iterable[str]) -> list[Task]:
        shared = [name for name in names if readers[name] > 1]
        return [gradient_sum(samples, model.shapes[name], readers[name] - 1) for name in shared]

    before, after = LayerTasks([], []), LayerTasks([], [])
    for layer in model.layers:
        call = LayerCall(
            run,
            samples,
            tuple(model.inputs_of(layer)),
            tuple(model.shapes[name] for name in layer.outputs),
            any(name in needs for name in layer.inputs),
        )
        tasks = layer_tasks(layer, call)
        behind = any(name in follows for name in layer.inputs)
        half = after if behind else before
        half.forward.extend(tasks.forward)
        half.backward[:0] = tasks.backward
        if behind:
            follows.update(layer.outputs)
        if call.needs_gradient or layer.weights(call.inputs):
            needs.update(layer.outputs)
            half.backward[:0] = sums_of(layer.outputs)
    after.backward.extend(sums_of(embedding.output for embedding in model.embeddings))
    return Network(before, after)
