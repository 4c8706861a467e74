"""A DeepSpeed configuration becomes batch, precision, ZeRO and an optimizer on the host; compression is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import load
from predictor.core.schema.read import Read
from predictor.formats.deepspeed.reader import read

DATA = Path(__file__).resolve().parents[2] / "data" / "readers" / "deepspeed"
MICRO = {"train_micro_batch_size_per_gpu": 4}


def found(tmp_path: Path, data_parallel_size: int | None = None, **values: Any) -> Read:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return read(path, data_parallel_size)


def test_configuration_of_gpt_neox() -> None:
    read_one = read(DATA / "zero1.json")
    assert read_one.content == {
        "parallelism": {
            "data_parallel_size": 8,
            "zero_stage": 1,
            "gradient_reduction": "reduce_scatter",
            "gradient_bucket_elements": 1_260_000_000,
            "overlap_gradient_reduction": True,
            "overlap_parameter_gather": False,
        },
        "training": {
            "micro_batch_size": 4,
            "global_batch_size": 256,
            "precision": "fp16",
            "partition_activations": True,
            "synchronize_each_layer": True,
        },
    }
    assert read_one.notes == ("wall_clock_breakdown: its timers synchronise, which is not modelled",)


def test_stage_3_overlaps_and_gathers_unless_told_otherwise() -> None:
    parallelism = read(DATA / "zero3.json", data_parallel_size=64).content["parallelism"]
    assert parallelism == {
        "data_parallel_size": 64,
        "zero_stage": 3,
        "gradient_reduction": "reduce_scatter",
        "gradient_bucket_elements": 200_000_000,
        "overlap_gradient_reduction": True,
        "overlap_parameter_gather": True,
        "fp32_gradients": True,
    }


@pytest.mark.parametrize(
    ("values", "replicas", "training", "dp"),
    [
        ((256, 4, 8), None, {"micro_batch_size": 4, "global_batch_size": 256}, 8),
        ((256, 4, 8), 8, {"micro_batch_size": 4, "global_batch_size": 256}, 8),
        ((256, 4, None), None, {"micro_batch_size": 4, "global_batch_size": 256}, None),
        ((256, 4, None), 16, {"micro_batch_size": 4, "global_batch_size": 256}, 16),
        ((256, None, 8), 16, {"micro_batch_size": 2, "global_batch_size": 256}, 16),
        ((256, None, None), 16, {"micro_batch_size": 16, "global_batch_size": 256}, 16),
        ((256, None, 8), None, {"global_batch_size": 256}, None),
        ((None, 4, 8), None, {"micro_batch_size": 4, "num_micro_batches": 8}, None),
        ((None, 4, None), 2, {"micro_batch_size": 4, "num_micro_batches": 1}, 2),
    ],
)
def test_two_batch_sizes_and_the_replicas_give_the_third(
    values: tuple[int | None, ...], replicas: int | None, training: dict[str, int], dp: int | None, tmp_path: Path
) -> None:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    got = found(tmp_path, replicas, **given)
    batch = {key: value for key, value in got.content["training"].items() if key != "precision"}
    assert batch == training
    assert got.content["parallelism"].get("data_parallel_size") == dp
    assert ("parallelism.data_parallel_size" in got.unsaid) == (dp is None)
    assert ("training.micro_batch_size" in got.unsaid) == ("micro_batch_size" not in training)


@pytest.mark.parametrize(
    ("values", "precision"),
    [({}, "fp32"), ({"fp16": {"enabled": True}}, "fp16"), ({"bf16": {"enabled": True}, "fp16": {}}, "bf16")],
)
def test_precision(values: dict[str, Any], precision: str, tmp_path: Path) -> None:
    assert found(tmp_path, **MICRO, **values).content["training"]["precision"] == precision


def test_precision_that_pytorch_casts_is_left_open(tmp_path: Path) -> None:
    got = found(tmp_path, **MICRO, torch_autocast={"enabled": True, "dtype": "bfloat16"})
    assert "precision" not in got.content["training"]
    assert "training.precision" in got.unsaid


def test_no_zero_reduces_whole_gradients(tmp_path: Path) -> None:
    assert found(tmp_path, **MICRO).content["parallelism"] == {"zero_stage": 0, "gradient_reduction": "all_reduce"}
    stage_2 = found(tmp_path, **MICRO, zero_optimization={"stage": 2, "reduce_scatter": False}).content["parallelism"]
    assert stage_2["gradient_reduction"] == "all_reduce"
    assert stage_2["overlap_gradient_reduction"] is False


def test_groups_that_share_out_states(tmp_path: Path) -> None:
    groups = found(tmp_path, **MICRO, zero_optimization={"stage": 3, "mics_shard_size": 8}).content["parallelism"]
    assert groups["zero_group_size"] == 8
    alone = {"stage": 3, "mics_shard_size": -1, "zero_hpz_partition_size": 1}
    assert "zero_group_size" not in found(tmp_path, **MICRO, zero_optimization=alone).content["parallelism"]


def test_pipeline_checkpoints_every_layer(tmp_path: Path) -> None:
    got = found(tmp_path, **MICRO, pipeline={"activation_checkpoint_interval": 1})
    assert got.content["training"]["recompute"] == "full"
    assert "training.recompute" not in got.unsaid
    assert "training.recompute" in found(tmp_path, **MICRO).unsaid


def test_auto_is_fine_where_it_changes_no_cost(tmp_path: Path) -> None:
    values: dict[str, Any] = {"gradient_clipping": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
    assert found(tmp_path, **MICRO, **values).notes == ()


def test_disabled_sections_are_not_refused(tmp_path: Path) -> None:
    off = {"enabled": False}
    got = found(tmp_path, **MICRO, elasticity=off, data_efficiency=off, flops_profiler=off, autotuning=off)
    assert got.notes == ()


@pytest.mark.parametrize(
    ("zero", "share"),
    [
        ({"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}, 1.0),
        ({"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}, 0.3),
        ({"stage": 2, "cpu_offload": True}, 1.0),
        ({"stage": 2, "offload_optimizer": {"device": "none"}}, None),
        ({"stage": 2}, None),
    ],
)
def test_optimizer_on_the_host(zero: dict[str, Any], share: float | None, tmp_path: Path) -> None:
    read_one = found(tmp_path, **MICRO, zero_optimization=zero)
    training = read_one.content["training"]
    assert training.get("offload_optimizer") == share
    assert training.get("framework") == (None if share is None else "deepspeed")  # whose Adam runs on the CPU
    assert training.get("pinned_offload") == (None if share is None else "pin_memory" in str(zero))
    assert any("the CPU updates" in note for note in read_one.notes) is (share is not None)


@pytest.mark.parametrize(
    ("zero", "keys"),
    [
        ({"stage": 3, "offload_param": {"device": "cpu"}}, {"offload_parameters": True, "pinned_offload": False}),
        ({"stage": 3, "cpu_offload_param": True}, {"offload_parameters": True, "pinned_offload": False}),
        (
            {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": True}, "offload_optimizer": {}},
            {"offload_parameters": True, "pinned_offload": True},
        ),
        (
            {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}},
            {"offload_parameters": True, "offload_optimizer": 1.0, "host_threads": 1, "pinned_offload": False},
        ),
        ({"stage": 2, "offload_param": {"device": "cpu"}}, {}),  # of stage 3 alone
        ({"stage": 3, "offload_param": {"device": "none"}}, {}),
    ],
)
def test_weights_on_the_host(zero: dict[str, Any], keys: dict[str, Any], tmp_path: Path) -> None:
    training = found(tmp_path, **MICRO, zero_optimization=zero).content["training"]
    names = ("offload_parameters", "offload_optimizer", "host_threads", "pinned_offload")
    assert {key: training[key] for key in names if key in training} == keys


@pytest.mark.parametrize("params", [{}, {"params": {"lr": 0.02, "momentum": 0.95, "ns_method": "gram"}}])
def test_muon(params: dict[str, Any], tmp_path: Path) -> None:
    got = found(tmp_path, **MICRO, zero_optimization={"stage": 1}, optimizer={"type": "Muon", **params})
    training = got.content["training"]
    assert (training["optimizer"], training["framework"]) == ("muon", "deepspeed")
    assert "optimizer" not in found(tmp_path, **MICRO, optimizer={"type": "AdamW"}).content["training"]


def test_remarks_and_sections_that_change_nothing(tmp_path: Path) -> None:
    values: dict[str, Any] = MICRO | {"_comment": "x", "comms_config": {"verbose": False}, "aio": {"queue_depth": 8}}
    read_one = found(tmp_path, **values, fp16={"enabled": False}, bf16={"enabled": "auto"})
    assert "training.precision" in read_one.unsaid
    assert found(tmp_path, **values, fp16={"enabled": True}, bf16={"enabled": "auto"}).content["training"][
        "precision"
    ] == ("fp16")


REFUSED = [
    (MICRO | {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}, "only cpu is modelled"),
    (MICRO | {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "only cpu is modelled"),
    (MICRO | {"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "quantised traffic (ZeRO++)"),
    (MICRO | {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}, "a second copy of the weights"),
    (MICRO | {"zero_optimization": {"stage": 2, "mics_shard_size": 8}}, "it needs stage 3, not 2"),
    (MICRO | {"zero_optimization": {"stage": 4}}, "zero_optimization.stage is 4; expected 0, 1, 2 or 3"),
    (MICRO | {"zero_optimization": {"stage": "auto"}}, "zero_optimization.stage is 'auto', which the trainer replaces"),
    (MICRO | {"optimizer": {"type": "OneBitAdam"}}, "compressed gradients are not modelled; write AdamW"),
    (MICRO | {"optimizer": {"type": "Lion"}}, "only Adam, AdamW and Muon are modelled"),
    (MICRO | {"optimizer": {"type": "Muon", "params": {"ns_method": "standard"}}}, "only gram is modelled"),
    (MICRO | {"compression_training": {"weight_quantization": {}}}, "compression is not modelled"),
    (MICRO | {"elasticity": {"enabled": True}}, "a changing number of GPUs is not modelled"),
    (MICRO | {"tensor_parallel": {"autotp_size": -4}}, "autotp_size is -4; expected at least 0"),
    (MICRO | {"activation_checkpointing": {"cpu_checkpointing": True}}, "checkpoints on the host are not modelled"),
    (MICRO | {"pipeline": {"activation_checkpoint_interval": 2}}, "not modelled; write 1"),
    (MICRO | {"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "fp16 and bf16 are both enabled"),
    (MICRO | {"zero_optimization": True}, "zero_optimization is True; expected keys and values"),
    (
        MICRO | {"train_batch": 3},
        "train_batch is 3; of DeepSpeed it is not known here. Did you mean train_batch_size?",
    ),
    (
        MICRO | {"zero_optimization": {"overlap_com": True}},
        "zero_optimization.overlap_com is True; of DeepSpeed it is not known here.",
    ),
    ({}, "train_batch_size or train_micro_batch_size_per_gpu must be given"),
    ({"train_batch_size": 0}, "train_batch_size is 0; expected at least 1"),
    (
        MICRO | {"train_batch_size": 30, "gradient_accumulation_steps": 8},
        "train_batch_size is 30; it must be train_micro_batch_size_per_gpu × gradient_accumulation_steps × ",
    ),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_what_cannot_be_predicted_is_refused_in_one_line(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, **values)
    assert str(caught.value).startswith("ds.json: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ranks_of_a_replica_are_read(tmp_path: Path) -> None:
    split = found(tmp_path, **MICRO, tensor_parallel={"autotp_size": 4}).content["parallelism"]
    assert split["tensor_parallel_size"] == 4
    staged = found(tmp_path, **MICRO, pipeline={"stages": 8, "partition": "best"}).content["parallelism"]
    assert staged["pipeline_parallel_size"] == 8


def test_file_of_a_trainer_leaves_open_what_the_trainer_sets() -> None:
    got = read(DATA / "trainer.json")
    assert got.content == {
        "parallelism": {
            "zero_stage": 2,
            "gradient_reduction": "reduce_scatter",
            "gradient_bucket_elements": 500_000_000,
            "overlap_gradient_reduction": False,
            "overlap_parameter_gather": False,
        },
        "training": {},
    }
    assert set(got.unsaid) == {
        "parallelism.data_parallel_size",
        "training.micro_batch_size",
        "training.num_micro_batches",
        "training.precision",
        "training.recompute",
    }


def test_bucket_of_a_trainer_is_the_square_of_the_hidden_size(tmp_path: Path) -> None:
    path, config = tmp_path / "ds.json", tmp_path / "run.yaml"
    zero = {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}
    path.write_text(json.dumps(MICRO | {"bf16": {"enabled": "auto"}, "zero_optimization": zero}), encoding="utf-8")
    rest = "model: llama3-8b\nparallelism: {data_parallel_size: 8}\n"
    config.write_text(f"system: H100\nfrom: ds.json\n{rest}training: {{precision: bf16}}\n", encoding="utf-8")
    run = load(config)[0]
    assert (run.gradient_bucket_elements, run.zero_stage, run.precision) == (4096 * 4096, 3, "bf16")
    config.write_text(f"system: H100\nfrom: ds.json\n{rest}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"leaves the precision to the trainer \(auto\): set training\.precision"):
        load(config)


def test_all_problems_of_a_file_come_at_once(tmp_path: Path) -> None:
    values: dict[str, Any] = MICRO | {
        "optimizer": {"type": "Lion"},
        "elasticity": {"enabled": True},
        "unheard_of_size": 1,
    }
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, **values, zero_optimization={"stage": 4, "offload_param": {"device": "nvme"}})
    lines = str(caught.value).splitlines()
    assert lines[0] == "5 problems:"
    for words in ("only Adam", "elasticity", "unheard_of_size", "expected 0, 1, 2 or 3", "offload_param"):
        assert sum(words in line for line in lines) == 1


def test_replicas_that_contradict_the_batch_are_refused(tmp_path: Path) -> None:
    sizes = {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}
    with pytest.raises(ConfigError, match="4 × 8 × 16"):
        found(tmp_path, 16, **sizes)
    with pytest.raises(ConfigError, match="it must be a multiple of what 3 replicas take at once"):
        found(tmp_path, 3, train_batch_size=256)
