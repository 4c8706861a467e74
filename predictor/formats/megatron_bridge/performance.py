"""Read a start of NVIDIA's performance scripts: arguments of Megatron-Bridge's or NeMo's scripts/performance.

What a command line leaves out is in tables beside those scripts, by GPU and precision; it is asked for here.
Source of names: NVIDIA-NeMo/Megatron-Bridge, scripts/performance/argument_parser.py and utils/overrides.py;
NVIDIA/NeMo 2.4, scripts/performance/argument_parser.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields, settled_gpus
from predictor.formats.hub_models import preset_of
from predictor.formats.hydra import Invocation, invocations
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.megatron.reader import from_options
from predictor.formats.megatron_bridge.model import named_section
from predictor.formats.megatron_bridge.options import precision, to_options
from predictor.formats.rl.actor import asked, number
from predictor.formats.shell.words import is_unknown

KEYS = "performance"
PROGRAMS = re.compile(
    r"scripts[./]performance[./](?:\w+[./])*(?:run_script|setup_experiment|(?:pretrain|finetune)_\w+)\b"
)
SHORT = {
    "tp": "tensor-model-parallel-size",
    "tensor-parallel-size": "tensor-model-parallel-size",
    "pp": "pipeline-model-parallel-size",
    "pipeline-parallel-size": "pipeline-model-parallel-size",
    "cp": "context-parallel-size",
    "vp": "virtual-pipeline-model-parallel-size",
    "virtual-pipeline-parallel-size": "virtual-pipeline-model-parallel-size",
    "ep": "expert-model-parallel-size",
    "expert-parallel-size": "expert-model-parallel-size",
    "et": "expert-tensor-parallel-size",
    "etp": "expert-tensor-parallel-size",
    "gb": "global-batch-size",
    "mb": "micro-batch-size",
    "ng": "num-gpus",
    "gn": "gpus-per-node",
    "c": "compute-dtype",
    "fr": "fp8-recipe",
    "g": "gpu",
    "ms": "max-steps",
    "fsdp": "use-mcore-fsdp",
    "rl": "recompute-num-layers",
    "recompute-layers": "recompute-num-layers",
    "ol": "activation-offload-layers",
}
LOWS = {"cs": "current_scaling", "ds": "delayed_scaling", "sc": "subchannel_scaling", "delayed": "delayed_scaling"}
# Asked for where a command line leaves it to the tables beside the scripts.
TABLED = {
    "tensor-model-parallel-size": "parallelism.tensor_parallel_size",
    "pipeline-model-parallel-size": "parallelism.pipeline_parallel_size",
    "micro-batch-size": "training.micro_batch_size",
    "global-batch-size": "training.global_batch_size",
}
OPTIONAL = {
    "context-parallel-size": "parallelism.context_parallel_size",
    "virtual-pipeline-model-parallel-size": "parallelism.virtual_pipeline_parallel_size",
    "expert-model-parallel-size": "parallelism.expert_parallel_size",
    "expert-tensor-parallel-size": "parallelism.expert_tensor_parallel_size",
}
LISTS = ("recompute-modules", "cuda-graph-scope")  # arguments of several words
OWN = "is left to the table beside NVIDIA's scripts/performance"


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a command line of the performance scripts.

    Args:
        path: a script.
        num_gpus: GPUs of the run; otherwise --num_gpus.

    Raises:
        ConfigError: the file starts none of them, or something changes the cost in a way that is not modelled.
    """
    started = invocations(path.read_text(encoding="utf-8", errors="replace"), PROGRAMS)
    if not started:
        raise ConfigError(f"{path.name} starts none of NVIDIA's scripts/performance")
    problems = Problems()
    read = _Command(started[-1], path.name, problems).read(num_gpus)
    problems.check()
    return read


