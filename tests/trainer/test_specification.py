"""The trainer's documented API: every call and callback, phases and states, and every block as it stands."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import MISSING, fields
from typing import Any

import pytest

from model_training_framework import trainer as package
from model_training_framework.trainer import ResumeState, TrainerPhase
from tests.launch.specification import SPECIFICATION, Block, Signature, blocks, signatures

pytestmark = pytest.mark.skipif(not SPECIFICATION.is_file(), reason="the specification is not at hand")

INVENTORY = SPECIFICATION.with_suffix(".inventory.json")
# What a block leaves to its reader.
BEFORE = (
    "from dataclasses import dataclass\nfrom typing import Optional\nfrom model_training_framework.trainer import *\n"
)


def of_the_trainer() -> list[Signature]:
    return [signature for signature in signatures() if signature.owner in ("GenericTrainer", "TrainingCallback")]


def runnable() -> list[Block]:
    return [
        block
        for block in blocks()
        if block.language == "python"
        and "import" in block.text
        and {"torch", "trainer"} & set(block.text.replace(".", " ").split())
    ]


def run(block: Block) -> dict[str, Any]:
    """Run a block and return the names that it leaves."""
    names: dict[str, Any] = {"__name__": "block"}
    exec(
        compile(BEFORE + block.text, SPECIFICATION.name, "exec", dont_inherit=True), names
    )  # its own imports are the test
    return names


@pytest.mark.parametrize("signature", of_the_trainer(), ids=lambda signature: f"{signature.owner}.{signature.name}")
def test_documented_call_is_there(signature: Signature) -> None:
    real = inspect.signature(getattr(getattr(package, signature.owner), signature.name))
    parameters = [parameter for name, parameter in real.parameters.items() if name != "self"]
    assert tuple(parameter.name for parameter in parameters[: len(signature.parameters)]) == signature.parameters
    for extra in parameters[len(signature.parameters) :]:
        assert extra.kind is inspect.Parameter.KEYWORD_ONLY, f"{extra.name} changes the documented call"
    for name in signature.parameters:
        default = real.parameters[name].default
        said = signature.defaults.get(name)
        assert str(default) == said if said is not None else default is inspect.Parameter.empty, name


def test_every_signature_was_read() -> None:
    assert {signature.name for signature in of_the_trainer()} == {
        "__init__", "fit", "training_step", "validation_step", "save_checkpoint", "load_checkpoint", "add_callback",
        "on_training_start", "on_training_end", "on_epoch_start", "on_epoch_end", "on_batch_start", "on_batch_end",
    }  # fmt: skip


@pytest.mark.parametrize("block", runnable(), ids=lambda block: f"{block.owner}-{block.text.strip().splitlines()[-1]}")
def test_block_runs_as_written(block: Block) -> None:
    assert len(run(block)) > 1


def test_there_is_a_block_for_every_part() -> None:
    text = "\n".join(block.text for block in runnable())
    for name in ("GenericTrainer", "TrainingCallback", "TrainerPhase", "ResumeState", "TrainerError", "DataLoader"):
        assert name in text


def test_every_documented_phase_is_one() -> None:
    phases = {name for block in runnable() for name in re.findall(r"^TrainerPhase\.(\w+)$", block.text, re.MULTILINE)}
    assert len(phases) == 9
    assert phases <= set(TrainerPhase.__members__)


def test_resume_state_has_the_documented_fields_first() -> None:
    (block,) = [block for block in runnable() if "class ResumeState" in block.text]
    documented = fields(run(block)["ResumeState"])
    assert len(documented) == 8
    real = fields(ResumeState)
    assert [(field.name, field.default) for field in real[:8]] == [(field.name, field.default) for field in documented]
    for field in real[8:]:
        assert not (field.default is MISSING and field.default_factory is MISSING), f"{field.name} needs a value"


def test_every_documented_name_is_exported() -> None:
    items = json.loads(INVENTORY.read_text(encoding="utf-8"))["items"]
    names = {item["import_path"].rpartition(".")[2] for item in items if ".trainer." in item.get("import_path", "")}
    assert len(names) >= 11
    assert names <= set(package.__all__)
