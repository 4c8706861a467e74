"""The trainer's documented API: every symbol, default, signature and argument, and every block, run."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import json
import re
import runpy
import shlex
import shutil
import sys
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
for needed in ("lightning_fabric", "tokenizers", "safetensors", "tensorboard"):
    pytest.importorskip(needed)

from tests.llm_trainer import small  # noqa: E402
from tests.llm_trainer.specification import (  # noqa: E402
    ROOT,
    SMALL_VALUES,
    SMALLER,
    SPECIFICATION,
    Block,
    blocks,
    inventory,
    signature,
    smaller,
)

pytestmark = pytest.mark.skipif(not SPECIFICATION.is_file(), reason="the specification is not at hand")

SCRIPTS = ROOT / "training" / "scripts"
PYTHON, OTHERS = blocks("python"), {language: blocks(language) for language in ("yaml", "json", "bash")}
IMPORTED = sorted({item["import_path"] for item in inventory() if item.get("import_path")})
CONFIG_FIELDS = [item for item in inventory() if item["kind"] == "field" and ".config." in item.get("import_path", "")]
CALLS = [item for item in inventory() if item.get("signature") and item["kind"] in ("method", "function", "class")]
# Listed with other names than those of its block, whose keywords count; the block is run.
NAMED_BY_ITS_BLOCK = {"evaluate_generation_quality"}
CLASSES = {path.rpartition(".")[2]: path for path in IMPORTED}


def imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def item_id(item: dict[str, Any]) -> str:
    return str(item["name"])


@pytest.mark.parametrize("path", IMPORTED)
def test_every_documented_symbol_is_there(path: str) -> None:
    assert callable(imported(path))


@pytest.mark.parametrize("item", CONFIG_FIELDS, ids=item_id)
def test_every_field_has_the_documented_default(item: dict[str, Any]) -> None:
    name = item["name"].rpartition(".")[2]
    (field,) = [field for field in fields(imported(item["import_path"])) if field.name == name]
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    assert default == ast.literal_eval(item["default"])
    assert type(default) is type(ast.literal_eval(item["default"]))


@pytest.mark.parametrize("item", CALLS, ids=item_id)
def test_every_call_takes_what_is_documented(item: dict[str, Any]) -> None:
    owner, _, name = item["name"].partition(".")
    path = item.get("import_path") or CLASSES[owner]
    real = inspect.signature(getattr(imported(path), name) if name else imported(path)).parameters
    documented = signature(item["signature"])
    mine = [name for name in real if name != "self"]
    for position, parameter in enumerate(documented.names):
        if name.startswith("__") or item["name"] in NAMED_BY_ITS_BLOCK:  # an operator's call knows no names
            assert len(mine) > position
            continue
        assert real[parameter].kind is not inspect.Parameter.KEYWORD_ONLY
        assert mine.index(parameter) == position, f"{parameter} is not where it is documented"
        if parameter in documented.defaults:
            assert real[parameter].default == documented.defaults[parameter]
    for extra in (real[name] for name in mine[len(documented.names) :]):
        has_value = extra.default is not inspect.Parameter.empty
        assert has_value or extra.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL), extra


@pytest.mark.parametrize("item", [item for item in inventory() if item["kind"] == "property"], ids=item_id)
def test_every_property_is_one(item: dict[str, Any]) -> None:
    owner, _, name = item["name"].partition(".")
    assert isinstance(getattr(imported(CLASSES[owner]), name), property)


@pytest.mark.parametrize("item", [item for item in inventory() if item["kind"] == "param"], ids=item_id)
def test_every_parameter_is_accepted(item: dict[str, Any]) -> None:
    *owner, name = item["name"].split(".")
    if owner == ["TransformerLM", "generate"]:
        target = imported("llm_trainer.utils.generation.GenerationConfig")
    else:
        target = imported(CLASSES[owner[0]])
        target = getattr(target, owner[1]) if len(owner) > 1 else target
    assert name in inspect.signature(target).parameters


@pytest.mark.parametrize("item", [item for item in inventory() if item["kind"] == "cli_flag"], ids=item_id)
def test_every_argument_of_a_script_is_there(item: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    script, flag = item["name"].split()
    monkeypatch.syspath_prepend(str(SCRIPTS))
    parser = runpy.run_path(str(SCRIPTS / script))["parser"]()
    assert flag in parser._option_string_actions


@pytest.mark.parametrize("item", [item for item in inventory() if item["kind"] == "value"], ids=item_id)
def test_every_value_is_allowed(item: dict[str, Any]) -> None:
    name, _, value = item["name"].partition("=")
    key = {"optimizer_type": "optimizer", "scheduler_type": "lr_scheduler"}[name]
    assert getattr(imported("llm_trainer.config.TrainingConfig")(**{key: value}), key) == value


class Reader:
    """A reader of the specification, who runs one block after another in a folder with texts of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts = folder / "texts"
        self.texts.mkdir()
        for name in ("train", "validation"):
            (self.texts / f"{name}.txt").write_text(small.TEXT)
        for name in ("data1.txt", "data2.txt"):
            (folder / name).write_text(small.TEXT)
        tokenizer = small.tokenizer()
        samples = small.dataset(of=tokenizer)
        self.names: dict[str, Any] = {
            "texts": [small.TEXT],
            "train_dataset": samples,
            "eval_dataset": samples,
            "generated_texts": ["12 squared is 144."],
            "reference_texts": ["12 squared is 144."],
            "prompts": ["12 squared"],
            "device": torch.device("cpu"),
            "input_ids": torch.tensor([[1, 7, 9]]),
            "logits": torch.randn(1, 300),
            "total_steps": 20,
            "warmup_steps": 2,
            "tokenizer": tokenizer,
            "model": small.model(),
            "optimizer": torch.optim.SGD(small.model().parameters(), lr=0.1),
            "training_config": small.training_config(folder / "checkpoints"),
            "calculate_parameters": lambda config: config.num_parameters,
        }

    def run(self, block: Block) -> dict[str, Any]:
        """Run a block as its reader would, with what the blocks before it left, and return the names it leaves."""
        names = {**self.names, "__name__": "__main__"}
        exec(compile(smaller(block.text, self.texts), SPECIFICATION.name, "exec", dont_inherit=True), names)
        return names


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Return a reader in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    return Reader(tmp_path)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.title)
def test_every_python_block_runs(block: Block, reader: Reader) -> None:
    if "will raise an assertion error" in block.text:
        reader.names |= reader.run(PYTHON[0])
        with pytest.raises(AssertionError, match="n_heads is 5"):
            reader.run(block)
        return
    if "TransformerLM(config)" in block.text or "def train_on_custom_data" in block.text:
        reader.names |= reader.run(PYTHON[0])
    if "TrainingConfig(" in block.text:
        reader.names["TrainingConfig"] = imported("llm_trainer.config.TrainingConfig")
    if "evaluate_generation_quality" in block.text or "LanguageModelingDataset" in block.text:
        from llm_trainer.data import create_dataloader

        reader.names |= {"dataset": reader.names["train_dataset"], "create_dataloader": create_dataloader}
        reader.names["dataloader"] = create_dataloader(reader.names["train_dataset"], 4)
    if "create_dataloader" in block.text:
        reader.names["dataset"] = reader.names["train_dataset"]
        reader.names["BPETokenizer"] = imported("llm_trainer.tokenizer.BPETokenizer")
    if "trainer.train()" in block.text:
        reader.names["trainer"] = imported("llm_trainer.training.Trainer")(
            *(reader.names[name] for name in ("model", "tokenizer", "training_config", "train_dataset"))
        )
    names = reader.run(block)
    if "train_on_custom_data" in names:
        names["train_on_custom_data"]()
    if "estimate_memory_usage" in names:
        config = small.model().config
        assert names["estimate_memory_usage"](config) == pytest.approx(config.num_parameters * 16 / 2**30)
    if "trainer.train()" in block.text or "main" in names:
        assert list(Path("checkpoints").glob("step-*"))
    if "main" in names:
        assert Path("final_model", "model.safetensors").is_file()


