"""MiniMax-Text-01: lightning attention in seven of eight layers, read from its own config.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.blocks.lightning_attention import LightningAttention
from predictor.core.blocks.mixers import LayerKind, Mixer
from predictor.core.folds import kept_bytes, parameters
from predictor.core.rows import Kind
from predictor.core.workload.switches import Ffn
from predictor.core.workload.tasks import Part
from predictor.core.workload.transformer import Transformer
from predictor.formats.hugging_face.reader import read
from tests.layers import rows_of
from tests.unit.core.workload.test_token_mixers import MODEL, run_of
from tests.unit.examples import model_of

# Keys and values as MiniMaxAI/MiniMax-Text-01 publishes them, config.json; sizes as in arXiv:2501.08313, section 2.
PUBLISHED = {
    "architectures": ["MiniMaxText01ForCausalLM"], "attention_dropout": 0.0, "attn_type_list": [*[0] * 7, 1] * 10,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 6144, "intermediate_size": 9216,
    "layernorm_full_attention_alpha": 3.5565588200778455, "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_alpha": 3.5565588200778455, "layernorm_linear_attention_beta": 1.0,
    "layernorm_mlp_alpha": 3.5565588200778455, "layernorm_mlp_beta": 1.0, "max_position_embeddings": 10240000,
    "model_type": "minimax_text_01", "num_attention_heads": 64, "num_experts_per_tok": 2, "num_hidden_layers": 80,
    "num_key_value_heads": 8, "num_local_experts": 32, "postnorm": True, "rms_norm_eps": 1e-05, "rope_theta": 10000000,
    "rotary_dim": 64, "shared_intermediate_size": 0, "shared_moe_mode": "sigmoid", "sliding_window": None,
    "tie_word_embeddings": False, "vocab_size": 200064,
}  # fmt: skip
SIZES = LightningAttention(num_heads=16, head_dim=64)
KIND = LayerKind(Mixer.LIGHTNING_ATTENTION)
SMALL = replace(MODEL, layer_types=(Mixer.LIGHTNING_ATTENTION,), lightning_attention=SIZES)


def section(folder: Path, **changes: Any) -> dict[str, Any]:
    path = folder / "config.json"
    path.write_text(json.dumps(PUBLISHED | changes), encoding="utf-8")
    model: dict[str, Any] = read(path).content["model"]
    return model


def published(folder: Path) -> Transformer:
    return model_of(section(folder) | {"sequence_length": 8192})


def test_the_published_parameters_are_counted(tmp_path: Path) -> None:
    """456 billion, 45.9 billion of them for each token, embeddings aside (arXiv:2501.08313, abstract)."""
    model = published(tmp_path)
    assert round(model.num_parameters() / 1e9) == 456
    embeddings = 2 * model.vocab_size * model.hidden_size
    assert (model.num_parameters(active=True) - embeddings) / 1e9 == pytest.approx(45.9, abs=0.05)
    assert model.kinds[LayerKind(Mixer.LIGHTNING_ATTENTION, Ffn.EXPERTS)] == 70


def test_a_longer_sequence_costs_attention_in_one_of_eight_layers(tmp_path: Path) -> None:
    model = published(tmp_path)
    longer = replace(model, sequence_length=2 * model.sequence_length)
    more = longer.model_flops_per_token() - model.model_flops_per_token()
    assert more == pytest.approx(6.0 * 10 * 2 * model.sequence_length * 64 * 128)


def test_layers_are_read_in_the_order_of_the_list(tmp_path: Path) -> None:
    assert section(tmp_path)["layer_types"] == ["lightning_attention"] * 7 + ["full_attention"]
    assert section(tmp_path)["lightning_attention"] == {"num_heads": 64, "head_dim": 128, "chunk_size": 256}
    shared = section(tmp_path, shared_intermediate_size=1024)["moe"]
    assert shared["shared_expert_ffn_hidden_size"] == 1024
    for types in ([0, 1], [2] * 80):
        with pytest.raises(ConfigError, match="expected 80 numbers, 0 of a linear layer, 1 of full attention"):
            section(tmp_path, attn_type_list=types)


def test_a_layer_has_its_matrices_and_keeps_what_its_backward_pass_reads() -> None:
    """Sources: transformers, MiniMaxLightningAttention; two samples of 4,096 tokens, hidden and inner width 1024."""
    rows = [row for row in rows_of(run_of(SMALL), KIND) if row.module.value == "mixer"]
    products = [row.weights for row in rows if row.kind is Kind.PRODUCT]
    assert products == [3 * 1024 * 1024, 1024 * 1024, 1024 * 1024]
    assert parameters(rows).total == 5 * 1024 * 1024 + 1024
    stream = 2 * 4096 * 1024 * 2
    # Queries, keys and values before and behind SiLU, the gate, the scan's output before and behind its norm.
    assert kept_bytes(rows).total == (6 + 1 + 2) * stream
    assert sum(row.multiplications for row in rows) == 5 * 1024 * 1024 + 2 * 1024 * (256 + 64)


def test_tensor_parallel_ranks_share_out_heads_and_matrices() -> None:
    alone, half = (rows_of(run_of(SMALL, ranks, sequence_parallel=ranks > 1), KIND) for ranks in (1, 2))
    norms = 2 * 1024
    assert 2 * (parameters(half).total - norms) == parameters(alone).total - norms
    assert not [row for row in alone if row.part is Part.TENSOR_PARALLEL]
    assert [row for row in half if row.part is Part.TENSOR_PARALLEL]
    scans = [row.forward.shape for row in half if row.name == "lightning_attention" and row.forward]
    assert scans == [(2, 4096, 8, 64, 64, 8, 256)]
