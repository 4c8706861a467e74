"""Which steps are recorded, what is refused, and what a comparison says of a record; without torch."""

from __future__ import annotations

import doctest
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from microbench import cli
from microbench.errors import MeasureError, TableError
from microbench.rows import Status
from microbench.steps import compare, kernels
from microbench.steps.configuration import CONFIGS, read_step, read_steps
from microbench.steps.record import write_record
from predictor.core.plan.loading import load
from predictor.core.step.memory import GIB, step_memory
from predictor.core.step.prediction import predict
from tests.unit.recorded_steps import GPT, content, measured, predicted_us, record_of, written


def test_every_model_meets_both_token_counts_and_both_accumulations() -> None:
    runs = {config.name: config.run for config in read_steps(CONFIGS)}
    assert len(runs) == 8
    models = Counter(name.rpartition("-")[0] for name in runs)
    assert models == {"gpt-125m": 2, "gpt-350m": 2, "gpt-1.3b": 2, "llama-1b": 2}
    for model in models:
        pair = [runs[f"{model}-2k"], runs[f"{model}-8k"]]
        assert [run.call().tokens for run in pair] == [2048, 8192]
        assert sorted(run.num_micro_batches for run in pair) == [1, 4]
    both = Counter((run.call().tokens, run.num_micro_batches) for run in runs.values())
    assert set(both.values()) == {2}
    assert {run.model.sequence_length for run in runs.values()} == {2048, 8192}
    assert {run.precision for run in runs.values()} == {"bf16"}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_predictor_reads_the_same_file_as_it_is(path: Path) -> None:
    run, system = load(path)
    ours = read_step(path).run
    assert replace(ours, layout=run.layout) == run
    assert run.layout.num_gpus == 1
    prediction = predict(run, system)
    assert prediction.step.us > 0
    # 80 GB hold it, the smaller of the GPUs that it is meant for.
    assert step_memory(prediction.tasks)[0].total < 79 * GIB


