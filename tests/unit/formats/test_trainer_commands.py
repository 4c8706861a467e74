"""Shell scripts that start a Trainer: launchers, arguments, and the files that they name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.core.transforms.lora import EVERY_PART
from predictor.formats import detect, read_any

ARGUMENTS = (
    "--model_name_or_path meta-llama/Llama-3.1-8B --output_dir out --block_size 2048 --bf16 "
    "--per_device_train_batch_size 2 --torch_dtype bfloat16"
)
FSDP = "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\nfsdp_config: {}\n"


def found(tmp_path: Path, command: str, num_gpus: int | None = None) -> Read:
    path = tmp_path / "train.sh"
    path.write_text(f"#!/bin/bash\n{command}\n", encoding="utf-8")
    assert detect(path) == "Hugging Face Trainer command"
    return read_any(path, num_gpus)


@pytest.mark.parametrize(
    ("launcher", "gpus", "per_node"),
    [
        ("torchrun --nproc_per_node 8 --nnodes 2 run_clm.py", 16, 8),
        ("torchrun --nproc-per-node=4 run_clm.py", 4, None),
        ("python -m torch.distributed.launch --nproc_per_node=2 train.py", 2, None),
        ("deepspeed --num_gpus 8 --num_nodes 4 train.py", 32, 8),
        ("deepspeed --include localhost:0,1,2 train.py", 3, None),
        ("accelerate launch --num_processes 16 --num_machines 2 train.py", 16, 8),
        ("CUDA_VISIBLE_DEVICES=3 python train.py", 1, None),
        ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch train.py", 2, None),
        ("NPROC=8\ntorchrun --nproc_per_node $NPROC train.py", 8, None),
        ("python train.py", None, None),
        ("CUDA_VISIBLE_DEVICES=0,1 python train.py", None, None),  # torch.nn.DataParallel, or nothing
    ],
)
def test_launchers(launcher: str, gpus: int | None, per_node: int | None, tmp_path: Path) -> None:
    read = found(tmp_path, f"{launcher} {ARGUMENTS}")
    parallelism = read.content["parallelism"]
    assert (parallelism.get("data_parallel_size"), parallelism.get("gpus_per_node")) == (gpus, per_node)
    assert ("parallelism.data_parallel_size" in read.unsaid) is (gpus is None)
    assert read.content["model"]["sequence_length"] == 2048


def test_number_of_gpus_that_the_user_says_counts(tmp_path: Path) -> None:
    read = found(tmp_path, f"torchrun --nproc_per_node 8 train.py {ARGUMENTS}", num_gpus=64)
    assert read.content["parallelism"]["data_parallel_size"] == 64


def test_configuration_of_accelerate_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "fsdp.yaml").write_text(FSDP, encoding="utf-8")
    read = found(tmp_path, f"accelerate launch --config_file configs/fsdp.yaml train.py {ARGUMENTS}")
    parallelism = read.content["parallelism"]
    assert (parallelism["zero_stage"], parallelism["data_parallel_size"], parallelism["gpus_per_node"]) == (3, 16, 8)
    read = found(tmp_path, f"accelerate launch --config_file configs/fsdp.yaml --num_processes 4 train.py {ARGUMENTS}")
    assert read.content["parallelism"]["data_parallel_size"] == 4


@pytest.mark.parametrize(("stage", "framework"), [(0, "transformers"), (2, "deepspeed"), (3, "transformers")])
def test_configuration_of_accelerate_that_is_not_there_leaves_the_stage_open(
    stage: int, framework: str, tmp_path: Path
) -> None:
    read = found(tmp_path, f"accelerate launch --config_file other.yaml train.py {ARGUMENTS}", num_gpus=8)
    assert "accelerate's configuration is other.yaml, which is not there" in read.unsaid["parallelism.zero_stage"]
    content = read.with_derived({**read.content, "parallelism": {"data_parallel_size": 8, "zero_stage": stage}})
    assert content["training"]["framework"] == framework
    assert content["parallelism"]["gradient_reduction"] == ("reduce_scatter" if stage else "all_reduce")


def test_deepspeed_by_its_launcher(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}), encoding="utf-8")
    command = f"deepspeed --num_gpus 8 train.py --deepspeed ds.json {ARGUMENTS}"
    assert found(tmp_path, command).content["parallelism"]["zero_stage"] == 2
    command = f"accelerate launch --use_deepspeed --zero_stage 3 --num_processes 8 train.py {ARGUMENTS}"
    assert found(tmp_path, command).content["parallelism"]["zero_stage"] == 3


def test_file_of_arguments_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: lora\ncutoff_len: 1024\n"
        "per_device_train_batch_size: 1\nbf16: true\n",
        encoding="utf-8",
    )
    read = found(tmp_path, "CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train sft.yaml per_device_train_batch_size=4")
    assert (read.content["training"]["micro_batch_size"], read.content["model"]["sequence_length"]) == (4, 1024)
    assert read.content["parallelism"]["data_parallel_size"] == 2
    with pytest.raises(ConfigError, match=r"the arguments are in other.yaml, which is not beside this script"):
        found(tmp_path, "llamafactory-cli train other.yaml")
    (tmp_path / "lora.yml").write_text("base_model: Qwen/Qwen3-8B\nadapter: lora\nlora_r: 8\n", encoding="utf-8")
    read = found(tmp_path, "accelerate launch --num_processes 4 -m axolotl.cli.train lora.yml --micro-batch-size 8")
    assert read.content["training"]["micro_batch_size"] == 8
    assert read.content["parallelism"]["data_parallel_size"] == 4


def test_arguments_of_llama_factory(tmp_path: Path) -> None:
    command = f"torchrun --nproc_per_node 2 src/train.py --stage sft --finetuning_type full {ARGUMENTS}"
    read = found(tmp_path, command.replace("--block_size", "--cutoff_len"))
    assert read.content["training"]["recompute"] == "full"


def test_file_that_the_script_writes_itself(tmp_path: Path) -> None:
    script = (
        "MODEL=Qwen/Qwen3-8B\ncat > run.yaml <<EOF\nmodel_name_or_path: $MODEL\nstage: sft\nfinetuning_type: lora\n"
        "cutoff_len: ${LENGTH}\nper_device_train_batch_size: 1\nEOF\nllamafactory-cli train run.yaml"
    )
    read = found(tmp_path, script)
    assert "preset" not in read.content["model"]  # whose length is that of another training
    assert read.content["model"]["num_layers"] == 36
    assert "cutoff_len is ${LENGTH}" in read.unsaid["model.sequence_length"].replace("$LENGTH", "${LENGTH}")


def test_switches_of_deepspeed_s_own_examples(tmp_path: Path) -> None:
    command = f"deepspeed --num_gpus 8 main.py --deepspeed --zero_stage 2 {ARGUMENTS}".replace("--bf16 ", "")
    content = found(tmp_path, command.replace("--torch_dtype bfloat16", "")).content
    assert (content["parallelism"]["zero_stage"], content["training"]["precision"]) == (2, "fp16")
    read = found(tmp_path, f"deepspeed --num_gpus 8 main.py --deepspeed --zero_stage $STAGE {ARGUMENTS}")
    assert "--deepspeed is $STAGE" in read.unsaid["parallelism.zero_stage"]


def test_trl(tmp_path: Path) -> None:
    read = found(tmp_path, "trl sft --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 1 --packing")
    assert (read.content["model"]["sequence_length"], read.content["training"]["recompute"]) == (1024, "full")


def test_what_comes_from_outside_is_asked_for_by_its_name(tmp_path: Path) -> None:
    arguments = "--model_name_or_path $MODEL --output_dir out --max_length $2 --per_device_train_batch_size $BATCH"
    read = found(tmp_path, f"torchrun --nproc_per_node $GPUS train.py {arguments} --bf16 True")
    assert "$MODEL, which comes from outside" in read.unsaid["model.num_layers"]
    assert "--per_device_train_batch_size is $BATCH" in read.unsaid["training.micro_batch_size"]
    assert "--max_length is $2" in read.unsaid["model.sequence_length"]
    assert "parallelism.data_parallel_size" in read.unsaid


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("scripts/dpo_online.py", "dpo is not modelled"),
        ("scripts/grpo.py", "grpo is not modelled"),
        ("run_glue.py", "glue is not modelled"),
        ("dpov2_train.py", "dpov is not modelled"),
        ("train_reward_model.py", "reward is not modelled"),
    ],
)
def test_other_tasks_are_refused_by_name(program: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, f"torchrun --nproc_per_node 2 {program} {ARGUMENTS}")


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (f"torchrun --nproc_per_node 2 scripts/dpo.py {ARGUMENTS} --beta 0.1", (4, "separate", None)),
        (f"accelerate launch --num_processes 2 run_orpo.py {ARGUMENTS} --beta 0.1", (4, None, None)),
        (f"trl kto {ARGUMENTS} --lora_r 8 --desirable_weight 1.0", (2, "adapters_off", 3)),
        (f"trl dpo {ARGUMENTS} --precompute_ref_log_probs true", (4, None, None)),
        ("swift rlhf --rlhf_type dpo --model Qwen/Qwen2.5-7B --max_length 2048", (2, "adapters_off", None)),
    ],
)
def test_preference_learning(program: str, expected: tuple[int, str | None, int | None], tmp_path: Path) -> None:
    training = found(tmp_path, program).content["training"]
    names = ("micro_batch_size", "reference_model", "reference_passes")
    assert tuple(training.get(name) for name in names) == expected


def test_several_trainings_that_differ_are_a_problem(tmp_path: Path) -> None:
    one = f"torchrun --nproc_per_node 2 train.py {ARGUMENTS}"
    found(tmp_path, f"{one}\n{one} --seed 2")
    with pytest.raises(ConfigError, match="2 trainings that differ in --gradient_accumulation_steps"):
        found(tmp_path, f"{one}\n{one} --gradient_accumulation_steps 2")


def test_problems_name_argument_and_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.sh:3: --optim is 'lion_32bit'"):
        found(tmp_path, f"torchrun --nproc_per_node 2 train.py {ARGUMENTS} \\\n  --optim lion_32bit")


SWIFT = "--model Qwen/Qwen2.5-7B-Instruct --dataset a b --torch_dtype bfloat16 --max_length 2048"


def test_ms_swift(tmp_path: Path) -> None:
    command = f"n=4\nNPROC_PER_NODE=$n \\\nswift sft {SWIFT} --train_type lora --lora_rank 8 --deepspeed zero2"
    read = found(tmp_path, command)
    training = read.content["training"]
    assert training["lora"] == {"rank": 8, "targets": [*EVERY_PART], "dropout": 0.05}
    assert (training["micro_batch_size"], training["num_micro_batches"]) == (1, 4)  # sixteen samples a step
    assert (training["recompute"], training["precision"], training["framework"]) == ("full", "bf16", "deepspeed")
    parallelism = read.content["parallelism"]
    assert (parallelism["data_parallel_size"], parallelism["gradient_bucket_elements"]) == (4, 200_000_000)
    assert any("zero2 is not there; it is taken as ms-swift 4.6 has it" in note for note in read.notes)
    full = found(tmp_path, f"CUDA_VISIBLE_DEVICES=0 swift pt {SWIFT} --train_type full --attn_impl flash_attn")
    assert (full.content["parallelism"]["data_parallel_size"], full.content["training"]["num_micro_batches"]) == (1, 16)
    open_gpus = found(tmp_path, f"swift sft {SWIFT}")
    assert {"parallelism.data_parallel_size", "training.num_micro_batches"} <= set(open_gpus.unsaid)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("sft --train_type longlora", "only lora and full are modelled"),
        ("sft --task_type embedding", "training of other tasks is not modelled"),
        ("sft --quant_bits 8", "only four bits of bitsandbytes are modelled"),
        ("sft --sequence_parallel_size 2", "DeepSpeed-Ulysses is not modelled"),
        ("rlhf --rlhf_type grpo", "rlhf is not modelled"),
    ],
)
def test_what_ms_swift_asks_for_that_is_not_modelled(arguments: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, f"CUDA_VISIBLE_DEVICES=0 swift {arguments} {SWIFT}")
    assert message in str(caught.value)
