"""Uneven layouts of real runs, chunk by chunk, and the errors of impossible ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.errors import ConfigError
from predictor.core.checks.layout import parsed
from predictor.core.costs.published import open_system
from predictor.core.plan.loading import prepare
from predictor.core.plan.to_run import to_run
from predictor.core.report.json_document import to_json
from predictor.core.schema.sections import validate
from predictor.core.step.memory import step_memory
from predictor.core.step.prediction import predict
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.transformer_step import transformer_step
from predictor.formats.megatron import writer as megatron
from tests.layers import parameters_of

MODEL = {"hidden_size": 512, "num_attention_heads": 8, "sequence_length": 256, "vocab_size": 1024}


def run(layers: int, stages: int, num_micro_batches: int | None = None, **parallelism: Any) -> TrainingRun:
    """Return a run of so many layers on so many stages."""
    content = {
        "system": "Perlmutter",
        "model": {"num_layers": layers, **MODEL},
        "parallelism": {"pipeline_parallel_size": stages, **parallelism},
        "training": {"micro_batch_size": 1, "num_micro_batches": num_micro_batches or 2 * stages},
    }
    return to_run(validate(content), gpus_per_node=4)


def test_metas_layout_of_llama_3_405b() -> None:
    # Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2: 126 layers on 16 stages, "one Transformer layer each
    # from the first and the last stages" less; here with a chunk per layer.
    found = run(126, 16, virtual_pipeline_parallel_size=8, embedding_counts_as_layer=True, loss_counts_as_layer=True)
    assert found.layers_per_stage == (7, *[8] * 14, 7)
    assert found.chunk_layers[0] == (0, *[1] * 7)
    assert found.chunk_layers[-1] == (*[1] * 7, 0)
    assert found.schedule == "interleaved_1f1b"
    assert run(126, 16, virtual_pipeline_parallel_size=8, layers_per_stage=[7, *[8] * 14, 7]).chunk_layers == (
        found.chunk_layers
    )


def test_nvidias_layout_of_llama_3_405b() -> None:
    # Megatron-Bridge and NeMo, Llama 3.1 405B: pp 8, vpp 8, both ends counted as layers.
    found = run(126, 8, virtual_pipeline_parallel_size=8, embedding_counts_as_layer=True, loss_counts_as_layer=True)
    assert found.layers_per_stage == (15, *[16] * 6, 15)
    assert found.chunk_layers[0] == (1, *[2] * 7)
    listed = run(126, 8, virtual_pipeline_parallel_size=8, layers_per_stage=[15, *[16] * 6, 15])
    assert found.chunk_layers == listed.chunk_layers


def test_a_string_of_layers_is_megatrons() -> None:
    assert parsed("Et*3|(tt|)*29,L")[:3] == ["ettt", "tt", "tt"]
    assert parsed("E,t | (t|t)*2 |L") == ["et", "t", "tt", "t", "l"]
    found = run(61, 16, layers_per_stage="Et*3|(tt|)*29|L")
    assert found.virtual_pipeline_parallel_size == 2
    assert found.chunk_layers[0] == (3, 2)
    assert found.chunk_layers[14] == (2, 0)
    assert found.chunk_layers[15] == (2, 0)
    assert sum(found.layers_per_stage) == 61


@pytest.mark.parametrize("split", [[[2, 2], [3, 0]], "Ett|ttt|tt|L", "ett|ttt|tt|l"])
def test_a_split_per_chunk_is_written_as_megatrons_string(split: Any) -> None:
    config = validate(
        {
            "system": "Perlmutter",
            "model": {"num_layers": 7, **MODEL},
            "parallelism": {"pipeline_parallel_size": 2, "layers_per_stage": split, "zero_stage": 1},
            "training": {"micro_batch_size": 1, "num_micro_batches": 4, "precision": "bf16"},
        }
    )
    assert "--pipeline-model-parallel-layout 'Ett|ttt|tt|L'" in megatron.write(config, 2, 4, "0.19")


def test_multi_token_prediction_stands_beside_the_loss() -> None:
    # DeepSeek-V3 in Megatron-Bridge's recipe for GB300: 61 layers and one module.
    content = {
        "system": "Perlmutter",
        "model": {"num_layers": 61, **MODEL, "num_mtp_layers": 1},
        "parallelism": {"pipeline_parallel_size": 2, "layers_per_stage": "Et*4|(t*4|)*14tmL"},
        "training": {"micro_batch_size": 1, "num_micro_batches": 4},
    }
    found = to_run(validate(content), gpus_per_node=4)
    assert found.virtual_pipeline_parallel_size == 8
    assert found.layers_per_stage == (32, 29)
    assert sum(found.layer_kinds(1, 7).values()) == 2  # a layer and the module
    assert sum(found.stage_kinds(0).values()) == 32


def test_lists_per_chunk_say_what_the_string_says() -> None:
    string = run(7, 2, layers_per_stage="Ett|ttt|tt|L")
    assert string == run(7, 2, layers_per_stage=[[2, 2], [3, 0]])


def test_layers_follow_each_other_through_uneven_chunks() -> None:
    """Experts from the fourth layer on: the first chunks of both stages hold layers 0 to 4."""
    experts = {"num_experts": 4, "experts_per_token": 2, "expert_ffn_hidden_size": 64, "num_dense_layers": 3}
    content = {
        "system": "Perlmutter",
        "model": {"num_layers": 7, **MODEL, "moe": experts},
        "parallelism": {"pipeline_parallel_size": 2, "layers_per_stage": [[2, 2], [3, 0]]},
        "training": {"micro_batch_size": 1, "num_micro_batches": 4},
    }
    found = to_run(validate(content), gpus_per_node=4)
    with_experts = [
        [sum(count for kind, count in found.layer_kinds(stage, chunk).items() if kind.has_experts) for chunk in (0, 1)]
        for stage in (0, 1)
    ]
    assert with_experts == [[0, 2], [2, 0]]


def test_an_empty_chunk_runs_the_models_end_alone() -> None:
    step = transformer_step(run(7, 2, layers_per_stage=[[2, 2], [3, 0]]))
    assert [sum(count for _, count in chunk.blocks) - 1 for chunk in step.stages[0].chunks] == [2, 2]
    assert [sum(count for _, count in chunk.blocks) - 1 for chunk in step.stages[1].chunks] == [3, 0]
    assert any(task.name == "lm_head" for block, _ in step.stages[1].chunks[1].blocks for task in block.calls())


def test_a_stage_may_hold_the_vocabulary_alone() -> None:
    found = run(6, 3, layers_per_stage=[[3], [3], [0]], fp32_gradients=True)
    assert found.stage_parameters(2) == found.model.embedding_parameters() + found.model.norm_parameters(1)
    loaded = replace(found, zero_stage=0)
    assert step_memory(transformer_step(loaded))[2].activations == 0.0
    assert predict(loaded, open_system(REGRESSORS_FOLDER / "Perlmutter", "fp16")).step.us > 0.0


def test_parameters_of_uneven_stages_add_up() -> None:
    found = run(7, 2, layers_per_stage=[[2, 2], [3, 0]])
    model = found.model
    padding = 2 * (model.embedding_parameters() - model.vocab_size * model.hidden_size)
    assert sum(found.stage_parameters(stage) for stage in (0, 1)) == model.num_parameters() + padding
    assert found.stage_parameters(0) - model.embedding_parameters() == 4 * parameters_of(model).total


def test_the_report_says_what_each_chunk_holds() -> None:
    content = {
        "system": "Perlmutter",
        "model": {"num_layers": 7, **MODEL},
        "parallelism": {"pipeline_parallel_size": 2, "layers_per_stage": [[2, 2], [3, 0]]},
        "training": {"micro_batch_size": 1, "num_micro_batches": 4},
    }
    loaded = prepare(content, Path.cwd())
    said = to_json(predict(loaded.run, loaded.system), loaded)["run"]
    assert said["layers_per_stage"] == [4, 3]
    assert said["layers_per_chunk"] == [[2, 2], [3, 0]]


@pytest.mark.parametrize(
    ("parallelism", "message"),
    [
        ({"layers_per_stage": [[2, 2], [3, 1]]}, "add up to 7"),
        ({"layers_per_stage": [[2, 2], [3]]}, "as many chunks each"),
        ({"layers_per_stage": [[2, -1], [3, 3]]}, "expected a list of layers per stage"),
        ({"layers_per_stage": [[2, 2], 3]}, "expected a list of layers per stage"),
        ({"layers_per_stage": "Ett|ttt|L"}, "has 5 layers"),
        ({"layers_per_stage": "Ett|ttt|ttL"}, "has 3 chunks; pipeline_parallel_size, 2"),
        ({"layers_per_stage": "tt|ttt|tt|L"}, "begin with its only E"),
        ({"layers_per_stage": "Ett|ttt|tt|mL"}, "num_mtp_layers is 0"),
        ({"layers_per_stage": "Ett|xxx|tt|L"}, "'x' is not known"),
        ({"layers_per_stage": "Et*99999999|L"}, "taken for a slip"),
        ({"layers_per_stage": "Ett|ttt|tt|L", "virtual_pipeline_parallel_size": 4}, "has 2 chunks per stage"),
        ({"embedding_counts_as_layer": True, "layers_per_stage": [4, 3]}, "needs layers_per_stage: uniform"),
        ({"embedding_counts_as_layer": True, "virtual_pipeline_parallel_size": 3}, "has 8 layers, which the 6 chunks"),
        ({"loss_counts_as_layer": True, "embedding_counts_as_layer": True}, "has 9 layers, which the 2 chunks"),
    ],
)
def test_impossible_layouts_are_refused(parallelism: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(7, 2, **parallelism)