def test_every_smaller_size_is_somewhere_in_the_blocks() -> None:
    text = "\n".join(block.text for block in [*PYTHON, *OTHERS["bash"]])
    assert [pattern for pattern in SMALLER if not re.search(pattern, text)] == []
    assert len(PYTHON) == 21


def small_content(text: str, texts: Path, is_json: bool) -> dict[str, Any]:
    """Return a configuration file's content with small sizes, read by what reads configurations."""
    from llm_trainer.config import read_config

    path = texts.parent / ("shown.json" if is_json else "shown.yaml")
    path.write_text(text)
    shown = read_config(path)
    assert shown.training.learning_rate == 1e-4
    content = {"model": shown.model.to_dict(), "training": shown.training.to_dict(), "data": shown.data.to_dict()}
    for section in content.values():
        section |= {key: value for key, value in SMALL_VALUES.items() if key in section}
    content["data"] |= {"dataset_name": str(texts), "preprocessing_num_workers": 0, "dataloader_num_workers": 0}
    content["training"] |= {"max_steps": 4, "save_steps": 2}
    return content


def test_files_and_command_lines_run_as_shown(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The YAML and the JSON file say the same, and the three command lines run one after the other."""
    (yaml_block,), (json_block, *_) = OTHERS["yaml"], OTHERS["json"]
    content = small_content(yaml_block.text, reader.texts, is_json=False)
    assert small_content(json_block.text, reader.texts, is_json=True) == content
    Path("configs").mkdir()
    Path("configs", "model_config.yaml").write_text(json.dumps(content))
    Path("configs", "eval_config.json").write_text(json.dumps(content["data"]))
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    run = importlib.import_module("checkout").run

    def start(line: str) -> None:
        _, script, *words = shlex.split(smaller(line, reader.texts))
        assert run(runpy.run_path(str(ROOT / "training" / script))["main"], words) == 0, capsys.readouterr().err

    lines = [block.text.replace("\\\n", " ") for block in OTHERS["bash"]]
    assert [line.split()[1] for line in lines] == [f"scripts/{name}.py" for name in ("train", "generate", "evaluate")]
    start("python scripts/train.py --config configs/model_config.yaml --output_dir before")
    (saved,) = Path("before", "checkpoints").glob("step-00000002-*")
    shutil.copytree(saved, Path("checkpoints", "checkpoint-1000"))
    for line in lines:
        start(line)
    assert json.loads(Path("evaluation_results.json").read_text())["val_perplexity"] > 1.0
    assert Path("output", "model.safetensors").read_bytes() == Path("before", "model.safetensors").read_bytes()


def test_every_exception_is_the_trainers() -> None:
    base = imported("llm_trainer.exceptions.LLMTrainerError")
    for item in inventory():
        if item["kind"] == "exception":
            assert issubclass(imported(item["import_path"]), base)
    assert is_dataclass(imported("llm_trainer.config.ModelConfig"))
