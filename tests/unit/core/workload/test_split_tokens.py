"""Copies around collectives of split tokens, as DTensor of torchtitan makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.plan.loading import prepare
from predictor.core.step.prediction import Prediction, predict
from predictor.core.workload.tasks import PassTasks

COPIES = ("gather_copies", "scatter_copies")


def predicted(batch: int = 2, framework: str = "torchtitan", **training: Any) -> Prediction:
    """Return a prediction of Llama 3 8B on eight tensor-parallel H100s, tokens split where a layer is not."""
    parallelism = {"tensor_parallel_size": 8, "sequence_parallel": True}
    asynchronous = training.pop("asynchronous", False)
    content: dict[str, Any] = {
        "system": "H100",
        "model": {"preset": "llama3-8b", "sequence_length": 4096},
        "parallelism": {**parallelism, "overlap_linear_traffic": asynchronous},
        "training": {"micro_batch_size": batch, "num_micro_batches": 1, "framework": framework, **training},
    }
    loaded = prepare(content, Path.cwd())
    return predict(loaded.run, loaded.system)


def whole_activations(found: Prediction, layer_pass: PassTasks) -> dict[str, float]:
    """Return how many activations of all ranks' tokens are copied in a layer's pass, by kernel."""
    call = found.run.call()
    activation = call.tokens * call.hidden_size * call.element_bytes
    counts = dict.fromkeys(COPIES, 0.0)
    for task in layer_pass.tasks:
        if task.name in COPIES:
            counts[task.name] += task.times * 3 * task.shape[0] * task.shape[1] * call.element_bytes / (2 * activation)
    return counts


def test_every_gather_and_scatter_is_copied() -> None:
    found = predicted()
    layer = found.tasks.stages[0].chunks[0].blocks[1][0]
    # A gather before each branch and a scatter behind it; backward both in turn, and gathers again for the weights.
    forward, backward = (whole_activations(found, each) for each in (layer.forward, layer.backward))
    assert forward == pytest.approx({"gather_copies": 2.0, "scatter_copies": 2.0})
    assert backward == pytest.approx({"gather_copies": 4.0, "scatter_copies": 2.0})


def test_casts_read_gathered_operands_as_they_come() -> None:
    found = predicted(gemm_recipe="fp8_rowwise")
    layer = found.tasks.stages[0].chunks[0].blocks[1][0]
    assert whole_activations(found, layer.forward) == pytest.approx({"gather_copies": 0.0, "scatter_copies": 2.0})


def test_recomputed_gathers_are_copied_again() -> None:
    found = predicted(recompute="per_op")
    again = found.tasks.stages[0].chunks[0].blocks[1][0].recompute
    assert whole_activations(found, again) == pytest.approx({"gather_copies": 2.0, "scatter_copies": 0.0})


@pytest.mark.parametrize(
    ("batch", "framework", "asynchronous"),
    [(1, "torchtitan", False), (2, "torchtitan", True), (2, "megatron-lm", False)],
)
def test_batches_of_one_and_other_libraries_copy_nothing(batch: int, framework: str, asynchronous: bool) -> None:
    found = predicted(batch, framework, asynchronous=asynchronous)
    for layer_pass in (found.tasks.stages[0].chunks[0].blocks[1][0].forward,):
        assert not any(whole_activations(found, layer_pass).values())
