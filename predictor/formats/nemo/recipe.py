"""Read a run of NeMo 2: a recipe or a script in Python, or the YAML that NeMo-Run writes of one.

Python is evaluated from its syntax tree, together with the code in the same source tree; nothing is imported or run.
Source of names and defaults: NVIDIA/NeMo 2.4, nemo/lightning/pytorch/strategies/megatron_strategy.py, plugins/
mixed_precision.py, callbacks/megatron_comm_overlap.py and nemo/collections/llm/recipes/.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import load_foreign
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import settled_gpus
from predictor.formats.interpolation import filled
from predictor.formats.megatron.options import Options
from predictor.formats.megatron.reader import from_options, model_section
from predictor.formats.megatron_bridge.model import named_section, sized
from predictor.formats.megatron_bridge.options import to_options
from predictor.formats.megatron_bridge.tuning import fine_tuning
from predictor.formats.nemo.bases import resolved
from predictor.formats.nemo.models import preset_of_class, refused_model
from predictor.formats.nemo.scripts import from_python
from predictor.formats.nemo.tree import KIND, of_yaml, part
from predictor.formats.python_source.values import Record, Unknown

FAMILY = "nemo"
OVERLAP = "MegatronCommOverlapCallback"
DEEP_EP = "DeepEPCallback"
# Of nemo/collections/llm/gpt/model/: what all models of it have, and which of a class's defaults choose kernels.
DEFAULTS = {"cross_entropy_fusion_impl": "native", "moe_token_dispatcher_type": "alltoall"}
FUSED_ROPE = re.compile(r"(?:Code)?Llama|Mixtral|Nemotron|BaseMamba|NVIDIAMamba")
UNTIED = re.compile(r"Qwen25?Config")
KERNELS = re.compile(
    r"(?:apply_rope|bias_\w+|masked_softmax|gradient_accumulation|cross_entropy_loss)_fusion|moe_token_\w+"
)
# Of the strategy's keys those that say how a model is split and run; the others change no cost.
LAYOUT = re.compile(
    r"(?:(?:tensor|pipeline|context|expert|expert_tensor|virtual_pipeline)_(?:model_)?parallel_(?:size|layout)"
    r"|pipeline_model_parallel_layout|sequence_parallel|num_layers_in_\w+|account_for_\w+"
    r"|microbatch_group_size_per_vp_stage|num_distributed_optimizer_instances)"
)
PRECISIONS = {"bf16": "bf16", "16": "fp16", "fp16": "fp16", "32": "", "fp32": ""}
OF_OPTIMIZER = ("optimizer", "use_distributed_optimizer", "use_precision_aware_optimizer", "main_grads_dtype")
OPTIMIZER_STATES = ("exp_avg_dtype", "exp_avg_sq_dtype", "main_params_dtype")


def read(path: Path, function: str | None = None, num_gpus: int | None = None) -> Read:
    """Read a recipe.

    Args:
        path: a Python file, or YAML.
        function: the recipe, where a Python file has several.
        num_gpus: GPUs of the run; otherwise trainer.num_nodes × trainer.devices.

    Raises:
        ConfigError: there is no such recipe, or something changes the cost in a way that is not modelled or cannot be
            told without running the code; the message has a line for each.
    """
    problems, notes = Problems(), list[str]()
    if path.suffix in (".yaml", ".yml"):
        content = load_foreign(path.read_text(encoding="utf-8-sig"))
        where, tree, defaults = path.name, of_yaml(filled(content, path.name)), dict[str, Any]()
    else:
        where, tree, defaults = from_python(path, function, problems.lines)
    recipe = _Recipe(resolved(tree, where, notes), where, defaults, problems, notes)
    read = recipe.read(num_gpus)
    problems.check()
    return read


class _Recipe:
    """One recipe being read."""

    def __init__(
        self, tree: dict[str, Any], where: str, defaults: dict[str, Any], problems: Problems, notes: list[str]
    ) -> None:
        self.tree, self.where, self.defaults = tree, where, defaults
        self.problems, self.notes = problems, notes
        self.strategy = part(tree, "trainer", "strategy")
        arguments = part(tree, "model").get("_arguments") or [None]
        held = arguments[0] if isinstance(arguments[0], dict) else part(tree, "model")
        self.config = part(tree, "model", "config") or held
        self.check()

    def check(self) -> None:
        """Refuse what is no training of a decoder by Megatron.

        Raises:
            ConfigError: it is none.
        """
        if not self.config or "trainer" not in self.tree:
            raise ConfigError(f"{self.where}: it has no model or no trainer; expected those of llm.pretrain")
        kind = f"{part(self.tree, 'model').get(KIND, '')} {self.config.get(KIND, '')}"
        reason = refused_model(kind)
        if reason:
            raise ConfigError(f"{self.where}: the model is {kind.strip()}, {reason}")
        strategy = self.strategy.get(KIND, "MegatronStrategy")
        if "Megatron" not in strategy and strategy != "strategy":
            raise ConfigError(f"{self.where}: trainer.strategy is {strategy}; only MegatronStrategy is read")
        if self.strategy.get("fsdp") == "pytorch":
            raise ConfigError(f"{self.where}: trainer.strategy.fsdp is pytorch, which is not read; write megatron")

    def read(self, num_gpus: int | None) -> Read:
        """Return what the recipe says."""
        data, trainer = part(self.tree, "data"), part(self.tree, "trainer")
        sections = self.sections(data)
        options = to_options(sections, self.where, self.problems.lines, self.notes)
        model = self.problems.part(dict[str, Any](), self.model, options, data)
        devices, nodes = trainer.get("devices"), trainer.get("num_nodes", 1)
        gpus = devices * nodes if type(devices) is int and type(nodes) is int and devices > 0 else None
        gpus = settled_gpus(num_gpus, gpus, self.where, self.notes)
        read = from_options(options, self.problems, self.notes, gpus, num_gpus is not None, model)
        if gpus and type(devices) is int and devices > 0 and nodes != 1 and gpus % devices == 0:
            read.content["parallelism"]["gpus_per_node"] = devices
        if trainer.get("accumulate_grad_batches", 1) not in (None, 1):
            self.problems.lines.append(
                f"{self.where}: trainer.accumulate_grad_batches is {trainer['accumulate_grad_batches']}; NeMo itself "
                "accumulates up to data.global_batch_size; write 1"
            )
        read.content["training"] |= {"framework": FAMILY}
        read.content["training"] |= self.problems.part(dict[str, Any](), self.tuning, data, model)
        if not {"preset", "num_layers"} & model.keys():
            read.unsaid.pop("model.vocab_size", None)
            read.unsaid["model.num_layers"] = (
                f"{self.where}: the model is {self.config.get(KIND, 'not named')}, which has no preset; take its "
                "config.json in front of this file (from: [config.json, recipe.py]), or"
            )
        notes = tuple(dict.fromkeys((*self.notes, *read.notes)))
        return Read(read.content, notes, unsaid=read.unsaid, derived=read.derived)

    def sections(self, data: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return a recipe's settings by the sections that Megatron-Bridge has for them."""
        layout = {key: value for key, value in self.strategy.items() if LAYOUT.fullmatch(key)}
        own = {key: value for key, value in self.config.items() if not key.startswith("_")}
        sizes = {} if preset_of_class(self.config.get(KIND, "")) else dict(self.defaults)
        if sizes.get("activation_func") == "lambda" and self.config.get(KIND, "").startswith("NemotronH"):
            sizes["activation_func"] = "squared_relu"  # a lambda of torch.pow(F.relu(x), 2) in its class
        ddp = self.strategy.get("ddp")
        ddp = {key: value for key, value in ddp.items() if key != KIND} if isinstance(ddp, dict) else {}
        optimizer = part(self.tree, "optim", "config")
        if self.strategy.get("fsdp") == "megatron":
            ddp["use_megatron_fsdp"] = True
        ddp["use_distributed_optimizer"] = bool(optimizer.get("use_distributed_optimizer"))
        return {
            "model": {**DEFAULTS, **self.kernels(), **sizes, **own, **layout},
            "train": {key: data[key] for key in ("micro_batch_size", "global_batch_size") if key in data},
            "ddp": {key: value for key, value in ddp.items() if not key.startswith("_")},
            "optimizer": {key: optimizer[key] for key in (*OF_OPTIMIZER, *OPTIMIZER_STATES) if key in optimizer},
            "mixed_precision": self.precision(),
            "comm_overlap": self.overlap(),
        }

    def kernels(self) -> dict[str, Any]:
        """Return the kernels that the model's class chooses, and a callback for its experts."""
        kind = self.config.get(KIND, "")
        found: dict[str, Any] = {"apply_rope_fusion": FUSED_ROPE.match(kind) is not None}
        found |= {"share_embeddings_and_output_weights": False} if UNTIED.match(kind) else {}
        found |= {key: value for key, value in self.defaults.items() if KERNELS.fullmatch(key)}
        if DEEP_EP in self.callbacks():
            found |= {"moe_token_dispatcher_type": "flex", "moe_enable_deepep": True}
        return found

    def callbacks(self) -> dict[str, dict[str, Any]]:
        """Return the trainer's callbacks by their classes."""
        listed = part(self.tree, "trainer").get("callbacks")
        held = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        return {str(one.get(KIND)): one for one in held}

    def overlap(self) -> dict[str, Any]:
        """Return the settings of the callback that overlaps communication; none where there is no such callback."""
        one = self.callbacks().get(OVERLAP)
        if one is None:
            return {}
        return {"tp_comm_overlap": False} | {key: value for key, value in one.items() if not key.startswith("_")}

    def precision(self) -> dict[str, Any]:
        """Return the settings of the precision plugin.

        Raises:
            ConfigError: it is not known.
        """
        plugins = part(self.tree, "trainer").get("plugins")
        plugin = plugins if isinstance(plugins, dict) else {}
        for one in plugins if isinstance(plugins, list) else []:
            plugin = one if isinstance(one, dict) and "precision" in one else plugin
        if isinstance(plugins, Unknown) or "_open" in plugin:
            why = plugins.why if isinstance(plugins, Unknown) else f"the code of {plugin['_name']} is not here"
            raise ConfigError(f"{self.where}: trainer.plugins cannot be read: {why}")
        written = plugin.get("precision", part(self.tree, "trainer").get("precision", "32"))
        name = str(written).removesuffix("-mixed").removesuffix("-true")
        if name not in PRECISIONS:
            raise ConfigError(f"{self.where}: the precision is {written}; expected bf16-mixed, 16-mixed or 32")
        own = {key: value for key, value in plugin.items() if not key.startswith("_") and key != "precision"}
        own.setdefault("grad_reduce_in_fp32", True)
        if own.get("fp8") and not own.get("fp8_recipe"):
            own["fp8_recipe"] = "delayed"
        if own.get("first_last_layers_bf16") is not True:
            own.pop("num_layers_at_start_in_bf16", None)
            own.pop("num_layers_at_end_in_bf16", None)
        return {**({PRECISIONS[name]: True} if PRECISIONS[name] else {}), **own}

    def model(self, options: Options, data: dict[str, Any]) -> dict[str, Any]:
        """Return the section ``model``: from its sizes, or from the preset of its class."""
        length = data.get("seq_length") or options.values.get("seq-length")
        if type(length) is int:
            options.values = {**options.values, "seq-length": length}
        if preset_of_class(self.config.get(KIND, "")) is None and options.has("num-layers"):
            return model_section(sized(options), self.notes, self.problems)
        name = preset_of_class(self.config.get(KIND, ""))
        return named_section(options, {"preset": name} if name else {}, self.notes)

    def tuning(self, data: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
        """Return the keys of ``training`` on adapters."""
        peft = self.tree.get("peft")
        fields: dict[str, Any] = {"dataset": Record("data", data)}
        if isinstance(peft, dict):
            fields["peft"] = Record(str(peft.get(KIND, "peft")), peft)
        elif peft is not None:
            fields["peft"] = peft
        return fine_tuning(fields, model, self.where, self.notes)
