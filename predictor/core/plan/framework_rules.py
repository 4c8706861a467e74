"""What each framework runs: the layouts that its own arguments can ask for, as values with their sources."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.plan.layer_splits import Split, in_order
from predictor.core.workload.frameworks import PYTORCH_DDP, TORCHTITAN_DDP, TORCHTITAN_FSDP2
from predictor.core.workload.parallelism_keys import BUCKET_ELEMENTS, ZeroStage
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import OffloadModule, Recompute, RecomputeModule
from predictor.core.workload.software import Framework
from predictor.core.workload.transformer import Loss, Transformer


class SequenceParallel(Enum):
    """When tensor-parallel ranks split the tokens where they do not split a layer."""

    CHOICE = "a switch"
    ALWAYS = "with tensor parallelism"
    NEVER = "not at all"


@dataclass(frozen=True, slots=True, eq=False)
class FrameworkRules:
    """The layouts that one framework runs.

    Attributes:
        name: as ``--framework`` spells it.
        label: as its users write it.
        software: as ``training.framework`` spells it.
        schedules: pipeline schedules.
        zero_alone, zero_with_stages: ZeRO stages without and with a pipeline.
        zero_with_tensors: those beside tensor parallelism; None: as without.
        tensor_with_stages: tensor parallelism inside pipeline stages.
        shards_always: replicas share out states at the highest stage allowed; a lower one is another wrapper's (DDP),
            for plain data parallelism alone.
        sequence_parallel, split: see there.
        context_parallel: samples are split around a ring.
        expert_with_tensor: experts and tensor parallelism together.
        experts_hold_context: expert-parallel ranks include the context-parallel ones.
        recomputes: modes of recomputation that its arguments name.
        folds_experts: experts may stay whole where tensor parallelism splits all else, over any ranks of a stage.
        splits_biased_experts: tensor parallelism may split experts that have biases.
        splits_shared_experts: tensor parallelism may split experts that ranks share out; else they are whole then.
        offloads_optimizer: its states may stay in host memory, where nothing else fits.
        names_split: an even split has to be said, as the framework's own default is another.
        replicates_alone: data parallelism is its only parallelism.
        shards_in_groups: groups of neighbours may share out weights, each of the whole model (HSDP).
        splits_experts_otherwise: experts may be split over fewer ranks than all else.
        recomputes_some: full recomputation may leave out the last layers of a chunk.
        sums_whole_buckets: ZeRO stage 1 all-reduces gradients instead of scattering them.
        source: of each rule.
    """

    name: str
    label: str
    software: Framework
    source: str
    schedules: tuple[str, ...]
    zero_alone: tuple[ZeroStage, ...]
    zero_with_stages: tuple[ZeroStage, ...]
    recomputes: tuple[Recompute, ...]
    zero_with_tensors: tuple[ZeroStage, ...] | None = None
    tensor_with_stages: bool = True
    shards_always: bool = False
    sequence_parallel: SequenceParallel = SequenceParallel.CHOICE
    split: Split = Split.EVEN
    context_parallel: bool = True
    expert_with_tensor: bool = True
    experts_hold_context: bool = False
    folds_experts: bool = False
    splits_biased_experts: bool = True
    splits_shared_experts: bool = True
    offloads_optimizer: bool = False
    sums_whole_buckets: bool = False
    replicates_alone: bool = False
    shards_in_groups: bool = False
    splits_experts_otherwise: bool = False
    recomputes_some: bool = False
    names_split: bool = False

    def zeros(self, tensor: int, pipeline: int, is_plain: bool) -> tuple[ZeroStage, ...]:
        """Return the ZeRO stages of a layout whose replicas could share out states.

        Args:
            tensor: tensor-parallel size.
            pipeline: stages.
            is_plain: data parallelism is its only parallelism.
        """
        allowed = self.zero_alone if pipeline == 1 else self.zero_with_stages
        if tensor > 1 and self.zero_with_tensors is not None:
            allowed = tuple(stage for stage in allowed if stage in self.zero_with_tensors)
        return allowed[-1:] if self.shards_always and not is_plain else allowed

    def in_order(self, num_layers: int, stages: int, chunks: int, num_mtp_layers: int = 0) -> list[int] | None:
        """Return the layers of every chunk of a pipeline in the model's order; None where it cannot split so."""
        return in_order(self.split, num_layers, stages, chunks, num_mtp_layers)

    def fields(self, base: TrainingRun, zero_stage: int, pipeline: int, sequence_parallel: bool) -> dict[str, Any]:
        """Return the switches of a run that depend on its layout, by their names in a run and in ``parallelism``.

        Args:
            base: the run whose switches every layout shares as far as it can.
            zero_stage: of the layout.
            pipeline: its stages.
            sequence_parallel: whether its tensor-parallel ranks split the tokens.
        """
        return _FIELDS[self.name](base, zero_stage, pipeline, sequence_parallel)

    def modules(self, model: Transformer) -> tuple[tuple[RecomputeModule, ...], ...]:
        """Return the choices of modules that selective recomputation covers beside fused attention.

        Their outputs are dropped and computed again by element-wise kernels and small products. Source of the choices:
        Megatron-Bridge scripts/performance/configs/deepseek/deepseek_workload_base_configs.py.
        """
        if self.name not in ON_MEGATRON_CORE:
            return ()
        up, act, mlp = RecomputeModule.MLA_UP_PROJECTION, RecomputeModule.MOE_ACTIVATION, RecomputeModule.MLP
        if model.latent_attention is None:
            return () if model.experts is None else ((act,),)
        return ((up,),) if model.experts is None else ((up,), (act,), (act, up), (up, mlp))

    def offloads(self, model: Transformer) -> tuple[tuple[OffloadModule, ...], ...]:
        """Return the choices of modules whose inputs may travel to host memory, the fewest first.

        Source of the choices: Megatron-LM docs/user-guide/features/fine_grained_activation_offloading.md, whose example
        is core_attn attn_proj expert_fc1; megatron/core/transformer/transformer_config.py, offload_modules.
        """
        if self.name not in ON_MEGATRON_CORE:
            return ()
        attention = (OffloadModule.CORE_ATTENTION, OffloadModule.ATTENTION_OUTPUT)
        experts = (OffloadModule.EXPERT_UP, OffloadModule.MOE_ACTIVATION) if model.experts is not None else ()
        norms = (OffloadModule.ATTENTION_NORM, OffloadModule.QKV_PROJECTION, OffloadModule.MLP_NORM)
        every = (*norms, *attention, *experts)
        return (experts, (*attention, *experts), every) if experts else (attention, every)

    def loss(self, tensor: int) -> Loss | None:
        """Return the kernel of the loss where it depends on the layout; None where it does not."""
        if self.name in (*ON_MEGATRON_CORE, GPT_NEOX_ENGINE.name, TRAINER.name):
            return None
        return Loss.TORCH if tensor == 1 else Loss.VOCABULARY_PARALLEL


