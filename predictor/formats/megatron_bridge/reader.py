"""Read a recipe of Megatron-Bridge: a Python function that returns a ConfigContainer, or one written as YAML.

The function is evaluated from its syntax tree, together with those that it calls in the same source tree; nothing is
imported or run. Source of names and defaults: NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/config.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.hub_models import known_model
from predictor.formats.megatron.options import Options
from predictor.formats.megatron.reader import from_options, model_section
from predictor.formats.megatron_bridge.model import named_section, sized
from predictor.formats.megatron_bridge.options import precision, to_options
from predictor.formats.megatron_bridge.tuning import fine_tuning
from predictor.formats.python_source.calls import evaluate_call
from predictor.formats.python_source.recipes import chosen
from predictor.formats.python_source.values import External, Record, Unknown, is_open

FORMAT = "Megatron-Bridge recipe"
FAMILY = "megatron-bridge"
# Of a file in YAML: at least two of them.
SECTIONS = frozenset(
    {"model", "train", "ddp", "optimizer", "scheduler", "mixed_precision", "comm_overlap", "tokenizer"}
)
EXTERNAL = frozenset(
    {"AutoBridge", "get_mixed_precision_config", "_adjust_gemma2_vocab_size", "_adjust_gemma3_vocab_size"}
)
DIFFUSION = re.compile(r"wan|flux|diffusion|dit", re.IGNORECASE)
# Helpers of recipes/common.py, for a recipe that is read without the source tree around it.
DDP = {"grad_reduce_in_fp32": True}
PRETRAIN_DDP = {"overlap_grad_reduce": True, "overlap_param_gather": True, "use_distributed_optimizer": True, **DDP}
LORA = Record("LoRA", {"dim": 32, "target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]})
HELPERS: dict[str, dict[str, Any]] = {
    "_pretrain_common": {
        "train": {"global_batch_size": 32, "micro_batch_size": 2},
        "ddp": PRETRAIN_DDP,
        "dataset": {"seq_length": 4096},
        "mixed_precision": "bf16_mixed",
    },
    "_sft_common": {
        "train": {"global_batch_size": 128, "micro_batch_size": 1},
        "ddp": DDP,
        "optimizer": {"use_distributed_optimizer": True},
        "dataset": {"seq_length": 2048},
        "mixed_precision": "bf16_mixed",
    },
}
HELPERS["_peft_common"] = {**HELPERS["_sft_common"], "peft": LORA}
HELPERS["_pretrain_common"]["optimizer"] = {"use_distributed_optimizer": True}
VISION = re.compile(r"[-_]?vl\b|vl-|[-_]vl[-_]|omni|audio|vision|multimodal|pixtral", re.IGNORECASE)


def read(path: Path, function: str | None = None, num_gpus: int | None = None) -> Read:
    """Read a recipe.

    Args:
        path: a Python file, or a YAML file of a whole configuration.
        function: the recipe, where a Python file has several.
        num_gpus: GPUs of the run; otherwise as the recipe's name says, if it does.

    Raises:
        ConfigError: there is no such recipe, or something changes the cost in a way that is not modelled or cannot be
            told without running the code; the message has a line for each.
    """
    problems = Problems()
    notes: list[str] = []
    if path.suffix in (".yaml", ".yml"):
        name, container = path.name, _of_mapping(read_mapping(path))
    else:
        module, found = chosen(path, function)
        value, raised = evaluate_call(module, found, EXTERNAL)
        problems.lines += [f"{path.name}:{found}: {line}" for line in raised]
        name, container = f"{path.name}:{found}", value
    if not isinstance(container, Record):
        why = f": {container.why}" if isinstance(container, Unknown) else ""
        raise ConfigError(f"{name} returns no configuration{why}")
    if is_open(container) and container.short_kind not in HELPERS:
        raise ConfigError(
            f"{name} starts from {container.kind} ({container.line}), whose code is not beside the file; read it "
            "inside its source tree"
        )
    read = _Recipe(container, name, problems, notes).read(num_gpus)
    problems.check()
    return read


def _of_mapping(content: dict[str, Any]) -> Record:
    """Return a mapping as the object that it stands for."""
    sections = {
        key: Record(str(value.get("_target_", key.title())), value) if isinstance(value, dict) else value
        for key, value in content.items()
    }
    return Record("ConfigContainer", sections)


class _Recipe:
    """One recipe being read."""

    def __init__(self, container: Record, where: str, problems: Problems, notes: list[str]) -> None:
        self.where, self.problems, self.notes = where, problems, notes
        base = HELPERS.get(container.short_kind, {})
        self.fields = {**base, **container.fields}
        adapters, own = base.get("peft"), container.fields.get("peft")
        if isinstance(adapters, Record) and isinstance(own, Record) and own.kind == "peft":  # the helper's, changed
            self.fields["peft"] = Record(adapters.kind, {**adapters.fields, **own.fields})
        self.container = container

    def section(self, name: str) -> dict[str, Any]:
        """Return the keys of a section, with those of the helper that made it."""
        base, value = HELPERS.get(self.container.short_kind, {}).get(name), self.fields.get(name)
        if name != "mixed_precision" and (
            isinstance(value, Unknown)
            or (isinstance(value, Record) and is_open(value) and name != "model" and value.kind != name)
        ):
            why = value.why if isinstance(value, Unknown) else f"the code of {value.kind} is not beside the file"
            self.problems.lines.append(f"{self.where}: {name} cannot be read: {why}")
        own = value.fields if isinstance(value, Record) else value if isinstance(value, dict) else {}
        plain = {key: _plain(item) for key, item in own.items() if key != "_target_"}
        return {**base, **plain} if isinstance(base, dict) else plain

    def read(self, num_gpus: int | None) -> Read:
        """Return what the recipe says."""
        sections = {name: self.section(name) for name in ("model", "train", "ddp", "optimizer", "comm_overlap", "dist")}
        sections["mixed_precision"] = self.precision()
        optimizer = sections["optimizer"]
        shards = sections["ddp"].get("use_distributed_optimizer") or optimizer.pop("use_distributed_optimizer", False)
        sections["ddp"]["use_distributed_optimizer"] = bool(shards)
        self.check_model()
        options = to_options(sections, self.where, self.problems.lines, self.notes)
        model = self.problems.part(dict[str, Any](), self.model, options)
        gpus = num_gpus or self.gpus()
        read = from_options(options, self.problems, self.notes, gpus, num_gpus is not None, model)
        read.content["training"] |= {"framework": FAMILY}
        tuning = self.problems.part(dict[str, Any](), fine_tuning, self.fields, model, self.where, self.notes)
        read.content["training"] |= tuning
        if not {"preset", "num_layers"} & model.keys():
            read.unsaid.pop("model.vocab_size", None)
            read.unsaid["model.num_layers"] = (
                f"{self.where}: the model is {self.hub_model() or 'not named'}, which has no preset; take its "
                "config.json in front of the recipe (from: [config.json, recipe.py]), or"
            )
        notes = tuple(dict.fromkeys((*self.notes, *(note for note in read.notes if note not in self.notes))))
        return Read(read.content, notes, FORMAT, read.unsaid, read.derived)

    def precision(self) -> dict[str, Any]:
        """Return the section of the precision, also where it is given by name."""
        value = self.fields.get("mixed_precision")
        if isinstance(value, Record):
            is_named = value.short_kind == "get_mixed_precision_config" and value.arguments
            name = value.arguments[0] if is_named else value.short_kind
            base = precision(name)
            if base is None and is_open(value):
                self.problems.lines.append(
                    f"{self.where}: mixed_precision comes from {value.kind} ({value.line}), whose code is not there"
                )
            return {**(base or {}), **self.section("mixed_precision")}
        if value is None:  # then the model's and the optimizer's own switches say it
            told = {**self.section("model"), **self.section("optimizer")}
            half = next((name for name in ("bf16", "fp16") if told.get(name) is True), None)
            if half is not None:
                return {half: True}
        named = precision(value)
        if named is None:
            shown = value.why if isinstance(value, Unknown) else value
            self.problems.lines.append(
                f"{self.where}: mixed_precision is {shown}; it is not known here, write bf16_mixed"
            )
        return named or {}

    def gpus(self) -> int | None:
        """Return the GPUs that the recipe's name says."""
        named = re.search(r"_(\d+)gpus?(?:_|$)", self.where)
        if named is None:
            return None
        self.notes.append(f"{self.where}: {named[1]} GPUs, as its name says")
        return int(named[1])

    def hub_model(self) -> str | None:
        """Return the name of the model on Hugging Face's hub."""
        value: Any = self.fields.get("model")
        while isinstance(value, Record) and "from_hf" not in value.short_kind:
            value = value.of
        arguments = [*value.arguments, *value.fields.values()] if isinstance(value, Record) else []
        return next((name for name in arguments if isinstance(name, str)), None)

    def check_model(self) -> None:
        """Refuse a model that is no language model, or that the code does not name.

        Raises:
            ConfigError: it is one of those.
        """
        value, name = self.fields.get("model"), self.hub_model()
        if isinstance(value, Unknown):
            raise ConfigError(f"{self.where}: model cannot be read: {value.why}")
        if not isinstance(value, Record):
            raise ConfigError(f"{self.where}: model is {value}; expected a model")
        if VISION.search(f"{name or ''} {value.kind}") or "freeze_vision_model" in value.fields:
            raise ConfigError(
                f"{self.where}: the model is {name or value.kind}, with towers of other modalities, which are not read"
            )
        if DIFFUSION.match(value.short_kind):
            raise ConfigError(f"{self.where}: the model is a {value.short_kind}; only language models are predicted")
        if name is None and "from_hf" in value.kind:
            raise ConfigError(f"{self.where}: the model's name cannot be told; write it as a text")

    def model(self, options: Options) -> dict[str, Any]:
        """Return the section ``model``: from its sizes, or from the preset of its name."""
        length = options.optional_whole("seq-length") or self.section("dataset").get("seq_length")
        if isinstance(length, int):
            options.values = {**options.values, "seq-length": length}
        vocabulary = self.vocabulary(options)
        if options.has("num-layers") and options.has("hidden-size"):
            return model_section(sized(options), self.notes, self.problems) | vocabulary
        known = known_model(self.hub_model())
        self.notes += known.notes if known else ()
        return named_section(options, known.section if known else {}, self.notes) | vocabulary

    def vocabulary(self, options: Options) -> dict[str, int]:
        """Return the key of the vocabulary, where the tokenizer decides it."""
        tokenizer, size = self.section("tokenizer"), options.optional_whole("vocab-size")
        is_sized = size is None and self.hub_model() is None and options.has("num-layers")
        is_taken = tokenizer.get("use_tokenizer_vocab_size") is True or is_sized
        given = tokenizer.get("vocab_size")
        if is_taken and tokenizer.get("tokenizer_type") == "NullTokenizer" and isinstance(given, int):
            self.notes.append(f"{self.where}: the vocabulary is that of NullTokenizer, {given:,} tokens")
            return {"vocab_size": given + 1}  # it adds an end-of-document token
        return {} if size is None else {"vocab_size": size}


def _plain(value: Any) -> Any:
    """Return an external name as its text, and an object as its attributes; what is not evaluated stays unknown."""
    if isinstance(value, External):
        return value.name
    if isinstance(value, Record) and is_open(value):
        return Unknown(f"{value.line}: it comes from {value.kind}, whose code is not beside the file")
    return value.fields if isinstance(value, Record) else value
