"""Arguments of Megatron-LM on low precision, recomputation, accumulation and CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from tests.unit.formats.test_megatron import SMALL, found, small


@pytest.mark.parametrize(
    ("arguments", "recipe"),
    [
        ("--fp8-format hybrid", "fp8_delayed"),
        ("--fp8-format hybrid --fp8-recipe delayed --fp8-amax-history-len 1024", "fp8_delayed"),
        ("--fp8-format hybrid --fp8-recipe tensorwise", "fp8_tensorwise"),
        ("--fp8-format e4m3 --fp8-recipe blockwise", "fp8_blockwise"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
        ("--fp4-format e2m1", "nvfp4"),
        ("--fp4-format e2m1 --fp4-recipe nvfp4", "nvfp4"),
        ("--fp8-recipe mxfp8 --fp4-recipe nvfp4", None),  # without a format a recipe has no effect
    ],
)
def test_recipe_of_low_precision(arguments: str, recipe: str | None, tmp_path: Path) -> None:
    training = small(tmp_path, f"--bf16 {arguments}")["training"]
    assert training.get("gemm_recipe") == recipe
    assert "layers_in_16_bits_at_start" not in training


def test_layers_that_stay_in_16_bits(tmp_path: Path) -> None:
    recipe = "--fp8-format e4m3 --fp8-recipe blockwise --first-last-layers-bf16 "
    by_default = small(tmp_path, recipe)["training"]
    assert (by_default["layers_in_16_bits_at_start"], by_default["layers_in_16_bits_at_end"]) == (1, 1)
    given = small(tmp_path, f"{recipe}--num-layers-at-start-in-bf16 0 --num-layers-at-end-in-bf16 2")["training"]
    assert (given["layers_in_16_bits_at_start"], given["layers_in_16_bits_at_end"]) == (0, 2)
    without_switch = small(tmp_path, "--fp4-format e2m1 --num-layers-at-end-in-bf16 2")["training"]
    assert "layers_in_16_bits_at_end" not in without_switch


def test_weights_are_gathered_in_fp8_where_they_are_gathered(tmp_path: Path) -> None:
    assert "gather_precision" not in small(tmp_path, "--fp8-format e4m3 --fp8-param-gather")["parallelism"]
    assert "gather_precision" not in small(tmp_path, "--use-distributed-optimizer --fp8-param-gather")["parallelism"]


@pytest.mark.parametrize(
    ("arguments", "fuses"),
    [("", True), ("--no-gradient-accumulation-fusion", False), ("--use-torch-fsdp2", False)],
)
def test_accumulation_of_gradients(arguments: str, fuses: bool, tmp_path: Path) -> None:
    assert small(tmp_path, arguments)["training"]["fused_gradient_accumulation"] is fuses


@pytest.mark.parametrize(
    ("arguments", "graphs", "note"),
    [
        ("--enable-cuda-graph", True, None),
        ("--external-cuda-graph --cuda-graph-scope full", True, None),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", True, None),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router", ["attn", "moe_router"], None),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn router", ["attn"], "router"),
        ("--cuda-graph-impl none --cuda-graph-scope attn", False, None),
        ("--cuda-graph-warmup-steps 3", False, None),
    ],
)
def test_cuda_graphs(arguments: str, graphs: bool | list[str], note: str | None, tmp_path: Path) -> None:
    read_one = found(tmp_path, f"{SMALL}{arguments} --use-flash-attn")
    assert read_one.content["training"].get("cuda_graphs", False) == graphs
    expected = () if note is None else (f"--cuda-graph-scope {note}: predicted without CUDA graphs of these",)
    assert read_one.notes == expected


@pytest.mark.parametrize(
    ("arguments", "recompute"),
    [
        ("--recompute-activations", "selective"),
        ("--recompute-granularity selective", "selective"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "full"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 8", "full"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 0", "none"),
        ("--recompute-granularity selective --recompute-modules mhc", "none"),
        ("--checkpoint-activations", "full"),
        ("--activations-checkpoint-method uniform", "full"),
    ],
)
def test_recomputation(arguments: str, recompute: str, tmp_path: Path) -> None:
    assert small(tmp_path, arguments)["training"]["recompute"] == recompute


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 2", 2),
        ("--recompute-granularity full --recompute-method block", 1),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 2", None),
        ("--activations-checkpoint-method block --activations-checkpoint-num-layers 3", 3),
    ],
)
def test_layers_of_a_chunk_that_are_recomputed(arguments: str, count: int | None, tmp_path: Path) -> None:
    training = small(tmp_path, arguments)["training"]
    assert (training["recompute"], training.get("recompute_num_layers")) == ("full", count)


def test_layers_that_are_recomputed_at_once(tmp_path: Path) -> None:
    uniform = "--recompute-granularity full --recompute-method uniform --recompute-num-layers"
    assert small(tmp_path, f"{uniform} 2")["training"]["recompute_group_layers"] == 2
    assert "recompute_group_layers" not in small(tmp_path, f"{uniform} 1")["training"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", (None, None)),
        ("--optimizer-cpu-offload", (1.0, None)),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", (0.5, None)),
        ("--optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d", (1.0, True)),
        ("--optimizer-offload-fraction 0.5", (None, None)),
    ],
)
def test_an_optimizer_on_the_host(arguments: str, expected: tuple[float | None, bool | None], tmp_path: Path) -> None:
    training = small(tmp_path, arguments)["training"]
    assert (training.get("offload_optimizer"), training.get("overlap_optimizer_offload")) == expected


@pytest.mark.parametrize(
    ("arguments", "stage", "reduction"),
    [
        ("--optimizer muon", 0, "all_reduce"),
        ("--optimizer muon --use-distributed-optimizer", 1, "reduce_scatter"),
        ("--optimizer dist_muon", 1, "all_reduce"),
        ("--optimizer muon --use-layer-wise-distributed-optimizer", 1, "all_reduce"),
    ],
)
def test_muon_shares_out_whole_layers(arguments: str, stage: int, reduction: str, tmp_path: Path) -> None:
    content = small(tmp_path, arguments)
    assert content["training"]["optimizer"] == "muon"
    assert (content["parallelism"]["zero_stage"], content["parallelism"]["gradient_reduction"]) == (stage, reduction)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--optimizer muon --muon-num-ns-steps 6", "only 5 are modelled"),
        ("--optimizer muon --muon-tp-mode duplicated --tensor-model-parallel-size 2", "only blockwise is modelled"),
        ("--optimizer adaptive_muon", "only adam and muon are modelled"),
    ],
)
def test_muon_that_is_not_modelled(arguments: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        small(tmp_path, arguments)


@pytest.mark.parametrize(
    ("arguments", "modules", "note"),
    [
        ("core_attn", None, None),
        ("layernorm mlp", ["layernorm", "mlp"], None),
        ("core_attn,moe_act --num-experts 8", ["core_attn", "moe_act"], None),
        ("core_attn mla_up_proj moe", None, "mla_up_proj moe"),
        ("mlp mhc", ["mlp"], "mhc"),
    ],
)
def test_modules_that_are_recomputed(
    arguments: str, modules: list[str] | None, note: str | None, tmp_path: Path
) -> None:
    selective = f"{SMALL}--use-flash-attn --recompute-granularity selective --recompute-modules {arguments}"
    read_one = found(tmp_path, selective)
    assert read_one.content["training"].get("recompute_modules") == modules
    expected = () if note is None else (f"--recompute-modules {note}: not recomputed in this prediction",)
    assert read_one.notes == expected


@pytest.mark.parametrize(
    ("arguments", "fuses"),
    [
        ("--fp8-format e4m3 --fp8-recipe mxfp8 --num-experts 8 --moe-ffn-hidden-size 256", True),
        ("--fp8-format e4m3 --fp8-recipe blockwise --num-experts 8 --moe-ffn-hidden-size 256", False),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", False),
    ],
)
def test_fused_experts_are_those_in_mxfp8(arguments: str, fuses: bool, tmp_path: Path) -> None:
    training = small(tmp_path, f"--bf16 --use-transformer-engine-op-fuser {arguments}")["training"]
    assert training.get("fused_experts", False) is fuses


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        ("--cpu-offloading-num-layers 20", "offload_activation_layers", 20),
        ("--cpu-offloading --cpu-offloading-num-layers 4", "offload_activation_layers", 4),
        ("--cpu-offloading-num-layers 0", "offload_activation_layers", None),
        ("--fine-grained-activation-offloading --offload-modules core_attn attn_proj", "offload_modules",
         ["core_attn", "attn_proj"]),
        ("--offload-modules core_attn", "offload_modules", None),
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", "optimizer_state_bytes", 8.0),
        ("--use-precision-aware-optimizer --exp-avg-dtype fp8 --main-params-dtype fp16", "optimizer_state_bytes", 7.0),
        ("--use-precision-aware-optimizer", "optimizer_state_bytes", None),
        ("--exp-avg-dtype bf16", "optimizer_state_bytes", None),
    ],
)  # fmt: skip
def test_what_the_host_and_16_bits_hold(arguments: str, key: str, value: object, tmp_path: Path) -> None:
    assert small(tmp_path, f"--bf16 {arguments}")["training"].get(key) == value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--cpu-offloading", "write how many layers"),
        ("--fine-grained-activation-offloading --offload-modules dense_mlp", "expected of attn_norm, qkv_linear"),
        ("--fine-grained-activation-offloading", "expected of attn_norm"),
    ],
)
def test_offloading_that_is_not_modelled(arguments: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        small(tmp_path, arguments)


@pytest.mark.parametrize(
    ("arguments", "in_fp32"),
    [
        ("--bf16", True),
        ("--bf16 --grad-reduce-in-bf16", False),
        ("--bf16 --main-grads-dtype bf16", False),
        ("--bf16 --main-grads-dtype fp32", True),
        ("--fp16", False),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", True),
    ],
)
def test_precision_of_gradients(arguments: str, in_fp32: bool, tmp_path: Path) -> None:
    assert small(tmp_path, arguments)["parallelism"]["fp32_gradients"] is in_fp32


def test_buckets_grow_with_replicas_that_are_said_later(tmp_path: Path) -> None:
    later = found(tmp_path, f"{SMALL}--use-distributed-optimizer --overlap-grad-reduce").derived
    bucket = later["parallelism.gradient_bucket_elements"]
    assert bucket({"parallelism": {"data_parallel_size": 8}}) == 40_000_000
    assert bucket({"parallelism": {"data_parallel_size": 64}}) == 64_000_000
    assert bucket({"parallelism": {}}) is None
    assert found(tmp_path, f"{SMALL}--use-distributed-optimizer").derived == {}


def test_arguments_of_2020_have_their_later_names(tmp_path: Path) -> None:
    arguments = SMALL.replace("--micro-batch-size", "--batch-size") + "--model-parallel-size 2 "
    assert "--micro-batch-size" in SMALL
    content = found(tmp_path, arguments).content
    assert content["parallelism"]["tensor_parallel_size"] == 2
    assert content["training"]["micro_batch_size"] == found(tmp_path, SMALL).content["training"]["micro_batch_size"]
