"""PEFT's adapters beside a base in 16 bits: casts and dropout of their input, counted from its code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import prepare
from predictor.core.rows import Role
from predictor.core.step.memory import step_memory
from predictor.core.step.prediction import Prediction, predict
from predictor.core.transforms.few_bits import QuantizedBase
from predictor.core.transforms.lora import Lora, LoraTarget
from predictor.core.workload.transformer import LayerKind
from tests.layers import backward_pass, forward_pass, kept_of
from tests.unit.core.workload.test_token_mixers import MODEL, run_of

NAME = "lora_input"
QUERIES = (LoraTarget.Q, LoraTarget.V)


def input_bytes(lora: Lora, backward: bool = False) -> float:
    """Return what the kernels around an adapter's input read and write per input element and adapter."""
    run = run_of(MODEL, lora=lora)
    tasks = (backward_pass if backward else forward_pass)(run, LayerKind()).tasks
    call = run.call()
    streamed = sum(
        3 * call.element_bytes * task.shape[0] * task.shape[1] * task.times for task in tasks if task.name == NAME
    )
    return streamed / (call.tokens * call.hidden_size * len(lora.targets))


@pytest.mark.parametrize("backward", [False, True])
def test_kernels_around_an_adapters_input_are_those_of_its_code(backward: bool) -> None:
    # x.to(float32): 2 + 4; dropout in fp32: 4 + 4 and a mask of 1; autocast narrows for the product: 4 + 2.
    assert input_bytes(Lora(8, QUERIES), backward) == 0.0
    assert input_bytes(Lora(8, QUERIES, dropout=0.1), backward) == pytest.approx(2 + 2 + 1)
    assert input_bytes(Lora(8, QUERIES, fp32=True), backward) == pytest.approx((2 + 4) + (4 + 2))
    assert input_bytes(Lora(8, QUERIES, dropout=0.05, fp32=True), backward) == pytest.approx(6 + 9 + 6)


def test_every_adapter_keeps_a_copy_and_a_mask_of_its_own() -> None:
    none, some = (run_of(MODEL, lora=Lora(8, QUERIES, dropout=drop, fp32=True)) for drop in (0.0, 0.1))
    call = none.call()
    masks = kept_of(some, LayerKind()).of(Role.ADAPTER) - kept_of(none, LayerKind()).of(Role.ADAPTER)
    assert masks == 2 * call.tokens * call.hidden_size


def test_an_fp32_base_needs_no_casts() -> None:
    run = run_of(MODEL, lora=Lora(8, QUERIES, fp32=True), precision="fp32")
    assert NAME not in {task.name for task in forward_pass(run, LayerKind()).tasks}


def predicted(framework: str, zero_stage: int | None = None, **lora: Any) -> Prediction:
    """Return a prediction of Llama 3 8B with adapters in attention, as fms-acceleration's benchmarks run it."""
    parallelism = {} if zero_stage is None else {"zero_stage": zero_stage, "data_parallel_size": 2}
    targets = ["q", "k", "v", "attention_output"]
    content: dict[str, Any] = {
        "system": "A100_SXM",
        "model": {"preset": "llama3-8b", "sequence_length": 4096, "normalization": "fused_rms_norm", "loss": "fused"},
        "parallelism": parallelism,
        "training": {
            "micro_batch_size": 4,
            "num_micro_batches": 1,
            "recompute": "full",
            "framework": framework,
            "attention_kernel": "flash_2",
            "lora": {"rank": 16, "targets": targets, **lora},
        },
    }
    content["model"]["fused_rope"] = True
    loaded = prepare(content, Path.cwd())
    return predict(loaded.run, loaded.system)


def test_casts_and_dropout_are_a_twelfth_of_a_step() -> None:
    found, bare = predicted("transformers", dropout=0.1), predicted("transformers", fp32=False)
    assert found.run.lora is not None
    assert found.run.lora.fp32
    # 21 bytes of 4 inputs of 4,096 wide, in 3 passes of 32 layers, over 16,384 tokens at 85 % of 2,039 GB/s.
    expected = 21 * 4 * 4096 * 3 * 32 * 16384 / (0.85 * 2039e9)
    assert (found.modelled_us - bare.modelled_us) / 1e6 == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("framework", "zero_stage", "fp32"),
    [
        ("transformers", None, True),
        ("trl", 3, True),
        ("transformers", 2, False),  # DeepSpeed's engine narrows adapters too
        ("deepspeed", 2, False),
        ("megatron-bridge", None, False),
        ("litgpt", 3, False),
    ],
)
def test_the_framework_decides_the_precision_of_adapters(framework: str, zero_stage: int | None, fp32: bool) -> None:
    run = predicted(framework, zero_stage).run
    assert run.lora is not None
    assert run.lora.fp32 is fp32
    said = predicted(framework, zero_stage, fp32=not fp32).run
    assert said.lora is not None
    assert said.lora.fp32 is not fp32