def _megatron_fields(base: TrainingRun, zero_stage: int, pipeline: int, sequence_parallel: bool) -> dict[str, Any]:
    """--tp-comm-overlap cuts traffic of split tokens into chunks; without them Megatron-LM switches it off."""
    overlaps = base.overlap_tensor_parallel and sequence_parallel
    return {
        "overlap_tensor_parallel": overlaps,
        "overlap_linear_traffic": overlaps,
        "overlap_parameter_gather": base.overlap_parameter_gather and zero_stage > 0,
    }


def _torchtitan_fields(base: TrainingRun, zero_stage: int, pipeline: int, sequence_parallel: bool) -> dict[str, Any]:
    """FSDP2 keeps gathered weights over a pipeline's micro-batches; what does not shard has the keys of DDP."""
    is_sharded = zero_stage > 0
    section = (TORCHTITAN_FSDP2 if is_sharded else TORCHTITAN_DDP).section("parallelism")
    keys = {key: value for key, value in section.items() if key not in ("gradient_reduction", "zero_stage")}
    return {
        "overlap_parameter_gather": False,
        "gradient_bucket_elements": BUCKET_ELEMENTS,  # that of a configuration which says none
        "fp32_parameters": is_sharded,
        "reshard_after_forward": not is_sharded or pipeline == 1,
        **keys,
    }


def _deepspeed_fields(base: TrainingRun, zero_stage: int, pipeline: int, sequence_parallel: bool) -> dict[str, Any]:
    """Stage 3 prefetches weights layer by layer; 1 and 2 gather them after the optimizer."""
    overlaps = base.overlap_gradient_reduction
    return {
        "overlap_gradient_reduction": overlaps and zero_stage > 0,
        "overlap_parameter_gather": overlaps and zero_stage == 3,
    }


def _neox_fields(base: TrainingRun, zero_stage: int, pipeline: int, sequence_parallel: bool) -> dict[str, Any]:
    """A pipeline reduces once all micro-batches are through."""
    overlaps = base.overlap_gradient_reduction and pipeline == 1
    return {"overlap_gradient_reduction": overlaps, "overlap_parameter_gather": overlaps and zero_stage == 3}


