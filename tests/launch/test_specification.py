"""The launcher's documented API: every signature is there, the complete YAML loads, every block runs."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import model_training_framework
from model_training_framework import config as config_package
from model_training_framework import slurm, utils
from model_training_framework.config import ConfigurationManager, ExperimentConfig
from tests.launch.specification import ROOT, SPECIFICATION, Signature, blocks, signatures

pytestmark = pytest.mark.skipif(not SPECIFICATION.is_file(), reason="the specification is not at hand")

INVENTORY = SPECIFICATION.with_suffix(".inventory.json")
OF_THE_TRAINER = ("GenericTrainer", "TrainingCallback", "Training States", "ResumeState", "TrainerPhase")


def without_torch() -> list[Signature]:
    return [signature for signature in signatures() if signature.owner not in OF_THE_TRAINER]


def owner(name: str) -> object:
    places = (model_training_framework, config_package, slurm, utils)
    return next(getattr(place, name) for place in places if hasattr(place, name))


@pytest.mark.parametrize("signature", without_torch(), ids=lambda signature: f"{signature.owner}.{signature.name}")
def test_documented_call_is_there(signature: Signature) -> None:
    real = inspect.signature(getattr(owner(signature.owner), signature.name))
    parameters = [parameter for name, parameter in real.parameters.items() if name != "self"]
    assert tuple(parameter.name for parameter in parameters[: len(signature.parameters)]) == signature.parameters
    for extra in parameters[len(signature.parameters) :]:
        assert extra.kind is inspect.Parameter.KEYWORD_ONLY, f"{extra.name} changes the documented call"
    for name, default in signature.defaults.items():
        assert str(real.parameters[name].default) in (default.strip("'\""), default.rpartition(".")[2].lower())


def test_every_signature_was_read() -> None:
    assert {signature.name for signature in signatures()} >= {
        "run_grid_search", "get_config_manager", "get_slurm_launcher", "add_parameter", "generate_permutations",
        "load_config", "save_config", "compose_configs", "fit", "training_step", "save_checkpoint", "on_batch_end",
        "submit_experiment", "submit_experiment_batch", "cancel_job", "branch_context", "commit_changes",
    }  # fmt: skip


def test_complete_yaml_is_an_experiment_with_every_key() -> None:
    (text,) = [block.text for block in blocks() if block.language == "yaml"]
    documented = yaml.safe_load(text)
    manager = ConfigurationManager(ROOT)
    experiment = ExperimentConfig.from_dict(manager.compose_configs(documented))
    said = json.loads(json.dumps(experiment.to_dict()))
    for section, value in documented.items():
        if isinstance(value, dict):
            for key, inner in value.items():
                expected = float(inner) if key in ("eps", "min_lr") else inner
                assert said[section][key] == expected, f"{section}.{key}"
        else:
            assert said[section] == value, section


@pytest.mark.parametrize("kind", ["class", "dataclass", "enum", "exception", "function"])
def test_every_documented_name_is_where_it_is_said_to_be(kind: str) -> None:
    items = json.loads(INVENTORY.read_text(encoding="utf-8"))["items"]
    paths = [item["import_path"] for item in items if item["kind"] == kind and "import_path" in item]
    paths = [path for path in paths if ".trainer." not in path and " " not in path]
    assert paths
    for path in paths:
        module, _, name = path.rpartition(".")
        assert hasattr(sys.modules[module], name), path


def test_nothing_but_the_trainer_loads_torch() -> None:
    code = (
        "import sys, model_training_framework, model_training_framework.config, model_training_framework.slurm, "
        "model_training_framework.utils, model_training_framework.__main__; print('torch' in sys.modules)"
    )
    path = ":".join(str(folder) for folder in (ROOT, ROOT / "slurm", ROOT / "training", ROOT / "profiling"))
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def blocks_without_torch() -> list[str]:
    return [
        block.text
        for block in blocks()
        if block.language == "python"
        and "import" in block.text
        and not {"torch", "trainer"} & set(block.text.replace(".", " ").split())
    ]


@pytest.mark.parametrize("block", blocks_without_torch(), ids=lambda block: block.strip().splitlines()[-1][:40])
def test_block_runs_as_written(block: str, tmp_path: Path) -> None:
    """What the document leaves to its reader is defined before it."""
    before = "from typing import *\nfrom pathlib import Path\nfrom dataclasses import dataclass, field\n"
    names = "from model_training_framework.config import *\nsuccess = True\n"
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'project'\nversion = '1'\n")
    path = ":".join(str(folder) for folder in (ROOT, ROOT / "slurm"))
    done = subprocess.run(
        [sys.executable, "-c", before + names + block],
        cwd=tmp_path, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