def test_weights_that_do_not_train_stay_in_16_bits() -> None:
    # Accelerate widens the parameters that require gradients alone (accelerator.py, prepare_model).
    assert not predicted("transformers", 3).run.fp32_parameters


def test_a_dropout_of_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.lora\.dropout is 1"):
        predicted("transformers", dropout=1.0)


def test_weights_in_four_bits_are_widened_in_every_pass() -> None:
    of_16_bits, of_4 = (run_of(MODEL, lora=Lora(8, QUERIES, quantized_base=base)) for base in (None, QuantizedBase.NF4))
    call, weights = of_4.call(), of_16_bits.layer_parameters(LayerKind()).frozen_dense - 2 * MODEL.hidden_size
    for run_pass in (forward_pass, backward_pass):
        tasks = [task for task in run_pass(of_4, LayerKind()).tasks if task.name == "dequantization"]
        streamed = sum(3 * call.element_bytes * task.shape[0] * task.shape[1] * task.times for task in tasks)
        assert streamed == pytest.approx(weights * (0.5 + 4 / 64 + 2))
    assert of_4.layer_parameters(LayerKind()) == of_16_bits.layer_parameters(LayerKind())._replace(narrow_dense=weights)


def test_a_base_in_four_bits_fits_where_16_do_not() -> None:
    whole, narrow = (
        step_memory(predicted("transformers", dropout=0.1, quantized_base=base).tasks)[0].weights / 2**30
        for base in (False, True)
    )
    linear = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    assert whole - narrow == pytest.approx(linear * (2 - 0.5625) / 2**30, rel=1e-6)
    faster, slower = (predicted("transformers", quantized_base=base).step.us for base in (False, True))
    assert faster < slower < 1.02 * faster


LINEAR = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336  # of a layer of Llama 3 8B


def gathered_bytes(prediction: Prediction) -> float:
    """Return the bytes of a rank's share that a layer gathers before its forward pass."""
    block = prediction.tasks.stages[0].chunks[0].blocks[1][0]
    return sum(task.shape[0] for task in block.forward.calls() if task.name == "all_gather")


@pytest.mark.parametrize(("base", "scale"), [("nf4", 4 / 64), ("nf4_double", (1 + 4 / 256) / 64)])
def test_ranks_share_out_a_base_in_four_bits_but_not_its_scales(base: str, scale: float) -> None:
    """FSDP shards packed parameters; bitsandbytes keeps their scales beside them, on every rank."""
    wide, narrow = (predicted("transformers", 3, quantized_base=each) for each in (None, base))
    assert gathered_bytes(wide) - gathered_bytes(narrow) == pytest.approx((2 - 0.5) * LINEAR / 2)
    saved = step_memory(wide.tasks)[0].weights - step_memory(narrow.tasks)[0].weights
    assert saved == pytest.approx(32 * LINEAR * ((2 - 0.5) / 2 - scale))
    alone = step_memory(predicted("transformers", quantized_base=base).tasks)[0].weights
    assert step_memory(narrow.tasks)[0].weights < 0.7 * alone


def test_a_base_in_eight_bits_is_not_shared_out() -> None:
    with pytest.raises(ConfigError, match=r"zero_stage is 3 with training\.lora\.quantized_base int8"):
        predicted("transformers", 3, quantized_base="int8")


def test_products_of_eight_bits_narrow_their_input_and_scale_their_sums() -> None:
    """LLM.int8, by hand: 3 bytes an input, 8 an output; backward 7 a weight."""
    run = run_of(MODEL, lora=Lora(8, QUERIES, quantized_base=QuantizedBase.INT8))
    call, hidden, ffn = run.call(), MODEL.hidden_size, MODEL.ffn_hidden_size
    ends = [(hidden, 3 * hidden), (hidden, hidden), (hidden, 2 * ffn), (ffn, hidden)]
    expected = {
        forward_pass: sum(call.tokens * (3 * width + 8 * out) for width, out in ends),
        backward_pass: sum(7 * width * out for width, out in ends),
    }
    for run_pass, size_bytes in expected.items():
        tasks = [task for task in run_pass(run, LayerKind()).tasks if task.name == "dequantization"]
        streamed = sum(3 * call.element_bytes * task.shape[0] * task.shape[1] * task.times for task in tasks)
        assert streamed == pytest.approx(size_bytes)


def test_a_base_in_eight_bits_takes_a_byte_a_weight_and_more_time() -> None:
    steps = [predicted("transformers", quantized_base=base) for base in (False, "nf4", "int8")]
    weights = [step_memory(step.tasks)[0].weights / 2**30 for step in steps]
    linear = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    assert weights[0] - weights[2] == pytest.approx(linear / 2**30, rel=1e-6)
    assert steps[0].step.us < steps[1].step.us < steps[2].step.us < 1.6 * steps[0].step.us
