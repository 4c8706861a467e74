"""The search space: every layout of a model and a global batch over the GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isqrt
from typing import NamedTuple

from predictor.timeline.schedules import SCHEDULES, check
from predictor.workloads.layout import Layout
from predictor.workloads.partition import uniform
from predictor.workloads.run import Recompute, TrainingRun
from predictor.workloads.transformer import Attention, Transformer

# A ring attends to parts of the sequence; parts shorter than this keep no GPU busy. Two of them make a rank's share.
SHORTEST_SEQUENCE_PART = 1024
ZERO_WITH_STAGES = (0, 1)  # DeepSpeed and Megatron-LM share out gradients and weights only without a pipeline
ZERO_ALONE = (0, 1, 2, 3)
MAX_CHUNKS = 16


class Degrees(NamedTuple):
    """One way to multiply to the GPUs."""

    tensor: int
    context: int
    pipeline: int
    data: int
    expert: int


class Plan(NamedTuple):
    """A candidate: the choices of a search."""

    degrees: Degrees
    zero_stage: int
    sequence_parallel: bool
    micro_batch_size: int
    num_micro_batches: int
    recompute: Recompute
    schedule: str
    num_chunks: int


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
    """

    base: TrainingRun
    num_gpus: int
    global_batch_size: int
    max_tensor_parallel: int
    scatters_gradients: bool = True
    max_context_parallel: int = 16
    max_micro_batch_size: int = 16
    schedules: tuple[str, ...] = tuple(SCHEDULES)
    zero_stages: tuple[int, ...] = ZERO_ALONE

    @property
    def model(self) -> Transformer:
        """Return the model."""
        return self.base.model

    def degrees(self) -> Iterator[Degrees]:
        """Return every way to multiply to the GPUs that the model's sizes allow."""
        order = self.base.layout.rank_order
        inner_is_context = order.index("cp") < order.index("dp")
        for tp in divisors(self.num_gpus, self.max_tensor_parallel):
            if not self._splits(tp):
                continue
            for cp in divisors(self.num_gpus // tp, self.max_context_parallel):
                if not self._rings(cp):
                    continue
                rest = self.num_gpus // (tp * cp)
                for pp in divisors(rest, self.model.num_layers):
                    dp = rest // pp
                    if self.global_batch_size % dp == 0:
                        for ep in self._expert_degrees(dp * cp, cp if inner_is_context else dp):
                            yield Degrees(tp, cp, pp, dp, ep)

    def _splits(self, tp: int) -> bool:
        """Return whether a tensor-parallel size divides heads and widths."""
        model = self.model
        heads, shared = model.num_attention_heads, model.key_value_heads
        widths = [model.ffn_hidden_size, heads, *model.shared_out]
        if model.experts is not None:
            widths += [model.experts.expert_ffn_hidden_size, model.experts.shared_expert_ffn_hidden_size]
        return nests(shared, tp) and all(width % tp == 0 for width in widths)

    def _rings(self, cp: int) -> bool:
        model = self.model
        if cp == 1:
            return True
        if model.attention is not Attention.FLASH or model.reads_whole_samples or model.sequence_length % (2 * cp):
            return False
        return model.sequence_length // (2 * cp) >= SHORTEST_SEQUENCE_PART

    def _expert_degrees(self, ranks: int, inner: int) -> list[int]:
        experts = self.model.experts
        if experts is None:
            return [1]
        return [ep for ep in divisors(experts.num_experts, ranks) if ranks % ep == 0 and nests(ep, inner)]

    def batches(self, degrees: Degrees) -> list[tuple[int, int]]:
        """Return every (micro-batch size, number of micro-batches) of a replica's share of the global batch."""
        share = self.global_batch_size // degrees.data
        return [(size, share // size) for size in divisors(share, self.max_micro_batch_size)]

    def zeros(self, degrees: Degrees) -> list[int]:
        """Return the ZeRO stages that make a difference."""
        if degrees.data * degrees.context == 1:
            return [0]
        allowed = ZERO_ALONE if degrees.pipeline == 1 else ZERO_WITH_STAGES
        return [stage for stage in allowed if stage in self.zero_stages]

    def sequence_parallels(self, degrees: Degrees) -> list[bool]:
        """Return whether sequence parallelism is a choice; with experts over tensor-parallel ranks it is a must."""
        if degrees.tensor == 1:
            return [False]
        divides = self.model.sequence_length // degrees.context % degrees.tensor == 0
        if self.model.experts is not None:
            return [True] if divides else []
        return [False, True] if divides else [False]

    def recomputes(self) -> list[Recompute]:
        """Return the modes of recomputation; selective recomputation gains nothing with flash attention."""
        modes = [Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL]
        return [
            mode for mode in modes if mode is not Recompute.SELECTIVE or self.model.attention is not Attention.FLASH
        ]

    def orders(self, degrees: Degrees, num_micro_batches: int) -> list[tuple[str, int]]:
        """Return every (schedule, chunks per stage) that the stages and micro-batches allow."""
        stages = degrees.pipeline
        if stages == 1:
            return [("1f1b", 1)]  # all schedules of a single stage are one
        shares = set(uniform(self.model.num_layers, stages))
        orders = []
        for name in self.schedules:
            chunks = divisors(min(shares), MAX_CHUNKS)[1:] if SCHEDULES[name].chunks else [1]
            even = [count for count in chunks if all(share % count == 0 for share in shares)]
            orders += [(name, count) for count in even if check(name, stages, num_micro_batches, count) is None]
        return orders

    def layout(self, degrees: Degrees) -> Layout:
        """Return the layout of some degrees on the base's nodes."""
        return _laid_out(self.base.layout, degrees)

    def run(self, plan: Plan) -> TrainingRun:
        """Return a candidate as a run; it recomputes all layers alike, whatever the configuration says."""
        return replace(
            self.base,
            layout=self.layout(plan.degrees),
            layers_per_stage=tuple(uniform(self.model.num_layers, plan.degrees.pipeline)),
            micro_batch_size=plan.micro_batch_size,
            num_micro_batches=plan.num_micro_batches,
            recompute=plan.recompute,
            recompute_num_layers=None,
            recompute_every=1,
            recompute_modules=(),
            schedule=plan.schedule,
            zero_stage=plan.zero_stage,
            scatters_gradients=plan.zero_stage >= 2 or (self.scatters_gradients and plan.zero_stage == 1),
            sequence_parallel=plan.sequence_parallel,
            virtual_pipeline_parallel_size=plan.num_chunks,
            blocking_transfers=self.base.blocking_transfers and SCHEDULES[plan.schedule].may_block,
        )


@lru_cache(maxsize=4096)
def _laid_out(base: Layout, degrees: Degrees) -> Layout:
    return replace(
        base,
        tensor_parallel_size=degrees.tensor,
        pipeline_parallel_size=degrees.pipeline,
        data_parallel_size=degrees.data,
        context_parallel_size=degrees.context,
        expert_parallel_size=degrees.expert,
    )


def nests(first: int, second: int) -> bool:
    """Return whether either of two numbers divides the other."""
    return first % second == 0 or second % first == 0


def divisors(number: int, largest: int) -> list[int]:
    """Return the divisors of a number up to a limit, in order."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return [d for d in sorted({*small, *(number // d for d in small)}) if d <= largest]
