"""Read YAML of NeMo AutoModel: a model of the hub, trained by FSDP2, DDP or Megatron's FSDP.

Source of names and defaults: NVIDIA-NeMo/Automodel 0.7, nemo_automodel/recipes/llm/train_ft.py, components/distributed/
config.py and components/_peft/lora.py.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.presets import preset
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.workload.frameworks import PYTORCH_DDP
from predictor.formats.fields import Fields, settled_gpus
from predictor.formats.hub_models import shape_of
from predictor.formats.hub_section import fsdp, hub_section, lora, replicas
from predictor.formats.hydra import composed
from predictor.formats.interpolation import filled
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.torchtitan.layout import LOOPED, SCHEDULES, V_SHAPED

KEYS = "nemo_automodel"
FAMILY = "transformers"
STRATEGIES = {"fsdp2": "fsdp2", "ddp": "ddp", "megatron_fsdp": "megatron_fsdp", "FSDP2": "fsdp2", "DDP": "ddp"}
# Sections of runs that train something else, with what that is.
OTHERS = {
    "flow_matching": "a diffusion model",
    "diffusion": "a diffusion model",
    "teacher_model": "a student beside a teacher (distillation)",
    "draft": "a draft model for speculative decoding",
    "draft_model": "a draft model for speculative decoding",
    "mining": "a retriever",
    "dllm": "a diffusion language model",
}
MODELS = {
    "ImageTextToText": "a model with a vision tower",
    "BiEncoder": "a retriever",
    "Biencoder": "a retriever",
    "CrossEncoder": "a retriever",
    "Diffusion": "a diffusion model",
    "SequenceClassification": "a classifier",
    "Multimodal": "a model with towers",
    "CTC": "a speech model",
    "SpeechSeq2Seq": "a speech model",
}
EXCHANGES = {"deepep": "deepep", "hybridep": "hybridep", "torch": "all_to_all", "all_to_all": "all_to_all"}
RECOMPUTE = {False: "none", True: "full", "full": "full", "selective": "per_op", "none": "none"}
LOW = {"tensorwise": "fp8_tensorwise", "rowwise": "fp8_rowwise"}
TORCH = "torch."


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a run of NeMo AutoModel.

    Args:
        path: the file.
        num_gpus: GPUs of the run; otherwise as the file says, if it does.

    Raises:
        ConfigError: it trains no language model, or something changes the cost in a way that is not modelled; the
            message has a line for each problem.
    """
    problems = Problems()
    content = filled(composed(path).content, path.name)
    run = _Run(Fields(content, path.name, problems=problems.lines), problems)
    read = run.read(num_gpus)
    problems.check()
    return read


