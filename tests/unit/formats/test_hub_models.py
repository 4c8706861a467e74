"""Models by their names on the hub: every row counts the published parameters, and names find the right row."""

from __future__ import annotations

import pytest

from predictor.core.schema.presets import preset_names
from predictor.formats.hub_models import config_of, known_model, last_part, rows, shape_of
from predictor.formats.hugging_face.reader import translate
from tests.unit.examples import model_of

ROWS = {row[0]: row for row in rows()}


@pytest.mark.parametrize("model_id", ROWS)
def test_a_row_has_the_parameters_that_were_published(model_id: str) -> None:
    row = ROWS[model_id]
    section = translate(config_of(row), model_id).content["model"] | {"sequence_length": 512}
    if "vision" in section:
        section["sequence_length"] = 1024
        section["vision"] = {"image_size": 448, **section["vision"]}
    assert model_of(section).num_parameters() == pytest.approx(float(row[10]) * 1e6, rel=0.005)


def test_no_row_stands_for_two_models_nor_for_a_preset() -> None:
    names = [name for row in ROWS.values() for name in (last_part(row[0]).lower(), *row[-1].split())]
    assert len(names) == len(set(names))
    assert not set(names) & set(preset_names())


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "vocabulary"),
    [
        ("unsloth/tinyllama-bnb-4bit", 22, 2048, 32000),
        ("unsloth/mistral-7b-v0.3-bnb-4bit", 32, 4096, 32768),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", 56, 6144, 32768),
        ("TheBloke/CodeLlama-34B-Instruct-GPTQ", 48, 8192, 32000),
        ("codellama/CodeLlama-7b-Python-hf", 32, 4096, 32000),
        ("codellama/CodeLlama-7b-hf", 32, 4096, 32016),
        ("Qwen/Qwen1.5-7B-Chat-GPTQ-Int4", 32, 4096, 151936),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 28, 1536, 151936),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 28, 3584, 152064),
        ("Qwen/Qwen2.5-Coder-32B-Instruct-AWQ", 64, 5120, 152064),
        ("Qwen/QwQ-32B-Preview", 64, 5120, 152064),
        ("microsoft/Phi-3-mini-128k-instruct", 32, 3072, 32064),
        ("internlm/internlm2-chat-7b", 32, 4096, 92544),
        ("EleutherAI/pythia-1.4b-deduped", 24, 2048, 50304),
        ("bigscience/bloomz-7b1-mt", 30, 4096, 250880),
        ("models/chatglm3-6b", 28, 4096, 65024),
        ("lmsys/vicuna-13b-v1.3", 40, 5120, 32000),
        ("Qwen/Qwen2-VL-7B-Instruct", 28, 3584, 152064),
    ],
)
def test_names_of_users(name: str, layers: int, hidden: int, vocabulary: int) -> None:
    known = known_model(name)
    assert known is not None
    shape = shape_of(known.section)
    assert (shape["num_layers"], shape["hidden_size"], shape["vocab_size"]) == (layers, hidden, vocabulary)


def test_windows_follow_the_context_that_a_model_was_released_with() -> None:
    short, long = (known_model(f"microsoft/Phi-3-mini-{context}-instruct") for context in ("4k", "128k"))
    assert short is not None
    assert long is not None
    assert shape_of(short.section)["sliding_window"] == 2047
    assert long.section["sliding_window"] == 262144


@pytest.mark.parametrize(
    "name", [None, "", "own/model", "own/llama-3-8b-pruned", "Qwen/Qwen2-13B", "gpt-neo", "pythia"]
)
def test_nothing_is_guessed(name: str | None) -> None:
    assert known_model(name) is None
