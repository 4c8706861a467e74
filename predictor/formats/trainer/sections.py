"""YAML of a program of one's own, whose sections hold a Trainer's arguments under the Trainer's own names.

Such files differ in their sections and agree in the names at their ends: model.name, training.bf16, lora.r.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.formats.hub_models import is_known
from predictor.formats.known_keys import speaks_of_cost
from predictor.formats.trainer.preference import named

BATCH = "per_device_train_batch_size"
# The batch of a GPU and its accumulation in programs of one's own, which are read where the file names a known model.
BATCHES = ("batch_size", "micro_batch_size", "per_device_batch_size")
ACCUMULATIONS = (
    *("gradient_accumulation_steps", "gradient_accumulation", "grad_accumulation_steps"),
    *("grad_accum_steps", "grad_accum", "accumulation_steps"),
)
GENERATING = re.compile(r"grpo|ppo|rloo|rlhf|rlvr|\brl\b|gkd|distil")
MODEL = re.compile(r"(?:base_?)?model\w*")
ADAPTERS = re.compile(r"q?lora\w*|peft\w*|adapters?")
OTHERS = re.compile(r"quant\w*|bnb\w*|bitsandbytes\w*|precision|optimi[sz]er|optim")
# Names at the end, by kind of section.
OF_MODEL = dict.fromkeys(
    (
        "student",
        "name",
        "id",
        "path",
        "model",
        "hf_id",
        "model_path",
        "name_or_path",
        "base_model_name_or_path",
        "base",
    ),
    "model_name_or_path",
)
OF_TRAINING = {"optimizer": "optim", "model": "model_name_or_path", "model_path": "model_name_or_path"}
OF_TRAINING |= dict.fromkeys(BATCHES, BATCH) | dict.fromkeys(ACCUMULATIONS, ACCUMULATIONS[0])
OF_TRAINING |= {"adapter": "method"}
OF_TRAINING |= {"epochs": "num_train_epochs", "num_epochs": "num_train_epochs", "lr": "learning_rate"}
OF_TRAINING |= dict.fromkeys(("is_peft", "is_lora", "enable_lora", "lora_enabled", "peft_enabled"), "use_peft")
LENGTHS = ("max_seq_length", "max_seq_len", "max_length", "cutoff_len", "block_size")  # of data sections as well
OF_ADAPTERS = {"r": "lora_r", "rank": "lora_r", "dropout": "lora_dropout", "alpha": "lora_alpha", "bias": "lora_bias"}
OF_ADAPTERS |= {"use_gradient_checkpointing": "gradient_checkpointing"}  # as Unsloth's get_peft_model has it
OF_ADAPTERS |= {"enabled": "use_peft", "enable": "use_peft", "use_lora": "use_peft"}
METHODS = ("method", "algorithm", "objective", "stage", "rl", "trainer_type")
KINDS = ("method", "kind", "type", "peft_type", "name")
OF_QUANTIZATION = {"quant_type": "bnb_4bit_quant_type", "compute_dtype": "bnb_4bit_compute_dtype"}
OF_QUANTIZATION |= dict.fromkeys(("double_quant", "use_double_quant"), "bnb_4bit_use_double_quant")
SAY_PRECISION = {"bf16", "fp16", "tf32", "torch_dtype", "dtype", "mixed_precision", "precision"}
SHORT = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16"}
BITS = re.compile(r"(?:int|nf|fp)?([48])-?(?:bits?)?")
OF_OPTIMIZER = {"name": "optim", "type": "optim", "optimizer": "optim"}
TRAINING = re.compile(r"train\w*|sft|align\w*|dpo")  # beside a batch that stands outside
OF_DATA = re.compile(r"data|tokeni[sz]|model|sequence|sft|dpo|align")
# Sections of what runs beside a training, or before it.
OF_NO_STEP = re.compile(
    r"data|tokeni[sz]er|cost|deploy|mlflow|monitor|eval|reward|vllm|sampl|generat|infer|log|track|wandb|experiment|env|hub|export|merge"
)
DEEPEST = 4  # sections in sections


def has_sections(content: Mapping[str, Any]) -> bool:
    """Return whether a section of a file holds a Trainer's batch, and no other reader's."""
    return BATCH not in content and next(_trainings(content), None) is not None


def _names_a_model(content: Mapping[str, Any]) -> bool:
    """Return whether a value of a file is the name of a model whose sizes are known."""
    values = [value for _, section in _sections(content) for value in section.values()]
    return any(isinstance(value, str) and is_known(value) for value in values)


def flattened(content: Mapping[str, Any], where: str) -> tuple[dict[str, Any], str, str | None]:
    """Return a Trainer's arguments by name, a note on what of the file is read, and the objective of its section.

    Raises:
        ConfigError: several sections hold a training, or one that generates text.
    """
    found = list(_trainings(content))
    if len(found) > 1:
        listed = ", ".join(".".join(path) for path in found)
        raise ConfigError(f"{where} has several trainings: {listed}; leave one of them in the file")
    training = found[0]
    if (other := next((part for part in training if GENERATING.search(part.lower())), None)) is not None:
        raise ConfigError(f"{where}: the training stands under {other}, which generates text; that is not modelled")
    objective = next((known for part in training if (known := named(part.lower())) is not None), None)
    objective = objective or _objective(content, where)
    values: dict[str, Any] = {}
    left: list[str] = []
    for path, section in _sections(content):
        name = path[-1] if path else ""
        scalars = {key: value for key, value in section.items() if not isinstance(value, Mapping) and value is not None}
        if path == training[: len(path)]:
            own = OF_TRAINING | (OF_ADAPTERS if ADAPTERS.fullmatch(name) else {})
            values |= {own.get(key, key): value for key, value in scalars.items()}
        elif MODEL.fullmatch(name):
            values |= {OF_MODEL.get(key, key): value for key, value in scalars.items()}
        elif ADAPTERS.fullmatch(name):
            values = _adapters(name, scalars) | values
        elif OTHERS.fullmatch(name):
            of_section = OF_OPTIMIZER if name.startswith("optim") else OF_TRAINING if name == "precision" else {}
            is_quantization = not of_section
            said = _quantized(scalars, where) if is_quantization else scalars
            values |= {of_section.get(key, key): value for key, value in said.items()}
        elif not training and TRAINING.fullmatch(name):
            values |= {OF_TRAINING.get(key, key): value for key, value in scalars.items()}
        elif OF_DATA.match(name) and (length := next((key for key in LENGTHS if key in scalars), None)):
            values.setdefault(length, scalars[length])
        elif costly := next((key for key, value in scalars.items() if _may_cost(path, key, value)), None):
            raise ConfigError(
                f"{where}: {'.'.join((*path, costly))} is {scalars[costly]!r}, in a section that is not read; write it "
                "as a Trainer has it beside the batch, or remove it if it changes no cost"
            )
        elif scalars and not any(".".join(path).startswith(f"{other}.") for other in left):
            left.append(".".join(path))
    values = _settled(values, where)
    note = f"{where} is of a program of its own, read by the last parts of its names as a Trainer's"
    return values, f"{note}; not read: {', '.join(left)}" if left else note, objective


def _may_cost(path: tuple[str, ...], key: str, value: object) -> bool:
    """Return whether a key of a section that is not read speaks of what changes the cost of a step."""
    return not any(map(OF_NO_STEP.match, path)) and speaks_of_cost(".".join((*path, key)), value)


def _adapters(name: str, scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section on adapters in the Trainer's words."""
    kind = str(next((scalars[key] for key in KINDS if key in scalars), name)).lower()
    if kind in ("none", "full"):
        return {"use_peft": False}
    base = {key: scalars[key] for key in ("bits", *OF_QUANTIZATION) if key in scalars}
    values = {OF_ADAPTERS.get(key, key): value for key, value in scalars.items() if key not in (*KINDS, *base)}
    values |= _quantized(base, "") if base else {}
    return {"use_peft": True} | ({"load_in_4bit": True} if kind == "qlora" else {}) | values