def _trainer_fields(base: TrainingRun, zero_stage: int, pipeline: int, sequence_parallel: bool) -> dict[str, Any]:
    """DDP keeps weights and gradients in fp32 under torch.autocast; FSDP's shards are, and travel in 16 bits."""
    is_sharded, narrows = zero_stage > 0, base.precision != "fp32"
    return {
        "overlap_gradient_reduction": True,
        "overlap_parameter_gather": is_sharded,
        "gradient_bucket_elements": BUCKET_ELEMENTS if is_sharded else PYTORCH_DDP.bucket_elements(),
        "fp32_parameters": base.lora is None and (is_sharded or narrows),
        "fp32_gradients": base.lora is None and narrows and not is_sharded,
    }


MEGATRON = FrameworkRules(
    name="megatron",
    label="Megatron-LM",
    software=Framework.MEGATRON_LM,
    source=(
        "Megatron-LM megatron/training/arguments.py, validate_args: layers, with --account-for-embedding- and "
        "--account-for-loss-in-pipeline-split, divide over stages and virtual stages; --overlap-param-gather needs the "
        "distributed optimizer (ZeRO-1); experts with tensor parallelism need --sequence-parallel; FSDP "
        "(--use-megatron-fsdp) is not searched. megatron/core/pipeline_parallel/schedules.py: 1F1B and interleaved "
        "1F1B, whose micro-batches come in groups of the pipeline's size. "
        "megatron/core/transformer/pipeline_parallel_layer_layout.py: layers of every chunk (--pipeline-model-parallel-"
        "layout). megatron/core/parallel_state.py: expert-tensor-parallel groups of their own. "
        "megatron/core/transformer/transformer_config.py: recompute_granularity selective or full, the latter of the "
        "first recompute_num_layers of a chunk (recompute_method block); experts with biases "
        "whole on a rank (core 0.19.2, num_moe_experts with add_bias_linear)"
    ),
    schedules=("1f1b", "interleaved_1f1b"),
    zero_alone=(0, 1),
    zero_with_stages=(0, 1),
    recomputes=(Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL),
    split=Split.ENDS,
    folds_experts=True,
    splits_biased_experts=False,
    offloads_optimizer=True,
    splits_experts_otherwise=True,
    recomputes_some=True,
)
MEGATRON_BRIDGE = replace(
    MEGATRON,
    name="megatron-bridge",
    label="Megatron-Bridge",
    software=Framework.MEGATRON_BRIDGE,
    source=f"Megatron-Bridge src/megatron/bridge/training/config.py: the configuration classes of {MEGATRON.source}",
)
ON_MEGATRON_CORE = (MEGATRON.name, MEGATRON_BRIDGE.name)
TORCHTITAN = FrameworkRules(
    name="torchtitan",
    label="torchtitan",
    software=Framework.TORCHTITAN,
    source=(
        "torchtitan torchtitan/models/llama3/infra/parallelize.py: FSDP2 shards weights, in groups where "
        "data_parallel_replicate_degree asks for it, kept over a pipeline's "
        "micro-batches; DDP knows no other parallelism; tensor-parallel norms are sequence-parallel, and the loss is "
        "vocabulary-parallel then. torchtitan/distributed/parallel_dims.py: expert-parallel ranks hold the "
        "context-parallel ones, and since 0.3 the tensor-parallel ones, so that experts are whole; tensor × 2 × "
        "context parallel size divides the sequence. "
        "torchtitan/distributed/pipeline_parallel.py: a step's samples are one round of micro-batches; embedding and "
        "output count as a layer each (first_stage_less_layers, last_stage_less_layers); schedules are torch's, the "
        "V-shaped ones with two chunks a stage. torchtitan/config/job_config.py: "
        "activation_checkpoint.mode none, selective (op) or full"
    ),
    schedules=("1f1b", "all_forward_all_backward", "interleaved_1f1b", "zbv", "dualpipe_v"),
    zero_alone=(0, 3),
    zero_with_stages=(3,),
    recomputes=(Recompute.NONE, Recompute.PER_OP, Recompute.FULL),
    shards_always=True,
    sequence_parallel=SequenceParallel.ALWAYS,
    split=Split.COUNTED,
    experts_hold_context=True,
    folds_experts=True,
    splits_shared_experts=False,
    shards_in_groups=True,
)
DEEPSPEED_ENGINE = FrameworkRules(
    name="deepspeed",
    label="DeepSpeed",
    software=Framework.DEEPSPEED,
    source=(
        "DeepSpeed deepspeed/runtime/pipe/engine.py: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism. "
        "deepspeed/runtime/pipe/schedule.py, TrainSchedule: 1F1B, one chunk per stage. "
        "deepspeed/runtime/pipe/module.py: layers spread by partition_method. docs/_tutorials/autotp-training.md: "
        "tensor_parallel.autotp_size with ZeRO 0 to 2, activations whole on every rank, and no PipelineModule. "
        "deepspeed/sequence/layer.py: samples are split by heads (Ulysses), which is not modelled, and not around a "
        "ring. docs/_pages/config-json.md: overlap_comm, which its users set"
    ),
    schedules=("1f1b",),
    zero_alone=(0, 1, 2, 3),
    zero_with_stages=(0, 1),
    recomputes=(Recompute.NONE, Recompute.FULL),
    zero_with_tensors=(0, 1, 2),
    tensor_with_stages=False,
    sequence_parallel=SequenceParallel.NEVER,
    split=Split.ANY,
    context_parallel=False,
    expert_with_tensor=False,
)
GPT_NEOX_ENGINE = FrameworkRules(
    name="gpt-neox",
    label="GPT-NeoX",
    software=Framework.GPT_NEOX,
    source=(
        "gpt-neox megatron/neox_arguments (pipe_parallel_size, model_parallel_size, checkpoint_activations) on "
        "DeepSpeed's pipelines, which take ZeRO 0 or 1; deepspeed/runtime/bf16_optimizer.py shares out the states of "
        "bf16 in any case; deepspeed/runtime/zero/stage_1_and_2.py sums whole buckets; its experts and its "
        "rings are not searched"
    ),
    schedules=("1f1b",),
    zero_alone=(1, 3),
    zero_with_stages=(1,),
    recomputes=(Recompute.FULL,),  # as all of its configs/*.yml; with it the host waits at every layer
    zero_with_tensors=(1,),
    sequence_parallel=SequenceParallel.NEVER,
    split=Split.ANY,
    context_parallel=False,
    expert_with_tensor=False,
    sums_whole_buckets=True,
    names_split=True,
)
TRAINER = FrameworkRules(
    name="transformers",
    label="a Hugging Face Trainer",
    software=Framework.TRANSFORMERS,
    source=(
        "transformers src/transformers/training_args.py: fsdp, gradient_checkpointing; DDP without either; its tensor "
        "and context parallelism (parallelism_config), and DeepSpeed beside it, are not searched"
    ),
    schedules=("1f1b",),
    zero_alone=(0, 3),
    zero_with_stages=(),
    recomputes=(Recompute.NONE, Recompute.FULL),
    context_parallel=False,
    replicates_alone=True,
)
# Those of which a search without a framework says whether they run a layout.
RULES = {rules.name: rules for rules in (MEGATRON, TORCHTITAN, DEEPSPEED_ENGINE)}
NAMES = (*RULES, GPT_NEOX_ENGINE.name, MEGATRON_BRIDGE.name, TRAINER.name)  # that a search may ask for
_FIELDS = {
    **dict.fromkeys(ON_MEGATRON_CORE, _megatron_fields),
    TORCHTITAN.name: _torchtitan_fields,
    DEEPSPEED_ENGINE.name: _deepspeed_fields,
    GPT_NEOX_ENGINE.name: _neox_fields,
    TRAINER.name: _trainer_fields,
}


