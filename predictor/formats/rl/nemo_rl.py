"""Read the update of the policy in YAML of NeMo RL: GRPO, DPO, SFT, reward models, distillation.

Source of names and defaults: NVIDIA-NeMo/RL, examples/configs/grpo_math_1B.yaml, dpo.yaml, nemo_rl/models/policy/ and
nemo_rl/models/megatron/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields, settled_gpus
from predictor.formats.fsdp_stack import ON_HOST
from predictor.formats.hub_section import fsdp, hub_section, lora, replicas
from predictor.formats.hydra import composed
from predictor.formats.interpolation import filled
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.rl.actor import DEGREES, flattened, left_out, longest, megatron_update, number, tokens_to_samples

KEYS = "nemo_rl"
ALGORITHMS = ("grpo", "dpo", "sft", "rm", "distillation", "ppo")
PAIRS = ("dpo", "rm")  # of which a sample is two sequences
PRECISIONS = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "float32": "fp32"}
LAYOUT = (
    *DEGREES,
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "apply_rope_fusion",
    "bias_activation_fusion",
    "moe_token_dispatcher_type",
    "moe_enable_deepep",
    "moe_permute_fusion",
    "moe_shared_expert_overlap",
    "moe_grouped_gemm",
    "gradient_accumulation_fusion",
    "cuda_graph_impl",
    "cuda_graph_modules",
    "fine_grained_activation_offloading",
    "offload_modules",
)
REDUCTION = ("grad_reduce_in_fp32", "overlap_grad_reduce", "overlap_param_gather")
OPTIMIZER = ("optimizer", "use_precision_aware_optimizer", "optimizer_cpu_offload", "optimizer_offload_fraction")


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a run of NeMo RL.

    Args:
        path: the file.
        num_gpus: GPUs of the run; otherwise cluster.num_nodes × cluster.gpus_per_node.

    Raises:
        ConfigError: a file that it builds on is not there, or something changes the cost in a way that is not modelled;
            the message has a line for each problem.
    """
    found = composed(path)
    if found.absent:
        raise ConfigError(
            f"{path.name} builds on {', '.join(found.absent)} (defaults), which is not beside it; read it inside its "
            "source tree"
        )
    problems = Problems()
    content = filled(found.content, path.name)
    run = _Run(content, path.name, problems)
    read = run.read(num_gpus)
    problems.check()
    return read