def _objective(content: Mapping[str, Any], where: str) -> str | None:
    """Return the objective that a key of a file names as the method of its training.

    Raises:
        ConfigError: it generates text while it trains.
    """
    said = [str(section[key]).lower() for _, section in _sections(content) for key in METHODS if key in section]
    if (other := next((word for word in said if GENERATING.fullmatch(word)), None)) is not None:
        raise ConfigError(f"{where}: the training is {other}, which generates text; that is not modelled")
    return next((known for word in said if (known := named(word)) is not None), None)


def _settled(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Return arguments without those that others overrule, and with what a method's name says."""
    if isinstance(bits := values.pop("quantization", None), str | int):
        values |= _quantized({"bits": bits}, where)
    kind = str(values.get("method")).lower()
    if kind in ("lora", "qlora"):
        values = {"use_peft": True, **({"load_in_4bit": True} if kind == "qlora" else {}), **values}
        del values["method"]
    if values.get("use_peft") is False:
        values = {
            key: value for key, value in values.items() if not key.startswith("lora_") and key != "target_modules"
        }
    for key in ("precision", "mixed_precision"):
        if (said := SHORT.get(str(values.get(key)).lower())) is not None:
            del values[key]
            values[said] = True
    if not SAY_PRECISION & values.keys() and "bnb_4bit_compute_dtype" in values:  # what its GEMMs run in
        values["fp16" if "16" in (said := str(values["bnb_4bit_compute_dtype"])) and "b" not in said else "bf16"] = True
    return values


def says_precision(values: Mapping[str, Any]) -> bool:
    """Return whether arguments name a precision, which a program of one's own sets in its code where they do not."""
    return bool(SAY_PRECISION & values.keys())


def _quantized(scalars: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a section on a quantised base in the Trainer's words; it is in four bits where it has their settings.

    Raises:
        ConfigError: it says no bits.
    """
    values = {OF_QUANTIZATION.get(key, key): value for key, value in scalars.items()}
    is_on, bits = values.pop("enabled", None), values.pop("bits", None)
    if is_on is False or (bits is not None and str(bits).lower() in ("none", "16")):
        return {}
    if any(key.startswith("load_in_") for key in values):
        return values
    found = BITS.fullmatch(str(bits).lower()) if bits is not None else None
    if found is None and not any(key.startswith("bnb_4bit_") for key in values):
        if is_on is None and bits is None:
            return values
        raise ConfigError(
            f"{where}: the base is quantised in bits that are not said; write load_in_4bit or load_in_8bit"
        )
    return {f"load_in_{found[1] if found else 4}bit": True, **values}


def _sections(
    content: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield the sections of a file, outer ones first, each with the names that lead to it."""
    yield path, content
    for key, value in content.items():
        if isinstance(value, Mapping) and len(path) < DEEPEST:
            yield from _sections(value, (*path, str(key)))


def _trainings(content: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the names that lead to sections with the batch of a Trainer, or with a batch and its accumulation."""
    found = [path for path, section in _sections(content) if path and section.get(BATCH) is not None]
    if not found and (_names_a_model(content) or any(map(ADAPTERS.fullmatch, content))):
        found = [
            path for path, section in _sections(content) if _any(BATCHES, section) and _any(ACCUMULATIONS, section)
        ]
    return iter(found)


def _any(keys: tuple[str, ...], section: Mapping[str, Any]) -> bool:
    return any(section.get(key) is not None for key in keys)
