"""Programs of Megatron-LM that train no decoder are refused; which layers have experts is read in every spelling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.formats.megatron.experts import layer_pattern
from predictor.formats.megatron.reader import read

SMALL = "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 2 "


def found(tmp_path: Path, text: str, name: str = "launch.sh") -> Any:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read(path)


@pytest.mark.parametrize(
    "text",
    [
        f"torchrun --nproc_per_node 8 megatron/pretrain_t5.py {SMALL}",
        f"python pretrain_vision_classify.py {SMALL}",
        f"python tasks/main.py --task RACE {SMALL}",
        f"python tools/run_text_generation_server.py {SMALL}",
        f"{SMALL} --tokenizer-type BertWordPieceLowerCase",
        f"{SMALL} --vocab-file data/bert-vocab.txt",
    ],
)
def test_what_trains_no_decoder_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the program is|encoder"):
        found(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "pairs"), [(f"torchrun pretrain_bert.py {SMALL}", True), (f"{SMALL} --bert-no-binary-head", False)]
)
def test_bert_is_an_encoder(text: str, pairs: bool, tmp_path: Path) -> None:
    words = "--vocab-file /data/bert-large-uncased-vocab.txt --tokenizer-type BertWordPieceLowerCase"
    model = found(tmp_path, f"{text} {words}").content["model"]
    assert model["causal"] is False
    assert model["encoder"] == {
        "token_types": 2 * pairs,
        "pooler": pairs,
        "mlm_head": True,
        "next_sentence_head": pairs,
    }
    assert model["vocab_size"] == 30522


def test_recipe_of_bert_says_no_vocabulary(tmp_path: Path) -> None:
    words = SMALL.split()
    lines = [f"  {key}: {value}" for key, value in zip(words[::2], words[1::2], strict=True)]
    text = "\n".join(["MODEL_ARGS:", *lines, "  --bert-no-binary-head: true", "  --vocab-file: ${DATA_PATH}/vocab.txt"])
    read = found(tmp_path, text, "model_config.yaml")
    assert read.content["model"]["causal"] is False
    assert "model.vocab_size" in read.unsaid


DEEPSPEED = """#SBATCH --nodes=48
GPUS_PER_NODE=8
NNODES=$SLURM_NNODES
ZERO_STAGE=0
config_json="./ds_config.$SLURM_JOB_ID.json"
cat <<EOT > $config_json
{
  "train_micro_batch_size_per_gpu": 2,
  "train_batch_size": 2048,
  "zero_optimization": {"stage": $ZERO_STAGE},
  "bf16": {"enabled": true}
}
EOT
ARGS=" --num-layers 70 --hidden-size 14336 --num-attention-heads 112 --seq-length 2048 --max-position-embeddings 2048 \\
    --micro-batch-size 2 --global-batch-size 2048 --bf16 --embed-layernorm --position-embedding-type alibi \\
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 --checkpoint-activations \\
    --pp-partition-method 'type:transformer|embedding' --pad-vocab-size-to 250880 --tokenizer-type PretrainedFromHF \\
    --kill-switch-path /tmp/kill --abort-on-unmet-fused-kernel-constraints"
export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
export CMD="`pwd`/pretrain_gpt.py $ARGS --deepspeed --deepspeed_config ${config_json} --zero-stage ${ZERO_STAGE} \\
    --deepspeed-activation-checkpointing"
