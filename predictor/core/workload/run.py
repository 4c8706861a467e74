"""One training run: model, layout and framework settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
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
from predictor.core.transforms.lora import AdapterSettings, with_adapters
from predictor.core.transforms.quantized import with_quantized_base
from predictor.core.workload.architecture import sized
from predictor.core.workload.layout import Layout
from predictor.core.workload.parallelism_keys import ParallelismKeys
from predictor.core.workload.partition import chunk_layers
from predictor.core.workload.rank_parameters import RankParameters
from predictor.core.workload.run_choices import Conditions, GraphModule, Recompute, Reference
from predictor.core.workload.software import Framework
from predictor.core.workload.training_keys import TrainingKeys
from predictor.core.workload.transformer import LayerKind, Loss, Transformer

_PARAMETERS: dict[tuple[object, ...], RankParameters] = {}  # of layers, shared by runs


@dataclass(frozen=True, kw_only=True)  # no slots: what follows from it is computed once
class TrainingRun(TrainingKeys, ParallelismKeys):
    """A run of one model on one layout: keys of its configuration, and what follows from others.

    Attributes:
        layers_per_stage: how the pipeline splits the model.
        layers_per_chunk: of every stage's chunks; None: stages split theirs evenly.
        blocking_transfers: pipeline neighbours both wait for a message; otherwise it overlaps the sender's next slot.
        transposes_fp8: tensor cores take 8-bit operands in one layout only, so that weights are kept in two.
        host_slowdown: of launches by other ranks and the collector; None: by framework.
        conditions: what is added to the modelled time: of tuned benchmarks or of ordinary runs, or nothing.
    """

    model: Transformer
    layout: Layout
    layers_per_stage: tuple[int, ...]
    num_micro_batches: int
    schedule: str
    layers_per_chunk: tuple[tuple[int, ...], ...] | None = None
    blocking_transfers: bool = True
    transposes_fp8: bool = True
    host_slowdown: float | None = None
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
    def scatters_gradients(self) -> bool:
        """Return whether gradients are reduced with a reduce-scatter, not an all-reduce."""
        return self.zero_stage >= 2 if self.gradient_reduction is None else self.gradient_reduction == "reduce_scatter"

    @property
    def full_cuda_graphs(self) -> bool:
        """Return whether all kernels are launched without the host."""
        return self.cuda_graphs is True

    @property
    def graph_modules(self) -> tuple[GraphModule, ...]:
        """Return the parts of a layer whose kernels are, where not all of it is."""
        return self.cuda_graphs if isinstance(self.cuda_graphs, tuple) else ()

    @property
    def zero_ranks(self) -> int:
        """Return the ranks that share out the states of dense weights."""
        ranks = self.layout.gradient_ranks  # a search tries layouts whose ranks the group does not divide
        return ranks if self.zero_group_size is None else gcd(self.zero_group_size, ranks)

    @lazy
    def dense_groups(self) -> tuple[Topology, Topology]:
        """The ranks that share out the states of dense weights, and those that hold the same share."""
        return self.layout.sharing_group(self.zero_ranks), self.layout.replica_group(self.zero_ranks)

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

    @lazy
    def reference_run(self) -> TrainingRun | None:
        """The run as its reference passes through it: frozen weights, nothing kept; None without a reference."""
        if self.reference_model is None:
            return None
        keeps = self.lora is not None and self.reference_model is Reference.ADAPTERS_OFF
        lora = replace(self.lora, targets=()) if self.lora is not None and keeps else None
        return replace(
            self,
            reference_model=None,
            lora=lora,
            recompute=Recompute.NONE,
            recompute_num_layers=None,
            recompute_every=1,
            recompute_modules=(),
        )

    @property
    def model_flops_per_token(self) -> float:
        """Return the FLOPs that a token needs forward and backward, no recomputation counted; a reference's forward.

        Of frozen weights there are no gradients, of adapters all three products.

        Source: Megatron-Bridge, src/megatron/bridge/training/utils/flop_utils.py (4 FLOPs a parameter with LoRA).
        """
        model, lora = self.model, self.lora
        whole = model.model_flops_per_token()
        if self.reference_model is not None:
            whole += self.reference_passes * whole / 3.0
        if lora is None:
            return whole
        one, frozen, adapters = AdapterSettings(Topology(1, 1), Topology(1, 1), False), 0.0, 0.0
        if model.experts is not None:
            one = one._replace(held=1, experts_per_token=model.experts.experts_per_token)
        for kind, count in model.kinds.items():
            rows = with_adapters(model.layer_rows(kind), lora, sized(model, model.call(1, 1), kind), one)
            frozen += count * multiplications(row for row in rows if row.kind is Kind.PRODUCT)
            adapters += count * multiplications(row for row in rows if row.kind is Kind.ADAPTER)
        frozen += 0 if lora.train_embeddings or not model.has_lm_head else model.hidden_size * model.vocab_size
        return whole - 2.0 * frozen + 6.0 * adapters

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

    @lazy
    def only_kind(self) -> LayerKind | None:
        """The kind of all layers, None where they may differ."""
        leaves_some = self.layers_in_16_bits_at_start or self.layers_in_16_bits_at_end
        return None if self.gemm_recipe is not None and leaves_some else self.model.only_kind

    def kind(self, layer: int) -> LayerKind:
        """Return what kind of layer stands at a position, counted from 0."""
        first_left_out = self.model.num_layers - self.layers_in_16_bits_at_end
        is_left_out = not self.layers_in_16_bits_at_start <= layer < first_left_out
        return self.model.kind(layer)._replace(in_16_bits=self.gemm_recipe is not None and is_left_out)

    def stage_kinds(self, stage: int) -> dict[LayerKind, int]:
        """Return how many layers of each kind a stage holds."""
        if self.only_kind is not None:
            return {self.only_kind: sum(self.chunk_layers[stage])}
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
            if self.lora.quantized_base is not None:
                rows = with_quantized_base(rows, call, self.lora.quantized_base)
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
