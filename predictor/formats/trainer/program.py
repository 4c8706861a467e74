"""Read a Python program that trains with a Trainer, from its syntax tree: nothing of it runs.

Its calls say the run (SFTConfig or TrainingArguments, LoraConfig, BitsAndBytesConfig, from_pretrained), as far as their
arguments are literals, names of literals, or arguments of the program, which have their defaults. What is none of these
comes from outside, and is asked for where it matters.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.shell.words import is_unknown, unknown
from predictor.formats.trainer import reader
from predictor.formats.trainer.layout import Launch
from predictor.formats.trainer.unsloth import with_kernels

# Trainers of preference learning, by their objective; each has a configuration of its name.
OBJECTIVES = {f"{name}Trainer": name.lower() for name in ("DPO", "ORPO", "CPO", "KTO", "Reward")}
OF_OBJECTIVES = tuple(name.replace("Trainer", "Config") for name in OBJECTIVES)
CONFIGS = ("SFTConfig", "TrainingArguments", "Seq2SeqTrainingArguments", *OF_OBJECTIVES)
TRAINERS = ("SFTTrainer", "Trainer", "Seq2SeqTrainer", *OBJECTIVES)
# Keywords of other calls, by the arguments of a Trainer that they are.
OF_CALLS = {
    "LoraConfig": {
        "r": "lora_r",
        "target_modules": "lora_target_modules",
        "modules_to_save": "lora_modules_to_save",
        "lora_dropout": "lora_dropout",
        "use_dora": "use_dora",
        "target_parameters": "lora_target_parameters",
    },
    "BitsAndBytesConfig": {
        "load_in_4bit": "load_in_4bit",
        "load_in_8bit": "load_in_8bit",
        "bnb_4bit_quant_type": "bnb_4bit_quant_type",
        "bnb_4bit_use_double_quant": "bnb_4bit_use_double_quant",
    },
    "from_pretrained": {
        "pretrained_model_name_or_path": "model_name_or_path",
        "torch_dtype": "torch_dtype",
        "dtype": "torch_dtype",
        "attn_implementation": "attn_implementation",
        "use_flash_attention_2": "use_flash_attention_2",
        "load_in_4bit": "load_in_4bit",
        "load_in_8bit": "load_in_8bit",
    },
    "SFTTrainer": {"max_seq_length": "max_seq_length", "packing": "packing", "model": "model_name_or_path"},
    "prepare_model_for_kbit_training": {"use_gradient_checkpointing": "gradient_checkpointing"},
    "gradient_checkpointing_enable": {"gradient_checkpointing_kwargs": "gradient_checkpointing_kwargs"},
}
DECODERS = ("ForCausalLM", "LMHeadModel")
OTHERS = ("Trainer", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForSeq2SeqLM")
SWITCHES = {"store_true": False, "store_false": True}  # argparse: what an argument is that is not given
LENGTHS = ("max_length", "max_seq_length", "model_max_length")
KBIT = "prepare_model_for_kbit_training"  # peft/utils/other.py: it turns recomputation on unless it is told not to
HAS_BF16 = ("is_bf16_supported", "is_bfloat16_supported", "is_torch_bf16_gpu_available")
UNSLOTH = ("FastLanguageModel", "FastModel")
# Keywords of its calls by the Trainer's arguments, beside those of LoraConfig and from_pretrained.
OF_UNSLOTH = {
    "model_name": "model_name_or_path",
    "max_seq_length": "max_seq_length",
    "use_gradient_checkpointing": "gradient_checkpointing",
    "full_finetuning": "full_finetuning",
}
ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(slots=True)
class Program:
    """A program being read.

    Attributes:
        where: the file, for messages.
        names: values of names that are assigned once.
        defaults: of arguments of the program (argparse), by their names.
        values: arguments of its Trainer so far.
        guessed: arguments of the program that were read with their defaults.
    """

    where: str
    names: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    guessed: dict[str, Any] = field(default_factory=dict)

    def value(self, node: ast.expr) -> Any:
        """Return what an expression stands for; marked as unknown where only a run of the program knows."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(element) for element in node.elts]
        if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
            pairs = zip(node.keys, node.values, strict=True)
            return {self.value(key): self.value(value) for key, value in pairs if key is not None}
        if isinstance(node, ast.Name | ast.Attribute):
            return self.named(node)
        if isinstance(node, ast.Call):
            return self.called(node)
        return self.calculated(node)

    def named(self, node: ast.Name | ast.Attribute) -> Any:
        """Return what a name stands for, or an argument of the program or of a function, which has its default."""
        name = node.id if isinstance(node, ast.Name) else node.attr
        if isinstance(node, ast.Name) and name in self.names:
            return self.names[name]
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "torch":
            return name
        is_simple = isinstance(node, ast.Name) or isinstance(node.value, ast.Name)
        if is_simple and name in self.defaults:
            self.guessed[name] = self.defaults[name]
            return self.defaults[name]
        return unknown(f"`{ast.unparse(node)}`")

    def called(self, node: ast.Call) -> Any:
        """Return what a call stands for: whether a GPU has bf16, or a variable of the environment with its default."""
        if name_of(node) in HAS_BF16:
            return True
        is_environment = ast.unparse(node.func) in ("os.environ.get", "os.getenv")
        if is_environment and len(node.args) > 1 and isinstance(node.args[0], ast.Constant):
            value = self.value(node.args[1])
            self.guessed[str(node.args[0].value)] = value
            return value
        if name_of(node) in ("int", "float", "str") and len(node.args) == 1:
            value = self.value(node.args[0])
            return int(value) if name_of(node) == "int" and str(value).isdigit() else value
        return unknown(f"`{ast.unparse(node)}`")

    def calculated(self, node: ast.expr) -> Any:
        """Return the value of arithmetic on numbers that are known."""
        if isinstance(node, ast.UnaryOp):
            inner = self.value(node.operand)
            if isinstance(node.op, ast.USub) and type(inner) in (int, float):
                return -inner
            if isinstance(node.op, ast.Not) and type(inner) is bool:
                return not inner
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            left, right = self.value(node.left), self.value(node.right)
            if {type(left), type(right)} <= {int, float} and (right or not isinstance(node.op, ast.FloorDiv)):
                return ARITHMETIC[type(node.op)](left, right)
        return unknown(f"`{ast.unparse(node)}`")

    def keywords(self, call: ast.Call) -> dict[str, Any]:
        """Return the keywords of a call.

        Raises:
            ConfigError: some come from a mapping that only a run knows.
        """
        found: dict[str, Any] = {}
        for keyword in call.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                found[keyword.arg] = value
            elif isinstance(value, dict):
                found |= value
            else:
                raise ConfigError(
                    f"{self.where}:{call.lineno}: {ast.unparse(call.func)} takes **{ast.unparse(keyword.value)}, which "
                    "only a run knows; write its arguments out, or read the command that starts the program"
                )
        return found


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a program that trains with a Trainer.

    Raises:
        ConfigError: it does not parse, says no arguments of a Trainer, or asks for what is not modelled; the message
            has a line for each problem.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8-sig"))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} is no Python: {error}") from None
    program = Program(path.name)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    _refuse(calls, tree, path.name)
    take_names(program, tree, calls)
    skipped = _skipped(program, tree)
    calls = [call for call in calls if call not in skipped]
    configs = [call for call in calls if name_of(call) in CONFIGS and call.keywords]
    if not configs:
        raise ConfigError(
            f"{path.name}: its Trainer takes its arguments from the command line; read the script that starts it"
        )
    for call in calls:
        _take(program, call)
    program.values |= program.keywords(configs[-1])
    _lengths(program, calls)
    is_older = any(name_of(call) == "SFTTrainer" for call in calls) and name_of(configs[-1]) != "SFTConfig"
    if is_older and not {*LENGTHS} & program.values.keys():
        program.values["max_seq_length"] = 1024  # of releases of TRL that took TrainingArguments
    program.values.setdefault("output_dir", "")
    objective = next((OBJECTIVES[name] for call in calls if (name := name_of(call)) in OBJECTIVES), None)
    is_trl = name_of(configs[-1]) in ("SFTConfig", *OF_OBJECTIVES)
    kernels = _of_unsloth(program.values, calls)
    launch = Launch(path.parent, num_gpus)
    read = reader.from_arguments(program.values, path.name, launch, Problems(), is_trl=is_trl, objective=objective)
    guesses = ", ".join(f"{name} {value}" for name, value in program.guessed.items())
    notes = [f"{path.name}: {note}" for note in kernels]
    notes += [f"{path.name}: arguments of the program have their defaults: {guesses}"] if guesses else []
    return Read(read.content, (*notes, *read.notes), unsaid=read.unsaid, derived=read.derived)