class _Command:
    """One command line being read."""

    def __init__(self, started: Invocation, where: str, problems: Problems) -> None:
        flags: dict[str, Any] = {}
        for written, value in started.flags.items():
            key = SHORT.get(written, written)
            flags[key] = (value if key in LISTS else value.split()[0]) if value else True
        self.where, self.problems, self.program = where, problems, started.program
        self.fields = Fields(flags, where, "--", problems=problems.lines)
        self.notes: list[str] = []
        self.unsaid: dict[str, str] = {}

    def read(self, num_gpus: int | None) -> Read:
        """Return what the command says."""
        fields, where = self.fields, self.where
        sizes = {key: self.size(key, question) for key, question in {**TABLED, **OPTIONAL}.items()}
        for key, question in TABLED.items():
            if sizes[key] is None:
                self.unsaid.setdefault(question, f"{where}: --{key.replace('-', '_')} {OWN}, and")
        own = {key.replace("-", "_"): size for key, size in sizes.items() if size is not None and "batch" not in key}
        if own.get("virtual_pipeline_model_parallel_size") == 1:
            own.pop("virtual_pipeline_model_parallel_size")
        own["sequence_parallel"] = (own.get("tensor_model_parallel_size") or 1) > 1
        sections: dict[str, dict[str, Any]] = {
            "model": own | self.recomputation(),
            "train": {
                "micro_batch_size": sizes["micro-batch-size"] or 1,
                "global_batch_size": sizes["global-batch-size"] or 1,
            },
            "ddp": {"use_distributed_optimizer": True, "grad_reduce_in_fp32": False},
            "mixed_precision": self.precision() | {"grad_reduce_in_fp32": False},
            "comm_overlap": {"tp_comm_overlap": own["sequence_parallel"]},
        }
        if str(fields.get("use-megatron-fsdp") or fields.get("use-mcore-fsdp") or "0").lower() in ("1", "true"):
            sections["ddp"]["use_megatron_fsdp"] = True
        options = to_options(sections, where, self.problems.lines, self.notes)
        length = self.size("seq-length", "model.sequence_length")
        options.values = {**options.values, **({} if length is None else {"seq-length": length})}
        name = self.model_name()
        named = {} if name is None else {"preset": name}
        model = self.problems.part(dict[str, Any](), named_section, options, named, self.notes)
        said = self.size("num-gpus", "parallelism.data_parallel_size")
        gpus = settled_gpus(num_gpus, said, where, self.notes)
        read = from_options(options, self.problems, self.notes, gpus, num_gpus is not None, model)
        per_node = number(fields.get("gpus-per-node"))
        read.content["parallelism"] |= {} if per_node is None else {"gpus_per_node": per_node}
        read.content["training"]["framework"] = "nemo" if "scripts.performance" in self.program else "megatron-bridge"
        read.unsaid.pop("model.vocab_size", None)
        if any(question.startswith("parallelism.") for question in self.unsaid):
            self.unsaid["parallelism.data_parallel_size"] = (
                f"{where}: the replicas follow from what it leaves open, and"
            )
        self.task()
        if name is None:
            self.unsaid["model.num_layers"] = f"{where}: the model has no preset; give its config.json in from, or"
        notes = (*self.notes, *read.notes, *self.rest(length))
        whole = Read(read.content, tuple(dict.fromkeys(notes)), unsaid=read.unsaid)
        return asked(whole, self.unsaid)

    def size(self, key: str, question: str) -> int | None:
        """Return a number; where only a run of the script knows it, it is asked for."""
        value = self.fields.get(key)
        found = None if value in (None, "None") else number(value)
        if found is None and value not in (None, True, "None"):
            shown = str(value).replace("\x00", "$", 1).replace("\x00", "")
            self.unsaid[question] = (
                f"{self.where}: --{key.replace('-', '_')} is {shown}, which only a run of it knows, and"
            )
        return found

    def task(self) -> None:
        """Ask for the adapters of a fine-tuning that has them; their sizes are in the recipe."""
        default = "lora" if re.search(r"[./]finetune_", self.program) else "pretrain"
        tasks = [str(self.fields.get(key) or "") for key in ("task", "finetuning", "f")]
        task = next((task for task in tasks if task), default)
        if is_unknown(task):
            self.notes.append(
                f"{self.where}: the task is set when the script runs; predicted is training of all layers"
            )
        elif task not in ("pretrain", "sft"):
            self.unsaid["training.lora"] = f"{self.where}: the task is {task}, with adapters that the recipe sizes, and"

    def model_name(self) -> str | None:
        """Return the preset of the model that the recipe or the program is named after.

        Raises:
            ConfigError: only a run of the script knows which it is.
        """
        fields = self.fields
        family = str(fields.get("model-family-name") or fields.get("model-name") or "")
        named = str(fields.get("model-recipe-name") or "")
        size = str(fields.get("model-size") or "")
        named = named or (f"{family}_{size}" if size else re.sub(r"^.*?(?:pretrain|finetune)_", "", self.program))
        if is_unknown(named):
            self.unsaid["model.preset"] = f"{self.where}: which model only a run of the script knows, and"
            return None
        return preset_named(named)

    def precision(self) -> dict[str, Any]:
        """Return the section of the precision."""
        dtype, low = str(self.fields.get("compute-dtype") or "bf16"), str(self.fields.get("fp8-recipe") or "")
        if is_unknown(f"{dtype}{low}"):
            self.notes.append(
                f"{self.where}: the precision is set when the script runs; predicted is bf16: set training.gemm_recipe"
            )
            return {"bf16": True}
        kind, _, recipe = dtype.partition("_")
        recipe = recipe or low or "cs"
        name = "bf16_mixed"
        if kind == "fp8":
            name = "bf16_with_mxfp8_mixed" if recipe in ("mx", "mxfp8") else f"bf16_with_fp8_{LOWS.get(recipe)}_mixed"
        elif kind == "nvfp4":
            name = "bf16_with_nvfp4_mixed"
        found = precision(name) if kind in ("bf16", "fp8", "nvfp4") else None
        if found is None:
            self.problems.lines.append(
                f"{self.where}: --compute_dtype is {dtype}; expected bf16, nvfp4 or fp8_ with {', '.join(LOWS)} or mx"
            )
        ends = ("first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")  # all in 8 bits
        return {key: value for key, value in (found or {"bf16": True}).items() if key not in ends}

    def recomputation(self) -> dict[str, Any]:
        """Return what is computed again, and the graphs, as far as the command line says it."""
        fields, found = self.fields, dict[str, Any]()
        layers = number(fields.get("recompute-num-layers"))
        if layers:
            found |= {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": layers}
        modules = fields.get("recompute-modules")
        if isinstance(modules, str) and not is_unknown(modules):
            found |= {"recompute_granularity": "selective", "recompute_modules": re.split(r"[,\s/]+", modules)}
        graphs = fields.get("cuda-graph-impl")
        if isinstance(graphs, str) and not is_unknown(graphs) and graphs != "none":
            found |= {"cuda_graph_impl": graphs}
            scope = fields.get("cuda-graph-scope")
            found |= {"cuda_graph_scope": re.split(r"[,\s]+", scope)} if isinstance(scope, str) else {}
        elif str(fields.get("cuda-graphs")).lower() in ("1", "true"):
            found["enable_cuda_graph"] = True
        if not found:
            self.notes.append(
                f"{self.where}: recomputation, and CUDA graphs, {OWN}; predicted without: set training.recompute and "
                "training.cuda_graphs"
            )
        return found

    def rest(self, length: int | None) -> list[str]:
        """Return notes on the other arguments, and record those that are refused."""
        notes = [] if length else [f"{self.where}: --seq_length {OWN}: set model.sequence_length"]
        values = {k.replace("-", "_"): v for k, v in self.fields.values.items() if not is_unknown(str(v))}
        self.fields.values, self.fields.used = values, {key.replace("-", "_") for key in self.fields.used}
        return notes + rest(known_keys(KEYS), "NVIDIA's performance scripts", [self.fields])


def preset_named(recipe: str) -> str | None:
    """Return the preset of a recipe's name.

    >>> preset_named("llama31_405b")
    'llama3.1-405b'
    """
    name = re.sub(r"_(?:pretrain|finetune|sft|lora)\w*$", "", recipe.lower())
    name = re.sub(r"^(llama|qwen)(\d)(\d)_", r"\1\2.\3_", name).replace("nemotronh_", "nemotron_h_")
    name = re.sub(r"^nemotron(\d)_", r"nemotron_\1_", name)
    spelled = name.replace("_", "-")
    return preset_of(spelled)
