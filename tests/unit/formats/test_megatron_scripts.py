"""Megatron-LM's scripts as people have them: values from outside are asked for, arguments that cost nothing pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.__main__ import main
from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.core.schema.reading import READING, Reading
from predictor.formats import read_any

SIZES = "--num-layers 8 --hidden-size 256 --num-attention-heads 8 --ffn-hidden-size 1024 --seq-length 512"
REST = "--max-position-embeddings 512 --vocab-size 512 --tokenizer-type NullTokenizer --transformer-impl local --bf16"
BATCH = "--micro-batch-size 1 --global-batch-size 16"
WHOLE = f"{SIZES} {BATCH} {REST}"


def found(tmp_path: Path, text: str, num_gpus: int | None = None) -> Read:
    path = tmp_path / "launch.sh"
    path.write_text(text, encoding="utf-8")
    return read_any(path, num_gpus)


def test_an_argument_of_the_script_is_asked_for_by_its_own_name(tmp_path: Path) -> None:
    script = f"TP_SIZE=$4\nPP=${{2}}\ntorchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {REST} --sequence-parallel "
    script += "--tensor-model-parallel-size ${TP_SIZE} --pipeline-model-parallel-size $PP --micro-batch-size $MBS"
    read = found(tmp_path, script + " --global-batch-size $(($1 * 8))")
    assert read.unsaid == {
        "parallelism.tensor_parallel_size": "launch.sh: --tensor-model-parallel-size is TP_SIZE, which is $4, the "
        "script's fourth argument",
        "parallelism.pipeline_parallel_size": "launch.sh: --pipeline-model-parallel-size is PP, which is ${2}, the "
        "script's second argument",
        "parallelism.data_parallel_size": "launch.sh: the number of replicas follows from the GPUs",
        "training.micro_batch_size": "launch.sh: --micro-batch-size is $MBS, which the script does not set",
        "training.global_batch_size": "launch.sh: --global-batch-size is $(1*8), which only a run of the script knows",
    }
    assert read.content["parallelism"]["sequence_parallel"] is True
    assert not {"tensor_parallel_size", "pipeline_parallel_size", "schedule"} & read.content["parallelism"].keys()
    assert not {"micro_batch_size", "global_batch_size"} & read.content["training"].keys()


def test_degrees_that_are_asked_for_are_given_as_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = f"TP=$1\npython pretrain_gpt.py {WHOLE} --tensor-model-parallel-size $TP\n"
    found(tmp_path, script)
    arguments = ["predict", str(tmp_path / "launch.sh"), "--system", "A100_SXM", "--gpus", "8"]
    assert main(arguments) == 2
    assert "is TP, which is $1, the script's first argument: set parallelism.tensor_parallel" in capsys.readouterr().err
    assert main([*arguments, "--tp", "4"]) == 0
    assert "8 GPUs = 1 pipeline × 4 tensor × 2 data parallel" in capsys.readouterr().out


def test_sizes_are_asked_for_where_nothing_else_depends_on_them(tmp_path: Path) -> None:
    text = WHOLE.replace("--num-layers 8", "--num-layers $N").replace("--hidden-size 256", "--hidden-size $H")
    assert {"model.num_layers", "model.hidden_size"} <= found(tmp_path, text).unsaid.keys()
    gated = text.replace("--ffn-hidden-size 1024", "--swiglu")
    assert "model.ffn_hidden_size" in found(tmp_path, gated).unsaid
    with pytest.raises(ConfigError, match=r"--num-layers is \$N, which only a run of the script knows"):
        found(tmp_path, f"{text} --num-experts 4 --moe-layer-freq 2")


def test_an_argument_that_speaks_of_no_cost_passes_with_a_note(tmp_path: Path) -> None:
    script = f"{WHOLE} --frobnicate 3 --greeting"
    note = "launch.sh: not known here, and taken to cost nothing: --frobnicate, --greeting (--strict refuses such keys)"
    assert note in found(tmp_path, script).notes
    token = READING.set(Reading(strict=True))
    try:
        with pytest.raises(ConfigError, match="--frobnicate is 3; of Megatron-LM it is not known here"):
            found(tmp_path, script)
    finally:
        READING.reset(token)


def test_a_stage_of_zero_that_only_a_run_knows_is_asked_for(tmp_path: Path) -> None:
    json = '{"train_batch_size": $1, "zero_optimization": {"stage": STAGE}, "fp16": {"enabled": true}}'
    script = (
        f"cat <<EOT > ds.json\n{json}\nEOT\npython pretrain_gpt.py {WHOLE} --deepspeed --deepspeed_config ds.json\n"
    )
    said = found(tmp_path, script.replace("STAGE", "2"))
    assert (said.content["parallelism"]["zero_stage"], said.content["training"]["global_batch_size"]) == (2, 16)
    assert "parallelism.zero_stage" in found(tmp_path, script.replace("STAGE", "$ZERO")).unsaid


def test_releases_of_2020_on_deepspeed(tmp_path: Path) -> None:
    script = f"deepspeed --num_nodes 1 --num_gpus 8 pretrain_gpt2.py {SIZES} {REST} --batch-size 2 --gas 4 --deepspeed"
    script += " --model-parallel-size 2 --pipe-parallel-size 2 --zero-stage 0 --zero-reduce-bucket-size 5000 --bf16"
    script += " --checkpoint-activations --checkpoint-num-layers 2 --synchronize-each-layer --contigious-checkpointing"
    content = found(tmp_path, f"{script} --normalization rmsnorm --num-key-value-heads 2").content
    assert content["model"]["num_key_value_heads"] == 2
    degrees = [content["parallelism"][f"{part}_parallel_size"] for part in ("tensor", "pipeline", "data")]
    assert degrees == [2, 2, 2]
    assert content["model"]["normalization"] == "rms_norm"
    training = content["training"]
    assert (training["num_micro_batches"], training["recompute_group_layers"]) == (4, 2)
    assert training["synchronize_each_layer"] is True


def test_a_decoder_ignores_the_length_of_another(tmp_path: Path) -> None:
    assert found(tmp_path, f"{WHOLE} --decoder-seq-length 512").content["model"]["sequence_length"] == 512
    with pytest.raises(ConfigError, match="only decoders without an encoder"):
        found(tmp_path, f"{WHOLE} --decoder-seq-length 128")


def test_prediction_modules_behind_a_pattern_are_counted(tmp_path: Path) -> None:
    text = WHOLE.replace("--num-layers 8", "--hybrid-layer-pattern MM*-/*-/*-")
    assert found(tmp_path, f"{text} --swiglu").content["model"]["num_mtp_layers"] == 2


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("./deepy.py train.py configs/20B.yml configs/local_setup.yml", "configs/20B.yml configs/local_setup.yml"),
        ("python deepy.py train.py -d configs 125M local_setup.yml 2>&1", "configs/125M.yml configs/local_setup.yml"),
        ("python ./deepy.py train.py \\\n  --conf_dir conf/ $CONFIG | tee log", "conf/$CONFIG"),
    ],
)
def test_a_script_that_starts_gpt_neox_says_which_files_to_read(command: str, files: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, f"#!/bin/bash\nmodule load cuda\n{command}\n")
    assert str(caught.value) == f"launch.sh starts GPT-NeoX with {files}: read these files, together"


SIZED = """#!/bin/bash
MODEL_SIZE=$1
TP=${2}
PR=${3:-bf16}
if [ $MODEL_SIZE = 7B ]; then
    NUM_LAYERS=32
    gqa_options=" --group-query-attention --num-query-groups 4"