def name_of(call: ast.Call) -> str:
    """Return the last part of what a call calls."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _refuse(calls: list[ast.Call], tree: ast.Module, where: str) -> None:
    """Refuse programs that train something else than a language model on its samples.

    Raises:
        ConfigError: this is one.
    """
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {name_of(call) for call in calls}
    if "FastVisionModel" in names:
        raise ConfigError(f"{where}: FastVisionModel trains on images, which are not read; read a run on text")
    called = [name_of(call) for call in calls] + [
        call.func.value.id
        for call in calls
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
    ]
    has_decoder = any(name.endswith(DECODERS) for name in called)
    other = next((name for name in called if name.endswith(OTHERS) and name not in TRAINERS), None)
    trains_decoder = has_decoder and "SFTTrainer" in called
    if other is not None and not (trains_decoder or "RewardTrainer" in called):
        raise ConfigError(
            f"{where}: it uses {other}; supervised fine-tuning and continued pre-training of decoders are modelled, "
            "with SFTTrainer or Trainer"
        )


def take_names(program: Program, tree: ast.Module, calls: list[ast.Call]) -> None:
    """Take in the arguments of the program with their defaults, and the names that have one value."""
    for call in calls:
        if name_of(call) == "add_argument" and call.args and isinstance(call.args[0], ast.Constant):
            default = next((keyword.value for keyword in call.keywords if keyword.arg == "default"), None)
            action = next((keyword.value for keyword in call.keywords if keyword.arg == "action"), None)
            switch = SWITCHES.get(program.value(action)) if isinstance(action, ast.Constant) else None
            value = switch if default is None else program.value(default)
            if value is not None and not (isinstance(value, str) and is_unknown(value)):
                program.defaults[str(call.args[0].value).lstrip("-").replace("-", "_")] = value
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        spelled = function.args.args[len(function.args.args) - len(function.args.defaults) :]
        for argument, node in zip(spelled, function.args.defaults, strict=True):
            if isinstance(node, ast.Constant) and node.value is not None:
                program.defaults.setdefault(argument.arg, node.value)
    seen: dict[str, int] = {}
    for target, _ in _assigned(tree):
        seen[target] = seen.get(target, 0) + 1
    for target, node in _assigned(tree):
        if seen[target] == 1:
            program.names[target] = program.value(node)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign)]
    for node in sorted(nodes, key=lambda node: node.lineno):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if len(targets) == 1 and isinstance(targets[0], ast.Name) and node.value is not None:
            yield targets[0].id, node.value


def _skipped(program: Program, tree: ast.Module) -> set[ast.AST]:
    """Return the calls in branches that do not run, as far as the program and its defaults say."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and type(outcome := program.value(node.test)) is bool:
            branch = node.orelse if outcome else node.body
            found |= {inner for statement in branch for inner in ast.walk(statement) if isinstance(inner, ast.Call)}
    return found


