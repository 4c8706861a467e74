"""Muon: products of Newton-Schulz iterations, who runs them, and the states that matrices keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import prepare
from predictor.core.step.memory import step_memory
from predictor.core.step.prediction import Prediction, predict
from predictor.core.workload.muon import Matrices, matrices
from predictor.core.workload.tasks import Task
from predictor.core.workload.transformer_memory import checkpoint_bytes

LAYERS, HIDDEN, KEYS, FFN = 4, 1024, 256, 4096
MODEL: dict[str, Any] = {
    "num_layers": LAYERS,
    "hidden_size": HIDDEN,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "ffn_hidden_size": FFN,
    "activation": "swiglu",
    "sequence_length": 2048,
    "vocab_size": 32000,
}
OF_A_LAYER = 2 * HIDDEN**2 + 2 * KEYS * HIDDEN + 3 * HIDDEN * FFN


def predicted(
    parallelism: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **training: Any
) -> Prediction:
    content: dict[str, Any] = {
        "system": "H100",
        "model": {**MODEL, **(model or {})},
        "parallelism": {"data_parallel_size": 8, "zero_stage": 0, **(parallelism or {})},
        "training": {
            "micro_batch_size": 1,
            "num_micro_batches": 1,
            "precision": "bf16",
            "optimizer": "muon",
            "framework": "pytorch",
            **training,
        },
    }
    loaded = prepare(content, Path.cwd())
    return predict(loaded.run, loaded.system)


def updates(found: Prediction, name: str = "newton_schulz") -> list[Task]:
    return [task for task in found.tasks.stages[0].end.optimizer if task.name == name]


def flops(found: Prediction) -> float:
    return sum(2.0 * m * k * n * task.times for task in updates(found) for m, k, n in [task.shape])


def iterations(rows: int, columns: int) -> float:
    """Return the FLOPs of five iterations: X Xᵀ, its square, and their product with X."""
    return 5 * (2 * rows * columns * rows + 2 * rows**3 + 2 * rows * rows * columns)


EXPECTED = LAYERS * (2 * iterations(HIDDEN, HIDDEN) + 2 * iterations(KEYS, HIDDEN) + 3 * iterations(HIDDEN, FFN))


def test_every_matrix_of_the_layers_is_orthogonalised() -> None:
    found = predicted()
    assert flops(found) == pytest.approx(EXPECTED)
    assert Matrices(HIDDEN, FFN, 1.0, True, False).flops == iterations(HIDDEN, FFN)
    (momentum,) = updates(found, "muon_momentum")
    streamed = 3 * 2 * momentum.shape[0] * momentum.shape[1] * momentum.times
    assert streamed == pytest.approx(54 * LAYERS * OF_A_LAYER)
    (adam,) = updates(found, "optimizer_step")
    assert adam.shape[0] == found.run.stage_parameters(0) - LAYERS * OF_A_LAYER


def test_megatron_splits_queries_from_keys_and_joins_the_gate() -> None:
    found = predicted(framework="megatron-lm")
    joined = LAYERS * (2 * iterations(HIDDEN, HIDDEN) + 2 * iterations(KEYS, HIDDEN) + iterations(HIDDEN, 2 * FFN))
    assert flops(found) == pytest.approx(joined + LAYERS * iterations(HIDDEN, FFN))


def test_matrices_keep_one_moment() -> None:
    adam, muon = (step_memory(predicted(optimizer=each).tasks)[0].optimizer for each in ("adam", "muon"))
    assert adam - muon == 4 * LAYERS * OF_A_LAYER
    shared = [step_memory(predicted({"zero_stage": 1}, optimizer=each).tasks)[0].optimizer for each in ("adam", "muon")]
    assert shared[0] - shared[1] == pytest.approx((adam - muon) / 8)
    said = step_memory(predicted(optimizer_state_bytes=8.0).tasks)[0].optimizer
    assert said == 8 * predicted().run.stage_parameters(0)


@pytest.mark.parametrize("parallelism", [{}, {"zero_stage": 1}, {"tensor_parallel_size": 2}])
def test_a_checkpoint_has_one_moment_of_matrices(parallelism: dict[str, Any]) -> None:
    adam, muon = (checkpoint_bytes(predicted(parallelism, optimizer=each).run) for each in ("adam", "muon"))
    assert adam - muon == 4 * LAYERS * OF_A_LAYER


def test_ranks_share_out_whole_matrices() -> None:
    alone, shared = predicted(), predicted({"zero_stage": 1})
    assert flops(shared) == pytest.approx(EXPECTED / 8)
    many = predicted({"zero_stage": 1, "data_parallel_size": 128})
    assert flops(many) == pytest.approx(iterations(HIDDEN, FFN))  # one of the largest, on the busiest rank
    assert alone.stages[0].optimizer.us > shared.stages[0].optimizer.us > many.stages[0].optimizer.us


def test_shards_gather_and_sum_between_their_products() -> None:
    found = predicted({"zero_stage": 3})
    ends = found.tasks.stages[0].end.optimizer
    squares = LAYERS * 2 * 5  # up and gate hold more rows than columns, and are transposed: 2 of 7 matrices
    summed = [task for task in ends if task.name == "all_reduce"]
    assert [(task.shape[0], task.times) for task in summed] == [(HIDDEN * HIDDEN * 2, LAYERS * 5)] * 2
    assert sum(task.times for task in summed) == squares
    gathers = sum(task.shape[0] * task.times for task in ends if task.name == "all_gather")
    shard = sum(
        count * (2 * rows * columns + rows * rows)
        for count, rows, columns in ((2, HIDDEN, HIDDEN), (2, KEYS, HIDDEN), (1, HIDDEN, FFN))
    )
    assert gathers == pytest.approx(5 * LAYERS * shard * 2 / 8)
    repeated = LAYERS * 2 * 5 * 2 * HIDDEN**3  # the square of what is summed, on every rank
    assert flops(found) == pytest.approx((EXPECTED - repeated) / 8 + repeated)


def test_every_expert_has_matrices_of_its_own() -> None:
    moe = {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 512}
    found = predicted({"expert_parallel_size": 4, "zero_stage": 1}, {"moe": moe})
    routed = [one for one in matrices(found.run, 0) if one.routed]
    assert {(one.rows, one.columns, one.number) for one in routed} == {(512, HIDDEN, 2.0 * LAYERS)}
    assert len(routed) == 3  # gate, up and down


def test_deepspeed_iterates_on_squares() -> None:
    found = predicted({"zero_stage": 1}, framework="deepspeed")
    oblong = 4 * 2 * HIDDEN**2 * FFN + 14 * 2 * HIDDEN**3, 4 * 2 * KEYS**2 * HIDDEN + 14 * 2 * KEYS**3
    assert flops(found) * 8 == pytest.approx(LAYERS * (2 * iterations(HIDDEN, HIDDEN) + 2 * oblong[1] + 3 * oblong[0]))


def test_tensor_parallel_ranks_keep_to_their_part() -> None:
    whole, split = (list(matrices(predicted({"tensor_parallel_size": tp}).run, 0)) for tp in (1, 2))
    assert sum(one.rows * one.columns * one.number for one in split) == LAYERS * OF_A_LAYER / 2
    assert sum(one.rows * one.columns * one.number for one in whole) == LAYERS * OF_A_LAYER


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"lora": {"rank": 8}}, r"optimizer is muon with training\.lora"),
        ({"offload_optimizer": 1.0}, r"optimizer is muon with training\.offload_optimizer"),
        ({"framework": "deepspeed"}, r"DeepSpeed has it with zero_stage 1 to 3, without it runs SGD"),
        (
            {"framework": "deepspeed", "parallelism": {"zero_stage": 3}},
            r"of DeepSpeed it is modelled with zero_stage 1",
        ),
    ],
)
def test_muon_beside_other_methods_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        predicted(**keys)
