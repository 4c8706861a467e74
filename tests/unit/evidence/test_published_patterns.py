"""Layers of pipelines and modules of multi-token prediction, as rows of published steps say them."""

from __future__ import annotations

import pytest

from predictor.evidence.published.patterns import layers_of_layout, mtp_layers
from predictor.evidence.published.row import Row, UnexpressedError

BRIDGE = {"framework": "Megatron-Bridge v0.4.0", "model": "DeepSeekV3", "layers": "61"}


@pytest.mark.parametrize(
    ("stages", "chunks", "layers"),
    [
        (16, 1, [4] * 15 + [1]),
        (8, 2, [4] * 15 + [1]),
        (8, 1, [8] * 7 + [5]),
        (8, 4, [1] + [2] * 30 + [0]),
    ],
)
def test_layers_of_deepseek_lie_on_chunks_as_recipes_place_them(stages: int, chunks: int, layers: list[int]) -> None:
    text = layers_of_layout(Row({**BRIDGE, "pp": str(stages), "vpp": str(chunks)}))
    assert text is not None
    expanded = [
        chunk.replace(f"t*{layers[1]}", "t" * layers[1]).count("t") if "*" in chunk else chunk.count("t")
        for chunk in text.split("|")
    ]
    assert expanded == layers
    assert text.endswith("mL")


def test_a_printed_layout_counts_and_others_are_even() -> None:
    printed = {"pp": "2", "vpp": "8", "pp_layout": "Et*4|(t*4|)*14tmL (per chunk)"}
    assert layers_of_layout(Row({**BRIDGE, **printed})) == "Et*4|(t*4|)*14tmL"
    assert mtp_layers(Row({**BRIDGE, **printed})) == 1
    assert layers_of_layout(Row({**BRIDGE, "model": "Qwen3 235B", "pp": "8"})) is None
    assert layers_of_layout(Row({**BRIDGE, "pp": "1"})) is None


def test_recipes_of_deepseek_predict_a_further_token_unless_the_table_says_none() -> None:
    assert mtp_layers(Row(BRIDGE)) == 1
    assert mtp_layers(Row({**BRIDGE, "notes": "table name: DeepSeekV3 (w/o MTP)"})) == 0
    assert mtp_layers(Row({**BRIDGE, "model": "Kimi_K2"})) == 0
    with pytest.raises(UnexpressedError, match="MTP"):
        mtp_layers(Row({**BRIDGE, "framework": "NeMo"}))