echo $CMD
clear; srun --jobid $SLURM_JOB_ID bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $CMD" 2>&1 | tee log.txt
"""


def test_script_of_megatron_deepspeed(tmp_path: Path) -> None:
    read = found(tmp_path, DEEPSPEED, "train.slurm")
    model, parallelism, training = (read.content[name] for name in ("model", "parallelism", "training"))
    assert (model["positions"], model["embedding_norm"], model["vocab_size"]) == ("alibi", True, 250880)
    assert (parallelism["pipeline_parallel_size"], parallelism["data_parallel_size"]) == (12, 8)
    assert (parallelism["embedding_counts_as_layer"], parallelism["loss_counts_as_layer"]) == (True, True)
    assert (parallelism["zero_stage"], parallelism["fp32_gradients"]) == (1, True)  # DeepSpeed's optimizer of bf16
    assert (training["recompute"], training["framework"]) == ("full", "megatron-deepspeed")
    assert read.unsaid == {}


def test_zero_of_a_file_elsewhere_is_left_open(tmp_path: Path) -> None:
    read = found(tmp_path, f"deepspeed pretrain_gpt.py {SMALL} --fp16 --deepspeed --deepspeed_config ds.json")
    assert "ds.json is not in the script" in read.unsaid["parallelism.zero_stage"]
    assert "zero_stage" not in read.content["parallelism"]
    assert read.content["model"]["attention"] == "fused_softmax"  # its layers are not Transformer Engine's
    staged = found(tmp_path, f"deepspeed pretrain_gpt.py {SMALL} --fp16 --deepspeed --zero-stage 2 --num-experts 1")
    assert (staged.content["parallelism"]["zero_stage"], "moe" in staged.content["model"]) == (2, False)


def test_program_of_ones_own_is_noted(tmp_path: Path) -> None:
    read = found(tmp_path, f"torchrun train.py {SMALL}")
    assert any("train.py" in note for note in read.notes)


@pytest.mark.parametrize(
    ("written", "pattern"),
    [
        (None, [1, 1, 1, 1, 1, 1]),
        (1, [1, 1, 1, 1, 1, 1]),
        ("2", [1, 0, 1, 0, 1, 0]),
        ("([0]*3+[1]*3)", [0, 0, 0, 1, 1, 1]),
        ("'([0]*3+[1]*3)'", [0, 0, 0, 1, 1, 1]),
        ("[0]+[1]*5", [0, 1, 1, 1, 1, 1]),
        ("([1, 1, 0])*2", [1, 1, 0, 1, 1, 0]),
        ("2*[0,1]+[1,1]", [0, 1, 0, 1, 1, 1]),
        ([0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1]),
        ("0 1 1 1 1 1", [0, 1, 1, 1, 1, 1]),
        ("0,1,1,1,1,1", [0, 1, 1, 1, 1, 1]),
        ("0", None),
        ("[2]", None),
        ("[1]*x", None),
        ("[1", None),
        ("__import__('os')", None),
    ],
)
def test_spellings_of_the_layers_with_experts(written: Any, pattern: list[int] | None) -> None:
    assert layer_pattern(written, 6) == pattern


@pytest.mark.parametrize("written", ["([0]*3+[1]*5)", '"([0] * 3 + [1] * 5)"', "[0,0,0]+[1]*5", "'([0,0,0,1]+[1]*4)'"])
def test_dense_layers_at_the_start(written: str, tmp_path: Path) -> None:
    model = found(tmp_path, f"python pretrain_gpt.py {SMALL} --num-experts 8 --moe-layer-freq {written}").content[
        "model"
    ]
    assert model["moe"]["num_dense_layers"] == 3


@pytest.mark.parametrize("written", ["([0]*3+[1]*5)", "[0, 0, 0, 1, 1, 1, 1, 1]"])
def test_dense_layers_of_a_recipe(written: str, tmp_path: Path) -> None:
    words = SMALL.split()
    lines = [f"  {key}: {value}" for key, value in zip(words[::2], words[1::2], strict=True)]
    text = "\n".join(["MODEL_ARGS:", *lines, "  --num-experts: 8", f"  --moe-layer-freq: {written}", ""])
    assert found(tmp_path, text, "model_config.yaml").content["model"]["moe"]["num_dense_layers"] == 3


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    text = f"{SMALL} --fp16 --bf16 --unheard-of-size 3 --dsa-indexer-n-heads 4 --optimizer lion --num-query-groups x"
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, text)
    lines = str(caught.value).splitlines()
    assert lines[0] == "5 problems:"
    for words in ("--fp16 and --bf16", "--unheard-of-size", "sparse attention", "only adam", "--num-query-groups is x"):
        assert sum(words in line for line in lines) == 1


def test_nodes_of_slurm_are_those_of_the_run(tmp_path: Path) -> None:
    script = "#SBATCH --nodes=16\nN=$SLURM_NNODES\n"
    read = found(tmp_path, f'{script}srun bash -c "torchrun --nproc_per_node 8 --nnodes $N pretrain_gpt.py {SMALL}"')
    assert read.content["parallelism"]["data_parallel_size"] == 128


def test_experts_of_megatron_deepspeed_stand_in_every_nth_layer(tmp_path: Path) -> None:
    run = f"deepspeed pretrain_gpt.py {SMALL} --fp16 --deepspeed --zero-stage 1 --num-experts 16"
    with pytest.raises(ConfigError, match="--expert-interval is missing; releases differ in its default"):
        found(tmp_path, run)
    read = found(tmp_path, f"{run} --expert-interval 2 --moe-expert-parallel-size 4")
    layers = read.content["model"]["num_layers"]
    assert read.content["model"]["ffn_types"] == ["dense", "experts"] * (layers // 2)
    moe = read.content["model"]["moe"]
    assert (moe["experts_per_token"], moe["capacity_factor"]) == (1, 1.0)
    assert "expert_dispatcher" not in read.content["parallelism"]  # DeepSpeed exchanges all to all, our default
    dropless = found(tmp_path, f"{run} --expert-interval 1 --topk 2 --disable-moe-token-dropping")
    assert "capacity_factor" not in dropless.content["model"]["moe"]
    assert dropless.content["model"]["moe"]["experts_per_token"] == 2


def test_launches_that_block_the_host(tmp_path: Path) -> None:
    run = f"python pretrain_gpt.py {SMALL}"
    assert found(tmp_path, f"export CUDA_LAUNCH_BLOCKING=1\n{run}").content["training"]["blocking_launches"] is True
    for line in ("export CUDA_LAUNCH_BLOCKING=0", "# export CUDA_LAUNCH_BLOCKING=1", ""):
        assert "blocking_launches" not in found(tmp_path, f"{line}\n{run}").content["training"]


def test_arguments_that_come_from_outside_are_none(tmp_path: Path) -> None:
    read = found(
        tmp_path, f'LEVEL=1 torchrun pretrain_gpt.py {SMALL} --bf16 $EXTRA_ARGS ${{MORE_OPTIONS[@]}} "$@" |& tee log'
    )
    assert read.content["training"]["precision"] == "bf16"
    assert any("EXTRA_ARGS empty" in note for note in read.notes)
    asked = found(tmp_path, f"torchrun pretrain_gpt.py {SMALL} --tensor-model-parallel-size $TP $EXTRA_ARGS").unsaid
    assert asked["parallelism.tensor_parallel_size"].endswith("is $TP, which the script does not set")
    with pytest.raises(ConfigError, match="which only a run"):
        found(tmp_path, f"EXTRA_ARGS=$(cat file)\ntorchrun pretrain_gpt.py {SMALL} --bf16 $EXTRA_ARGS")


def test_arguments_of_a_fork_are_one_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, f"torchrun pretrain_gpt.py {SMALL} --use-fused-rmsnorm --swap-optimizer --noop-layers 3 --x 1")
    assert "--swap-optimizer, --use-fused-rmsnorm are of MindSpeed-LLM" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_trainings_that_differ_are_not_chosen_from(tmp_path: Path) -> None:
    first, second = (
        f"torchrun pretrain_gpt.py {SMALL} --tensor-model-parallel-size {size} --lr {size}" for size in (1, 2)
    )
    with pytest.raises(
        ConfigError, match="it starts 2 trainings that differ in --tensor-model-parallel-size; leave one"
    ):
        found(tmp_path, f"if [ $1 = small ]; then\n{first}\nelse\n{second}\nfi")
    again = f"CMD='{first}'\necho $CMD\n$CMD\npython evaluate.py --tensor-model-parallel-size 8 > log\n{first}"
    assert found(tmp_path, again).content["parallelism"]["tensor_parallel_size"] == 1


def test_nodes_that_only_a_run_knows_are_not_one(tmp_path: Path) -> None:
    run = f"torchrun --nproc_per_node 8 --nnodes $COUNT pretrain_gpt.py {SMALL}"
    assert "parallelism.data_parallel_size" in found(tmp_path, run).unsaid
    assert found(tmp_path, run.replace("--nnodes $COUNT ", "")).content["parallelism"]["data_parallel_size"] == 8


def test_a_fork_s_llama_without_its_arguments_is_no_gpt(tmp_path: Path) -> None:
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1"
    with pytest.raises(ConfigError, match="builds LLaMA's layers itself"):
        found(tmp_path, f"torchrun --nproc_per_node 8 pretrain_llama.py {sizes}")
