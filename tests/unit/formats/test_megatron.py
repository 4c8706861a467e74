"""A command line of Megatron-LM becomes model, layout and batch, with Megatron's own defaults; unknowns are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.presets import find_preset
from predictor.core.schema.read import Read
from predictor.formats.megatron.reader import read
from tests.unit.examples import model_of

DATA = Path(__file__).resolve().parents[2] / "data" / "readers" / "megatron"
SMALL = "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 2 "


def found(tmp_path: Path, arguments: str, num_gpus: int | None = None) -> Read:
    path = tmp_path / "launch.sh"
    path.write_text(arguments, encoding="utf-8")
    return read(path, num_gpus)


def small(tmp_path: Path, arguments: str, num_gpus: int | None = None) -> dict[str, dict[str, Any]]:
    return found(tmp_path, SMALL + arguments, num_gpus).content


def test_script_of_gpt3_on_1024_gpus() -> None:
    script = read(DATA / "gpt3_175b.sh")
    assert script.content == {
        "model": {
            "num_layers": 96,
            "hidden_size": 12288,
            "num_attention_heads": 96,
            "sequence_length": 2048,
            "ffn_hidden_size": 49152,
            "activation": "gelu",
            "biases": True,
            "tied_embeddings": True,
            "attention_dropout": 0.1,
            "hidden_dropout": 0.1,
            "rotary_fraction": 0.0,
            "num_position_embeddings": 2048,
            "vocab_size": 50257,
            "attention": "flash",
            "normalization": "layer_norm",
            "fused_side_kernels": True,
        },
        "parallelism": {
            "tensor_parallel_size": 8,
            "sequence_parallel": True,
            "pipeline_parallel_size": 16,
            "context_parallel_size": 1,
            "data_parallel_size": 8,
            "gpus_per_node": 8,
            "schedule": "interleaved_1f1b",
            "virtual_pipeline_parallel_size": 2,
            "zero_stage": 0,
            "gradient_reduction": "all_reduce",
            "overlap_gradient_reduction": False,
            "overlap_parameter_gather": False,
            "overlap_tensor_parallel": False,
            "fp32_gradients": False,
        },
        "training": {
            "micro_batch_size": 1,
            "global_batch_size": 1536,
            "precision": "fp16",
            "recompute": "selective",
            "fused_gradient_accumulation": True,
            "framework": "megatron-lm",
        },
    }
    assert script.notes == (
        "gpt3_175b.sh: variables that the script does not set have their defaults: SLURM_NNODES 128",
        "--rampup-batch-size: predicted is a step after the ramp",
    )
    assert script.unsaid == {}


@pytest.mark.parametrize(
    ("name", "preset"),
    [("gpt3_175b.sh", "gpt3-175b"), ("llama3_8b.args", "llama3-8b"), ("mixtral_8x7b.yaml", "mixtral-8x7b")],
)
def test_models_have_the_parameters_of_their_presets(name: str, preset: str) -> None:
    model = read(DATA / name).content["model"]
    assert model_of(model).num_parameters() == find_preset(preset).parameters


def test_file_of_arguments_of_llama() -> None:
    content = read(DATA / "llama3_8b.args", num_gpus=32).content
    model, parallelism = content["model"], content["parallelism"]
    assert (model["activation"], model["normalization"], model["fused_rope"]) == ("swiglu", "fused_rms_norm", True)
    assert (model["num_key_value_heads"], model["head_dim"], model["biases"]) == (8, 128, False)
    assert model["vocab_size"] == 128256  # NullTokenizer adds a token
    assert (parallelism["data_parallel_size"], parallelism["context_parallel_size"]) == (8, 2)
    assert (parallelism["zero_stage"], parallelism["gradient_reduction"]) == (1, "reduce_scatter")
    assert parallelism["gradient_bucket_elements"] == 40_000_000
    assert parallelism["fp32_gradients"] is False
    assert content["training"]["precision"] == "bf16"


def test_recipe_of_mixtral() -> None:
    recipe = read(DATA / "mixtral_8x7b.yaml")
    content = recipe.content
    assert content["model"]["moe"] == {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 14336}
    assert "fused_rope" not in content["model"]
    assert content["parallelism"]["expert_parallel_size"] == 8
    assert content["training"]["recompute"] == "full"
    assert list(recipe.unsaid) == ["parallelism.data_parallel_size"]


@pytest.mark.parametrize(
    "text", ['["--num-layers", "8", "--swiglu"]', "- --num-layers 8\n- --swiglu\n", "--num-layers=8 --swiglu"]
)
def test_forms_of_a_list(text: str, tmp_path: Path) -> None:
    rest = "--hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 2"
    if text.startswith("["):
        text = f'{text[:-1]}, "{rest}"]'
    else:
        text = f"{text}- {rest}\n" if text.startswith("- ") else f"{text} {rest}"
    assert found(tmp_path, text).content["model"]["activation"] == "swiglu"


def test_value_on_a_line_of_its_own_is_read(tmp_path: Path) -> None:
    assert found(tmp_path, SMALL.replace("--num-layers 8", "--num-layers\n  8")).content["model"]["num_layers"] == 8


def test_defaults_are_megatrons(tmp_path: Path) -> None:
    content = small(tmp_path, "")
    model, parallelism, training = content["model"], content["parallelism"], content["training"]
    assert model["biases"] is True
    assert model["tied_embeddings"] is True
    assert (model["attention_dropout"], model["hidden_dropout"]) == (0.1, 0.1)
    assert (model["normalization"], model["activation"], model["rotary_fraction"]) == ("layer_norm", "gelu", 0.0)
    assert model["ffn_hidden_size"] == 4096
    assert "num_key_value_heads" not in model
    assert (parallelism["zero_stage"], parallelism["overlap_gradient_reduction"]) == (0, False)
    assert training == {
        "micro_batch_size": 2,
        "num_micro_batches": 1,
        "precision": "fp32",
        "recompute": "none",
        "fused_gradient_accumulation": True,
        "framework": "megatron-lm",
    }


def test_gated_ffn_is_two_thirds_cut_to_64(tmp_path: Path) -> None:
    assert small(tmp_path, "--swiglu")["model"]["ffn_hidden_size"] == 2688  # 2730.7 / 64 = 42.7


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        ("--disable-bias-linear", "biases", False),
        ("--disable-bias-linear --add-qkv-bias", "biases", "qkv"),
        ("--untie-embeddings-and-output-weights", "tied_embeddings", False),
        ("--position-embedding-type rope --rotary-percent 0.5", "rotary_fraction", 0.5),
        ("--use-rotary-position-embeddings", "rotary_fraction", 1.0),
        ("--max-position-embeddings 4096", "num_position_embeddings", 4096),
        ("--group-query-attention", "num_key_value_heads", 1),
        ("--group-query-attention --num-query-groups 4", "num_key_value_heads", 4),
        ("--kv-channels 128", "head_dim", 128),
        ("--qk-layernorm", "qk_norm", True),
        ("--window-size 4095,0", "sliding_window", 4096),
        ("--transformer-impl local", "attention", "fused_softmax"),
        ("--transformer-impl local --no-masked-softmax-fusion", "attention", "unfused"),
        ("--transformer-impl local --use-flash-attn", "attention", "flash"),
        ("--attention-backend unfused", "attention", "fused_softmax"),
        ("--normalization RMSNorm", "normalization", "fused_rms_norm"),
        ("--normalization RMSNorm --transformer-impl local", "normalization", "rms_norm"),
        ("--no-bias-gelu-fusion --no-bias-dropout-fusion", "fused_side_kernels", False),
        ("--vocab-size 32000", "vocab_size", 32000),
        ("--vocab-size 32000 --make-vocab-size-divisible-by 1024", "vocab_size", 32768),
        ("--tokenizer-type GPT2BPETokenizer", "vocab_size", 50257),
        ("--tokenizer-type Llama2Tokenizer", "vocab_size", 32000),
        ("--hidden-dropout 0", "hidden_dropout", 0.0),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "loss", "fused"),
        ("--num-layers 4", "num_layers", 4),  # the last of two, as in argparse
    ],
)
def test_argument_of_the_model(arguments: str, key: str, value: object, tmp_path: Path) -> None:
    assert small(tmp_path, arguments)["model"][key] == value


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        ("--sequence-parallel --tensor-model-parallel-size 2", "sequence_parallel", True),
        ("--sequence-parallel", "sequence_parallel", False),
        ("--pipeline-model-parallel-size 4", "schedule", "1f1b"),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4", "schedule", "interleaved_1f1b"),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
            "virtual_pipeline_parallel_size",
            2,
        ),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 2", "layers_per_stage", [2, 2, 2, 2]),
        (
            "--num-layers 30 --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 6",
            "layers_per_stage",
            [6, 8, 8, 8],
        ),
        ("--use-distributed-optimizer", "zero_stage", 1),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "zero_stage", 3),
        ("--use-torch-fsdp2", "overlap_parameter_gather", True),
        ("--overlap-grad-reduce", "overlap_gradient_reduction", True),
        ("--ddp-bucket-size 1000000", "gradient_bucket_elements", 1_000_000),
        ("--bf16", "fp32_gradients", True),
        ("--bf16 --grad-reduce-in-bf16", "fp32_gradients", False),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", "fp32_gradients", True),
        ("--use-tp-pp-dp-mapping", "rank_order", ["tp", "cp", "pp", "dp"]),
        ("--tp-comm-overlap", "overlap_tensor_parallel", True),
        ("--use-distributed-optimizer --fp8-format e4m3 --fp8-param-gather", "gather_precision", "fp8"),
        ("--tp-comm-overlap --sequence-parallel", "overlap_linear_traffic", True),
    ],
)
def test_argument_of_the_layout(arguments: str, key: str, value: object, tmp_path: Path) -> None:
    assert small(tmp_path, arguments)["parallelism"][key] == value


def test_loss_of_single_kernels_is_the_default_and_fusion_is_megatrons_own(tmp_path: Path) -> None:
    assert "loss" not in small(tmp_path, "--cross-entropy-fusion-impl te")["model"]
    read_one = found(tmp_path, f"{SMALL}--use-flash-attn --cross-entropy-loss-fusion")
    assert read_one.content["model"]["loss"] == "fused_native"
    assert read_one.notes == ()


def test_instances_of_the_optimizer_are_groups_of_replicas(tmp_path: Path) -> None:
    arguments = f"{SMALL}--use-distributed-optimizer --num-distributed-optimizer-instances 4 --context-parallel-size 2"
    assert found(tmp_path, arguments, num_gpus=64).content["parallelism"]["zero_group_size"] == 16
    later = found(tmp_path, arguments).derived["parallelism.zero_group_size"]
    assert later({"parallelism": {"data_parallel_size": 32}}) == 16
    assert later({"parallelism": {}}) is None
    with pytest.raises(ConfigError, match="--num-distributed-optimizer-instances is 4; it must divide the ranks"):
        later({"parallelism": {"data_parallel_size": 3}})
    with pytest.raises(ConfigError, match="--outer-dp-sharding-strategy is optim; only no_shard is modelled"):
        found(tmp_path, f"{arguments} --outer-dp-sharding-strategy optim", num_gpus=64)


def test_tensor_parallel_size_of_experts(tmp_path: Path) -> None:
    layout = small(tmp_path, "--num-experts 8 --tensor-model-parallel-size 4 --expert-tensor-parallel-size 1")
    assert layout["parallelism"]["expert_tensor_parallel_size"] == 1
    assert "expert_tensor_parallel_size" not in small(tmp_path, "--expert-tensor-parallel-size 1")["parallelism"]


@pytest.mark.parametrize(
    ("frequency", "dense"),
    [("1", 0), ("'([0]*1+[1]*7)'", 1), ("\"'([0]*3+[1]*5)'\"", 3), ("[0,0,1,1,1,1,1,1]", 2), ("[1]*8", 0)],
)
def test_dense_layers_before_the_experts(frequency: str, dense: int, tmp_path: Path) -> None:
    experts = small(tmp_path, f"--num-experts 8 --moe-layer-freq {frequency}")["model"]["moe"]
    assert experts.get("num_dense_layers", 0) == dense


def test_experts(tmp_path: Path) -> None:
    arguments = (
        "--num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 --moe-shared-expert-intermediate-size 2816 "
        "--moe-expert-capacity-factor 1.25 --expert-model-parallel-size 8"
    )
    read_one = found(tmp_path, SMALL + arguments)
    assert read_one.content["model"]["moe"] == {
        "num_experts": 64,
        "experts_per_token": 6,
        "expert_ffn_hidden_size": 1408,
        "shared_expert_ffn_hidden_size": 2816,
        "shared_expert_gate": False,
        "capacity_factor": 1.25,
    }
    assert read_one.content["parallelism"]["expert_dispatcher"] == "all_gather"  # Megatron-LM's default


@pytest.mark.parametrize(
    ("arguments", "dispatcher"),
    [
        ("--moe-token-dispatcher-type alltoall", None),
        ("--moe-token-dispatcher-type flex --moe-enable-deepep", "deepep"),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", "hybridep"),
    ],
)
def test_dispatchers_of_tokens(arguments: str, dispatcher: str | None, tmp_path: Path) -> None:
    layout = small(tmp_path, f"--num-experts 8 --expert-model-parallel-size 4 {arguments}")["parallelism"]
    assert layout.get("expert_dispatcher") == dispatcher
    beside = small(tmp_path, "--num-experts 8 --expert-model-parallel-size 4 --overlap-moe-expert-parallel-comm")
    assert beside["parallelism"]["overlap_expert_parallel"] is True


@pytest.mark.parametrize(
    ("script", "dp", "per_node"),
    [
        ("torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py $ARGS", 32, 8),
        ("torchrun --nproc-per-node=4 --nnodes=2 pretrain_gpt.py $ARGS", 8, 4),
        ("WORLD_SIZE=16\npython pretrain_gpt.py $ARGS", 16, None),
        ("python pretrain_gpt.py $ARGS --world-size 16", 16, None),
        ("srun --nodes 2 python pretrain_gpt.py $ARGS", None, None),
    ],
)
def test_replicas_follow_from_the_launcher(script: str, dp: int | None, per_node: int | None, tmp_path: Path) -> None:
    read_one = found(tmp_path, f"ARGS='{SMALL}'\n{script}\n")
    assert read_one.content["parallelism"].get("data_parallel_size") == dp
    assert read_one.content["parallelism"].get("gpus_per_node") == per_node
    assert ("parallelism.data_parallel_size" in read_one.unsaid) == (dp is None)


def test_gpus_that_do_not_hold_the_model_are_left_open_in_a_file_and_refused_from_a_caller(tmp_path: Path) -> None:
    script = f"torchrun --nproc_per_node 8 --nnodes 1 pretrain.py {SMALL} --tensor-model-parallel-size 16"
    assert "says 8 GPUs for a model that takes 16" in found(tmp_path, script).unsaid["parallelism.data_parallel_size"]
    with pytest.raises(ConfigError, match="8 GPUs are no multiple of tensor × pipeline × context parallel size, 16"):
        found(tmp_path, script, num_gpus=8)
    assert found(tmp_path, script, num_gpus=64).content["parallelism"]["data_parallel_size"] == 4


def test_vocabulary_of_an_unknown_tokenizer_is_left_open(tmp_path: Path) -> None:
    read_one = found(tmp_path, f"{SMALL}--tokenizer-type HuggingFaceTokenizer --tokenizer-model x")
    assert "vocab_size" not in read_one.content["model"]
    assert "model.vocab_size" in read_one.unsaid


def test_what_matters_little_is_noted(tmp_path: Path) -> None:
    notes = found(tmp_path, f"{SMALL}--transformer-impl local --fp16-lm-cross-entropy --deterministic-mode").notes
    assert notes == (
        "--fp16-lm-cross-entropy: the loss is predicted in fp32",
        "--deterministic-mode: its slower kernels are not modelled",
    )


def test_what_changes_no_cost_is_not_mentioned(tmp_path: Path) -> None:
    arguments = "--lr 1e-4 --save x --log-interval 1 --data-path 0.5 a 0.5 b --split 99,1,0 --use-flash-attn --seed -1"
    assert found(tmp_path, SMALL + arguments).notes == ()


REFUSED = [
    (
        "--fp8-format hybrid --fp8-recipe custom",
        "--fp8-recipe is custom; expected delayed, tensorwise, blockwise, mxfp8",
    ),
    ("--fp8-format hybrid --first-last-layers-bf16", "--fp8-recipe delayed is for all layers in Megatron-LM"),
    ("--fp8-format hybrid --fp4-format e2m1", "--fp8-format and --fp4-format are both given; write one of them"),
    ("--fp8-format hybrid --no-fp8-wgrad", "gradients of the weights in 16 bits beside fp8 are not modelled"),
    ("--is-hybrid-model", "its layers are not named; write --hybrid-override-pattern"),
    ("--hybrid-override-pattern MX", "expected 8 letters of M * - E, one a layer"),
    ("--decoder-num-layers 4", "only decoders without an encoder are predicted"),
    ("--optimizer sgd", "--optimizer is sgd; only adam and muon are modelled"),
    ("--fp16 --bf16", "--fp16 and --bf16 are both given"),
    ("--position-embedding-type relative", "expected learned_absolute, rope, yarn, alibi or none"),
    ("--normalization Batch", "--normalization is Batch; expected LayerNorm, RMSNorm"),
    ("--moe-layer-recompute --num-experts 8", "write --recompute-granularity selective --recompute-modules moe"),
    ("--num-experts 8 --moe-layer-freq x", "expected a period such as 2, or a list such as"),
    ("--num-experts 8 --moe-layer-freq [1]*4", "it names 4 layers; the model has 8"),
    (
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3",
        "it must divide the layers of a stage",
    ),
    ("--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 1", "of 4 stages it must divide"),
    ("--frobnicate-size 3", "--frobnicate-size is 3; of Megatron-LM it is not known here"),
    ("--swiglue", "Did you mean swiglu?"),
    ("--hidden-size wide", "--hidden-size is wide; expected a whole number"),
    ("--hidden-dropout much", "--hidden-dropout is much; expected a number"),
    ("--swiglu 3", "--swiglu is 3; expected true or false"),
    ("--num-layers 0", "--num-layers is 0; expected at least 1"),
    ("--window-size wide", "expected the tokens to the left and right"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_cannot_be_predicted_is_refused_in_one_line(arguments: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        small(tmp_path, arguments)
    assert str(caught.value).startswith("launch.sh: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\x00" not in str(caught.value)


def test_value_that_only_a_run_knows_is_refused_where_it_matters(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--kv-channels is \$1, which only a run of the script knows; write its value"
    ):
        found(tmp_path, f"python pretrain.py {SMALL} --kv-channels $1 --save $2")
    assert found(tmp_path, f"python pretrain.py {SMALL} --save $2").content["training"]["micro_batch_size"] == 2


def test_argument_in_a_condition_is_refused_where_it_matters(tmp_path: Path) -> None:
    script = "ARGS=({small})\nif [ $X = 1 ]; then\n  ARGS+=({more})\nfi\npython pretrain.py ${{ARGS[@]}}\n"
    with pytest.raises(ConfigError, match=r"--bf16 stands in a condition of the script \(ARGS\); print the command"):
        found(tmp_path, script.format(small=SMALL, more="--bf16"))
    harmless = found(tmp_path, script.format(small=SMALL, more="--wandb-project x"))
    assert harmless.content["training"]["precision"] == "fp32"


@pytest.mark.parametrize(
    "missing", ["num-layers", "hidden-size", "num-attention-heads", "seq-length", "micro-batch-size"]
)
def test_missing_size_is_named(missing: str, tmp_path: Path) -> None:
    rest = " ".join(f"--{part}" for part in SMALL.split("--")[1:] if not part.startswith(missing))
    with pytest.raises(ConfigError, match=f"launch.sh: --{missing} is missing; it is required"):
        found(tmp_path, rest)