class _Run:
    """One run being read."""

    def __init__(self, fields: Fields, problems: Problems) -> None:
        self.fields, self.problems, self.where = fields, problems, fields.where
        self.notes: list[str] = []
        self.unsaid: dict[str, str] = {}
        self.dp: int | None = None
        self.model, self.batch = fields.section("model"), fields.section("step_scheduler")
        config = fields.section("distributed_config")
        layout = fields.section("distributed")
        self.layout = Fields({**config.values, **layout.values}, self.where, "distributed.", problems=problems.lines)
        written = layout.values.get("_target_") or config.values.get("_target_") or layout.values.get("strategy")
        self.strategy = _strategy(str(written or "fsdp2"))
        self.parallelizer = fields.section("parallelizer")
        self.sections = [self.model, self.batch, self.layout, self.parallelizer]
        for key, kind in OTHERS.items():
            if fields.values.get(key):
                raise ConfigError(f"{self.where}: {key} is given, which is of {kind}; only language models are read")

    def section(self, name: str) -> Fields:
        """Return a section whose keys count as the file's."""
        found = self.fields.section(name)
        self.sections.append(found)
        return found

    def read(self, num_gpus: int | None) -> Read:
        """Return what the run says."""
        nothing = dict[str, Any]
        model = self.problems.part(nothing(), self.model_section)
        parallelism = self.problems.part(nothing(), self.parallelism, num_gpus)
        training = self.problems.part(nothing(), self.training, parallelism)
        parallelism |= self.problems.part(nothing(), self.pipeline, model, training)
        training |= self.problems.part(nothing(), self.precision, parallelism)
        training |= self.problems.part(nothing(), self.adapters)
        self.problems.part(None, self.optimizer)
        model["loss"] = "torch" if parallelism.get("tensor_parallel_size", 1) == 1 else "vocabulary_parallel"
        read = {section.prefix.rstrip(".") for section in self.sections}
        self.notes += rest(known_keys(KEYS), "NeMo AutoModel", (self.fields, *self.sections), read)
        training["framework"] = FAMILY
        content = {"model": model, "parallelism": parallelism, "training": training}
        return Read(content, tuple(self.notes), unsaid=self.unsaid)

    def model_section(self) -> dict[str, Any]:
        """Return the section ``model``.

        Raises:
            ConfigError: it is no language model.
        """
        target = str(self.model.get("_target_") or "")
        kind = next((kind for word, kind in MODELS.items() if word in target), None)
        if kind is not None:
            raise ConfigError(f"{self.where}: model._target_ is {target}, {kind}; only language models are read")
        config = self.model.get("config")
        named = config.get("pretrained_model_name_or_path") if isinstance(config, dict) else config
        name = self.model.get("pretrained_model_name_or_path") or named
        changed = [key for key in config if key not in CONFIG] if isinstance(config, dict) else []
        if changed:
            self.model.broken(
                self.model.error("config", f"{', '.join(changed)}: write them into the model's config.json")
            )
        found = hub_section(name, "model.pretrained_model_name_or_path", self.where, self.unsaid, self.notes)
        length = self.length()
        if length is not None:
            found["sequence_length"] = length
        else:
            at = f" (now the preset's {preset(found['preset'])['sequence_length']:,})" if "preset" in found else ""
            self.notes.append(f"{self.where} says no length of samples: set model.sequence_length{at}")
            self.unsaid["model.sequence_length"] = f"{self.where} says no length of samples"
        return found

    def length(self) -> int | None:
        """Return the tokens of a sample: a pack's, or the longest that the data set cuts to."""
        packed, dataset = self.section("packed_sequence"), self.fields.values.get("dataset") or {}
        size = packed.whole("packed_sequence_size", 0, least=0)
        if size:
            self.notes.append(
                f"{self.where}: samples are packed; attention is predicted over whole sequences: set "
                "training.document_tokens"
            )
            return size
        for key in ("seq_length", "seq_len", "max_seq_length", "sequence_length"):
            if type(dataset.get(key)) is int:
                if "mock" not in str(dataset.get("_target_", "")).lower() and dataset.get("padding") != "max_length":
                    self.notes.append(
                        f"{self.where}: samples are predicted as long as dataset.{key}; set "
                        "training.mean_sequence_length where they are shorter"
                    )
                return int(dataset[key])
        return None

    def parallelism(self, num_gpus: int | None) -> dict[str, Any]:
        """Return the degrees, and how weights are sharded."""
        layout = self.layout
        sizes = {key: layout.values.get(key) for key in ("tp_size", "pp_size", "cp_size", "ep_size", "dp_size")}
        layout.used |= {*sizes, "dp_replicate_size", "_target_", "strategy"}
        tp, pp, cp, ep, dp = (value if type(value) is int and value > 0 else 1 for value in sizes.values())
        keys: dict[str, Any] = {
            "tensor_parallel_size": tp,
            "sequence_parallel": layout.switch("sequence_parallel") and tp > 1,
            "pipeline_parallel_size": pp,
            "context_parallel_size": cp,
        }
        keys |= {"expert_parallel_size": ep} if ep > 1 else {}
        keys |= {"expert_tensor_parallel_size": 1} if ep > 1 and tp > 1 else {}
        gpus = settled_gpus(num_gpus, self.gpus(), self.where, self.notes)
        if gpus is None and type(sizes["dp_size"]) is int and sizes["dp_size"] > 0:
            gpus = dp * tp * pp * cp
        keys |= replicas(gpus, tp * pp * cp, self.where, self.unsaid, num_gpus is not None)
        self.dp = keys.get("data_parallel_size")
        keys |= self.sharding(pp)
        replicate = layout.values.get("dp_replicate_size")
        if type(replicate) is int and replicate > 1 and "data_parallel_size" in keys:
            keys["zero_group_size"] = max(1, keys["data_parallel_size"] // replicate) * cp
        if layout.switch("enable_async_tensor_parallel") and tp > 1:
            keys |= {"overlap_tensor_parallel": True, "overlap_linear_traffic": True}
        backend = self.model.values.get("backend") or {}
        exchange = backend.get("dispatcher") or ("deepep" if backend.get("enable_deepep") else "torch")
        if ep > 1 and exchange in EXCHANGES:
            keys["expert_dispatcher"] = EXCHANGES[exchange]
        elif ep > 1:
            self.model.broken(self.model.error("backend", f"dispatcher {exchange} is not modelled"))
        return keys

    def sharding(self, pp: int) -> dict[str, Any]:
        """Return how weights, gradients and states are shared out."""
        dtype = str(self.model.get("torch_dtype") or self.model.get("dtype") or "bf16")
        is_wide = dtype.removeprefix(TORCH) in ("float32", "fp32")
        if self.strategy == "ddp":
            return PYTORCH_DDP.section("parallelism") | {"fp32_parameters": is_wide}
        if self.strategy == "megatron_fsdp":
            stage = self.layout.whole("zero_dp_strategy", 3, least=0)
            return fsdp(is_wide, self.layout.switch("grad_reduce_in_fp32")) | {"zero_stage": min(stage, 3)}
        reshards = self.layout.get("reshard_after_forward")
        inner = self.parallelizer.get("reshard_after_forward")
        reshards = inner if reshards is None else reshards
        return fsdp(is_wide, stays_gathered=reshards is False or (pp > 1 and reshards is None))

    def gpus(self) -> int | None:
        """Return the GPUs that the section of the scheduler names."""
        slurm = self.fields.values.get("slurm") or {}
        nodes, each = slurm.get("nodes"), slurm.get("ntasks_per_node") or slurm.get("nproc_per_node")
        return nodes * each if type(nodes) is int and type(each) is int else None

    def training(self, parallelism: dict[str, Any]) -> dict[str, Any]:
        """Return batch and recomputation."""
        local, total = self.batch.whole("local_batch_size", 1), self.batch.optional_whole("global_batch_size")
        keys: dict[str, Any] = {"micro_batch_size": local}
        keys |= {"num_micro_batches": 1} if total is None else {"global_batch_size": total}
        written = self.layout.get("activation_checkpointing")
        written = self.parallelizer.get("activation_checkpointing") if written is None else written
        name = RECOMPUTE.get(False if written is None else written)
        if name is None:
            raise self.layout.error("activation_checkpointing", "expected true, false, full or selective")
        keys |= {"recompute": name} | ({"recompute_stops_early": True} if name != "none" else {})
        compiles = self.section("compile").switch("enabled") or self.layout.switch("enable_compile")
        return keys | ({"compiled": True} if compiles else {})

    def pipeline(self, model: dict[str, Any], training: dict[str, Any]) -> dict[str, Any]:
        """Return the schedule of a pipeline, and put its micro-batch into the training.

        Raises:
            ConfigError: the schedule is not modelled, or the pipeline is drained inside a step.
        """
        inner = self.layout.values.get("pipeline")
        held = Fields(inner or {}, self.where, "distributed.pipeline.", problems=self.problems.lines)
        part = held if inner else self.section("autopipeline")
        self.sections += [held] if inner else []
        self.layout.used.add("pipeline")
        pp = self.layout.values.get("pp_size")
        if type(pp) is not int or pp < 2:
            part.used |= set(part.values)
            return {}
        name, local = part.text("pp_schedule", "1f1b"), training["micro_batch_size"]
        schedule = SCHEDULES.get(name.lower())
        has_chunks = schedule in LOOPED
        micro = part.whole("pp_microbatch_size", 1)
        if schedule is None or schedule in V_SHAPED:
            raise part.error("pp_schedule", "only 1f1b, gpipe, interleaved1f1b and loopedbfs are modelled")
        if local % micro:
            raise part.error("pp_microbatch_size", f"it must divide step_scheduler.local_batch_size, {local}")
        total = training.pop("global_batch_size", None)
        training |= {"micro_batch_size": micro, "num_micro_batches": local // micro}
        if total is not None and self.dp is not None and total != local * self.dp:
            raise self.batch.error(
                "global_batch_size",
                f"the pipeline is drained between rounds of {local} × {self.dp}, which is not modelled; write "
                f"{local * self.dp}",
            )
        if total is not None and self.dp is None:
            self.notes.append(
                f"{self.where}: predicted is one round of step_scheduler.local_batch_size, {local}, per replica; the "
                "pipeline is drained between rounds"
            )
        each = part.optional_whole("layers_per_stage")
        if not has_chunks or each is None or "num_layers" not in (shape := shape_of(model)):
            return {"schedule": schedule} | ({"virtual_pipeline_parallel_size": 2} if has_chunks else {})
        stages = ceil(int(shape["num_layers"]) / each)
        chunks = ceil(stages / pp) if part.get("round_virtual_stages_to_pp_multiple") != "down" else stages // pp
        return {"schedule": schedule, "virtual_pipeline_parallel_size": max(1, chunks)}

    def precision(self, parallelism: dict[str, Any]) -> dict[str, Any]:
        """Return the precision, and FP8 by torchao."""
        low = self.section("fp8")
        if not low.switch("enabled"):
            low.used |= set(low.values)
            return {"precision": "bf16"}
        name = low.text("recipe_name", "tensorwise", LOW)
        if low.switch("enable_fsdp_float8_all_gather") and name == "tensorwise" and parallelism.get("zero_stage") == 3:
            parallelism["gather_precision"] = "fp8"
        return {"precision": "bf16", "gemm_recipe": LOW.get(name, "fp8_tensorwise")}

    def adapters(self) -> dict[str, Any]:
        """Return the key of ``training`` on adapters."""
        peft = self.section("peft")
        if not peft.values:
            return {}
        matches_all = peft.switch("match_all_linear")
        keys = lora(
            peft.whole("dim", 8), peft.get("target_modules"), matches_all, self.where, peft.real("dropout", 0.0)
        )
        if peft.switch("use_dora"):
            keys["lora"]["dora"] = True
        return keys

    def optimizer(self) -> None:
        """Refuse an optimizer that is not Adam.

        Raises:
            ConfigError: it is none.
        """
        optimizer = self.fields.section("optimizer")
        target = str(optimizer.values.get("_target_") or optimizer.values.get("name") or "torch.optim.AdamW")
        if not target.lower().endswith(("adam", "adamw")):
            raise optimizer.error("_target_", "only Adam and AdamW are modelled")
        if not target.startswith(TORCH):
            self.notes.append(f"{self.where}: optimizer._target_ is {target}, predicted as torch's AdamW")


CONFIG = ("_target_", "pretrained_model_name_or_path", "trust_remote_code", "torch_dtype", "name_or_path", "revision")


def _strategy(written: str) -> str:
    """Return fsdp2, ddp or megatron_fsdp of a strategy by name or class.

    Raises:
        ConfigError: it is none of them.
    """
    name = written.rpartition(".")[2].removesuffix("Manager").removesuffix("Config")
    found = STRATEGIES.get(name) or ("megatron_fsdp" if name.lower() == "megatronfsdp" else None)
    if found is None:
        raise ConfigError(f"distributed is {written}; expected fsdp2, ddp or megatron_fsdp")
    return found
