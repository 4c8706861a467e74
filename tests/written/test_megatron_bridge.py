"""Recipes that are written for Megatron-Bridge name fields that its configuration classes have; nothing is imported."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from predictor.formats.writers import written
from tests.written.judges import FOLDER
from tests.written.questions import layouts

BRIDGE, CORE = FOLDER / "megatron-bridge-0.3.1", FOLDER / "megatron-core-0.16.1"
# Where the classes of a recipe's sections are.
FILES = (
    *("bridge/models/gpt_provider.py", "bridge/training/config.py", "bridge/training/tokenizers/config.py"),
    *("bridge/training/mixed_precision.py", "bridge/training/comm_overlap.py", "core/optimizer/optimizer_config.py"),
    *("core/transformer/transformer_config.py", "core/model_parallel_config.py"),
    "core/distributed/distributed_data_parallel_config.py",
)
CLASSES = {
    "model": {"GPTModelProvider", "TransformerConfig", "MLATransformerConfig", "ModelParallelConfig"},
    "train": {"TrainingConfig"},
    "dataset": {"GPTDatasetConfig"},
    "tokenizer": {"TokenizerConfig"},
    "ddp": {"DistributedDataParallelConfig"},
    "optimizer": {"OptimizerConfig"},
    "mixed_precision": {"MixedPrecisionConfig"},
    "comm_overlap": {"CommOverlapConfig"},
    "dist": {"DistributedInitConfig"},
    "rng": {"RNGConfig"},
    "rerun_state_machine": {"RerunStateMachineConfig"},
}


@cache
def source(file: str) -> ast.Module:
    folder = CORE if file.startswith("core/") else BRIDGE
    return ast.parse((folder / "megatron" / file).read_text(encoding="utf-8"))


@cache
def fields(section: str) -> frozenset[str]:
    """Return the fields of a section's classes, and their properties that can be set."""
    classes = [node for file in FILES for node in source(file).body if isinstance(node, ast.ClassDef)]
    found = set()
    for item in (item for node in classes if node.name in CLASSES[section] for item in node.body):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            found.add(item.target.id)
        elif isinstance(item, ast.FunctionDef) and f"{item.name}.setter" in map(ast.unparse, item.decorator_list):
            found.add(item.name)
    return frozenset(found)


def named(text: str) -> set[tuple[str, str]]:
    """Return section and field of everything that a recipe sets."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            *section, name = ast.unparse(node.targets[0]).removeprefix("cfg.").split(".")
            found |= {(section[0], name)} if section else set()
            called = node.value.func if isinstance(node.value, ast.Call) else None
            if isinstance(called, ast.Name) and isinstance(node.value, ast.Call):
                found |= {(name, str(keyword.arg)) for keyword in node.value.keywords}
    return found


def test_fields_of_thirty_questions_exist() -> None:
    for folder in (BRIDGE, CORE):
        if not folder.is_dir():
            pytest.skip(f"{folder.name} is not in {FOLDER}: make judges")
    models = ("llama3-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "kimi-k2", "gpt-oss-20b")
    asked = layouts("megatron-bridge", models)
    assert len(asked) == 30
    used = set().union(*(named(written(layout.configuration, "megatron-bridge", Path.cwd())) for layout in asked))
    assert {"model", "ddp", "optimizer", "comm_overlap", "mixed_precision"} <= {section for section, _ in used}
    assert sorted(f"{section}.{name}" for section, name in used if name not in fields(section)) == []
    assert "no_such_field" not in fields("model")
