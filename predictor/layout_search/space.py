"""The search space: every layout of a model and a global batch over the GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, prod
from typing import Any

from predictor.core.plan.framework_rules import FrameworkRules, SequenceParallel
from predictor.core.timeline.allowed_sizes import check
from predictor.core.timeline.schedules import SCHEDULES, V_CHUNKS
from predictor.core.workload.layout import Layout
from predictor.core.workload.parallelism_keys import ZeroStage
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.transformer import Attention, Loss, Transformer
from predictor.layout_search.candidate import Degrees, Plan, Retention
from predictor.layout_search.divisions import Split, divisors, nests, split_of

# A ring attends to parts of the sequence; parts shorter than this keep no GPU busy. Two of them make a rank's share.
SHORTEST_SEQUENCE_PART = 1024
NARROWEST_EXPERT_PART = 2048  # columns of an expert on one rank; few rows reach it
LEAST_GROWTH = 4  # of groups that share out weights, from one to the next: nearer ones take about as long
# DeepSpeed and Megatron-LM share out gradients and weights only without a pipeline.
ZERO_WITH_STAGES: tuple[ZeroStage, ...] = (0, 1)
ZERO_ALONE: tuple[ZeroStage, ...] = (0, 1, 2, 3)
MAX_CHUNKS = 16
SEARCHED = tuple(name for name, schedule in SCHEDULES.items() if schedule.is_searched)
# One layer a chunk is published for 80 layers on 4 stages (NVIDIA/NeMo, llama3 70b on H200).
MAX_CHUNKS_OF_FRAMEWORKS = 32


@dataclass(frozen=True, slots=True)
class Space:
    """What a search may choose from.

    Attributes:
        base: the run whose model and switches every candidate shares.
        num_gpus, global_batch_size: what every candidate uses up exactly.
        scatters_gradients: ZeRO-1 reduces gradients with a reduce-scatter; ZeRO-2 and 3 always do.
        max_tensor_parallel: largest tensor-parallel group; those of a node, usually.
        max_context_parallel: largest context-parallel group.
        max_micro_batch_size: largest micro-batch.
        schedules: names of pipeline schedules.
        zero_stages: those allowed.
        rules: of the framework that is to run it; None: of none.
        tensor_inside: tensor-parallel groups stay inside a node, or an NVLink domain that spans nodes.
        first_batch: samples of the first steps, which replicas share out as well, of a batch that grows; else 0.
        offloads: activations may travel to host memory.
    """

    base: TrainingRun
    num_gpus: int
    global_batch_size: int
    max_tensor_parallel: int
    scatters_gradients: bool = True
    max_context_parallel: int = 16
    max_micro_batch_size: int = 16
    schedules: tuple[str, ...] = SEARCHED
    zero_stages: tuple[ZeroStage, ...] = ZERO_ALONE
    rules: FrameworkRules | None = None
    tensor_inside: bool = False
    first_batch: int = 0
    offloads: bool = False

    @property
    def model(self) -> Transformer:
        """Return the model."""
        return self.base.model

    def degrees(self) -> Iterator[Degrees]:
        """Return every way to multiply to the GPUs that the model's sizes allow."""
        for tp in divisors(self.num_gpus, self.max_tensor_parallel):
            if not self._splits(tp):
                continue
            for cp in divisors(self.num_gpus // tp, self.max_context_parallel):
                if not self._rings(cp):
                    continue
                rest = self.num_gpus // (tp * cp)
                for pp in divisors(rest, self._most_stages(tp)):
                    sizes = Degrees(tp, cp, pp, rest // pp, 1)
                    if gcd(self.global_batch_size, self.first_batch) % sizes.data == 0 and self._stays_inside(sizes):
                        yield from self._with_experts(sizes)

    @property
    def keeps_experts_whole(self) -> bool:
        """Return whether the base splits no expert, so that expert-parallel ranks are any of a stage."""
        return self.base.layout.expert_tensor_parallel_size == 1

    @property
    def _overlaps_experts(self) -> bool:
        """Return whether a framework moves tokens to their experts beside another micro-batch's pass.

        Megatron-LM (megatron/core/transformer/transformer_config.py) then asks for expert parallelism, for several
        chunks where there are stages, and for no full recomputation.
        """
        return self.rules is not None and self.base.overlap_expert_parallel

    def _holding_experts(self, degrees: Degrees) -> tuple[int, int]:
        """Return the ranks of a stage that may hold different experts, and those of them that lie side by side."""
        order = self.base.layout.rank_order
        sizes = {"tp": degrees.tensor, "cp": degrees.context, "dp": degrees.data}
        split = degrees.expert_split
        if split is not None:
            before = order if degrees.pipeline == 1 else order[: order.index("pp")]
            return prod(sizes.values()) // split, max(1, prod(sizes[name] for name in before if name != "pp") // split)
        inner = "cp" if order.index("cp") < order.index("dp") else "dp"
        return degrees.data * degrees.context, sizes[inner]

    def _most_stages(self, tp: int) -> int:
        """Return the most stages beside so many tensor-parallel ranks."""
        rules = self.rules
        alone = rules is not None and (rules.replicates_alone or (tp > 1 and not rules.tensor_with_stages))
        return 1 if alone or self.base.reference_model is not None else self.model.num_layers

    def _stays_inside(self, degrees: Degrees) -> bool:
        """Return whether tensor-parallel groups stay where they are to stay."""
        if not self.tensor_inside or self.base.layout.gpus_per_node % degrees.tensor == 0:
            return True
        return self.layout(degrees).tensor_group().nodes == 1

    def _splits(self, tp: int) -> bool:
        """Return whether a tensor-parallel size divides heads and widths."""
        model = self.model
        heads, shared = model.num_attention_heads, model.key_value_heads
        if tp > 1 and (not model.splits_layers or (self.rules is not None and self.rules.replicates_alone)):
            return False
        widths = [model.ffn_hidden_size, heads, *model.shared_out]
        widths += [] if model.experts is None else [model.experts.shared_expert_ffn_hidden_size]
        widths += [] if self.base.lora is None else [self.base.lora.rank]
        return nests(shared, tp) and all(width % tp == 0 for width in widths)

    def _rings(self, cp: int) -> bool:
        model = self.model
        if cp == 1:
            return True
        if self.rules is not None and not self.rules.context_parallel:
            return False
        if model.attention is not Attention.FLASH or not model.splits_samples or model.sequence_length % (2 * cp):
            return False
        return model.sequence_length // (2 * cp) >= SHORTEST_SEQUENCE_PART

    def _with_experts(self, degrees: Degrees) -> list[Degrees]:
        """Return degrees with every way to share out experts, split as all else is or whole."""
        experts, rules, tp = self.model.experts, self.rules, degrees.tensor
        if experts is None or (rules is not None and rules.replicates_alone):
            return [degrees]
        if rules is not None and tp > 1 and not rules.expert_with_tensor:
            return []
        splits: list[int | None] = []
        width = experts.expert_ffn_hidden_size
        keeps_biases = rules is not None and not rules.splits_biased_experts and self.model.biases.of_ffn
        if not self.keeps_experts_whole and not (keeps_biases and tp > 1) and width % tp == 0:
            splits.append(None)
            if rules is not None and rules.splits_experts_otherwise:
                splits += [size for size in divisors(tp, tp - 1)[1:] if width // size >= NARROWEST_EXPERT_PART]
        if self.keeps_experts_whole or (rules is not None and rules.folds_experts and tp > 1):
            splits.append(1)
        step = degrees.context if rules is not None and rules.experts_hold_context else 1
        found = []
        for split in splits:
            ranks, inner = self._holding_experts(degrees._replace(expert_split=split))
            found += [
                degrees._replace(expert=ep, expert_split=split)
                for ep in divisors(experts.num_experts, ranks)
                if ranks % ep == 0 and nests(ep, inner) and (not self._overlaps_experts if ep == 1 else ep % step == 0)
            ]
        if rules is not None and not rules.splits_shared_experts and tp > 1 and not self.keeps_experts_whole:
            return [sizes for sizes in found if (sizes.expert > 1) == (sizes.expert_split == 1)]
        return found

    def runs(self, plan: Plan, rules: FrameworkRules) -> bool:
        """Return whether a framework runs a candidate, whatever the space itself is restricted to."""
        own, degrees = replace(self, rules=rules), plan.degrees
        experts = own._with_experts(degrees._replace(expert=1, expert_split=None))
        return (
            own._rings(degrees.context)
            and degrees.pipeline <= own._most_stages(degrees.tensor)
            and degrees in experts
            and (plan.zero_stage, plan.zero_group) in own.sharings(degrees)
            and plan.sequence_parallel in own.sequence_parallels(degrees)
            and (plan.recompute, plan.modules, plan.offload_modules) in own.recomputes()
            and (plan.schedule, plan.num_chunks) in own.orders(degrees, plan.num_micro_batches)
        )

    def batches(self, degrees: Degrees) -> list[tuple[int, int]]:
        """Return every (micro-batch size, number of micro-batches) of a replica's share of the global batch."""
        share = self.global_batch_size // degrees.data
        divided = gcd(self.global_batch_size, self.first_batch) // degrees.data
        return [(size, share // size) for size in divisors(divided, self.max_micro_batch_size)]

    def zeros(self, degrees: Degrees) -> list[ZeroStage]:
        """Return the ZeRO stages that make a difference."""
        if degrees.data * degrees.context == 1:
            # Megatron-LM offloads by way of its distributed optimizer, of one rank too.
            return [1] if self.base.offload_optimizer and self.rules is not None else [0]
        if self.rules is not None:
            is_plain = degrees.tensor * degrees.pipeline * degrees.context * degrees.expert == 1
            allowed = self.rules.zeros(degrees.tensor, degrees.pipeline, is_plain)
        else:
            allowed = ZERO_ALONE if degrees.pipeline == 1 else ZERO_WITH_STAGES
        least = 1 if self.base.offload_optimizer and self.rules is not None else 0
        return [stage for stage in allowed if stage in self.zero_stages and stage >= least]

    def sharings(self, degrees: Degrees) -> list[tuple[ZeroStage, int | None]]:
        """Return the ZeRO stages, with the ranks of a group where groups of neighbours share out weights (HSDP).

        A group holds the ranks of a node, or of an NVLink domain, at least: smaller ones need more memory and spare no
        traffic between nodes.
        """
        found: list[tuple[ZeroStage, int | None]] = [(stage, None) for stage in self.zeros(degrees)]
        if self.rules is None or not self.rules.shards_in_groups or (3, None) not in found:
            return found
        ranks, layout = degrees.data * degrees.context, self.layout(degrees)
        sizes = [size for size in divisors(ranks, ranks - 1) if size % (degrees.context * degrees.expert) == 0]
        inside = [size for size in sizes if size > 1 and layout.sharing_group(size).nodes == 1]
        largest = 0
        for size in (*inside[-1:], *(size for size in sizes if layout.sharing_group(size).nodes > 1)):
            if size >= LEAST_GROWTH * largest:
                found.append((3, size))
                largest = size
        return found

    def sequence_parallels(self, degrees: Degrees) -> list[bool]:
        """Return whether sequence parallelism is a choice; with experts over tensor-parallel ranks it is a must."""
        rule = SequenceParallel.CHOICE if self.rules is None else self.rules.sequence_parallel
        parts = 2 * degrees.tensor * degrees.context
        if rule is SequenceParallel.ALWAYS and self.model.sequence_length % parts:
            return []
        if degrees.tensor == 1 or rule is SequenceParallel.NEVER:
            return [False]
        divides = self.model.sequence_length // degrees.context % degrees.tensor == 0
        if self.model.experts is not None or rule is SequenceParallel.ALWAYS:
            return [True] if divides else []
        return [False, True] if divides else [False]

    def recomputes(self) -> list[Retention]:
        """Return the modes of recomputation, with modules; selective recomputation of fused attention gains nothing."""
        usual = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
        found: list[Retention] = []
        for mode in usual if self.rules is None else self.rules.recomputes:
            if mode is Recompute.FULL and self._overlaps_experts:
                continue
            if mode is not Recompute.SELECTIVE or self.model.attention is not Attention.FLASH:
                found.append((mode, (), ()))
            elif self.rules is not None:
                found += [(mode, modules, ()) for modules in self.rules.modules(self.model)]
        kept = [
            each for each in found if each[0] is not Recompute.FULL
        ]  # whole layers that run again keep nothing else
        offloads = self.rules.offloads(self.model) if self.offloads and self.rules is not None else ()
        return [*found, *((mode, modules, offloaded) for mode, modules, _ in kept for offloaded in offloads)]

    def orders(self, degrees: Degrees, num_micro_batches: int) -> list[tuple[str, int]]:
        """Return every (schedule, chunks per stage) that the stages and micro-batches allow."""
        stages = degrees.pipeline
        if stages == 1:
            return [("1f1b", 1)]  # all schedules of a single stage are one
        orders = []
        grown = (
            num_micro_batches * self.first_batch // self.global_batch_size
        )  # of the first steps of a batch that grows
        steps = {num_micro_batches, grown or num_micro_batches}
        for name in self.schedules:
            if self.rules is not None and name not in self.rules.schedules:
                continue
            if self._overlaps_experts and not SCHEDULES[name].chunks:
                continue
            if self.rules is None and SCHEDULES[name].v_shaped and self.schedules == SEARCHED:
                continue  # torchtitan's; without a framework for those that ask for it
            counts = self._chunks(name, stages) if SCHEDULES[name].chunks else [1]
            orders += [
                (name, count)
                for count in counts
                if all(check(name, stages, step, count) is None for step in steps)
                and self.split(stages, name, count) is not None
            ]
        return orders

    def _chunks(self, schedule: str, stages: int) -> list[int]:
        """Return numbers of chunks that a stage could hold."""
        if SCHEDULES[schedule].v_shaped:
            return [V_CHUNKS]
        if self.rules is not None:
            return list(range(2, MAX_CHUNKS_OF_FRAMEWORKS + 1))
        return divisors(self.model.num_layers // stages, MAX_CHUNKS)[1:]

    def split(self, stages: int, schedule: str, chunks: int) -> Split | None:
        """Return how layers are split; None where the framework, or the chunks, cannot split so."""
        model, v_shaped = self.model, SCHEDULES[schedule].v_shaped
        return split_of(self.rules, model.num_layers, model.num_mtp_layers, stages, chunks, v_shaped)

    def layout(self, degrees: Degrees) -> Layout:
        """Return the layout of some degrees on the base's nodes."""
        return _laid_out(self.base.layout, degrees)

    def run(self, plan: Plan) -> TrainingRun:
        """Return a candidate as a run; what it recomputes is its own, whatever the configuration says."""
        layers = self.split(plan.degrees.pipeline, plan.schedule, plan.num_chunks)
        assert layers is not None
        return replace(
            self.base,
            model=self.model_of(plan),
            layout=self.layout(plan.degrees),
            layers_per_stage=layers.stages,
            layers_per_chunk=layers.chunks,
            offload_parameters=False,
            offload_activation_layers=0,
            offload_activations=False,
            offload_modules=plan.offload_modules,
            micro_batch_size=plan.micro_batch_size,
            num_micro_batches=plan.num_micro_batches,
            recompute=plan.recompute,
            recompute_num_layers=plan.recompute_layers,
            recompute_every=1,
            recompute_group_layers=1,
            recompute_modules=plan.modules,
            schedule=plan.schedule,
            zero_stage=plan.zero_stage,
            zero_group_size=plan.zero_group,
            gradient_reduction="reduce_scatter" if self._scatters(plan.zero_stage) else "all_reduce",
            sequence_parallel=plan.sequence_parallel,
            virtual_pipeline_parallel_size=plan.num_chunks,
            blocking_transfers=self.base.blocking_transfers and SCHEDULES[plan.schedule].may_block,
            **self.fields(plan),
        )

    def _scatters(self, zero_stage: int) -> bool:
        """Return whether a candidate reduces gradients with a reduce-scatter."""
        if self.rules is not None and self.rules.sums_whole_buckets:
            return zero_stage == 3
        return zero_stage >= 2 or (self.scatters_gradients and zero_stage == 1)

    def fields(self, plan: Plan) -> dict[str, Any]:
        """Return the switches that the framework ties to a layout, by their names in a run and in ``parallelism``."""
        if self.rules is None:
            return {}
        return self.rules.fields(self.base, plan.zero_stage, plan.degrees.pipeline, plan.sequence_parallel)

    def model_of(self, plan: Plan) -> Transformer:
        """Return the model with the loss that the framework computes in a layout."""
        stays = self.model.loss in (Loss.FUSED_LINEAR, Loss.SCORE)  # the former has tensor_parallel_size 1 alone
        rules = None if stays else self.rules
        loss = None if rules is None else rules.loss(plan.degrees.tensor)
        loss = self.model.loss if loss is Loss.TORCH and self.model.loss is Loss.TORCH_EAGER else loss
        return self.model if loss is None or loss is self.model.loss else _with_loss(self.model, loss)


@lru_cache(maxsize=4096)
def _laid_out(base: Layout, degrees: Degrees) -> Layout:
    return replace(
        base,
        tensor_parallel_size=degrees.tensor,
        pipeline_parallel_size=degrees.pipeline,
        data_parallel_size=degrees.data,
        context_parallel_size=degrees.context,
        expert_parallel_size=degrees.expert,
        expert_tensor_parallel_size=degrees.expert_split,
    )


@lru_cache(maxsize=64)
def _with_loss(model: Transformer, loss: Loss) -> Transformer:
    return replace(model, loss=loss)
