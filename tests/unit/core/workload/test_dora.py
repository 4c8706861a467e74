"""DoRA as PEFT runs it: norms of the adapted matrix in every forward pass, magnitudes, a second base product."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.costs.operator import Direction
from predictor.core.plan.loading import prepare
from predictor.core.rows import Role
from predictor.core.transforms.few_bits import QuantizedBase
from predictor.core.transforms.lora import Lora, LoraTarget
from predictor.core.workload.tasks import PassTasks
from predictor.core.workload.transformer import LayerKind
from tests.layers import backward_pass, forward_pass, kept_of
from tests.unit.core.workload.test_token_mixers import MODEL, run_of

OUTPUT = (LoraTarget.ATTENTION_OUTPUT,)  # a square matrix
PLAIN, DORA = Lora(8, OUTPUT), Lora(8, OUTPUT, dora=True)
RUN = run_of(MODEL, lora=PLAIN)
CALL, HIDDEN = RUN.call(), MODEL.hidden_size
TOKENS = CALL.tokens
ELEMENT = CALL.element_bytes


def streamed(step_pass: PassTasks, name: str) -> float:
    """Return the bytes of so-named element-wise kernels."""
    tasks = [task for task in step_pass.tasks if task.name == name]
    return sum(3 * ELEMENT * task.shape[0] * task.shape[1] * task.times for task in tasks)


def test_norms_come_from_the_adapter_on_an_identity() -> None:
    run = run_of(MODEL, lora=DORA)
    forward = {task.name: task for task in forward_pass(run, LayerKind()).tasks}
    assert forward["dora_down"].shape == (HIDDEN, HIDDEN, 8)
    assert forward["dora_up"].shape == (HIDDEN, 8, HIDDEN)
    # torch.eye writes 4 bytes; BA × scale 2 + 2, W + that 2 + 2 + 2, the norm reads 2.
    expected = HIDDEN**2 * (4 + 12)
    assert streamed(forward_pass(run, LayerKind()), "dora_norms") == pytest.approx(expected)
    assert not {task.name for task in backward_pass(run, LayerKind()).tasks} & {"dora_down", "dora_up", "dora_norms"}


@pytest.mark.parametrize(
    ("fp32", "forward", "backward"),
    [
        # base × (m − 1) 2 + 2, BAx × m 2 + 2, × scale 2 + 2, the sum 2 + 2 + 2, the layer's 2 + 2 + 2
        # back: 4 + 8 of either product, the scale's 4, the layer's 6
        (False, 24, 34),
        # the same in 4 bytes but for what is read in 2, and the cast to 2; back: casts of 6 at both ends of both
        (True, 48, 76),
    ],
)
def test_scaling_by_magnitudes_takes_its_kernels(fp32: bool, forward: int, backward: int) -> None:
    run = run_of(MODEL, lora=replace(DORA, fp32=fp32))
    elements = TOKENS * HIDDEN
    assert streamed(forward_pass(run, LayerKind()), "dora_scaling") == pytest.approx(forward * elements)
    assert streamed(backward_pass(run, LayerKind()), "dora_scaling") == pytest.approx(backward * elements)


def test_magnitudes_train_and_both_products_are_kept() -> None:
    plain, dora = RUN, run_of(MODEL, lora=DORA)
    assert dora.layer_parameters(LayerKind()).dense - plain.layer_parameters(LayerKind()).dense == HIDDEN
    kept = [kept_of(run, LayerKind()).of(Role.ADAPTER) for run in (plain, dora)]
    assert kept[1] - kept[0] == 2 * TOKENS * HIDDEN * ELEMENT


def test_dropout_runs_the_base_a_second_time() -> None:
    alone, dropped = (run_of(MODEL, lora=replace(DORA, dropout=rate)) for rate in (0.0, 0.1))

    def base_flops(step_pass: PassTasks, direction: Direction) -> float:
        found = [task for task in step_pass.tasks if task.name == "dora_base"]
        return sum(task.operator.work(task.shape, direction, 1).flops * task.times for task in found)

    product = 2.0 * TOKENS * HIDDEN**2
    assert base_flops(forward_pass(alone, LayerKind()), Direction.FORWARD) == 0.0
    assert base_flops(forward_pass(dropped, LayerKind()), Direction.FORWARD) == product
    assert base_flops(backward_pass(dropped, LayerKind()), Direction.BACKWARD) == product  # of its input alone
    assert dropped.layer_parameters(LayerKind()) == alone.layer_parameters(LayerKind())


def test_a_base_in_four_bits_is_widened_for_its_norms_and_kept_for_its_second_product() -> None:
    wide, narrow = (run_of(MODEL, lora=replace(DORA, quantized_base=base)) for base in (None, QuantizedBase.NF4))
    more = streamed(forward_pass(narrow, LayerKind()), "dora_norms") - streamed(
        forward_pass(wide, LayerKind()), "dora_norms"
    )
    assert more == pytest.approx(HIDDEN**2 * (0.5 + 4 / 64 + 2))
    kept = [
        kept_of(run_of(MODEL, lora=replace(DORA, dropout=0.1, quantized_base=base)), LayerKind()).of(Role.ADAPTER)
        for base in (None, QuantizedBase.NF4)
    ]
    assert kept[1] - kept[0] == HIDDEN**2 * ELEMENT


def test_tensor_parallel_ranks_have_no_magnitudes() -> None:
    content: dict[str, Any] = {
        "system": "H100",
        "model": {"preset": "llama3-8b"},
        "parallelism": {"tensor_parallel_size": 2},
        "training": {"micro_batch_size": 1, "num_micro_batches": 1, "lora": {"rank": 8, "dora": True}},
    }
    with pytest.raises(ConfigError, match=r"tensor_parallel_size is 2 with training\.lora\.dora"):
        prepare(content, Path.cwd())
