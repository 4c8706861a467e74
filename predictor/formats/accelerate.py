"""Read a configuration of Hugging Face accelerate: GPUs, precision, and its plugins for FSDP and DeepSpeed.

It holds no model and no batch; these are the script's. Source of names and defaults: huggingface/accelerate,
src/accelerate/commands/config/config_args.py and src/accelerate/utils/dataclasses.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.workload.frameworks import PYTORCH_DDP
from predictor.formats.deepspeed import reader as deepspeed
from predictor.formats.fields import Fields
from predictor.formats.fsdp_stack import ON_HOST, SHARDING
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.source import load_json

KEYS = "accelerate"
TYPES = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")
SECTIONS = ("fsdp_config", "deepspeed_config", "megatron_lm_config", "parallelism_config", "fp8_config")
ANY_PLUGIN = SECTIONS[3:]  # whose sections count beside any plugin
PRECISIONS = {"no": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}
STRATEGIES = {name.lstrip("_"): how for name, how in SHARDING.items()}  # FSDP 1 numbers them from 1
ITS_SCRIPT = "is the script's"
HELD_IN_FP32 = "weights are predicted to be held in fp32 and gathered in 16 bits"
FAMILY = "transformers"  # as predictor/core/workload/software.py spells it
LOSS = "torch"  # of transformers' models: src/transformers/loss/loss_utils.py, fixed_cross_entropy


def read(path: Path) -> Read:
    """Read a configuration of accelerate.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each problem.
    """
    problems = Problems()
    read = from_mapping(read_mapping(path), path.name, path.parent, problems)
    problems.check()
    return read


def from_mapping(content: Mapping[str, Any], where: str, base: Path, problems: Problems) -> Read:
    """Return what the keys of a configuration of accelerate say, after recording what is wrong with them.

    Args:
        content: the keys.
        where: the file, for messages.
        base: folder of the file.
        problems: record of what is wrong.
    """
    return _Accelerate(Fields(content, where, problems=problems.lines), base, problems).read()


class _Accelerate:
    """One configuration being read."""

    def __init__(self, fields: Fields, base: Path, problems: Problems) -> None:
        self.fields, self.base, self.problems = fields, base, problems
        self.sections = {name: fields.section(name) for name in SECTIONS}
        self.notes: list[str] = []
        where = fields.where
        self.unsaid = {
            "training.micro_batch_size": f"{where}: the batch of a process {ITS_SCRIPT}",
            "training.recompute": f"{where}: whether activations are recomputed {ITS_SCRIPT}",
        }

    def read(self) -> Read:
        """Return what the configuration says."""
        fields = self.fields
        kind = fields.text("distributed_type", "NO").upper()
        if kind not in TYPES:
            fields.broken(fields.error("distributed_type", f"expected {', '.join(TYPES)}"))
        gpus, machines = fields.whole("num_processes", 1), fields.whole("num_machines", 1)
        parallelism: dict[str, Any] = {}
        if gpus % machines == 0 and machines > 1:
            parallelism["gpus_per_node"] = gpus // machines
        training: dict[str, Any] = self.precision()
        derived: dict[str, Any] = {}
        if kind == "FSDP":
            parallelism |= self.problems.part(dict[str, Any](), self.fsdp, training)
        elif kind == "DEEPSPEED":
            read = self.problems.part(Read({}, ()), self.deepspeed)
            parallelism |= read.content.get("parallelism", {})
            training = read.content.get("training", {}) | training
            derived = read.derived
        elif kind == "MEGATRON_LM":
            parallelism |= self.problems.part(dict[str, Any](), self.megatron, training)
        elif gpus > 1:
            parallelism |= PYTORCH_DDP.section("parallelism")
        parallelism |= self.problems.part(dict[str, Any](), self.degrees, gpus, parallelism)
        if kind in ("NO", "FSDP", "MULTI_GPU"):
            training["framework"] = FAMILY
        plugins = [name for name in SECTIONS if name.startswith(kind.lower()) or name in ANY_PLUGIN]
        holders = (fields, *(self.sections[name] for name in plugins))
        self.notes += rest(known_keys(KEYS), "accelerate", holders)
        for key in ("micro_batch_size", "recompute"):
            if key in training:
                self.unsaid.pop(f"training.{key}", None)
        content = {"parallelism": parallelism, "training": training}
        if kind != "MEGATRON_LM" and parallelism.get("tensor_parallel_size", 1) == 1:
            content["model"] = {"loss": LOSS}
        return Read(content, tuple(self.notes), unsaid=self.unsaid, derived=derived)

    def precision(self) -> dict[str, Any]:
        """Return the keys of ``training`` on precision."""
        written = self.fields.values.get("mixed_precision")
        self.fields.used.add("mixed_precision")
        if written is False:  # YAML reads « no » so
            written = "no"
        if written is None and self.fields.text("distributed_type", "NO").upper() == "DEEPSPEED":
            return {}
        name = str(written or "no").lower()
        if name not in PRECISIONS:
            self.fields.broken(self.fields.error("mixed_precision", f"expected {', '.join(PRECISIONS)}"))
        low = self.sections["fp8_config"]
        if name != "fp8":
            return {"precision": PRECISIONS.get(name, "fp32")}
        if low.text("backend", "TE").upper() != "TE":
            low.broken(low.error("backend", "only TE (Transformer Engine, delayed scaling) is modelled"))
        return {"precision": "bf16", "gemm_recipe": "fp8_delayed"}

    def fsdp(self, training: dict[str, Any]) -> dict[str, Any]:
        """Return the keys of ``parallelism`` of fully sharded data parallelism.

        Raises:
            ConfigError: the strategy is not known.
        """
        section = self.sections["fsdp_config"]
        section.whole("fsdp_version", 1)
        written = str(section.get("fsdp_sharding_strategy") or "FULL_SHARD").upper()
        names = list(STRATEGIES)
        name = names[int(written) - 1] if written.isdigit() and 0 < int(written) <= len(names) else written
        if name not in STRATEGIES:
            raise section.error("fsdp_sharding_strategy", f"expected {', '.join(names)}")
        stage, reshards = STRATEGIES[name]
        reshard = section.get("fsdp_reshard_after_forward")
        if isinstance(reshard, bool):
            reshards = reshard
        elif isinstance(reshard, str) and reshard.upper() in STRATEGIES:
            stage, reshards = STRATEGIES[reshard.upper()]
        if section.switch("fsdp_offload_params"):
            if stage < 3 or not reshards:
                rule = "it is modelled where weights are freed behind the forward pass (FULL_SHARD); set it to false"
                section.broken(section.error("fsdp_offload_params", rule))
            training |= ON_HOST
        if section.switch("fsdp_activation_checkpointing"):
            training["recompute"] = "full"
        keys: dict[str, Any] = {"zero_stage": stage, "overlap_gradient_reduction": True}
        if stage == 0:
            return keys | {"gradient_reduction": "all_reduce"}
        keys |= {"gradient_reduction": "reduce_scatter", "overlap_parameter_gather": True, "fp32_parameters": True}
        keys["prefetch_units"] = 1
        if not reshards:
            keys["reshard_after_forward"] = False
        if name.startswith("HYBRID"):
            nodes = self.fields.whole("num_machines", 1)
            keys["zero_group_size"] = self.fields.whole("num_processes", 1) // nodes
        self.notes.append(f"{self.fields.where}: {HELD_IN_FP32}")
        return keys

    def deepspeed(self) -> Read:
        """Return what the DeepSpeed file that is named says, or the plugin's own keys.

        Raises:
            ConfigError: the file is not there, or either is not modelled.
        """
        section = self.sections["deepspeed_config"]
        named = section.get("deepspeed_config_file")
        if named is None:
            content = self.plugin(section)
            where = f"{self.fields.where}: deepspeed_config"
        else:
            file = self.base / str(named)
            if not file.is_file():
                raise section.error("deepspeed_config_file", "it is not beside this file; give it in from as well")
            content, where = load_json(file), file.name
        read = deepspeed.from_mapping(content, where, self.problems, None)
        self.notes += read.notes
        for key, reason in read.unsaid.items():
            if key not in ("parallelism.data_parallel_size", "training.precision"):
                self.unsaid.setdefault(key, reason)
        if "training.precision" in read.unsaid and "mixed_precision" not in self.fields.values:
            self.unsaid["training.precision"] = read.unsaid["training.precision"]
        return read

    def plugin(self, section: Fields) -> dict[str, Any]:
        """Return the plugin's own keys as DeepSpeed's."""
        zero: dict[str, Any] = {"stage": section.whole("zero_stage", 2, least=0)}
        zero["reduce_bucket_size"] = "auto"
        for key in ("offload_optimizer", "offload_param"):
            device = section.text(f"{key}_device", "none")
            if device != "none":
                zero[key] = {"device": device}
        written = section.get("gradient_accumulation_steps")
        rounds = written if isinstance(written, int) else "auto"
        sizes = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": rounds}
        half = {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}
        return {**sizes, **half, "zero_optimization": zero}

    def megatron(self, training: dict[str, Any]) -> dict[str, Any]:
        """Return the keys of ``parallelism`` of the plugin for Megatron-LM."""
        section, prefix = self.sections["megatron_lm_config"], "megatron_lm_"
        training["framework"] = "megatron-lm"
        if section.switch(f"{prefix}recompute_activations"):
            training["recompute"] = "selective"
        tp = section.whole(f"{prefix}tp_degree", 1)
        return {
            "tensor_parallel_size": tp,
            "pipeline_parallel_size": section.whole(f"{prefix}pp_degree", 1),
            "sequence_parallel": section.switch(f"{prefix}sequence_parallelism") and tp > 1,
            "zero_stage": int(section.switch(f"{prefix}use_distributed_optimizer")),
        }

    def degrees(self, gpus: int, layout: dict[str, Any]) -> dict[str, Any]:
        """Return the degrees, with the replicas that they leave of the GPUs.

        Raises:
            ConfigError: they do not divide the GPUs.
        """
        section = self.sections["parallelism_config"]
        tp = section.whole("parallelism_config_tp_size", layout.get("tensor_parallel_size", 1))
        cp = section.whole("parallelism_config_cp_size", 1)
        replicas = section.whole("parallelism_config_dp_replicate_size", 1)
        section.get("parallelism_config_dp_shard_size")
        pp = layout.get("pipeline_parallel_size", 1)
        dp, rest = divmod(gpus, tp * cp * pp)
        if rest:
            raise self.fields.error("num_processes", f"it must be a multiple of the degrees, {tp * cp * pp}")
        keys = {"data_parallel_size": dp}
        keys |= {"tensor_parallel_size": tp} if tp > 1 else {}
        keys |= {"context_parallel_size": cp} if cp > 1 else {}
        return keys | ({"zero_group_size": dp // replicas * cp} if 1 < replicas < dp else {})
