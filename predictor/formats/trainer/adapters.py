"""LoRA and QLoRA as PEFT and bitsandbytes name them, and PEFT's adapter_config.json.

Source of names and defaults: huggingface/peft, src/peft/tuners/lora/config.py, src/peft/utils/constants.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.transforms.lora import EVERY_PART
from predictor.core.workload.software import Framework
from predictor.formats.fields import Fields
from predictor.formats.hub_models import shape_of
from predictor.formats.hub_section import MODULES, TARGETS, present, with_output
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.source import load_json
from predictor.formats.trainer.arguments import Arguments, Dialect
from predictor.formats.trainer.models import model_of

ALL = ("all-linear", "all")
# Where a model's layer of that name is another one than the last part of the name says.
QUALIFIED = {
    "attention.dense": "attention_output",
    "self_attention.dense": "attention_output",
    "attn.c_proj": "attention_output",
    "mlp.c_proj": "ffn_down",
}
# With one projection of queries, keys and values in front, « dense » is attention's (GPT-NeoX, BLOOM, Falcon).
BESIDE_ONE_PROJECTION = "dense"
BOTH_PROJECTIONS = "c_proj"  # behind attention and behind the FFN (GPT-2)
# Narrow layers, whose adapters a prediction leaves out.
NARROW = ("x_proj", "dt_proj", "shared_expert_gate", "router")
OF_ENDS = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out", "word_embeddings", "output_layer")
OF_PARTS = {"gate", "up", "ffn_up", "ffn_down"}
SCATTERED = "scattermoe"  # experts_implementation
PARAMETERS = {"gate_up_proj": "ffn_up", "down_proj": "ffn_down"}  # of experts, by the layer that they are
# Names of modules as a pattern is matched with: in models of text, and inside models with images.
HOLDERS = ("model.layers.0.", "model.language_model.layers.0.", "language_model.model.layers.0.")
HALVES = {"self_attn.": ("q", "k", "v", "attention_output"), "mlp.": ("gate", "up", "ffn_down")}
# Which layers have adapters where a run names none: constants.py, of LLaMA, Mistral, Qwen, Gemma and OPT.
DEFAULT_TARGETS = ("q", "v")
ONE_PROJECTION = re.compile(r"gpt-?2|bloom|neox|pythia|falcon|phi-?[34]", re.IGNORECASE)
RANK = 8
ADAPTER = Dialect(
    "PEFT",
    "peft",
    {
        "base_model_name_or_path": "model_name_or_path",
        "r": "lora_r",
        "target_modules": "lora_target_modules",
        "target_parameters": "lora_target_parameters",
        "modules_to_save": "lora_modules_to_save",
    },
)


def lora_of(arguments: Arguments, model: dict[str, Any]) -> dict[str, Any]:
    """Return the key of ``training`` on adapters.

    Args:
        arguments: of a run with adapters, by the names of TRL's ModelConfig.
        model: the section that was read of them.
    """
    keys: dict[str, Any] = {"rank": arguments.whole("lora_r", RANK)}
    targets = _targets(arguments)
    shape = shape_of(model)
    if targets is not None:
        latent = shape.get("latent_attention") or {}
        if "out_projection" in targets and "out_projection" not in present(targets, model):
            targets = ["attention_output", *(target for target in targets if target != "out_projection")]
        if latent and not latent.get("q_lora_rank"):  # its q_proj is the one projection of queries, without a latent
            targets = ["q_up" if target == "q" else target for target in targets]
        keys["targets"] = present(targets, model)
        if absent := [target for target in targets if target not in keys["targets"]]:
            arguments.note(f"the model has no {', '.join(absent)}, so no adapters there")
    elif not ONE_PROJECTION.search(_name(arguments)):
        keys["targets"] = [str(target) for target in EVERY_PART]
    dropout = arguments.value("lora_dropout", 0.0)
    if isinstance(dropout, int | float) and dropout > 0:
        keys["dropout"] = float(dropout)
    keys |= _in_parameters(arguments, keys)
    if arguments.switch("use_dora"):
        keys["dora"] = True
    saved = {_last(name) for name in arguments.listed("lora_modules_to_save")}
    if saved & {*OF_ENDS}:
        keys["train_embeddings"] = True
    if "moe" in shape and (targets is None or OF_PARTS & {*targets}):
        keys["share_expert_adapters"] = False
        arguments.note("every expert is predicted with an adapter of its own, as transformers 4 has a module for each")
    return keys | quantised(arguments)


def _in_parameters(arguments: Arguments, keys: dict[str, Any]) -> dict[str, Any]:
    """Return keys of adapters in parameters that hold the weights of all experts (PEFT's target_parameters).

    PEFT sums weights and adapters, axolotl's ScatterMoE multiplies with both. Source: axolotl,
    src/axolotl/integrations/kernels/libs/scattermoe_lora and sonicmoe/experts.py (materialize_expert_lora).
    """
    names = arguments.listed("lora_target_parameters")
    if not names:
        return {}
    values = arguments.fields.values
    runs_beside = values.get("use_scattermoe") is True or values.get("experts_implementation") == SCATTERED
    if not runs_beside and any(arguments.switch(key) for key in ("load_in_4bit", "load_in_8bit")):
        arguments.broken("lora_target_parameters", "experts in few bits have no sum with adapters; name linear layers")
    unknown = [name for name in names if _last(name) not in PARAMETERS]
    if unknown:
        arguments.broken("lora_target_parameters", f"{unknown[0]}: expected experts' {' and '.join(PARAMETERS)}")
    beside = [target for target in keys.get("targets", EVERY_PART) if target not in OF_PARTS]
    found = {PARAMETERS[_last(name)] for name in names if name not in unknown}
    arguments.note("adapters of experts' parameters are predicted in those of shared experts and dense layers too")
    keys = {"targets": [*beside, *sorted(found, reverse=True)], "share_expert_adapters": False}
    return keys if runs_beside else {**keys, "expert_weights": True}


def _name(arguments: Arguments) -> str:
    """Return the model's name, which tells models with one projection of queries, keys and values."""
    return str(arguments.fields.values.get(arguments.own("model_name_or_path")) or "")


def quantised(arguments: Arguments) -> dict[str, Any]:
    """Return the keys of ``training.lora`` on a base in four or eight bits."""
    in_eight = arguments.switch("load_in_8bit")
    if not arguments.switch("load_in_4bit"):
        return {"quantized_base": "int8"} if in_eight else {}
    kind = arguments.value("bnb_4bit_quant_type", "nf4")
    if kind not in ("nf4", "fp4"):
        arguments.broken("bnb_4bit_quant_type", "expected nf4 or fp4")
    return {"quantized_base": "nf4_double" if arguments.switch("bnb_4bit_use_double_quant") else True}


def _targets(arguments: Arguments) -> list[str] | None:
    """Return the linear layers with adapters; None: all."""
    key = "lora_target_modules"
    written = arguments.value(key)
    if written is None or written == []:
        return _default(arguments)
    names = arguments.listed(key)
    if any(name in ALL for name in names):
        return None
    if isinstance(written, str) and re.search(r"[\\()|^$*+\[]", written):
        return _matching(arguments, key, written)
    found, unknown = set(), []
    one_projection = any(TARGETS.get(_last(name)) == "qkv" for name in names)
    for name in names:
        target = QUALIFIED.get(".".join(name.split(".")[-2:])) or TARGETS.get(_last(name))
        if _last(name) == BESIDE_ONE_PROJECTION and one_projection:
            target = "attention_output"
        if target is not None:
            found.add(target)
        elif _last(name) == BOTH_PROJECTIONS:
            found |= {"attention_output", "ffn_down"}
        elif _last(name) not in (*OF_ENDS, *NARROW):
            unknown.append(name)
    found = with_output(found, names)
    if unknown or not found:
        shown = ", ".join(unknown) or "no layer"
        arguments.broken(key, f"{shown}: expected linear layers of a transformer, such as q_proj or gate_proj")
    if left_out := [name for name in names if _last(name) in (*OF_ENDS, *NARROW)]:
        arguments.note(f"adapters beside {', '.join(left_out)} are left out")
    return [target for target in (*MODULES,) if target in found]


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _matching(arguments: Arguments, key: str, pattern: str) -> list[str]:
    """Return the layers that a pattern matches, as PEFT matches the whole name of a module."""
    try:
        compiled = re.compile(pattern)
    except re.error:
        arguments.broken(key, "expected a list of modules, or a pattern of Python's re")
        return []
    found = [
        target
        for half, targets in HALVES.items()
        for target in targets
        if any(compiled.fullmatch(f"{holder}{half}{MODULES[target][0]}") for holder in HOLDERS)
    ]
    if not found:
        arguments.broken(key, "it matches no linear layer such as model.layers.0.self_attn.q_proj; list the modules")
    return found


def _default(arguments: Arguments) -> list[str]:
    """Return the layers that PEFT gives adapters where a run names none."""
    targets = ["qkv"] if ONE_PROJECTION.search(_name(arguments)) else list(DEFAULT_TARGETS)
    arguments.note(
        f"it names no lora_target_modules; adapters stand where PEFT has them, {', '.join(targets)}: set "
        "training.lora.targets where its program has others"
    )
    return targets


def read(path: Path) -> Read:
    """Read PEFT's adapter_config.json: adapters, and the model that they stand in.

    Raises:
        ConfigError: the adapters are not LoRA, or it changes the cost in a way that is not modelled.
    """
    problems = Problems()
    arguments = Arguments(Fields(load_json(path), path.name, problems=problems.lines), ADAPTER)
    kind = arguments.value("peft_type", "LORA")
    if str(kind).upper() != "LORA":
        raise ConfigError(f"{path.name}: peft_type is {kind}; only LoRA is modelled")
    model = model_of(arguments, path.parent, has_images=False)
    lora = problems.part(dict[str, Any](), lora_of, arguments, model)
    notes = rest(known_keys("peft"), "PEFT", [arguments.fields])
    problems.check()
    framework = str(Framework.TRANSFORMERS)
    unsaid = arguments.unsaid | {
        "model.sequence_length": f"{path.name} says no sequence length",
        "training.micro_batch_size": f"{path.name} says no batch",
        "training.recompute": f"{path.name} says not whether activations are recomputed",
        "parallelism.data_parallel_size": f"{path.name} says no number of GPUs",
    }
    content = {"model": model, "training": {"lora": lora, "framework": framework}}
    return Read(content, (*arguments.notes, *notes), unsaid=unsaid)
