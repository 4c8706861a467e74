"""Rows of published steps become configurations that a prediction reads; others are refused with the reason."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from predictor.core.plan.loading import prepare
from predictor.core.step.memory import GIB, step_memory
from predictor.core.step.prediction import predict
from predictor.core.workload.transformer_step import transformer_step
from predictor.evidence.published.converters import CONVERTERS
from predictor.evidence.published.megatron_deepspeed import split_by_deepspeed
from predictor.evidence.published.row import Row, UnexpressedError
from predictor.evidence.published.tables import STEPS, converted, published_tables
from predictor.evidence.verification.measured import MeasuredStep

# A made-up row; families add what tells them apart.
ROW = {
    "id": "made-up-0001",
    "system": "a cluster",
    "gpu": "A100-SXM4-80GB",
    "n_gpus": "16",
    "gpus_per_node": "8",
    "interconnect": "NVLink + 1600 Gb/s RoCE per node",
    "framework": "Megatron-LM",
    "model": "Llama of 2B",
    "layers": "16",
    "hidden": "2048",
    "heads": "16",
    "kv_heads": "8",
    "ffn": "8192",
    "vocab": "32000",
    "seq": "2048",
    "tp": "1",
    "pp": "1",
    "dp": "16",
    "cp": "1",
    "ep": "1",
    "micro_batch": "2",
    "grad_accum": "2",
    "precision": "bf16",
    "zero_fsdp": "FSDP",
    "recompute": "full",
    "attention": "flash",
    "derived_step_time_s": "1.5",
    "stat": "median",
}
ARGUMENTS = {
    "--num-layers": "12",
    "--hidden-size": "512",
    "--num-attention-heads": "8",
    "--seq-length": "1024",
    "--max-position-embeddings": "1024",
    "--micro-batch-size": "4",
    "--global-batch-size": "128",
    "--tensor-model-parallel-size": "2",
    "--merge-file": "merges.txt",
    "--bf16": "true",
    "--deterministic-mode": "true",
}
EXPRESSED = {
    "system": "A100_SXM",
    "model": {"preset": "llama3-8b", "sequence_length": 4096},
    "parallelism": {"data_parallel_size": 16, "zero_stage": 3},
    "training": {"precision": "bf16", "micro_batch_size": 1, "num_micro_batches": 1},
}
OF_FAMILY: dict[str, dict[str, str]] = {
    "gpumodeling25": {"system": "NERSC Perlmutter", "gpus_per_node": "4", "model": "rotary 0.25", "kv_heads": "16"},
    "vtrain_single": {"kv_heads": "16", "precision": "fp16 (not stated in the csv)"},
    "bloom_prequel": {"kv_heads": "not stated", "heads": "not stated", "vocab": "~250k", "ffn": "8192"},
    "mt_nlg": {"kv_heads": "16"},
    "megatron_sc21": {"kv_heads": "16"},
    "korthikanti2022": {"kv_heads": "16", "recompute": "attn_only", "tp": "8", "dp": "2", "seq_parallel": "yes"},
    "internevo": {"zero_fsdp": "ZeRO1 group=8", "interconnect": "NVLink + 4x100 Gb/s RoCE per node"},
    "llmfoundry": {"gpu": "A100-40GB", "precision": "amp_bf16", "zero_fsdp": "FULL_SHARD (DEFAULT)"},
    "fms_fsdp": {"interconnect": "400 Gb/s (as printed)", "recompute": "selective"},
    "torchtitan": {"gpu": "H100-96GB-HBM2e-500W", "precision": "fp8 tensorwise + compile", "recompute": "selective"},
    "torchao": {"gpu": "B200", "precision": "mxfp8", "fp8_recipe": "mxfp8_cublas", "system": "8x B200 (power limited)"},
    "dgxc": {"gpu": "H100-SXM5-80GB", "precision": "fp8", "tp": "2", "dp": "8"},
    "mbridge_pretrain": {"gpu": "GB300", "gpus_per_node": "4", "gpus_per_domain": "72", "precision": "nvfp4"},
    "mlperf51_llama31_8b": {"gpu": "B200", "precision": "fp8", "notes": "FP8_PARAM_GATHER=True"},
    "simumax_b200": {"gpu": "B200", "notes": "grads reduced in fp32", "mem_gib": "40.5"},
    "mcore_ci_small": {"gpu": "H100-SXM5-80GB", "model": "gpt/made_up"},
    "mcore_golden": {"gpu": "H100-SXM5-80GB", "size_class": "tiny", "arguments_json": json.dumps(ARGUMENTS)},
    "fresh_mbridge_cards": {"gpu": "H100", "model": "qwen3-30b-a3b", "task": "pretrain", "grad_accum": ""}
    | {"recipe_ref": "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config", "ep": "16", "tokens_per_s_per_gpu": "43690.67"},
    "fresh_trainer": {"family": "trainer", "kind": "LoRA bf16", "expressed_as": json.dumps(EXPRESSED)},
    "vocabpar_a100": {"model": "GPT ~4B", "schedule": "1F1B with layer redistribution", "pp": "4", "dp": "4"}
    | {"pp_layout": "last stage layers column = 1"},
}


def step_of(group: str, **cells: str) -> MeasuredStep:
    return converted({**ROW, "group": group, **OF_FAMILY[group], **cells})


@pytest.mark.parametrize("group", OF_FAMILY)
def test_a_row_of_every_family_is_a_configuration_that_can_be_read(group: str) -> None:
    step = step_of(group)
    loaded = prepare(step.config, Path.cwd())
    assert loaded.run.layout.num_gpus == step.num_gpus == 16
    assert step.seconds == 1.5
    assert step.groups
    assert loaded.run.framework is not None


def section(group: str, name: str, **cells: str) -> dict[str, Any]:
    return dict(step_of(group, **cells).config[name])


def test_every_family_has_a_made_up_row() -> None:
    reached = {next(family.prefix for family in CONVERTERS if group.startswith(family.prefix)) for group in OF_FAMILY}
    # Converted by the function of another family.
    alike = {"mtnlg", "megatron_turing", "mcore_llama", "gcp", "dgxc_", "fresh_nemo", "fresh_dle"}
    assert reached | alike == {family.prefix for family in CONVERTERS}


def test_switches_follow_columns() -> None:
    assert section("internevo", "parallelism")["zero_group_size"] == 8
    assert section("internevo", "cluster") == {"inter_node_gb_per_s": 6.25}
    assert step_of("llmfoundry").config["system"] == "A100_40"
    assert step_of("torchtitan", gpu="H100-96GB-HBM2e-500W").config["system"] == "H100_HBM2e"
    assert section("torchtitan", "training")["gemm_recipe"] == "fp8_tensorwise"
    assert section("torchtitan", "parallelism")["gather_precision"] == "fp8"
    assert section("torchao", "cluster")["power_limit_w"] == 750.0
    assert section("dgxc", "training")["gemm_recipe"] == "fp8_delayed"
    assert section("dgxc", "parallelism")["overlap_linear_traffic"]
    assert section("mbridge_pretrain", "training")["gemm_recipe"] == "nvfp4"
    assert step_of("simumax_b200").peak_gib == 40.5
    assert section("korthikanti2022", "training")["recompute"] == "selective"


def test_composers_modes_of_mixed_precision_differ_in_what_is_reduced() -> None:
    early = section("llmfoundry", "parallelism")
    late = section("llmfoundry", "parallelism", system="MosaicML (Large Scale, >= 128 GPUs)")
    pure = section("llmfoundry", "parallelism", system="Large Scale", zero_fsdp="FULL_SHARD (PURE)")
    assert [each["fp32_gradients"] for each in (early, late, pure)] == [False, True, False]
    kept = section("llmfoundry", "parallelism", zero_fsdp="SHARD_GRAD_OP (DEFAULT)")
    assert early["reshard_after_forward"]
    assert not kept["reshard_after_forward"]


def test_blooms_last_rows_accumulate_in_fp32() -> None:
    early, late = (step_of("bloom_prequel", notes=f"mem 59GB, note {day}").config for day in ("02-27", "02-28"))
    assert (early["training"]["precision"], early["parallelism"]["fp32_gradients"]) == ("fp16", False)
    assert (late["training"]["precision"], late["parallelism"]["fp32_gradients"]) == ("bf16", True)


def test_nemo_1_keeps_nemotrons_optimizer_in_16_bits() -> None:
    source = {"model": "Nemotron4-340B", "source": "dgxc-benchmarking: nemotron/README_340b.md#L54"}
    in_16_bits, in_8_bits = (
        section("dgxc", "training", **source, precision=given)["optimizer_state_bytes"] for given in ("bf16", "fp8")
    )
    assert (in_16_bits, in_8_bits) == (4.0, 6.0)
    assert "optimizer_state_bytes" not in section("dgxc", "training", model="Nemotron4-340B", source="README.md")


def test_mlperfs_submissions_on_nemo_25_01_have_fp8_weights() -> None:
    recipe = "implementations/eos-dfw_n64_ngc25.01_nemo/config_DGXH100_64x8x288xtp8pp8cp2.sh"
    later = section("mlperf51_llama31_8b", "parallelism", notes="", recipe_ref=recipe.replace("25.01", "25.09"))
    assert section("mlperf51_llama31_8b", "parallelism", notes="", recipe_ref=recipe)["gather_precision"] == "fp8"
    assert "gather_precision" not in later


@pytest.mark.parametrize(
    ("cell", "stage"), [("FSDP=0", 1), ("FSDP=8", 3), ("Megatron-FSDP=False", 1), ("Megatron-FSDP (optim_grads)", 3)]
)
def test_no_ranks_that_share_weights_are_no_fsdp(cell: str, stage: int) -> None:
    assert section("mbridge_pretrain", "parallelism", zero_fsdp=cell)["zero_stage"] == stage


# Rows that bring their configuration, or the script of it, take no precision from a column.
@pytest.mark.parametrize(
    "group", sorted(OF_FAMILY.keys() - {"vocabpar_a100", "mcore_golden", "fresh_trainer", "fresh_mbridge_cards"})
)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "float32 (default)"])
def test_rows_in_32_bits_do_not_run_in_16(group: str, precision: str) -> None:
    training = section(group, "training", precision=precision, fp8_recipe="")
    assert training["precision"] == "fp32"
    assert "gemm_recipe" not in training
    of_engine = ("dgxc", "mbridge_pretrain", "mcore_ci_small", "mlperf51_llama31_8b", "simumax_b200")
    by_engine = group in of_engine  # Transformer Engine's products
    assert training.get("tf32", False) == (by_engine or precision == "tf32")


def test_rows_in_32_bits_are_configurations_that_can_be_read() -> None:
    for precision in ("fp32", "fp16"):
        loaded = prepare(step_of("dgxc", precision=precision).config, Path.cwd())
        assert loaded.run.precision == precision


def test_megatrons_overlap_of_tensor_parallel_traffic_needs_sequence_parallelism() -> None:
    stated = {"tp_comm_overlap": "yes", "tp": "2"}
    assert section("dgxc", "parallelism", **stated)["overlap_linear_traffic"]
    assert not section("dgxc", "parallelism", **stated, seq_parallel="no")["overlap_linear_traffic"]
    assert not section("dgxc", "parallelism", seq_parallel="no")["overlap_linear_traffic"]
    launched = {"model": "LLAMA2-7B", "source": "github:NVIDIA/NeMo@0aa2671:docs/performance_long_sequence.md"}
    assert not section("dgxc", "parallelism", **launched)["overlap_linear_traffic"]
    assert section("dgxc", "parallelism", **launched, **stated)["overlap_linear_traffic"]
    assert section("dgxc", "parallelism", **launched | {"model": "LLAMA3-8B"})["overlap_linear_traffic"]


def test_micro_batches_that_no_column_says_follow_from_the_global_batch() -> None:
    cells = {"grad_accum": "", "micro_batch": "2", "dp": "8", "global_batch": "64"}
    assert section("dgxc", "training", **cells)["num_micro_batches"] == 4
    for wrong, reason in ({"global_batch": ""}, "global_batch is not stated"), ({"global_batch": "72"}, "evenly"):
        with pytest.raises(UnexpressedError, match=reason):
            step_of("dgxc", **{**cells, **wrong})


def test_layers_that_leave_the_last_stage_do_not_go_to_the_first() -> None:
    assert section("vocabpar_a100", "parallelism")["layers_per_stage"] == [5, 5, 5, 1]
    cells = {"layers": "32", "pp": "8", "dp": "2", "pp_layout": "last stage layers column = 2"}
    assert section("vocabpar_a100", "parallelism", **cells)["layers_per_stage"] == [4, 4, 4, 4, 4, 5, 5, 2]


def test_a_last_stage_without_layers_has_the_vocabulary_alone() -> None:
    cells = {"layers": "32", "pp": "8", "dp": "2", "pp_layout": "last stage layers column = 0"}
    split = section("vocabpar_a100", "parallelism", **cells)["layers_per_stage"]
    assert split == [[4], [4], [4], [5], [5], [5], [5], [0]]


def test_offloading_and_splits_of_experts_and_chunks_are_those_of_the_row() -> None:
    assert section("dgxc", "training", cpu_offload_layers="20")["offload_activation_layers"] == 20
    experts = {"moe_experts": "8", "moe_topk": "2", "moe_ffn": "512"}
    cells = {"tp": "2", "ep": "4", "etp": "1", "pp_layout": "Et*3|(tt|)*6L", **experts}
    layout = section("dgxc", "parallelism", **cells)
    assert layout["expert_tensor_parallel_size"] == 1
    assert layout["layers_per_stage"] == "Et*3|(tt|)*6L"


def test_a_peak_is_compared_with_what_it_counts() -> None:
    run = prepare(step_of("simumax_b200").config, Path.cwd()).run
    stages = step_memory(transformer_step(run))
    counted = {group: step_of(group).peak_of(stages) * GIB for group in ("simumax_b200", "torchao", "bloom_prequel")}
    assert counted["simumax_b200"] == pytest.approx(max(stage.allocated for stage in stages))
    assert counted["torchao"] == pytest.approx(max(stage.reserved for stage in stages))
    assert counted["bloom_prequel"] == pytest.approx(max(stage.total for stage in stages))


def test_the_embedding_and_the_loss_count_as_layers_where_only_that_fits() -> None:
    cells = {"layers": "30", "pp": "4", "vpp": "4", "dp": "4", "grad_accum": "8"}
    step = step_of("dgxc", **cells, tp="1")
    assert step.config["parallelism"]["layers_per_stage"] == [7, 8, 8, 7]
    run = prepare(step.config, Path.cwd()).run
    assert [sum(run.layer_kinds(0, chunk).values()) for chunk in range(4)] == [1, 2, 2, 2]
    assert [sum(run.layer_kinds(3, chunk).values()) for chunk in range(4)] == [2, 2, 2, 1]


def test_layers_that_blooms_document_leaves_out_follow_from_its_size() -> None:
    model = section("bloom_prequel", "model", model="GPT-194B", layers="not stated", hidden="14400", pp="6")
    assert (model["num_layers"], model["num_attention_heads"]) == (78, 96)
    assert split_by_deepspeed(78, 12) == [7] * 11 + [1]
    assert split_by_deepspeed(78, 6) == [13] * 6


@pytest.mark.parametrize(
    ("group", "cells", "reason"),
    [
        ("dgxc", {"layer_pattern": "hybrid MEMEM* + MTP /*E/*E (mamba heads 128)"}, "layers of several kinds"),
        ("dgxc", {"precision": ""}, "precision is not stated"),
        ("dgxc", {"vocab": ""}, "vocab is not stated"),
        ("dgxc", {"framework": "MaxText (JAX)"}, "JAX"),
        ("dgxc", {"mla": "yes"}, "latent attention"),
        ("dgxc", {"layer_pattern": "hybrid MEMEM*"}, "Mamba"),
        ("dgxc", {"gpu": "MI250X"}, "no published system has its GPU"),
        ("dgxc", {"model": "Unheard of"}, "is not known"),
        ("vocabpar_a100", {"schedule": "interlaced pipeline"}, "vocabulary is split"),
    ],
)
def test_what_no_configuration_expresses_is_refused_with_the_reason(
    group: str, cells: dict[str, str], reason: str
) -> None:
    with pytest.raises(UnexpressedError, match=reason):
        step_of(group, **cells)


def test_a_group_without_a_file_is_converted_by_its_software() -> None:
    step = converted({**ROW, "group": "unheard_of", "framework": "NeMo 25.04"})
    assert step.groups == ("unheard_of",)
    assert step.config["training"]["framework"] == "nemo"


def test_software_that_no_file_converts_is_counted(tmp_path: Path) -> None:
    rows = [
        {**ROW, "group": "torchtitan", **OF_FAMILY["torchtitan"]},
        {**ROW, "group": "unheard_of", "framework": "JAX"},
    ]
    with (tmp_path / STEPS).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    tables = published_tables(tmp_path)
    assert (tables.num_rows, len(tables.steps)) == (2, 1)
    assert tables.unexpressed == {"no file converts JAX": 1}
    with pytest.raises(FileNotFoundError, match="has none of step_times"):
        published_tables(tmp_path / "absent")


def test_cells_are_read_as_numbers_where_they_begin_with_one() -> None:
    row = Row({"vocab": "~250k (padded)", "ffn": "11008 (8/3)", "heads": "not stated", "kv_heads": "64 (doc)"})
    assert (row.whole("vocab"), row.whole("ffn"), row.whole("kv_heads")) == (250_000, 11008, 64)
    assert not row.stated("heads")
    assert row.whole("absent", 3) == 3


def test_a_fused_loss_is_faster_and_holds_no_fp32_logits() -> None:
    def predicted(loss: str) -> tuple[float, float]:
        step = step_of("dgxc")
        model = {**step.config["model"], "loss": loss}
        loaded = prepare({**step.config, "model": model}, Path.cwd())
        prediction = predict(loaded.run, loaded.system)
        return prediction.step.us, max(stage.total for stage in step_memory(prediction.tasks))

    (fused_us, fused_bytes), (separate_us, separate_bytes) = predicted("fused"), predicted("vocabulary_parallel")
    native_us, native_bytes = predicted("fused_native")
    assert fused_us < native_us < separate_us
    assert fused_bytes < separate_bytes < native_bytes, "fp32 logits are overwritten through a copy"


LATENT_ROW = {
    "model": "DeepSeekV3", "layers": "61", "mla": "yes (q_lora 1536, kv_lora 512, qk 128+64, v 128)", "heads": "128",
    "hidden": "7168", "head_dim": "128", "pp": "2", "vpp": "8", "tp": "1", "pp_layout": "Et*4|(t*4|)*14tmL",
}  # fmt: skip


def test_latent_attention_further_predictions_and_layouts_are_read() -> None:
    config = step_of("dgxc", **LATENT_ROW).config
    model = config["model"]
    assert model["latent_attention"] == {
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    }  # fmt: skip
    assert "head_dim" not in model
    assert model["num_mtp_layers"] == 1
    assert config["parallelism"]["layers_per_stage"] == "Et*4|(t*4|)*14tmL"


def test_letters_of_a_hybrid_pattern_are_layers() -> None:
    pattern = "hybrid MEM*-EMEM (mamba heads 64 x 64, state 128)"
    cells = {"model": "Nemotron_3_Nano", "layers": "9", "layer_pattern": pattern, "moe_experts": "8", "moe_topk": "2"}
    model = section("dgxc", "model", **cells, moe_ffn="512")
    assert model["layer_types"][:5] == ["mamba2", "none", "mamba2", "full_attention", "none"]
    assert model["ffn_types"][:5] == ["none", "experts", "none", "none", "dense"]
    assert (model["mamba2"]["num_heads"], model["mamba2"]["state_size"]) == (64, 128)


def test_adapters_are_where_recipes_have_them() -> None:
    rows = [{**ROW, **OF_FAMILY["dgxc"], "task": "lora", "group": group} for group in ("mlperf51", "dgxc")]
    mlperf, bridge = (converted(row).config["training"]["lora"] for row in rows)
    assert mlperf == {"rank": 16, "targets": ["qkv", "attention_output"], "all_to_all": True}
    assert bridge == {"rank": 16, "targets": ["qkv"]}
