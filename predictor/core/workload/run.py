"""One training run: model, layout and framework settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import gcd

from predictor.core.base.lazy import lazy
from predictor.core.base.remembered import remembered
from predictor.core.blocks.layer import LayerSettings, layer_rows
from predictor.core.costs.collectives import Topology
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.work import element_bytes
from predictor.core.folds import multiplications, parameters
from predictor.core.rows import FP32_BYTES, Kind
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.transforms.lora import AdapterSettings, Lora, with_adapters
from predictor.core.workload.expert_exchange import ExpertDispatcher
from predictor.core.workload.layer_sizes import sized
from predictor.core.workload.layout import Layout
from predictor.core.workload.partition import chunk_layers
from predictor.core.workload.rank_parameters import RankParameters
from predictor.core.workload.run_choices import (
    AttentionKernel,
    Conditions,
    GemmRecipe,
    GraphModule,
    OffloadModule,
    Recompute,
    RecomputeModule,
)
from predictor.core.workload.software import Framework
from predictor.core.workload.transformer import LayerKind, Loss, Transformer

_PARAMETERS: dict[tuple[object, ...], RankParameters] = {}  # of layers, shared by runs


@dataclass(frozen=True)  # no slots: what follows from it is computed once
class TrainingRun:
    """A run of one model on one layout.

    Attributes:
        layers_per_stage: how the pipeline splits the model.
        layers_per_chunk: of every stage's chunks; None: stages split theirs evenly.
        zero_stage: what the ranks that sum their gradients share out instead of replicating: 1 the optimizer's states,
            2 the gradients too, 3 the weights too. Rajbhandari et al. 2019, arXiv:1910.02054.
        gradient_bucket_elements: largest number of gradient elements that one collective reduces.
        overlap_gradient_reduction: reduce during the backward pass (the last micro-batch's, and every one's where
            gradients are shared out) instead of after it.
        virtual_pipeline_parallel_size: model chunks that a stage holds, of an interleaved schedule.
        sequence_parallel: tensor-parallel ranks split the tokens where they do not split the layer.
        scatters_gradients: gradients are reduced with a reduce-scatter, not an all-reduce.
        overlap_parameter_gather: updated weights are gathered during the next forward pass; ZeRO-3 gathers a layer's
            while the layer before it computes.
        overlap_tensor_parallel: backward, tensor-parallel traffic runs beside the products that do not wait for it.
        fp32_gradients: gradients are accumulated and reduced in fp32.
        blocking_transfers: pipeline neighbours both wait for a message; otherwise it overlaps the sender's next slot.
        partition_activations: checkpointed inputs are stored split over the tensor-parallel group and gathered again.
        recompute_stops_early: full recomputation leaves out what runs behind the last activation that a layer saves.
        synchronize_each_layer: the host waits for the device after every layer's pass.
        overlap_linear_traffic: tensor-parallel traffic runs in chunks beside the products that it feeds or follows.
        zero_group_size: ranks that share out states; None: all that hold the same weights.
        reshard_after_forward: ZeRO-3 frees gathered weights after the forward pass.
        prefetch_units: layers whose weights ZeRO-3 gathers ahead.
        gather_precision: of weights on their way; None: ``precision``.
        fp32_parameters: the sharded weights are the optimizer's fp32 ones, without a 16-bit copy.
        gemm_recipe: low precision of the linear layers' products; None: ``precision``.
        transposes_fp8: tensor cores take 8-bit operands in one layout only, so that weights are kept in two.
        layers_in_16_bits: first and last layers that the recipe leaves out.
        tf32: products of fp32 matrices run in TF32.
        recompute_num_layers: layers of each chunk that are recomputed; None: all.
        recompute_every: one of so many layers is recomputed.
        recompute_group_layers: layers that full recomputation runs at once, from the input of the first.
        recompute_modules: of a layer; empty: the core of attention.
        compiled: element-wise kernels are fused by a compiler.
        fused_gradient_accumulation: products of weight gradients add to those of earlier micro-batches themselves.
        fp8_attention: exact attention runs in 8 bits, in the layers that ``gemm_recipe`` covers.
        attention_kernel: None: the one that the system was measured with.
        blocking_launches: the host waits for every kernel.
        cuda_graphs: kernels are launched without the host.
        graph_modules: parts of a layer that are, where not all of it is.
        expert_dispatcher: moves tokens between expert-parallel ranks.
        overlap_expert_parallel: it does so beside the other direction's pass of another micro-batch.
        fused_experts: the products of all experts are one kernel each, with the gate and the casts to low precision.
        optimizer_state_bytes: per parameter; None: fp32 weights and two fp32 moments.
        framework: software that trains; None: not said.
        host_slowdown: of launches by other ranks and the collector; None: by framework.
        offload_optimizer: share of the optimizer's states in host memory, updated there.
        overlap_optimizer_offload: gradients and weights travel beside that update.
        host_threads: of a rank's update; None: as many as stream its share of the host's memory.
        host_simd: that update computes with vectors.
        pinned_offload: host memory of offloaded states is pinned.
        offload_modules: whose inputs travel to host memory and back, in every layer.
        offload_activation_layers: layers of each chunk whose activations travel to host memory and back.
        lora: adapters that train while the model's own weights do not; None: all weights train.
        conditions: what is added to the modelled time: of tuned benchmarks or of ordinary runs, or nothing.
    """

    model: Transformer
    layout: Layout
    layers_per_stage: tuple[int, ...]
    micro_batch_size: int
    num_micro_batches: int
    precision: str
    recompute: Recompute
    schedule: str
    zero_stage: int
    gradient_bucket_elements: int
    overlap_gradient_reduction: bool = False
    blocking_transfers: bool = True
    partition_activations: bool = False
    recompute_stops_early: bool = False
    synchronize_each_layer: bool = False
    virtual_pipeline_parallel_size: int = 1
    sequence_parallel: bool = False
    scatters_gradients: bool = False
    overlap_parameter_gather: bool = False
    overlap_tensor_parallel: bool = False
    fp32_gradients: bool = False
    overlap_linear_traffic: bool = False
    zero_group_size: int | None = None
    reshard_after_forward: bool = True
    prefetch_units: int = 1
    gather_precision: str | None = None
    fp32_parameters: bool = False
    gemm_recipe: GemmRecipe | None = None
    transposes_fp8: bool = True
    layers_in_16_bits: tuple[int, int] = (0, 0)
    tf32: bool = False
    recompute_num_layers: int | None = None
    recompute_every: int = 1
    recompute_group_layers: int = 1
    recompute_modules: tuple[RecomputeModule, ...] = ()
    compiled: bool = False
    fused_gradient_accumulation: bool = False
    fp8_attention: bool = False
    attention_kernel: AttentionKernel | None = None
    blocking_launches: bool = False
    cuda_graphs: bool = False
    graph_modules: tuple[GraphModule, ...] = ()
    expert_dispatcher: ExpertDispatcher = ExpertDispatcher.ALL_TO_ALL
    overlap_expert_parallel: bool = False
    fused_experts: bool = False
    optimizer_state_bytes: float | None = None
    framework: Framework | None = None
    host_slowdown: float | None = None
    layers_per_chunk: tuple[tuple[int, ...], ...] | None = None
    offload_optimizer: float = 0.0
    overlap_optimizer_offload: bool = False
    offload_activation_layers: int = 0
    offload_modules: tuple[OffloadModule, ...] = ()
    host_threads: int | None = None
    host_simd: bool = True
    pinned_offload: bool = True
    lora: Lora | None = None
    conditions: Conditions = Conditions.MODEL

    @lazy
    def element_bytes(self) -> int:
        """Return the bytes of one activation, weight or gradient outside the optimizer."""
        return element_bytes(self.precision)

    @property
    def gradient_bytes(self) -> int:
        """Return the bytes of one gradient as it is accumulated and reduced."""
        return FP32_BYTES if self.fp32_gradients else self.element_bytes

    @property
    def zero_ranks(self) -> int:
        """Return the ranks that share out the states of dense weights."""
        ranks = self.layout.gradient_ranks  # a search tries layouts whose ranks the group does not divide
        return ranks if self.zero_group_size is None else gcd(self.zero_group_size, ranks)

    @property
    def expert_zero_ranks(self) -> int:
        """Return the ranks that share out the states of the same experts."""
        layout = self.layout
        holding = layout.expert_parallel_size * layout.expert_split
        return max(1, self.zero_ranks * layout.tensor_parallel_size // holding)

    @property
    def copies_split_tokens(self) -> bool:
        """Return whether what ranks gather and scatter of split tokens is copied: DTensor splits the second dimension.

        Asynchronous tensor parallelism (overlap_linear_traffic) writes shards where they belong.
        """
        is_dtensor = self.framework is Framework.TORCHTITAN and self.sequence_parallel
        return is_dtensor and self.micro_batch_size > 1 and not self.overlap_linear_traffic

    def call(self) -> LayerCall:
        """Return the sizes that operators see for one micro-batch on one rank."""
        return self._call

    @lazy
    def _call(self) -> LayerCall:
        return self.model.call(
            self.micro_batch_size,
            self.layout.tensor_parallel_size,
            self.element_bytes,
            self.layout.context_parallel_size,
            self.sequence_parallel,
        )

    @lazy
    def _layer_calls(self) -> dict[LayerKind, LayerCall]:
        """Sizes that the kinds of layers that were asked for see."""
        return {}

    def layer_call(self, kind: LayerKind) -> LayerCall:
        """Return the sizes that the operators of one kind of layer see."""
        known = self._layer_calls.get(kind)
        if known is None:
            known = self._layer_calls[kind] = sized(self.model, self.call(), kind)
        return known

    @property
    def model_flops_per_token(self) -> float:
        """Return the FLOPs that a token needs forward and backward, no recomputation counted.

        Of frozen weights there are no gradients, of adapters all three products.

        Source: Megatron-Bridge, src/megatron/bridge/training/utils/flop_utils.py (4 FLOPs a parameter with LoRA).
        """
        model, lora = self.model, self.lora
        if lora is None:
            return model.model_flops_per_token()
        one, frozen, adapters = AdapterSettings(Topology(1, 1), Topology(1, 1), False), 0.0, 0.0
        if model.experts is not None:
            one = one._replace(held=1, experts_per_token=model.experts.experts_per_token)
        for kind, count in model.kinds.items():
            rows = with_adapters(model.layer_rows(kind), lora, sized(model, model.call(1, 1), kind), one)
            frozen += count * multiplications(row for row in rows if row.kind is Kind.PRODUCT)
            adapters += count * multiplications(row for row in rows if row.kind is Kind.ADAPTER)
        frozen += 0 if lora.train_embeddings or not model.has_lm_head else model.hidden_size * model.vocab_size
        return model.model_flops_per_token() - 2.0 * frozen + 6.0 * adapters

    @property
    def global_batch_size(self) -> int:
        """Return the sequences of one step."""
        return self.micro_batch_size * self.num_micro_batches * self.layout.data_parallel_size

    @property
    def tokens_per_step(self) -> int:
        """Return the tokens of one step."""
        return self.global_batch_size * self.model.sequence_length

    def layer_kinds(self, stage: int, chunk: int = 0) -> Counter[LayerKind]:
        """Return how many layers of each kind one chunk of a stage holds.

        Chunks follow each other stage by stage: all stages' first ones, then all second ones. The last one has the
        layers that predict further tokens too.
        """
        alike = self.only_kind
        if alike is not None:
            return Counter({alike: self.chunk_layers[stage][chunk]})
        at = SCHEDULES[self.schedule].virtual_stage(stage, chunk, len(self.layers_per_stage))
        first = self._first_layers[at]
        kinds = Counter(self.kind(layer) for layer in range(first, first + self.chunk_layers[stage][chunk]))
        if self.model.num_mtp_layers and at == len(self._first_layers) - 2:
            kinds[self.model.mtp_kind] += self.model.num_mtp_layers
        return kinds

    @lazy
    def chunk_layers(self) -> tuple[tuple[int, ...], ...]:
        """Layers of every stage's chunks."""
        if self.layers_per_chunk is not None:
            return self.layers_per_chunk
        stages = range(len(self.layers_per_stage))
        return tuple(
            [chunk_layers(self.layers_per_stage, stage, self.virtual_pipeline_parallel_size) for stage in stages]
        )

    @lazy
    def _first_layers(self) -> list[int]:
        """First layer of every chunk, in the model's order."""
        schedule, num_stages = SCHEDULES[self.schedule], len(self.layers_per_stage)
        holders = [schedule.holder(at, num_stages) for at in range(num_stages * self.virtual_pipeline_parallel_size)]
        return [0, *accumulate(self.chunk_layers[stage][chunk] for stage, chunk in holders)]

    @property
    def last_stage(self) -> int:
        """Return the stage that holds the model's end."""
        chunks = len(self.layers_per_stage) * self.virtual_pipeline_parallel_size
        return SCHEDULES[self.schedule].holder(chunks - 1, len(self.layers_per_stage))[0]

    @property
    def has_fused_loss(self) -> bool:
        """Return whether the loss reads 16-bit logits in one kernel."""
        return self.model.loss is Loss.FUSED or (self.compiled and self.model.loss is Loss.TORCH)

    @property
    def only_kind(self) -> LayerKind | None:
        """Return the kind of all layers, None where they may differ."""
        return None if self.gemm_recipe is not None and any(self.layers_in_16_bits) else self.model.only_kind

    def kind(self, layer: int) -> LayerKind:
        """Return what kind of layer stands at a position, counted from 0."""
        kind, (start, end) = self.model.kind(layer), self.layers_in_16_bits
        low = self.gemm_recipe is not None
        return kind._replace(in_16_bits=low and not start <= layer < self.model.num_layers - end)

    def stage_kinds(self, stage: int) -> Counter[LayerKind]:
        """Return how many layers of each kind a stage holds."""
        kinds: Counter[LayerKind] = Counter()
        for chunk in range(self.virtual_pipeline_parallel_size):
            kinds.update(self.layer_kinds(stage, chunk))
        return kinds

    @lazy
    def _layer_parameters(self) -> dict[LayerKind, RankParameters]:
        """Parameters on one rank of the kinds of layers that were asked for."""
        return {}

    def layer_parameters(self, kind: LayerKind) -> RankParameters:
        """Return the parameters that one rank holds of one layer."""
        known = self._layer_parameters.get(kind)
        if known is None:
            layout, sizes = self.layout, self.model.layer_sizes
            ranks = layout.tensor_parallel_size, layout.expert_parallel_size, layout.expert_split
            key = sizes, kind, ranks, self.lora
            known = self._layer_parameters[kind] = remembered(_PARAMETERS, key, lambda: self._counted(kind))
        return known

    def _counted(self, kind: LayerKind) -> RankParameters:
        """Return the parameters that one rank holds of one layer."""
        experts, layout, model = self.model.experts, self.layout, self.model
        call = sized(model, model.call(1, layout.tensor_parallel_size), kind)  # parameters do not depend on tokens
        rows = layer_rows(self.model, kind, call, LayerSettings(layout))
        if self.lora is not None:
            group, split = Topology(1, layout.tensor_parallel_size), Topology(1, layout.expert_split)
            settings = AdapterSettings(group, split, self.sequence_parallel)
            if kind.has_experts and experts is not None:
                held = experts.num_experts // layout.expert_parallel_size
                settings = settings._replace(held=held, experts_per_token=experts.experts_per_token)
            rows = with_adapters(rows, self.lora, call, settings)
        return parameters(rows)

    def _at_an_end(self, parameters: int) -> RankParameters:
        """Return parameters of the model's beginning or end; beside adapters they train only where that is asked."""
        known = RankParameters(parameters, 0)
        return known if self.lora is None or self.lora.train_embeddings else known.frozen()

    def beginning_parameters(self) -> RankParameters:
        """Return the parameters of the model's beginning on one rank: embedding, positions, a vision tower."""
        embedding = self.model.embedding_parameters(self.layout.tensor_parallel_size)
        return self._at_an_end(embedding + self.model.beginning_parameters()).plus(self._vision_parameters())

    def ending_parameters(self, has_embedding: bool) -> RankParameters:
        """Return the parameters of the model's end on one rank, which may have a tied embedding already."""
        model, tp = self.model, self.layout.tensor_parallel_size
        embeddings = model.end_embeddings(has_embedding) * model.embedding_parameters(tp)
        return self._at_an_end(model.end_parameters(tp) + embeddings)

    def _vision_parameters(self) -> RankParameters:
        """Return the parameters of a vision tower on one rank of the first stage."""
        vision = self.model.vision
        if vision is None:
            return RankParameters(0, 0)
        held = RankParameters(vision.parameters(self.model.hidden_size, self.layout.tensor_parallel_size), 0)
        return held if vision.trained and self.lora is None else held.frozen()

    def rank_parameters(self, stage: int) -> RankParameters:
        """Return the parameters that one rank of a stage holds."""
        return self.parameters_of(self.stage_kinds(stage).items(), stage == 0, stage == self.last_stage)

    def parameters_of(self, layers: Iterable[tuple[LayerKind, int]], is_first: bool, is_last: bool) -> RankParameters:
        """Return the parameters that one rank of a stage with these layers holds."""
        held = self.beginning_parameters() if is_first else RankParameters(0, 0)
        if is_last:
            held = held.plus(self.ending_parameters(has_embedding=is_first))
        for kind, count in layers:
            held = held.plus(self.layer_parameters(kind), count)
        return held

    def stage_parameters(self, stage: int) -> int:
        """Return the number of parameters that one rank of a stage holds."""
        return self.rank_parameters(stage).held.total
