"""The rows of one layer of a run: its block, then each transform with its own settings."""

from __future__ import annotations

from collections import Counter

from predictor.core.base.remembered import remembered
from predictor.core.blocks.experts import ExpertKernels, routed_tokens
from predictor.core.blocks.layer import LayerSettings
from predictor.core.blocks.layer import layer_rows as block_rows
from predictor.core.blocks.mixers import LayerKind, Mixer
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import traffic
from predictor.core.rows import Module, Row
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.transforms.compilation import fused
from predictor.core.transforms.expert_parallel import with_exchange
from predictor.core.transforms.graphs import in_graphs
from predictor.core.transforms.lora import AdapterSettings, with_adapters
from predictor.core.transforms.low_precision import in_low_precision, with_attention_casts
from predictor.core.transforms.quantized import with_quantized_base
from predictor.core.transforms.recomputation import every_second_product, modules, selected, until_last_saved, whole
from predictor.core.transforms.tensor_parallel import Sum, TensorParallel, sequence_copies, with_sums
from predictor.core.workload.accumulation import sums_in_products
from predictor.core.workload.attention_precision import attention_casts, core_kernel
from predictor.core.workload.expert_exchange import gathered_sums
from predictor.core.workload.low_precision import gathered_share, layer_precision
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.switches import Attention, Ffn
from predictor.core.workload.tasks import Part
from predictor.core.workload.transformer import ONE_RANK

_BLOCKS: dict[tuple[object, ...], list[Row]] = {}  # rows of blocks, shared by runs


def _block(run: TrainingRun, kind: LayerKind, call: LayerCall) -> list[Row]:
    """Return the rows of a layer's block."""
    meets_others = call.context_parallel_size > 1 or kind.has_experts
    layout = run.layout if meets_others else ONE_RANK
    experts = ExpertKernels(run.expert_dispatcher, run.fused_experts, run.gemm_recipe is not None)
    settings = LayerSettings(layout, core_kernel(run, kind), experts)
    key = run.model.layer_sizes, kind, call, settings
    return remembered(_BLOCKS, key, lambda: block_rows(run.model, kind, call, settings))


def _context_exchange(run: TrainingRun, kind: LayerKind, call: LayerCall) -> list[Row]:
    """Return what context-parallel ranks exchange of a token mixer beside attention, in either direction."""
    mixer = run.model.token_mixer(kind.mixer)
    if mixer is None or call.context_parallel_size == 1:
        return []
    group, per_width = run.layout.context_group(), call.tokens * call.element_bytes
    rows: list[Row] = []
    for width, times in Counter(mixer.exchanged(call)).items():
        part = Part.CONTEXT_PARALLEL
        rows += traffic("all_to_all", Module.MIXER, per_width * width, group, part, (times, times))
    return rows


def _adapter_settings(run: TrainingRun, kind: LayerKind, call: LayerCall) -> AdapterSettings:
    layout, experts = run.layout, run.model.experts
    group = layout.tensor_group()
    if experts is None or not kind.has_experts:
        return AdapterSettings(group, group, run.sequence_parallel, measured=run.model.measured_kernels)
    return AdapterSettings(
        group,
        layout.expert_tensor_group() if layout.is_folded else group,
        run.sequence_parallel,
        experts.num_experts // layout.expert_parallel_size,
        routed_tokens(experts, call, layout),
        experts.experts_per_token,
        run.model.measured_kernels,
    )


def _with_exchange(run: TrainingRun, call: LayerCall, rows: list[Row]) -> list[Row]:
    """Return rows with the exchange of tokens; a rank's first and last micro-batches have nothing beside it."""
    experts, alone = run.model.experts, 1.0
    assert experts is not None
    if run.overlap_expert_parallel:
        alone = min(1.0, run.layout.pipeline_parallel_size / run.num_micro_batches)
    return with_exchange(rows, experts, call, run.layout, run.expert_dispatcher, alone)


