from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

torch = pytest.importorskip("torch")

from llm_trainer.exceptions import ModelConfigurationError  # noqa: E402
from llm_trainer.measure.__main__ import main  # noqa: E402
from llm_trainer.measure.configuration import read_measured_config  # noqa: E402
from predictor.replay.files.measured_run import read_measured_run  # noqa: E402
from predictor.replay.files.measured_step import OperatorTime  # noqa: E402

PROFILING = Path(__file__).resolve().parents[2] / "profiling"
CONFIGS = sorted([*PROFILING.glob("verify/*.yaml"), *PROFILING.glob("verify_gpu/*.yaml")])
MODEL = {
    "num_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "sequence_length": 64,
    "vocab_size": 512,
    "normalization": "layer_norm",
    "rotary_fraction": 0.0,
    "biases": True,
    "tied_embeddings": True,
    "loss": "torch",
}


def write(folder: Path, **training: Any) -> Path:
    content = {
        "model": MODEL,
        "training": {"micro_batch_size": 4, "num_micro_batches": 2, "precision": "fp32", **training},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def measured(folder: Path, **training: Any) -> dict[tuple[str, str], OperatorTime]:
    out = folder / "out"
    path = write(folder, **training)
    assert main([str(path), "--out", str(out), "--steps", "4", "--warm-up", "1", "--profiled", "2"]) == 0
    run = read_measured_run(out)
    assert len(run.samples_us) == 4
    assert len(run.profiled_us) == 2
    return {(time.step_pass, time.name): time for time in run.ranks[0].provenance.operators}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_trainer_has_the_parameters_that_the_predictor_counts(path: Path) -> None:
    config = read_measured_config(path)
    assert config.model.num_parameters == config.run.model.num_parameters()


def test_every_operator_is_recorded_in_both_directions(tmp_path: Path) -> None:
    times = measured(tmp_path)
    per_layer = {
        "qkv_projection": 4,
        "flash_attention": 4,
        "attention_output": 4,
        "ffn_up": 4,
        "gelu": 4,
        "ffn_down": 4,
    }
    whole = {"embedding": 2, "lm_head": 2, "torch_cross_entropy": 2, "layer_norm": 10}
    for name, count in (per_layer | whole).items():
        for step_pass in ("forward", "backward"):
            assert times[step_pass, name].count == count, (step_pass, name)
            assert min(times[step_pass, name].samples_us) > 0
    assert times["end", "optimizer_step"].count == times["end", "gradient_clipping"].count == 1
    assert not any(step_pass == "recompute" for step_pass, _ in times)


def test_recomputed_operators_are_a_pass_of_their_own(tmp_path: Path) -> None:
    times = measured(tmp_path, recompute="full")
    assert times["recompute", "ffn_up"].count == 4
    assert times["backward", "ffn_up"].count == 4
    assert ("recompute", "lm_head") not in times


@pytest.mark.parametrize(
    ("change", "named"),
    [({"recompute": "selective"}, "recompute selective"), ({"synchronize_each_layer": True}, "synchronize_each_layer")],
)
def test_what_the_trainer_does_not_have_is_refused_by_name(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelConfigurationError, match=named):
        read_measured_config(write(tmp_path, **change))


def test_bad_files_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "absent.yaml"), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip().count("\n") == 0
