"""Liger Kernel's fused linear cross entropy, in chunks of tokens, and torch's, compiled or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.costs.operator import Direction
from predictor.core.plan.loading import prepare
from predictor.core.step.memory import GIB, step_memory
from predictor.core.transforms.lora import Lora
from predictor.core.workload.edges import edge_block
from predictor.core.workload.losses import HEAD_GRADIENT, head_bytes, head_tasks, tokens_per_chunk
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.switches import Loss
from predictor.core.workload.tasks import BACKWARD, FORWARD, Task
from predictor.core.workload.transformer_step import transformer_step
from predictor.layout_search.lines import plans
from predictor.layout_search.question import SearchQuestion, search_problem
from tests.unit.core.costs.test_transfer import opened
from tests.unit.core.workload.test_memory_frameworks import FSDP

H100 = opened("H100")


def run_with(loss: Loss, tokens: int = 8192) -> TrainingRun:
    return replace(FSDP, zero_stage=0, model=replace(FSDP.model, loss=loss, sequence_length=tokens))


FUSED, PLAIN = run_with(Loss.FUSED_LINEAR), run_with(Loss.TORCH)


def both_passes(run: TrainingRun) -> list[Task]:
    return [task for direction in Direction for task in head_tasks(run, direction)]


def head_ms(run: TrainingRun) -> float:
    return sum(H100.cost(task.operator, task.direction, task.shape).us * task.times for task in both_passes(run)) / 1e3


@pytest.mark.parametrize("tokens", [512, 3000, 8192, 131072])
def test_chunks_multiply_as_much_as_the_whole(tokens: int) -> None:
    def flops(loss: Loss) -> float:
        tasks = both_passes(run_with(loss, tokens))
        return sum(task.operator.work(task.shape, task.direction, 132).flops * task.times for task in tasks)

    call = PLAIN.call()
    assert flops(Loss.FUSED_LINEAR) == pytest.approx(flops(Loss.TORCH), rel=1e-12)
    assert flops(Loss.TORCH) == pytest.approx(6 * tokens * call.hidden_size * call.vocab_per_rank)


@pytest.mark.parametrize(("tokens", "chunk"), [(4096, 128), (8192, 256), (8448, 512), (100, 4), (1, 1)])
def test_chunks_have_a_power_of_two_of_tokens(tokens: int, chunk: int) -> None:
    assert tokens_per_chunk(run_with(Loss.FUSED_LINEAR, tokens).call()) == chunk


def test_one_chunk_is_all_tokens_of_a_small_vocabulary() -> None:
    narrow = replace(FUSED, model=replace(FUSED.model, vocab_size=4096, sequence_length=3000))
    assert tokens_per_chunk(narrow.call()) == 3000


@pytest.mark.parametrize("compiled", [False, True])
def test_the_whole_logits_never_exist(compiled: bool) -> None:
    call = FUSED.call()
    kept, deferred, gradients = head_bytes(replace(FUSED, compiled=compiled))
    plain = head_bytes(PLAIN).kept
    logits = call.tokens * call.vocab_per_rank
    chunk, weight = 256 * call.vocab_per_rank * 2, call.hidden_size * call.vocab_per_rank * 2
    hidden = call.tokens * call.hidden_size * 2
    assert plain - kept == (2 + 4) * logits - (chunk + weight + hidden)
    assert kept < plain / 4
    assert deferred == gradients == 0.0


def test_torch_s_loss_has_two_gradients_in_fp32_unless_it_is_compiled() -> None:
    logits = PLAIN.call().tokens * PLAIN.call().vocab_per_rank
    eager = run_with(Loss.TORCH_EAGER)
    for run in (PLAIN, eager, replace(eager, compiled=True)):
        assert head_bytes(run).gradients == 2 * 4 * logits
    assert head_bytes(replace(PLAIN, compiled=True)).gradients == 0.0
    assert head_bytes(run_with(Loss.VOCABULARY_PARALLEL)).gradients == 0.0


@pytest.mark.parametrize(
    ("num_gpus", "micro_batch", "compiled", "reserved_gib"),
    [(8, 1, True, 47.65), (8, 2, True, 77.0), (128, 2, True, 62.0), (8, 2, False, 82.4), (128, 2, False, 67.0)],
)
def test_torchtitan_with_an_eager_loss_reserves_what_it_logged(
    num_gpus: int, micro_batch: int, compiled: bool, reserved_gib: float
) -> None:
    """Source: torchtitan benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3; torchao docs, training.md."""
    content = {
        "system": "H100",
        "model": {"preset": "llama3-8b", "loss": "torch_eager"},
        "parallelism": {"data_parallel_size": num_gpus},
        "training": {
            "framework": "torchtitan",
            "compiled": compiled,
            "micro_batch_size": micro_batch,
            "num_micro_batches": 1,
            "recompute": "per_op",
        },
    }
    (stage,) = step_memory(transformer_step(prepare(content, Path()).run))
    assert stage.reserved / GIB == pytest.approx(reserved_gib, rel=0.08)


def test_a_loss_alone_is_not_compiled() -> None:
    run = replace(run_with(Loss.TORCH_EAGER), compiled=True)
    assert not run.has_fused_loss
    assert head_tasks(run, FORWARD) == head_tasks(replace(PLAIN, compiled=False), FORWARD)


def test_the_forward_pass_makes_the_gradients_and_the_backward_pass_scales_them() -> None:
    forward, backward = head_tasks(FUSED, FORWARD), head_tasks(FUSED, BACKWARD)
    products = [(task.direction, task.times) for task in forward if task.name == "lm_head"]
    assert products == [(FORWARD, 32.0), (BACKWARD, 32.0)]
    assert {task.name for task in backward} == {"hidden_gradient", HEAD_GRADIENT}
    by_name = {task.name: task for task in (*backward, *forward)}
    scaled = sum(task.times * task.shape[0] for task in backward if task.name == HEAD_GRADIENT)
    zeroed_and_read = by_name[HEAD_GRADIENT].times * by_name[HEAD_GRADIENT].shape[0]
    assert zeroed_and_read / scaled == pytest.approx(33 / 2)


def test_a_frozen_projection_has_no_gradient_of_its_weight() -> None:
    frozen = replace(FUSED, lora=Lora(16))
    forward = edge_block(frozen, is_first=False, is_last=True).forward.tasks
    assert HEAD_GRADIENT not in {task.name for task in forward}
    assert HEAD_GRADIENT in {task.name for task in edge_block(FUSED, is_first=False, is_last=True).forward.tasks}
    flops = {
        task.direction: task.operator.work(task.shape, task.direction, 132).flops * task.times
        for task in forward
        if task.name == "lm_head"
    }
    assert flops[FORWARD] == pytest.approx(flops[BACKWARD])
    trained = replace(frozen, lora=Lora(16, train_embeddings=True))
    weight = FUSED.call().hidden_size * FUSED.call().vocab_per_rank * 2
    assert head_bytes(trained).kept - head_bytes(frozen).kept == weight


def test_a_bias_has_its_gradient_where_the_logits_have_theirs() -> None:
    def passes(loss: Loss) -> list[bool]:
        run = replace(FUSED, model=replace(FUSED.model, loss=loss, lm_head_bias=True))
        return ["lm_head_bias" in {task.name for task in head_tasks(run, direction)} for direction in Direction]

    assert passes(Loss.FUSED_LINEAR) == [True, False]
    assert passes(Loss.TORCH) == [False, True]


# linkedin/Liger-Kernel@61594612, benchmark/fused_linear_cross_entropy_speed/nvidia_h100_80gb_hbm3: both passes over
# Llama 3's vocabulary, in a release that copied logits to fp32 and back, which later ones leave out.
@pytest.mark.parametrize(("tokens", "measured_ms"), [(8192, 81.9), (32768, 209.7)])
def test_chunks_take_most_of_what_a_release_with_copies_of_logits_took(tokens: int, measured_ms: float) -> None:
    assert 0.65 < head_ms(run_with(Loss.FUSED_LINEAR, tokens)) / measured_ms < 1.0


def test_many_small_products_are_slower_and_long_batches_win() -> None:
    def ratio(tokens: int) -> float:
        return head_ms(run_with(Loss.FUSED_LINEAR, tokens)) / head_ms(run_with(Loss.TORCH, tokens))

    assert 2.0 > ratio(4096) > ratio(8192) > 1.0 > ratio(32768) > 0.6


def test_tensor_parallel_ranks_cannot_split_it() -> None:
    content = {
        "system": "H100",
        "model": {"preset": "llama3-8b", "loss": "fused_linear"},
        "parallelism": {"tensor_parallel_size": 2},
        "training": {"micro_batch_size": 1, "num_micro_batches": 1},
    }
    wanted = "tensor_parallel_size is 2 with model.loss fused_linear, .*; use 1 or loss: vocabulary_parallel"
    with pytest.raises(ConfigError, match=wanted):
        prepare(content, Path.cwd())


@pytest.mark.parametrize("framework", [None, "megatron", "torchtitan", "deepspeed"])
def test_search_keeps_it_on_whole_heads(framework: str | None) -> None:
    question = SearchQuestion(
        "llama3-8b", 4, "H100", global_batch_size=8, framework=framework, changes=("model.loss=fused_linear",)
    )
    space = search_problem(question).space
    runs = [space.run(plan) for plan in plans(space)]
    assert {run.layout.tensor_parallel_size for run in runs} == {1}
    assert {run.model.loss for run in runs} == {Loss.FUSED_LINEAR}
