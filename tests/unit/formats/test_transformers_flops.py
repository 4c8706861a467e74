"""What a forward pass multiplies is what transformers multiplies, and attention what its shapes say.

The data are recorded by ``python -m tests.record_flops``: products with weights, counted by PyTorch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from predictor.core.workload.edges import edge_block
from predictor.core.workload.tasks import Task
from predictor.core.workload.transformer import Transformer
from predictor.formats.hugging_face.reader import translate
from tests.layers import forward_pass
from tests.unit.core.workload.test_token_mixers import flops, run_of
from tests.unit.examples import model_of

DATA = Path(__file__).resolve().parents[2] / "data" / "readers" / "transformers_flops.json"
RECORDED: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
LENGTH = 128
PRODUCTS = ("qkv_projection", "attention_output", "ffn_up", "ffn_down", "lm_head", "expert_mlp")
CORES = (
    "flash_attention",
    "grouped_query_attention",
    "mla_attention",
    "attention_scores",
    "ssd_scan",
    "gated_delta_rule",
)


def read(name: str) -> Transformer:
    section = translate({"model_type": name, **RECORDED[name]["config"]}, "config.json").content["model"]
    return model_of(section | {"sequence_length": LENGTH})


def forward(model: Transformer) -> list[Task]:
    run = run_of(model, micro_batch_size=1)
    layers = [task for layer in range(model.num_layers) for task in forward_pass(run, model.kind(layer)).tasks]
    return layers + edge_block(run, is_first=True, is_last=True).forward.tasks


def seen(window: int) -> int:
    """Return the pairs of a query and a key that a causal window leaves of LENGTH tokens."""
    return sum(min(query + 1, window) for query in range(LENGTH))


@pytest.mark.parametrize("name", RECORDED)
def test_products_with_weights_are_those_of_transformers(name: str) -> None:
    products = [task for task in forward(read(name)) if task.operator.name in PRODUCTS]
    assert flops(products) == RECORDED[name]["flops"]


# FLOPs of attention and recurrences of a whole model, head by head: 2 · pairs · width of each product.
HALF = LENGTH * LENGTH / 2  # pairs of full attention that is not grouped, without the diagonal's other half
BY_HAND = {
    "gpt2": 2 * 8 * HALF * 2 * (16 + 16),
    "llama": 4 * 8 * seen(LENGTH) * 2 * (16 + 16),
    "gemma3_text": (5 * seen(32) + seen(LENGTH)) * 8 * 2 * (32 + 32),
    "gemma4_text": 8 * seen(LENGTH) * (5 * 2 * (16 + 16) + 2 * (32 + 32)),
    "diffllama": 4 * 8 * seen(LENGTH) * 2 * (16 + 16) * 2,
    "mimo_v2_flash": 4 * 8 * seen(LENGTH) * 2 * (24 + 16),
    "minicpm3": 3 * 8 * HALF * 2 * ((24 + 8) + 16),
    # Attention over the 64 best keys, and the indexer's four heads over all.
    "deepseek_v32": 3 * (8 * seen(64) * 2 * ((24 + 8) + 16) + 4 * HALF * 2 * 16),
    "glm_moe_dsa": 3 * 8 * seen(64) * 2 * ((24 + 8) + 16) + 1 * 4 * HALF * 2 * 16,  # one layer chooses
    # Per layer: scores of two groups and their products with values inside chunks of 32; a state of 16 × 32 per head is
    # written and read for every chunk but the last, and the first.
    "bamba": 3 * LENGTH * (2 * 32 * 16 * 2 + 2 * 32 * 32 * 8 + 2 * 2 * 16 * 32 * 8 * 3 / 4)
    + 8 * seen(LENGTH) * 2 * (16 + 16),
    # Per layer and head: products of keys with keys and queries, and with values, inside chunks of 64; a state of
    # 16 × 24 predicts, answers and is written.
    "qwen3_5_text": 3 * LENGTH * 8 * (2 * 64 * (16 + 16 + 24) + 3 * 2 * 16 * 24 * 1 / 2)
    + 8 * seen(LENGTH) * 2 * (16 + 16),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_attention_and_recurrences_are_as_derived_by_hand(name: str) -> None:
    cores = [task for task in forward(read(name)) if task.operator.name in CORES]
    assert flops(cores) == pytest.approx(BY_HAND[name], rel=1e-12)