class _Run:
    """One run being read."""

    def __init__(self, content: dict[str, Any], where: str, problems: Problems) -> None:
        self.content, self.where, self.problems = content, where, problems
        self.notes: list[str] = []
        self.unsaid: dict[str, str] = {}
        self.kind = next((name for name in ALGORITHMS if content.get(name)), "sft")
        self.policy = Fields(content.get("policy") or {}, where, "policy.", problems=problems.lines)
        self.megatron, self.torch = self.policy.section("megatron_cfg"), self.policy.section("dtensor_cfg")

    def read(self, num_gpus: int | None) -> Read:
        """Return what the run says."""
        policy = self.policy
        model = hub_section(policy.get("model_name"), "policy.model_name", self.where, self.unsaid, self.notes)
        length = policy.whole("max_total_sequence_length", 512)
        model["sequence_length"] = length
        batch = self.batch(length)
        gpus = (settled_gpus(num_gpus, self.gpus(), self.where, self.notes), num_gpus is not None)
        if self.megatron.switch("enabled"):
            read = self.of_megatron(model, batch, gpus)
        else:
            read = self.of_torch(model, batch, gpus)
        self.beside()
        notes = tuple(dict.fromkeys((*self.notes, *read.notes)))
        return Read(read.content, notes, unsaid={**read.unsaid, **self.unsaid}, derived=read.derived)

    def batch(self, length: int) -> dict[str, Any]:
        """Return the sequences of an update, and those of a micro-batch."""
        policy, factor = self.policy, 2 if self.kind in PAIRS else 1
        total, micro = policy.whole("train_global_batch_size", 512), policy.whole("train_micro_batch_size", 4)
        if factor > 1:
            self.notes.append(f"{self.where}: a sample of {self.kind} is two sequences, a chosen and a rejected one")
        fills = False
        for name in ("sequence_packing", "dynamic_batching"):
            section = policy.section(name)
            if section.switch("enabled") and not fills:
                fills, tokens = True, section.whole("train_mb_tokens", length * micro)
                key = f"policy.{name}.train_mb_tokens"
                micro = tokens_to_samples(tokens, length, self.where, key, self.notes)
        self.notes.append(longest(self.where, length, 0, fills))
        rollout = self.content.get("grpo") or {}
        sizes = (rollout.get("num_prompts_per_step"), rollout.get("num_generations_per_prompt"))
        if type(sizes[0]) is int and type(sizes[1]) is int and (sizes[0] * sizes[1]) % total == 0:
            self.notes.append(
                f"{self.where}: predicted is one update of the policy; a step of training has "
                f"{sizes[0] * sizes[1] // total} of them, beside rollout, log-probabilities and rewards"
            )
        return {"global_batch_size": total * factor, "micro_batch_size": micro * (1 if fills else factor)}

    def gpus(self) -> int | None:
        """Return the GPUs that train: the cluster's, without those that only generate."""
        cluster: dict[str, Any] = self.content.get("cluster") or {}
        nodes, each = number(cluster.get("num_nodes")), number(cluster.get("gpus_per_node"))
        if nodes is None or each is None:
            return None
        apart = (self.policy.values.get("generation") or {}).get("colocated") or {}
        if apart.get("enabled") is not False:
            return nodes * each
        taken = apart.get("resources") or {}
        own_nodes, own_gpus = number(taken.get("num_nodes")), number(taken.get("gpus_per_node"))
        if own_nodes is not None and nodes > 1:
            return (nodes - own_nodes) * each
        return None if own_gpus is None else nodes * (each - own_gpus)

    def precision(self) -> str:
        """Return the element type of activations."""
        return PRECISIONS.get(self.policy.text("precision", "bfloat16", PRECISIONS), "bf16")

    def of_torch(self, model: dict[str, Any], batch: dict[str, Any], gpus: tuple[int | None, bool]) -> Read:
        """Return an update that FSDP2 runs, weights held in fp32."""
        section = self.torch
        tp, cp = section.whole("tensor_parallel_size", 1), section.whole("context_parallel_size", 1)
        ep = section.whole("expert_parallel_size", 1)
        keys: dict[str, Any] = {"tensor_parallel_size": tp, "context_parallel_size": cp}
        keys["sequence_parallel"] = section.switch("sequence_parallel") and tp > 1
        keys |= {"expert_parallel_size": ep} if ep > 1 else {}
        keys |= fsdp(True)
        keys |= self.problems.part(dict[str, Any](), replicas, gpus[0], tp * cp, self.where, self.unsaid, gpus[1])
        recomputes = section.switch("activation_checkpointing") or self.policy.switch(
            "activation_checkpointing_enabled"
        )
        training: dict[str, Any] = {**batch, "precision": self.precision(), "framework": "transformers"}
        training |= ON_HOST if section.switch("cpu_offload") else {}
        training |= {"recompute": "full", "recompute_stops_early": True} if recomputes else {"recompute": "none"}
        training |= self.problems.part(dict[str, Any](), self.adapters, section.section("lora_cfg"))
        model |= {"loss": "torch" if tp == 1 else "vocabulary_parallel"}
        self.notes += rest(known_keys(KEYS), "NeMo RL", (section, self.policy))
        return Read({"model": model, "parallelism": keys, "training": training}, ())

    def of_megatron(self, model: dict[str, Any], batch: dict[str, Any], gpus: tuple[int | None, bool]) -> Read:
        """Return an update that Megatron-core runs."""
        section = self.megatron
        own = {key: section.get(key) for key in LAYOUT if section.has(key)}
        if section.switch("activation_checkpointing"):
            own |= self.recomputation()
        if own.get("cuda_graph_impl") in ("none", None):
            own = {key: value for key, value in own.items() if not key.startswith("cuda_graph_")}
        if "cuda_graph_modules" in own:
            own["cuda_graph_scope"] = own.pop("cuda_graph_modules")
        if not own.get("fine_grained_activation_offloading"):
            own.pop("fine_grained_activation_offloading", None)
            own.pop("offload_modules", None)
        if own.get("tensor_model_parallel_size", 1) == 1:
            own["sequence_parallel"] = False
        optimizer, reduction = section.section("optimizer").values, section.section("distributed_data_parallel_config")
        reduced = reduction.values.get("grad_reduce_in_fp32", True)
        ddp = {key: value for key, value in reduction.values.items() if key in REDUCTION}
        half = self.precision()
        mixed: dict[str, Any] = {"grad_reduce_in_fp32": reduced} | ({half: True} if half != "fp32" else {})
        low = section.section("fp8_cfg").values
        if low.get("enabled"):
            mixed |= {key: low[key] for key in ("fp8", "fp8_recipe") if key in low}
        sections: dict[str, dict[str, Any]] = {
            "model": own,
            "train": dict(batch),
            "ddp": ddp | {"use_distributed_optimizer": optimizer.get("use_distributed_optimizer", True)},
            "optimizer": {key: value for key, value in optimizer.items() if key in OPTIMIZER},
            "mixed_precision": mixed,
        }
        read = megatron_update(sections, model, self.where, self.problems, self.notes, gpus)
        read.content["training"] |= self.problems.part(dict[str, Any](), self.adapters, section.section("peft"))
        self.notes += rest(known_keys(KEYS), "NeMo RL", (section, self.policy))
        return read

    def recomputation(self) -> dict[str, Any]:
        """Return what is computed again."""
        section = self.megatron
        written = {key: section.get(f"recompute_{key}") for key in ("granularity", "method", "num_layers", "modules")}
        if written["granularity"] == "selective":
            own = {"recompute_granularity": "selective", "recompute_modules": written["modules"]}
            return {key: value for key, value in own.items() if value is not None}
        return {
            "recompute_granularity": "full",
            "recompute_method": written["method"] or "uniform",
            "recompute_num_layers": written["num_layers"] or 1,
        }

    def adapters(self, section: Fields) -> dict[str, Any]:
        """Return the key of ``training`` on adapters."""
        if not section.switch("enabled"):
            return {}
        matches = section.switch("match_all_linear", not section.values.get("target_modules"))
        return lora(section.whole("dim", 8), section.get("target_modules"), matches, self.where, section.get("dropout"))

    def beside(self) -> None:
        """Note what runs beside the update."""
        if self.kind in ("grpo", "ppo", "distillation"):
            keys = [f"policy.generation.{key}" for key in flattened(self.policy.values.get("generation") or {})]
            self.notes.extend(left_out(self.where, keys, "the rollout"))
        if self.kind == "distillation":
            self.notes.append(f"{self.where}: the teacher's pass is not predicted")
        elif self.kind in ("grpo", "dpo"):
            self.notes.append(
                f"{self.where}: the forward passes of reference and old log-probabilities are not predicted"
            )