def _sums(run: TrainingRun, kind: LayerKind) -> list[Sum]:
    """Return a layer's sums over the tensor-parallel group: one per branch, token mixer and FFN.

    Forward, side by side, attention and FFN are summed once. Backward each column-parallel product sums the gradient of
    its own input. Experts have sums of routed tokens instead of the FFN's, and shared ones the FFN's. The latents of
    latent attention are narrower than its input; its down-projections run on a rank's own tokens, whole on each.
    Source: GPT-NeoX megatron/model/transformer.py (gpt_j_residual: one ``self.reduce``) and megatron/mpu/layers.py
    (ColumnParallelLinear: copy_to_model_parallel_region); Megatron-LM, core/transformer/multi_latent_attention.py
    (linear_q_down_proj, linear_kv_down_proj).
    """
    model, experts, branches = run.model, run.model.experts, kind.branches
    forward = 1 if model.parallel_residual else branches
    given = model.forward_all_reduces, model.backward_all_reduces
    counts = [own if asked is None else asked for own, asked in zip((forward, branches), given, strict=True)]
    mixer = model.token_mixer(kind.mixer)
    share = 1.0 if mixer is None else mixer.gathered_width(model.hidden_size) / model.hidden_size
    if not kind.has_experts or experts is None:
        each = counts[0] / branches, counts[1] / branches
        places = [Module.MIXER] if kind.mixer is not Mixer.NONE else []
        places += [Module.MLP] if kind.ffn is not Ffn.NONE else []
        return [Sum(place, each, share if place is Module.MIXER else 1.0) for place in places]
    width, routed = experts.token_width(model.hidden_size), gathered_sums(experts, run.layout, run.expert_dispatcher)
    folded = run.layout.expert_tensor_group() if run.layout.is_folded else None
    sums = [Sum(Module.MIXER, (float(counts[0] - 1), float(counts[1] - 1)), share)]
    if experts.shared_expert_ffn_hidden_size:
        sums.append(Sum(Module.SHARED_EXPERTS, (1.0, 1.0)))
    return [
        *sums,
        Sum(
            Module.EXPERTS,
            (routed, routed),
            width_share=width / model.hidden_size,
            overlaps=False,
            group=folded,
        ),
    ]


def _tensor_parallel(run: TrainingRun, kind: LayerKind) -> TensorParallel:
    return TensorParallel(
        group=run.layout.tensor_group(),
        sequence_parallel=run.sequence_parallel,
        gathered=gathered_share(run, kind),
        gathers_again=run.lora is None,
        overlaps=run.overlap_tensor_parallel,
        in_chunks=run.overlap_linear_traffic,
        by_compiler=run.overlap_linear_traffic and run.compiled,
        splits_backward=SCHEDULES[run.schedule].splits_backward,
        measured=run.model.measured_kernels,
    )


def kept_rows(run: TrainingRun, kind: LayerKind) -> list[Row]:
    """Return a layer's rows without recomputation and without traffic between tensor-parallel ranks."""
    call = run.layer_call(kind)
    rows = _block(run, kind, call) + _context_exchange(run, kind, call)
    precision = layer_precision(run, kind)
    if precision is not None:
        rows = in_low_precision(rows, call, precision)
    casts = attention_casts(run, kind, call)
    if casts is not None:
        rows = with_attention_casts(rows, call, casts)
    if run.lora is None and sums_in_products(run):
        rows = [row.accumulating() for row in rows]
    if run.lora is not None:
        rows = with_adapters(rows, run.lora, call, _adapter_settings(run, kind, call))
        if run.lora.quantized_base is not None:
            rows = with_quantized_base(rows, call, run.lora.quantized_base)
    return rows


def layer_rows(run: TrainingRun, kind: LayerKind, rows: list[Row] | None = None) -> list[Row]:
    """Return the rows of one layer of a kind with all its traffic, recomputed as the run says.

    Args:
        run: the run.
        kind: of the layer.
        rows: of ``kept_rows``, where they are at hand.
    """
    call = run.layer_call(kind)
    rows = kept_rows(run, kind) if rows is None else rows
    if run.compiled:
        rows = [fused(row) for row in rows]
    sums, tensor_parallel = _sums(run, kind), _tensor_parallel(run, kind)
    rows = with_sums(rows, call, sums, tensor_parallel)
    if run.copies_split_tokens:
        rows += sequence_copies(sums, call, tensor_parallel, layer_precision(run, kind) is not None)
    if kind.has_experts:
        rows = _with_exchange(run, call, rows)
    rows = _recomputed(run, kind, rows)
    return in_graphs(rows, run.graph_modules, kind.has_experts) if run.graph_modules else rows


def _recomputed(run: TrainingRun, kind: LayerKind, rows: list[Row]) -> list[Row]:
    """Return rows with the share of each that runs again before the backward pass."""
    if run.recompute is Recompute.NONE:
        return rows
    if run.recompute is Recompute.SELECTIVE:
        return selected(rows, modules(run), kind.has_experts)
    rows = whole(rows)
    ends_with_product = kind.ffn is Ffn.DENSE and not (run.model.hidden_dropout or run.model.post_norms)
    if (run.recompute is Recompute.PER_OP or run.recompute_stops_early) and not kind.has_experts:
        rows = until_last_saved(rows, ends_with_product)
    if run.recompute is Recompute.PER_OP:
        return every_second_product(rows, run.model.attention is Attention.FLASH)
    return rows