def _take(program: Program, call: ast.Call) -> None:
    """Take in what a call beside that of the arguments says."""
    name = name_of(call)
    if _is_of_unsloth(call):
        _take_unsloth(program, call)
        return
    if name not in OF_CALLS:
        return
    if name == "from_pretrained":
        holder = call.func.value if isinstance(call.func, ast.Attribute) else None
        if not isinstance(holder, ast.Name) or not holder.id.endswith(DECODERS):
            return
        if call.args:
            program.values["model_name_or_path"] = program.value(call.args[0])
    if name == "LoraConfig":
        program.values["use_peft"] = True
    if name in ("gradient_checkpointing_enable", KBIT):
        program.values["gradient_checkpointing"] = True
    renamed = OF_CALLS[name]
    for key, value in program.keywords(call).items():
        is_object = key == "model" and (not isinstance(value, str) or is_unknown(value))
        if key in renamed and not is_object and value is not None:
            program.values[renamed[key]] = value


def _is_of_unsloth(call: ast.Call) -> bool:
    holder = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(holder, ast.Name) and holder.id in UNSLOTH


def _take_unsloth(program: Program, call: ast.Call) -> None:
    """Take in a model of Unsloth, which is in four bits unless it says otherwise, or its adapters.

    Source: unslothai/unsloth, unsloth/models/loader.py (from_pretrained), unsloth/models/llama.py (get_peft_model).
    """
    renamed = {**OF_UNSLOTH, **OF_CALLS["LoraConfig"], "load_in_4bit": "load_in_4bit", "load_in_8bit": "load_in_8bit"}
    if name_of(call) == "get_peft_model":
        program.values |= {"use_peft": True, "lora_r": 16, "lora_target_modules": "all-linear"}
    elif name_of(call) == "from_pretrained":
        program.values["load_in_4bit"] = True
        if call.args:
            program.values["model_name_or_path"] = program.value(call.args[0])
    for key, value in program.keywords(call).items():
        if key in renamed and value is not None:
            program.values[renamed[key]] = value


def _of_unsloth(values: dict[str, Any], calls: list[ast.Call]) -> list[str]:
    """Put a run of Unsloth in the Trainer's words, and return notes on what stands in for its kernels."""
    if not any(map(_is_of_unsloth, calls)):
        return []
    if not values.get("fp16"):  # its trainers take the model's 16 bits where none are named
        values["bf16"] = True
    if values.pop("full_finetuning", False):
        values |= {"load_in_4bit": False, "torch_dtype": "bfloat16"}
    return with_kernels(values, "gradient_checkpointing")


def _lengths(program: Program, calls: list[ast.Call]) -> None:
    """Take the length to which the program cuts its samples, where its Trainer's arguments say none."""
    if {*LENGTHS} & program.values.keys():
        return
    found = {
        value
        for call in calls
        for keyword in call.keywords
        if keyword.arg == "max_length" and type(value := program.value(keyword.value)) is int
    }
    if len(found) == 1:
        program.values[LENGTHS[-1]] = found.pop()
