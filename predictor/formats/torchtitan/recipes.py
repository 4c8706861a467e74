"""Read a torchtitan configuration in Python: a function that returns a Trainer.Config, or a JobConfig.

The function is evaluated from its syntax tree and brought into the sections of a job, as its TOML files had them.
Source of names and defaults: pytorch/torchtitan, torchtitan/config/configs.py, torchtitan/trainer.py and
torchtitan/distributed/activation_checkpoint.py.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields
from predictor.formats.python_source.calls import evaluate_call
from predictor.formats.python_source.module import Function, Module
from predictor.formats.python_source.recipes import chosen
from predictor.formats.python_source.values import Record, Unknown, is_open
from predictor.formats.torchtitan.flavors import flavors
from predictor.formats.torchtitan.reader import from_job

# A function of torchtitan that names all layers but the last part of them, of a model that its own code makes.
TAIL = "nvfp4_bf16_tail_fqns"
EXTERNAL = frozenset({"model_registry", "default_adamw", TAIL})
# Of releases that run forward and backward pass as a CUDA graph unless training.disable_cuda_graphs is true.
WITH_GRAPHS = re.compile(r"\bdisable_cuda_graphs\b|\bChunkedLossWrapper\b|\bmax_context_length\b")
# Whose runs are pre-training; others generate text, train towers or recover from faults as well.
CONTAINERS = re.compile(r"(?:.*\.)?(?:Trainer\.Config|JobConfig)")
SPECS = ("model_registry", "model_spec", "get_train_spec")
PER_OPERATOR = {"selective_ac_option": "op"}  # all that selective means since releases in Python
CHECKPOINTING = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
CONVERTERS = {
    "Float8LinearConverter": "quantize.linear.float8",
    "MXFP8LinearConverter": "quantize.linear.mx",
    "MXLinearConverter": "quantize.linear.mx",
    "NVFP4LinearConverter": "quantize.linear.nvfp4",
    "Float8GroupedExpertsConverter": "quantize.grouped_mm.float8",
    "MXFP8GroupedExpertsConverter": "quantize.grouped_mm.mx",
    "LoRAConverter": "lora",
}
WITHOUT_COST = ("LMHeadCastConverter",)
SECTIONS = ("training", "parallelism", "compile", "debug")


def read(path: Path, function: str | None = None, num_gpus: int | None = None) -> Read:
    """Read a configuration.

    Args:
        path: the Python file.
        function: the configuration, where the file has several.
        num_gpus: GPUs of the run, which settle a data_parallel_shard_degree of -1.

    Raises:
        ConfigError: there is no such function, the model has no preset, or something changes the cost in a way that is
            not modelled or cannot be told without running the code.
    """
    problems, notes = Problems(), list[str]()
    sections, where = job_of(path, function, problems, notes)
    return from_job(Fields(sections, where, problems=problems.lines), problems, num_gpus, notes)


def job_of(path: Path, function: str | None, problems: Problems, notes: list[str]) -> tuple[dict[str, Any], str]:
    """Return the sections of a job that a function stands for, and the file with the function, for messages.

    Args:
        path: the Python file.
        function: the configuration, where the file has several.
        problems: what is wrong so far.
        notes: notes so far.

    Raises:
        ConfigError: there is no such function, or it returns no configuration of pre-training.
    """
    module, name = chosen(path, function)
    value, raised = evaluate_call(module, name, EXTERNAL)
    where = f"{path.name}:{name}"
    if not isinstance(value, Record):
        why = f": {value.why}" if isinstance(value, Unknown) else ""
        raise ConfigError(f"{where} returns no configuration{why}")
    if not CONTAINERS.fullmatch(value.kind) and not _is_derived(module, value.kind):
        raise ConfigError(f"{where} returns a {value.kind}; expected a Trainer.Config or a JobConfig of pre-training")
    problems.lines += [f"{where}: {line}" for line in raised]
    has_graphs = WITH_GRAPHS.search(path.read_text(encoding="utf-8-sig")) is not None
    job = _Job(value, where, name, path.resolve().parent.name, problems, has_graphs)
    sections = job.sections()
    notes += job.notes
    return sections, where


class _Job:
    """One configuration being brought into sections."""

    def __init__(
        self, container: Record, where: str, name: str, folder: str, problems: Problems, has_graphs: bool
    ) -> None:
        self.fields, self.where, self.name, self.problems = container.fields, where, name, problems
        self.folder, self.has_graphs = folder, has_graphs
        self.notes: list[str] = []

    def sections(self) -> dict[str, Any]:
        """Return the sections of a job."""
        job: dict[str, Any] = {name: self.section(name) for name in SECTIONS}
        job["model"] = self.section("model") | self.problems.part(dict[str, Any](), self.model)
        job["activation_checkpoint"] = self.checkpointing()
        job["optimizer"] = self.optimizer()
        job |= self.problems.part(dict[str, Any](), self.converters, job)
        layout, training = job["parallelism"], job["training"]
        if isinstance(self.fields.get("compile"), Record) and "max_context_length" in job["training"]:
            if "enable" not in job["compile"]:  # in releases without the key a run that is compiled has the section
                self.notes.append(f"{self.where}: compile does not say enable; predicted with compiled kernels")
            job["compile"].setdefault("enable", True)
        if job["compile"].pop("enable_async_tensor_parallel", False):
            layout["enable_async_tensor_parallel"] = True
        experts = layout.get("expert_parallel_degree", 1)
        if experts != 1 and "expert_tensor_parallel_degree" not in layout:
            layout["expert_tensor_parallel_degree"] = 1  # expert parallelism takes the tensor-parallel ranks as well
        made = {} if (spec := self.spec()) is None else spec.fields
        if made.get("moe_comm_backend") is not None:
            layout["expert_parallel_comm_backend"] = made["moe_comm_backend"]
        if made.get("tp_gemm_backend") == "dist_gemm":  # collectives folded into the products that they feed or follow
            layout["enable_async_tensor_parallel"] = True
        dense = experts == 1 or made.get("non_blocking_capacity_factor") is not None  # no host waits for counts
        is_said = "disable_cuda_graphs" in training
        captures = training.pop("disable_cuda_graphs", not self.has_graphs) is False
        captures = captures and dense and layout.get("pipeline_parallel_degree", 1) == 1
        job["training"]["cuda_graphs"] = captures
        if captures and not is_said:
            self.notes.append(f"{self.where}: as it says no training.disable_cuda_graphs, a CUDA graph is predicted")
        loss = self.fields.get("loss")
        if isinstance(loss, Record) and "Chunked" in loss.kind:
            self.notes.append(f"{self.where}: the loss is predicted over all tokens at once, not in chunks")
        loader = self.fields.get("dataloader")
        if isinstance(loader, Record) and "Chat" in loader.kind:
            self.notes.append(f"{self.where}: attention is predicted over whole sequences, not conversations")
        return {name: values for name, values in job.items() if values}

    def section(self, name: str) -> dict[str, Any]:
        """Return the keys of a section; a key whose value cannot be told is a problem."""
        value = self.fields.get(name)
        held = value.fields if isinstance(value, Record) else {}
        if isinstance(value, Unknown):
            self.problems.lines.append(f"{self.where}: {name} cannot be read: {value.why}")
        found = {}
        for key, item in held.items():
            if is_open(item):
                self.problems.lines.append(f"{self.where}: {name}.{key} cannot be read: {_why(item)}")
            elif not isinstance(item, Record):
                found[key] = list(item) if isinstance(item, tuple) else item
        return found

    def spec(self) -> Record | None:
        """Return the call that makes the model."""
        specs = (self.fields.get(name) for name in ("model_spec", "model"))
        return next((it for it in specs if isinstance(it, Record) and it.short_kind in SPECS), None)

    def model(self) -> dict[str, Any]:
        """Return the name and the flavor of the model.

        Raises:
            ConfigError: they cannot be told.
        """
        spec = self.spec()
        if spec is None:
            if isinstance(self.fields.get("model"), Record):
                return {}
            raise ConfigError(f'{self.where}: model_spec cannot be told; expected model_registry("8B") or the like')
        flavor = spec.fields.get("flavor", spec.arguments[0] if spec.arguments else None)
        if isinstance(spec.of, Function):
            family = spec.of.module.path.parent.name
        else:
            imported = spec.kind.split(".")[-2:-1]
            named = sorted((name for name in flavors() if name in self.name), key=len)[-1:]
            beside = [self.folder] if self.folder in flavors() else []  # « from . import model_registry »
            family = next(iter([name for name in imported if name] + beside + named), "unknown")
        if not isinstance(flavor, str):
            raise ConfigError(f"{self.where}: the model's flavor cannot be told; write it as a text")
        further = spec.fields.get("num_mtp_layers", 0)
        if is_open(further):
            raise ConfigError(f"{self.where}: num_mtp_layers cannot be read: {_why(further)}")
        return {"name": family, "flavor": flavor} | ({"num_mtp_layers": further} if further else {})

    def checkpointing(self) -> dict[str, Any]:
        """Return the section on recomputation; per operator where the configuration says nothing."""
        value = self.fields.get("activation_checkpoint", Record("SelectiveAC.Config"))
        if value is None:
            return {"mode": "none"}
        if not isinstance(value, Record):
            self.problems.lines.append(f"{self.where}: activation_checkpoint cannot be read")
            return {}
        mode = CHECKPOINTING.get(value.kind.split(".")[-2] if "." in value.kind else "")
        if mode is None:  # a section that says its mode itself: a JobConfig's, or one of early releases in Python
            held = {"mode": "selective"} | value.fields
            return held if "selective_ac_option" in held or "Config" not in value.kind else held | PER_OPERATOR
        return {"mode": mode} | (PER_OPERATOR if mode == "selective" else {})

    def optimizer(self) -> dict[str, Any]:
        """Return the section of the optimizer, by the name of the function that makes it."""
        value = self.fields.get("optimizer")
        if not isinstance(value, Record):
            return {}
        if "InBackward" in value.kind:
            return {"early_step_in_backward": True}
        if value.short_kind.startswith("default_"):
            return {"name": {"adamw": "AdamW", "adam": "Adam"}.get(value.short_kind[8:], value.short_kind[8:])}
        listed = value.fields.get("param_groups")
        groups = listed if isinstance(listed, list) else []
        named = {group.fields.get("optimizer_name") for group in groups if isinstance(group, Record)}
        others = named - {"AdamW", "Adam"}
        return {"name": str(sorted(map(str, others))[0])} if others else {"name": value.fields.get("name", "AdamW")}

    def converters(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return the model section with the names of its converters, and the sections that configure them.

        Raises:
            ConfigError: a converter is not known.
        """
        spec, older = self.spec(), self.fields.get("model_converters")
        held = {} if spec is None else spec.fields
        listed = held.get("converters") or held.get("quantization") or []
        recipe = "rowwise"
        if isinstance(older, Record):  # early releases in Python convert the built model
            listed, recipe = older.fields.get("converters", []), "tensorwise"
        if not isinstance(listed, list):
            raise ConfigError(f"{self.where}: converters of the model cannot be told")
        names: list[str] = []
        sections: dict[str, Any] = {}
        for converter in listed:
            kind = converter.kind.split(".")[-2] if isinstance(converter, Record) and "." in converter.kind else "?"
            if kind in WITHOUT_COST:
                continue
            if kind not in CONVERTERS:
                raise ConfigError(f"{self.where}: converter {kind} is not modelled; known: {', '.join(CONVERTERS)}")
            names.append(CONVERTERS[kind])
            inner = sections
            for part in CONVERTERS[kind].split("."):
                inner = inner.setdefault(part, {})
            plain = {key: item for key, item in converter.fields.items() if key != "model_compile_enabled"}
            names_layers = plain.get("fqns")
            if isinstance(names_layers, Record) and names_layers.short_kind == TAIL:
                del plain["fqns"]
                plain["bf16_tail_fraction"] = [*names_layers.arguments, *names_layers.fields.values()][-1]
            self.problems.lines += [
                f"{self.where}: {kind}.{key} cannot be read: {_why(item)}"
                for key, item in plain.items()
                if is_open(item)
            ]
            plain = {key: item for key, item in plain.items() if not is_open(item)}
            inner |= plain | ({"recipe_name": plain.get("recipe_name") or recipe} if "Float8" in kind else {})
        return {"model": job["model"] | {"converters": names}, **sections} if names else {}


def _is_derived(module: Module, kind: str) -> bool:
    """Return whether a class of the file is a Trainer.Config with more keys."""
    node = module.definitions.get(kind)
    return isinstance(node, ast.ClassDef) and any(CONTAINERS.fullmatch(ast.unparse(base)) for base in node.bases)


def _why(value: Any) -> str:
    """Return why a value cannot be told."""
    return value.why if isinstance(value, Unknown) else "it comes from code that is not beside the file"