# Software that lays runs out as one of them does; others (Lightning, LLM Foundry) have rules of their own.
_BEHIND: dict[str, FrameworkRules] = {
    **RULES,
    Framework.MEGATRON_LM: MEGATRON,
    Framework.MEGATRON_BRIDGE: MEGATRON_BRIDGE,
    Framework.NEMO: MEGATRON,
    Framework.TORCHTITAN: TORCHTITAN,
    Framework.DEEPSPEED: DEEPSPEED_ENGINE,
    Framework.GPT_NEOX: GPT_NEOX_ENGINE,
    Framework.TRANSFORMERS: TRAINER,
}


def rules_behind(software: Framework | str | None) -> FrameworkRules | None:
    """Return the rules of the software that ``training.framework`` names; None where none is, or it has none here.

    >>> rules_behind("nemo").label
    'Megatron-LM'
    """
    return None if software is None else _BEHIND.get(software)


def rules_of(name: str | None) -> FrameworkRules | None:
    """Return the rules of a framework, by its name or as ``training.framework`` spells it; none where none is named.

    Raises:
        ConfigError: it is not known; the message lists those that are.
    """
    if name is None:
        return None
    rules = rules_behind(name)
    if rules is None:
        raise ConfigError(f"--framework is {name}; expected {', '.join(NAMES)}.{nearest(name, NAMES)}")
    return rules