@pytest.mark.parametrize(
    ("section", "changes", "named"),
    [
        ("model", {"moe": {"num_experts": 4, "experts_per_token": 2, "expert_ffn_hidden_size": 64}}, "moe"),
        ("model", {"sliding_window": 8}, "sliding_window"),
        ("model", {"attention": "unfused"}, "attention unfused"),
        ("model", {"causal": False}, "causal"),
        ("model", {"rotary_fraction": 0.5}, "rotary_fraction 0.5"),
        ("model", {"activation": "geglu"}, "activation geglu"),
        ("model", {"hidden_dropout": 0.1}, "hidden_dropout"),
        ("model", {"attention_dropout": 0.1}, "attention_dropout"),
        ("model", {"qk_norm": True}, "qk_norm"),
        ("model", {"post_norms": True}, "post_norms"),
        ("model", {"parallel_residual": True}, "parallel_residual"),
        ("model", {"fused_side_kernels": True}, "fused_side_kernels"),
        ("model", {"fused_rope": True}, "fused_rope"),
        ("model", {"layer_operators": ["rms_norm", "gelu"]}, "layer_operators"),
        ("parallelism", {"tensor_parallel_size": 2}, "more than one GPU"),
        ("parallelism", {"data_parallel_size": 2, "gpus_per_node": 2}, "more than one GPU"),
        ("parallelism", {"zero_stage": 1}, "zero_stage 1"),
        ("parallelism", {"fp32_gradients": False}, "fp32_gradients"),
        ("training", {"precision": "fp16"}, "precision fp16"),
        ("training", {"recompute": "full"}, "recompute full"),
        ("training", {"synchronize_each_layer": True}, "synchronize_each_layer"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    tmp_path: Path, section: str, changes: dict[str, Any], named: str
) -> None:
    value = content({})
    written(tmp_path, "x", value)  # without the change it is accepted
    value[section] = value[section] | changes
    with pytest.raises(MeasureError, match=named):
        written(tmp_path, "x", value)


def test_a_step_that_names_no_framework_is_not_plain_pytorch(tmp_path: Path) -> None:
    value = content(GPT)
    del value["training"]["framework"]
    with pytest.raises(MeasureError, match=r"fused_side_kernels.*so say training\.framework: pytorch"):
        written(tmp_path, "x", value)


def test_names_and_files_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MeasureError, match="no configuration"):
        read_steps(tmp_path)
    written(tmp_path, "gpt", content(GPT))
    with pytest.raises(MeasureError, match=r"Did you mean gpt\?"):
        read_steps(tmp_path, ["gtp"])
    (tmp_path / "short.yaml").write_text("training_config: [1]\n")
    with pytest.raises(MeasureError, match="full form"):
        read_steps(tmp_path)
    assert cli.main(["steps", "--out", str(tmp_path), "--configs", str(tmp_path), "--minutes", "0"]) == 2
    assert "--minutes" in capsys.readouterr().err


def test_the_hash_is_of_the_step_and_not_of_the_system(tmp_path: Path) -> None:
    value = content(GPT)
    first = written(tmp_path, "a", value)
    assert written(tmp_path, "b", value | {"system": "Vista"}).hash == first.hash
    value["training"] = value["training"] | {"num_micro_batches": 3}
    assert written(tmp_path, "c", value).hash != first.hash


@pytest.mark.parametrize(("factor", "inside"), [(1.0, True), (10.0, False)])
def test_a_comparison_says_what_the_prediction_missed_by(tmp_path: Path, factor: float, inside: bool) -> None:
    config = read_step(CONFIGS / "llama-1b-8k.yaml")
    expected = predicted_us(CONFIGS / "llama-1b-8k.yaml")
    write_record(tmp_path, record_of(config, measured(expected * factor)))
    other = read_step(CONFIGS / "gpt-125m-2k.yaml")
    write_record(tmp_path, record_of(other, None, Status.OUT_OF_MEMORY, "no room"))
    (row,), (unmeasured,) = compare.compare_steps(tmp_path, "H200")
    assert row.error == pytest.approx(1.0 / factor - 1.0)
    assert row.is_inside is inside
    assert row.wall_us == pytest.approx(row.step_us * 1.02)
    told = row.predicted
    assert told is not None
    parts = [told.forward, told.backward, told.optimizer]
    assert sum(part.predicted_us for part in parts) == pytest.approx(told.step_us)
    assert [part.measured_us for part in parts] == pytest.approx([row.step_us * share for share in (0.3, 0.6, 0.1)])
    assert told.memory is not None
    assert told.memory.allocated_gib == 10.0
    assert told.memory.predicted_tensors_gib < told.memory.predicted_total_gib
    text = compare.render([row], [unmeasured])
    assert f"{1.0 / factor - 1.0:+.1%}" in text
    assert "gpt-125m-2k: out_of_memory: no room" in text


def test_a_comparison_needs_records_and_a_system(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no recorded step"):
        compare.compare_steps(tmp_path, "H200")
    with pytest.raises(MeasureError, match="not a published system"):
        compare.compare_steps(tmp_path, "H2000")
    path = write_record(tmp_path, record_of(read_step(CONFIGS / "gpt-125m-2k.yaml"), measured(1.0)))
    path.write_text(path.read_text().replace("step/1", "step/9"))
    with pytest.raises(TableError, match="format"):
        compare.compare_steps(tmp_path, "H200")


def test_kernels_are_added_up_by_what_they_are_for() -> None:
    assert doctest.testmod(kernels).failed == 0
    launches = [
        kernels.Launch("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNN", 50.0),
        kernels.Launch("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNN", 40.0),
        kernels.Launch("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, cutlass::half_t>>", 30.0),
        kernels.Launch("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16>", 5.0),
        kernels.Launch("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(...)>", 4.0),
        kernels.Launch("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", 3.0),
        kernels.Launch("void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>", 2.0),
        kernels.Launch("void something_new()", 1.0),
    ]
    found = kernels.summarise(launches)
    assert found is not None
    assert (found.count, found.time_us) == (8, 135.0)
    assert {one.name: (one.count, one.time_us) for one in found.by_category} == {
        "matrix products": (2, 90.0),
        "attention": (1, 30.0),
        "norms": (1, 5.0),
        "copies": (1, 4.0),
        "element-wise": (1, 3.0),
        "optimizer": (1, 2.0),
        "other": (1, 1.0),
    }
    assert found.longest[0].count == 2
    assert kernels.summarise([]) is None
