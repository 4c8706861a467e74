"""GPT-NeoX's YAML: files of one run are read as one, with the tool's own defaults; what is not modelled is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.core.base.bundled import EXAMPLES_FOLDER
from predictor.core.base.errors import ConfigError
from predictor.core.predict.prediction import predict
from predictor.core.schema.inherited_keys import of_record
from predictor.core.schema.presets import find_preset
from predictor.core.schema.read import Read
from predictor.evidence.published import gpt_neox as published
from predictor.evidence.published.row import Row
from predictor.formats import gpt_neox, read_all, read_any
from predictor.formats.known_keys import known_keys
from tests.unit.examples import model_of

SIZES = {
    "num-layers": 12,
    "hidden-size": 768,
    "num-attention-heads": 12,
    "seq-length": 2048,
    "max-position-embeddings": 2048,
    "pos-emb": "rotary",
}
TRAINING = {
    "pipe-parallel-size": 1,
    "model-parallel-size": 1,
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 1, "overlap_comm": True},
    "fp16": {"fp16": True, "enabled": True, "initial_scale_power": 12},
    "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
}
SETUP = {"data-path": "d/text", "vocab-file": "gpt2-vocab.json", "merge-file": "gpt2-merges.txt", "log-dir": "logs"}
WHOLE = SIZES | TRAINING | SETUP
# The reference's jobs: shape, then stages, tensor-parallel ranks and replicas.
JOBS = [
    ("GPT-20B", 4, 4, 8),
    ("GPT-20B", 4, 8, 4),
    ("GPT-20B", 8, 4, 4),
    ("LLaMA-13B", 4, 8, 2),
    ("Llemma-7B", 4, 2, 2),
]
SHAPES = {
    "GPT-20B": (44, 6144, 64, 2048, 16),
    "LLaMA-13B": (40, 5120, 40, 2048, 16),
    "Llemma-7B": (32, 4096, 32, 4096, 8),
}
CLUSTERS = {"Perlmutter": ("A100", 4), "Vista": ("GH200", 1)}


def written(folder: Path, name: str, keys: dict[str, Any]) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(keys), encoding="utf-8")
    return path


def found(tmp_path: Path, gpus: int | None = 8, **changes: Any) -> Read:
    return read_any(
        written(tmp_path, "job.yml", WHOLE | {key.replace("__", "-"): v for key, v in changes.items()}), gpus
    )


def refused(tmp_path: Path, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, **changes)
    return str(caught.value)


def job(shape: str, stages: int, ranks: int, bucket: int = 500_000_000) -> dict[str, Any]:
    """Return a job of the reference as its GPT-NeoX configuration has it."""
    layers, hidden, heads, length, rounds = SHAPES[shape]
    keys = {
        "pipe-parallel-size": stages,
        "model-parallel-size": ranks,
        "num-layers": layers,
        "hidden-size": hidden,
        "num-attention-heads": heads,
        "seq-length": length,
        "max-position-embeddings": length,
        "pos-emb": "rotary",
        "no-weight-tying": True,
        "zero_optimization": {"stage": 1, "overlap_comm": True, "reduce_scatter": True, "reduce_bucket_size": bucket},
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": rounds,
        "checkpoint-activations": True,
        "synchronize-each-layer": True,
        "fp16": {"enabled": True},
        "tokenizer-type": "GPT2BPETokenizer",
    }
    if shape == "GPT-20B":
        return keys | {"rotary-pct": 0.25, "gpt-j-residual": True, "scaled-upper-triang-masked-softmax-fusion": True}
    without = {"use_bias_in_attn_linear": False, "use_bias_in_mlp": False}
    return keys | {"norm": "rmsnorm", "attention-config": [[["flash"], layers]], **without}


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize(("shape", "stages", "ranks", "replicas"), JOBS)
def test_a_job_of_the_reference_takes_the_same_step_as_its_record(
    shape: str, stages: int, ranks: int, replicas: int, cluster: str, tmp_path: Path
) -> None:
    path = written(tmp_path, "job.yml", job(shape, stages, ranks))
    layers, hidden, heads, length, rounds = SHAPES[shape]
    gpu, per_node = CLUSTERS[cluster]
    is_gpt = shape == "GPT-20B"
    cells = {
        "system": cluster,
        "gpu": gpu,
        "gpus_per_node": per_node,
        "model": "gpt_j_residual, rotary 0.25" if is_gpt else "RMSNorm",
        "attention": "global" if is_gpt else "flash",
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "ffn": 4 * hidden,
        "seq": length,
        "vocab": 50257,
        "pp": stages,
        "tp": ranks,
        "dp": replicas,
        "micro_batch": 4,
        "grad_accum": rounds,
        "precision": "fp16",
        "zero_fsdp": "ZeRO-1",
        "recompute": "full",
    }
    record = of_record(published.configuration(Row({key: str(value) for key, value in cells.items()})))
    layout = {"data_parallel_size": replicas, "gpus_per_node": per_node}
    ours = predict({"system": cluster, "from": str(path), "parallelism": layout})
    assert ours.modelled_us == predict(record).modelled_us


@pytest.mark.parametrize(("cluster", "letter"), [("Perlmutter", "P"), ("Vista", "V")])
def test_the_published_examples_as_gpt_neox_has_them(cluster: str, letter: str, tmp_path: Path) -> None:
    path = written(tmp_path, "job.yml", job("Llemma-7B", 4, 2, bucket=1_260_000_000))
    layout = {"data_parallel_size": 2, "gpus_per_node": CLUSTERS[cluster][1]}
    example = predict(EXAMPLES_FOLDER / f"llemma_7b_4_2_2_{letter}.yml")
    assert predict({"system": cluster, "from": str(path), "parallelism": layout}).modelled_us == example.modelled_us


def test_the_20b_model(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "num-layers": 44,
        "hidden-size": 6144,
        "num-attention-heads": 64,
        "no-weight-tying": True,
    }
    changes |= {"gpt_j_residual": True, "rotary_pct": 0.25, "tokenizer_type": "HFTokenizer"}
    changes |= {"vocab-file": "20B_tokenizer.json", "pipe-parallel-size": 4, "model-parallel-size": 2}
    content = found(tmp_path, 96, **changes).content
    assert model_of(content["model"]).num_parameters() == find_preset("gpt-neox-20b").parameters
    assert content["parallelism"]["data_parallel_size"] == 12
    assert content["parallelism"]["layers_per_stage"] == "gpt_neox"


def test_files_of_one_run_are_read_as_one(tmp_path: Path) -> None:
    for name, keys in (("sizes.yml", SIZES), ("train.yml", TRAINING), ("local_setup.yml", SETUP)):
        written(tmp_path, name, keys)
    names = ["sizes.yml", "train.yml", "local_setup.yml"]
    *others, whole = read_all(names, tmp_path, 8)
    assert [file.content for file in others] == [{}, {}]
    assert whole.content == found(tmp_path).content
    assert whole.unsaid == {}
    written(tmp_path, "second.yml", {"checkpoint-activations": True, "hidden_size": 1024})
    both = read_all([*names, "second.yml"], tmp_path, 8)[-1]
    assert both.content["model"]["hidden_size"] == 1024
    assert "sizes.yml and second.yml both have hidden_size, which GPT-NeoX refuses; second.yml counts" in both.notes
    written(tmp_path, "second.yml", {"checkpoint-activations": True, "norm": "scalenorm", "num_unique_layers": 3})
    with pytest.raises(ConfigError, match=r"second.yml:2: norm is 'scalenorm'; expected layernorm"):
        read_all([*names, "second.yml"], tmp_path, 8)


@pytest.mark.parametrize(
    ("keys", "left_open"),
    [
        (
            SIZES | {"model_parallel_size": 2},
            {"training.micro_batch_size", "training.precision", "parallelism.zero_stage"},
        ),
        (SETUP, {"model.num_layers", "training.micro_batch_size"}),
        (TRAINING, {"model.num_layers", "parallelism.data_parallel_size"}),
        (WHOLE | {"tokenizer_type": "HFTokenizer"}, {"model.vocab_size"}),
        (WHOLE | {"train_micro_batch_size_per_gpu": None, "train_batch_size": 64}, {"training.micro_batch_size"}),
    ],
)
def test_a_part_says_what_it_leaves_open(keys: dict[str, Any], left_open: set[str], tmp_path: Path) -> None:
    assert left_open <= read_any(written(tmp_path, "part.yml", keys)).unsaid.keys()


def test_defaults_are_those_of_the_tool(tmp_path: Path) -> None:
    read = found(tmp_path)
    assert read.content["model"] == {
        "num_layers": 12,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "sequence_length": 2048,
        "tied_embeddings": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "activation": "gelu",
        "ffn_hidden_size": 3072,
        "biases": True,
        "attention": "unfused",
        "normalization": "layer_norm",
        "rotary_fraction": 1.0,
        "fused_side_kernels": False,
        "vocab_size": 50304,
    }
    assert read.content["training"] == {
        "micro_batch_size": 4,
        "num_micro_batches": 1,
        "precision": "fp16",
        "recompute": "none",
        "synchronize_each_layer": False,
        "framework": "gpt-neox",
    }
    parallelism = read.content["parallelism"]
    assert (parallelism["zero_stage"], parallelism["data_parallel_size"]) == (1, 8)
    assert parallelism["overlap_gradient_reduction"] is True
    assert found(tmp_path, 16, pipe__parallel__size=2).content["parallelism"]["overlap_gradient_reduction"] is False


@pytest.mark.parametrize(
    ("changes", "section", "expected"),
    [
        (
            {"activation": "swiglu", "intermediate_size": 6144},
            "model",
            {"activation": "swiglu", "ffn_hidden_size": 2048},
        ),
        # 32768 is GPT-NeoX's own size for Llama 2 7B.
        (
            {"activation": "swiglu", "intermediate_size": 32768, "mlp_multiple_of": 256},
            "model",
            {"ffn_hidden_size": 11008},
        ),
        ({"mlp_type": "llama", "activation": "silu", "hidden__size": 4096}, "model", {"ffn_hidden_size": 11008}),
        ({"mlp_type": "llama", "intermediate_size": 14336}, "model", {"ffn_hidden_size": 14336, "biases": "attention"}),
        ({"use_bias_in_mlp": False}, "model", {"biases": "attention"}),
        ({"attention__config": [[["flash"], 12]], "sliding_window_width": 512}, "model", {"sliding_window": 512}),
        (
            {"attention_config": [[["flash"], "all"]], "num_kv_heads": 4},
            "model",
            {"attention": "flash", "num_key_value_heads": 4},
        ),
        ({"attention_config": ["global"] * 12}, "model", {"attention": "unfused"}),
        ({"norm": "rmsnorm", "rmsnorm_fusion": True}, "model", {"normalization": "fused_rms_norm"}),
        ({"norm": "non_parametric_layernorm"}, "model", {"norm_weights": False}),
        ({"pos__emb": "learned"}, "model", {"rotary_fraction": 0.0, "num_position_embeddings": 2048}),
        ({"pos__emb": "alibi"}, "model", {"positions": "alibi"}),
        ({"rope_fusion": True}, "model", {"fused_rope": True}),
        ({"gpt_j_residual": True, "gpt_j_tied": True}, "model", {"parallel_residual": True, "shared_input_norm": True}),
        ({"bias_gelu_fusion": True, "bias_dropout_fusion": True}, "model", {"fused_side_kernels": True}),
        ({"make_vocab_size_divisible_by": 512}, "model", {"vocab_size": 50688}),
        (
            {"moe_num_experts": 8, "moe_top_k": 2},
            "model",
            {"moe": {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 3072}},
        ),
        ({"num_experts": 4}, "model", {"ffn_types": ["experts", "dense"] * 6}),
        ({"pipe__parallel__size": 0}, "parallelism", {"pipeline_parallel_size": 1}),
        (
            {"pipe__parallel__size": 2, "pipe_partition_method": "parameters"},
            "parallelism",
            {"layers_per_stage": "uniform"},
        ),
        ({"model__parallel__size": 2, "sequence_parallel": True}, "parallelism", {"sequence_parallel": True}),
        ({"zero_optimization": None}, "parallelism", {"zero_stage": 0}),
        (
            {"zero_optimization": None, "bf16": {"enabled": True}, "fp16": None},
            "parallelism",
            {"zero_stage": 1, "fp32_gradients": True},
        ),
        ({"zero_optimization": {"stage": 3}}, "parallelism", {"gradient_reduction": "reduce_scatter"}),
        ({"fp16": {"enabled": True, "type": "bfloat16"}}, "training", {"precision": "bf16"}),
        ({"fp16": None, "precision": "fp16"}, "training", {"precision": "fp16"}),
        ({"fp16": None}, "training", {"precision": "fp32"}),
        ({"train_batch_size": 256}, "training", {"global_batch_size": 256, "micro_batch_size": 4}),
        ({"train_batch_size": 256, "train_micro_batch_size_per_gpu": None}, "training", {"micro_batch_size": 32}),
        (
            {"checkpoint_activations": True, "checkpoint_num_layers": 2},
            "training",
            {"recompute": "full", "recompute_group_layers": 2},
        ),
        (
            {"checkpoint_activations": True, "partition_activations": True, "model__parallel__size": 2},
            "training",
            {"partition_activations": True},
        ),
        ({"zero_optimization": {"stage": 1, "cpu_offload": True}}, "training", {"offload_optimizer": 1.0}),
    ],
)
def test_keys(changes: dict[str, Any], section: str, expected: dict[str, Any], tmp_path: Path) -> None:
    assert expected.items() <= found(tmp_path, **changes).content[section].items()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attention__config": [[["local", "global"], 6]]},
            "attention-config is [[['local', 'global'], 6]]; local is not modelled",
        ),
        ({"attention_config": [[["flash", "global"], 6]]}, "layers with different kernels are not modelled"),
        ({"attention_config": "flash"}, "expected a list such as [[[global], 12]]"),
        ({"pos__emb": "rpe"}, "pos-emb is 'rpe'; relative positions are not modelled"),
        ({"output_layer_parallelism": "row", "model__parallel__size": 2}, "write column"),
        (
            {"zero_optimization": {"stage": 2}, "pipe__parallel__size": 2},
            "its stage is 2; DeepSpeed's pipelines take 0 or 1",
        ),
        ({"te_mha": True}, "te_mha is True; layers of Transformer Engine"),
        ({"train_impl": "dpo"}, "train_impl is 'dpo'; its steps run a second model"),
        ({"optimizer": {"type": "Lion", "params": {}}}, "optimizer.type is 'Lion'; only Adam and AdamW are modelled"),
        ({"optimizer": {"type": "Muon", "params": {}}}, "optimizer.type is 'Muon'; only Adam and AdamW are modelled"),
        ({"moe_num_experts": 8, "model__parallel__size": 2}, "its split of experts is not modelled"),
        ({"num_unique_layers": 4}, "layers that share their weights are not modelled"),
        ({"model__parallel__size": 16}, "8 GPUs are no multiple of the ranks of a model, 16"),
        ({"sparse_heads": 4}, "sparse_heads is 4; of GPT-NeoX it is not known here"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path, **changes)


def test_a_key_that_costs_nothing_is_named_once(tmp_path: Path) -> None:
    assert any("taken to cost nothing: my_remark" in note for note in found(tmp_path, my_remark="x").notes)


def test_read_keys_are_those_of_the_code() -> None:
    read = ("files", "model", "reader")  # not the writer, which spells out more
    folder = Path(gpt_neox.__file__).parent
    code = "".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in read)
    assert {key for key in known_keys("gpt_neox").read if not re.search(rf'"{key}"', code)} == {
        "scaled_masked_softmax_fusion",
        "scaled_upper_triang_masked_softmax_fusion",
    }