elif [ $MODEL_SIZE = 1B ]; then
    NUM_LAYERS=16
    gqa_options=""
fi
if [ $PR = bf16 ]; then
    pr_options="--bf16"
else
    pr_options="--fp16"
fi
torchrun --nproc_per_node $GPUS pretrain_gpt.py --num-layers $NUM_LAYERS --tensor-model-parallel-size $TP $pr_options \\
    --hidden-size 256 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 --vocab-size 512 \\
    --tokenizer-type NullTokenizer --transformer-impl local --micro-batch-size 1 --global-batch-size 16 $gqa_options
"""


def test_a_script_is_read_with_the_arguments_that_another_calls_it_with(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SIZED, encoding="utf-8")
    read = found(tmp_path, "cd /elsewhere\nGPUS=8 bash run.sh \\\n  7B 2 2>&1 | tee log\n")
    model, parallelism = read.content["model"], read.content["parallelism"]
    assert (model["num_layers"], model["num_key_value_heads"]) == (32, 4)
    assert (parallelism["tensor_parallel_size"], parallelism["data_parallel_size"]) == (2, 4)
    assert read.content["training"]["precision"] == "bf16"
    assert "launch.sh: read is run.sh, which it calls with its arguments" in read.notes
    other = found(tmp_path, "export GPUS=16\nsh ./run.sh 1B 4 fp16\n").content
    assert (other["model"]["num_layers"], other["parallelism"]["data_parallel_size"]) == (16, 4)
    assert other["training"]["precision"] == "fp16"
    with pytest.raises(ConfigError, match=r"its 3 arguments decide \d of its options; write the line that calls it"):
        found(tmp_path, SIZED.replace("${3:-bf16}", "$3"))


def test_a_script_that_takes_its_arguments_in_turn_is_not_followed(tmp_path: Path) -> None:
    turn = "while [ $# -gt 0 ]; do\n  case $1 in --tp) TP=$2; shift;; esac\n  shift\ndone\n"
    (tmp_path / "run.sh").write_text(turn + SIZED, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"it starts run\.sh: read that"):
        found(tmp_path, "bash run.sh --tp 4\n")


def test_what_a_condition_adds_passes_where_it_costs_nothing(tmp_path: Path) -> None:
    script = 'if [ $FROM != none ]; then\n  LOADING=" --load $FROM"\n  DONE=""\nfi\n'
    command = f"python pretrain_gpt.py {WHOLE} ${{LOADING}} $DONE --swiglu ${{LOADING}}"
    assert found(tmp_path, f"{script}{command}").content["model"]["activation"] == "swiglu"
    with pytest.raises(ConfigError, match=r"--recompute-activations stands in a condition of the script \(LOADING\)"):
        found(tmp_path, f"{script.replace('--load $FROM', '--recompute-activations')}{command}")
