"""Configurations of InternEvo: dicts in Python, evaluated from the syntax tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.formats import read_any

TEXT = """
import os

HIDDEN = 4096
SAVE = os.environ["CKPT"]
ckpt = dict(save_ckpt_folder=SAVE)
data = dict(seq_len=2048, micro_num=4, micro_bsz=2, total_steps=100, train_folder=None)
hybrid_zero_optimizer = dict(overlap_sync_grad=True, overlap_sync_param=False, reduce_bucket_size=512 * 1024 * 1024)
model_type = "INTERNLM2_PUBLIC"
model = dict(
    checkpoint=False, num_attention_heads=32, num_kv_attention_heads=8, vocab_size=92544, hidden_size=HIDDEN,
    num_layers=32, mlp_ratio=8 / 3, no_bias=True, dtype="torch.bfloat16", norm_type="rmsnorm", num_chunks=1,
)
parallel = dict(
    zero1=dict(size=-1), tensor=dict(size=2, mode="msp"), pipeline=dict(size=2, interleaved_overlap=True),
    weight=dict(size=1),
)
"""


def found(tmp_path: Path, text: str = TEXT, num_gpus: int | None = 32) -> Read:
    path = tmp_path / "config.py"
    path.write_text(text, encoding="utf-8")
    return read_any(path, num_gpus)


def test_sizes_layout_and_batch(tmp_path: Path) -> None:
    content = found(tmp_path).content
    model, parallelism, training = content["model"], content["parallelism"], content["training"]
    # int(4096 · 8/3) = 10922, rounded up to 256.
    assert (model["num_layers"], model["ffn_hidden_size"], model["biases"]) == (32, 11008, False)
    assert (parallelism["data_parallel_size"], parallelism["sequence_parallel"]) == (8, True)
    assert (parallelism["zero_stage"], parallelism["gradient_bucket_elements"]) == (1, 512 * 2**20)
    assert (training["micro_batch_size"], training["num_micro_batches"]) == (2, 4)
    assert (training["framework"], training["precision"]) == ("internevo", "bf16")


@pytest.mark.parametrize(
    ("old", "new", "section", "key", "value"),
    [
        ("checkpoint=False", "checkpoint=True", "training", "recompute", "full"),
        ("checkpoint=False", "checkpoint=0.5", "training", "recompute_num_layers", 8),  # of 16 on a stage
        ("zero1=dict(size=-1)", "zero1=8", "parallelism", "zero_group_size", 8),
        ("zero1=dict(size=-1)", "zero1=1", "parallelism", "zero_stage", 0),
        ("num_chunks=1", "num_chunks=2", "parallelism", "schedule", "interleaved_1f1b"),
        ("interleaved_overlap=True", 'mode="zbh1"', "parallelism", "schedule", "zero_bubble_h1"),
        ('"INTERNLM2_PUBLIC"', '"INTERNLM"', "model", "biases", "attention"),
        ('"INTERNLM2_PUBLIC"', '"QWEN2"', "model", "biases", "qkv"),
        ('"INTERNLM2_PUBLIC"', '"GEMMA"', "model", "activation", "geglu"),
        ("num_chunks=1", "num_chunks=1, head_dim=256", "model", "head_dim", 256),
        ("no_bias=True", "no_bias=False", "model", "biases", True),
        ("torch.bfloat16", "torch.float16", "training", "precision", "fp16"),
    ],
)
def test_keys(old: str, new: str, section: str, key: str, value: object, tmp_path: Path) -> None:
    assert old in TEXT
    assert found(tmp_path, TEXT.replace(old, new)).content[section][key] == value


def test_experts(tmp_path: Path) -> None:
    text = TEXT.replace("num_chunks=1", "num_chunks=1, num_experts=8") + "moe = dict(top_k=2, capacity_factor=1.2)\n"
    moe = found(tmp_path, text).content["model"]["moe"]
    assert (moe["num_experts"], moe["experts_per_token"], moe["capacity_factor"]) == (8, 2, 1.2)


def test_weights_that_replicas_share_out(tmp_path: Path) -> None:
    text = TEXT.replace('tensor=dict(size=2, mode="msp")', 'tensor=dict(size=1, mode="isp")')
    text = text.replace("weight=dict(size=1)", "weight=dict(size=8, overlap=True), sequence_2D=dict(enable=False)")
    parallelism = found(tmp_path, text).content["parallelism"]
    assert (parallelism["zero_stage"], parallelism["zero_group_size"]) == (3, 8)
    assert (parallelism["overlap_parameter_gather"], parallelism["data_parallel_size"]) == (True, 16)


def test_experts_over_all_replicas(tmp_path: Path) -> None:
    text = TEXT.replace("num_chunks=1", "num_chunks=1, num_experts=4, top_k=2, moe_type='Dropless', qkv_bias=False")
    text = text.replace("weight=dict(size=1)", "weight=dict(size=1), expert=dict(size=-1, no_tp=True)")
    content = found(tmp_path, text.replace("INTERNLM2_PUBLIC", "MIXTRALMOE")).content
    assert content["parallelism"]["expert_parallel_size"] == 4  # of 8 replicas
    assert content["parallelism"]["expert_tensor_parallel_size"] == 1
    assert "capacity_factor" not in content["model"]["moe"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('mode="msp"', 'mode="isp"', "isp, whose ranks share out a sample's tokens, is not modelled"),
        ("num_chunks=1", "num_chunks=1, use_sliding_window=True, sliding_window=512", "write model.layer_types"),
        ("weight=dict(size=1)", "sequence_2D=dict(enable=True, head_size=2)", "samples split twice are not modelled"),
        ("size=-1", "size=-1, fsdp=True", "torch's FSDP inside InternEvo is not modelled"),
        ('"INTERNLM2_PUBLIC"', '"LLAVA"', "model_type is 'LLAVA'; its layers are not read"),
        ("checkpoint=False", "checkpoint=2", "expected True, False or a share"),
        ("data = dict(", "datas = dict(", "data is missing"),
        ("num_chunks=1", "num_chunks=1, moe_latent_size=8", "of InternEvo it is not known here"),
    ],
)
def test_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, TEXT.replace(old, new))
