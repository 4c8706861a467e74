"""Activations that a layer keeps from its forward to its backward pass, tensor by tensor, in bytes.

Those of a GPT layer without biases in flash attention add up to Korthikanti et al. 2022, arXiv:2205.05198, sections 4.1
to 4.2: s·b·h·(10 + 24/t + 5·a·s/(h·t)), and s·b·h/t·(34 + 5·a·s/h) with sequence parallelism, with one difference: they
count a key-value pair per query head, and this counts what the architecture has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from predictor.workloads.attention import MASK_BYTES, segmented
from predictor.workloads.experts import routed_tokens
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.lora import Lora
from predictor.workloads.low_precision_memory import kept_added
from predictor.workloads.mixers.linear import Split
from predictor.workloads.mixers.token_mixer import KeptByMixer
from predictor.workloads.recompute import modules
from predictor.workloads.run import FP32_BYTES, Recompute, RecomputeModule, TrainingRun
from predictor.workloads.switches import Attention, Ffn, LayerKind, Normalization, QkNorm
from predictor.workloads.transformer import Transformer

OF_LATENTS = ("q_up_projection", "kv_up_projection")


class Kept(NamedTuple):
    """Bytes that one layer keeps per micro-batch.

    Attributes:
        inputs: what norms and residual sums read; half of it is the layer's own input.
        normed: outputs of norms, which the linear layers read.
        latents: of latent attention, before and behind their norms.
        qkv: queries, keys and values, or what another token mixer reads.
        scores: softmax's output, or one fp32 sum per row of flash attention.
        core: attention's output before its projection.
        up: the FFN's inner products, before its non-linearity.
        act: the non-linearity's outputs.
        routed_up, routed_act, routed: the same of routed experts, and tokens in the order of their experts.
        shared_up, shared_act: the same of shared experts.
        masks: of dropout.
        adapters: narrow activations of low-rank adapters.
    """

    inputs: float
    normed: float
    latents: float
    qkv: float
    scores: float
    core: float
    up: float
    act: float
    routed_up: float
    routed_act: float
    routed: float
    shared_up: float
    shared_act: float
    masks: float
    adapters: float = 0.0

    @property
    def total(self) -> float:
        """Return all of it."""
        return sum(self)


def _scores(model: Transformer, call: LayerCall) -> float:
    """Return the bytes that attention keeps between its projections, queries, keys, values and output aside.

    Softmax's output; with dropout its mask and its output as well. Flash attention keeps one fp32 sum per row instead.
    """
    call, times = segmented(call)
    rows = times * call.micro_batch_size * call.heads_per_rank * call.sequence_per_rank
    if model.attention is Attention.FLASH:
        return rows * float(FP32_BYTES)
    per_score = call.element_bytes
    if model.attention_dropout:
        per_score += MASK_BYTES + call.element_bytes
    return float(rows * call.sequence_per_rank * per_score)


def _inner(model: Transformer, tokens: float, width: int, element_bytes: int) -> tuple[float, float]:
    """Return the bytes of an FFN's inner products, and of its non-linearity's outputs.

    Unfused, SiLU's own output is kept for the product with the gate.
    """
    gated = model.activation.gated
    outputs = 2 if gated and not model.fused_side_kernels else 1
    size_bytes = tokens * width * element_bytes
    return size_bytes * (2 if gated else 1), size_bytes * outputs


def _experts(run: TrainingRun, call: LayerCall) -> dict[str, float]:
    """Return the bytes that experts keep: tokens in the order of their experts, inner products, scores.

    Their outputs are not kept: router probabilities scale what enters the second product.

    Source: Megatron-LM, megatron/core/transformer/moe/experts.py, weighted_bias_swiglu_impl.
    """
    model, experts = run.model, run.model.experts
    assert experts is not None
    tp, tokens = call.tensor_parallel_size, routed_tokens(experts, call, run.layout)
    up, act = _inner(model, tokens, experts.expert_ffn_hidden_size // run.layout.expert_split, call.element_bytes)
    shared = experts.shared_expert_ffn_hidden_size // tp
    shared_up, shared_act = _inner(model, call.tokens, shared, call.element_bytes)
    scores = call.tokens * experts.num_experts * FP32_BYTES
    moved = tokens * experts.token_width(call.hidden_size) * call.element_bytes
    moved += call.unsplit_tokens * experts.latent_size * call.element_bytes  # the sums that are projected back
    return {
        "up": 0.0,
        "act": 0.0,
        "routed_up": up,
        "routed_act": act,
        "routed": moved + scores,
        "shared_up": shared_up,
        "shared_act": shared_act,
    }


def _dense(run: TrainingRun, call: LayerCall) -> dict[str, float]:
    up, act = _inner(run.model, call.tokens, call.ffn_width, call.element_bytes)
    experts = dict.fromkeys(("routed_up", "routed_act", "routed", "shared_up", "shared_act"), 0.0)
    return {"up": up, "act": act, **experts}


def _ffn(run: TrainingRun, kind: LayerKind, call: LayerCall) -> dict[str, float]:
    if kind.has_experts:
        return _experts(run, call)
    return _dense(run, call) if kind.ffn is Ffn.DENSE else _dense(run, replace(call, ffn_hidden_size=0))


def _mixer(model: Transformer, kind: LayerKind, call: LayerCall) -> KeptByMixer:
    """Return what a token mixer keeps; plain attention: queries, keys and values, also normed, its output and gate."""
    other = model.token_mixer(kind.mixer)
    if other is not None:
        return other.kept(call)
    if not kind.mixer.is_attention:
        return KeptByMixer(0.0, 0.0, 0.0)
    heads = call.qkv_width * (1 if model.qk_norm is QkNorm.NONE else 2)
    if call.shared_key_values:  # values are kept beside the keys that they were made with
        heads += call.key_value_heads_per_rank * call.head_dim
    outputs = call.attention_width * (2 if call.output_gate else 1)
    if (beside := model.beside(kind.mixer)) is not None:
        own = beside.kept(call)
        per_token = call.tokens * call.element_bytes
        return KeptByMixer(0.0, own.qkv + per_token * heads, own.core + per_token * outputs)
    return KeptByMixer(
        0.0, float(call.tokens * heads * call.element_bytes), float(call.tokens * outputs * call.element_bytes)
    )


def kept_without_recomputation(run: TrainingRun, kind: LayerKind) -> Kept:
    """Return what one layer of a kind keeps where nothing is recomputed and no compiler decides."""
    model, call = run.model, run.layer_call(kind)
    hidden = float(call.unsplit_tokens * call.hidden_size)
    norms = (1 if model.parallel_residual else kind.branches) + (kind.branches if model.post_norms else 0)
    products = norms if model.normalization is Normalization.RMS_NORM else 0  # unfused, the product with 1/rms as well
    masks = (kind.branches - kind.has_experts) if model.hidden_dropout else 0
    mixer = _mixer(model, kind, call)
    kept = Kept(
        inputs=norms * hidden * call.element_bytes,
        normed=(kind.branches + products) * hidden * call.element_bytes,
        latents=mixer.latents,
        qkv=mixer.qkv,
        scores=_scores(model, call) if kind.mixer.is_attention else 0.0,
        core=mixer.core,
        masks=masks * hidden * MASK_BYTES,
        **_ffn(run, kind, call),
    )
    return kept if run.lora is None else _with_adapters(run, run.lora, kind, call, kept)


def _with_adapters(run: TrainingRun, lora: Lora, kind: LayerKind, call: LayerCall, kept: Kept) -> Kept:
    """Return what a layer keeps whose weights are frozen: inputs of products only where an adapter reads them.

    The FFN's non-linearity needs its own input all the same, and unfused, a gate's product that of the gate. What an
    adapter reads of a column-parallel layer's input is kept gathered. Source: Megatron-Bridge, src/megatron/bridge/
    peft/utils.py (sequence_parallel_input_regather: False).
    """
    model, element = run.model, call.element_bytes
    linears, of_experts = lora.linears(model, kind), lora.expert_linears(model, kind)
    mixers = [linear for linear in linears if not linear.name.startswith("ffn_")]
    names = {linear.name for linear in linears}
    expert_names = {linear.name for linear in of_experts}
    readers = [linear for linear in linears if linear.inputs == call.hidden_size and linear.split is not Split.ROW]
    places = {linear.name.startswith("ffn_"): linear.split is Split.WHOLE for linear in readers}
    normed = sum(call.unsplit_tokens if is_whole else call.tokens for is_whole in places.values())
    unfused = 0.5 if model.activation.gated and not model.fused_side_kernels else 0.0
    down, expert_down = (1.0 if "ffn_down" in each else unfused for each in (names, expert_names))
    rows = 0.0
    if kind.has_experts and model.experts is not None:
        rows = routed_tokens(model.experts, call, run.layout)
    moved = rows * (0 if model.experts is None else model.experts.token_width(call.hidden_size)) * element
    outputs = [linear for linear in model.mixer_linears(kind.mixer) if linear.split is Split.ROW]
    unread = sum(linear.on_rank(call.tensor_parallel_size)[0] for linear in outputs if linear not in mixers)
    latents = sum(
        linear.inputs
        for linear in model.mixer_linears(kind.mixer)
        if linear.name in OF_LATENTS and linear.inputs != call.hidden_size and linear not in mixers
    )
    narrow = len(linears) * call.tokens * lora.rank + len(of_experts) * rows * lora.expert_rank(model)
    return kept._replace(
        normed=float(normed * call.hidden_size * element),
        latents=kept.latents - call.unsplit_tokens * latents * element,
        core=kept.core - (0 if kind.mixer.is_attention else call.tokens * unread * element),
        act=kept.act * down,
        shared_act=kept.shared_act * down,
        routed_act=kept.routed_act * expert_down,
        routed=kept.routed - (0.0 if "ffn_up" in expert_names else moved),
        adapters=float(narrow * element),
    )


def checkpoint_bytes(run: TrainingRun) -> float:
    """Return the bytes of a layer's input, which full recomputation keeps."""
    call = run.call()
    split = run.partition_activations and not run.sequence_parallel
    tokens = call.tokens / call.tensor_parallel_size if split else call.unsplit_tokens
    return float(tokens * call.hidden_size * call.element_bytes)


def _by_compiler(kept: Kept) -> Kept:
    """Return what a compiled layer keeps: element-wise results that one kernel computes again are dropped.

    Source: PyTorch torch/_functorch/partitioners.py, min_cut_rematerialization_partition.
    """
    again = ("normed", "act", "routed_act", "shared_act", "masks")
    return kept._replace(**dict.fromkeys(again, 0.0))


# What each module of Megatron-LM's selective recomputation drops. Source: Megatron-LM,
# megatron/core/transformer/transformer_config.py, recompute_modules; CheckpointWithoutOutput for norms and activations.
DROPPED = {
    RecomputeModule.CORE_ATTENTION: ("scores",),
    RecomputeModule.MLP_ACTIVATION: ("act",),
    RecomputeModule.MOE_ACTIVATION: ("routed_act",),
    RecomputeModule.NORMS: ("normed",),
    RecomputeModule.MLA_UP_PROJECTION: ("qkv",),
    RecomputeModule.MLP: ("up", "act"),
    RecomputeModule.MOE: ("routed_up", "routed_act", "routed"),
    RecomputeModule.SHARED_EXPERTS: ("shared_up", "shared_act"),
}


def _in_recipe(run: TrainingRun, kind: LayerKind, kept: Kept) -> Kept:
    """Return what a layer keeps where its products, or attention, run in few bits."""
    added = kept_added(run, kind, run.layer_call(kind))
    return kept._replace(**{name: getattr(kept, name) + size_bytes for name, size_bytes in added.items()})


def _selective(run: TrainingRun, kept: Kept) -> Kept:
    return kept._replace(**{name: 0.0 for module in modules(run) for name in DROPPED[module]})


def _every_second_product(run: TrainingRun, kind: LayerKind, kept: Kept) -> float:
    """Return the bytes that torchtitan's per-op selective checkpointing keeps.

    The layer's input, attention's output, and of the layer's matrix products (q, k, v, output, then the FFN's) every
    second, from the first on. Compiled, the last product's output is not kept: nothing backward reads it.

    Source: torchtitan, torchtitan/models/llama3/infra/parallelize.py, _apply_ac_to_transformer_block (op).
    """
    call = run.layer_call(kind)
    queries = call.tokens * call.attention_width * call.element_bytes
    values = call.tokens * call.key_value_heads_per_rank * call.head_dim * call.element_bytes
    last = 0.0 if run.compiled else call.unsplit_tokens * call.hidden_size * call.element_bytes
    gated = 0.5 if run.model.activation.gated else 1.0
    inner = (kept.up + kept.routed_up + kept.shared_up) * gated
    return kept.inputs / 2 + queries + values + kept.latents + kept.core + kept.scores + inner + kept.routed + last


def kept_of_layer(run: TrainingRun, kind: LayerKind) -> Kept:
    """Return what one layer of a kind keeps of what selective recomputation leaves, in its recipe's precision."""
    kept = _in_recipe(run, kind, kept_without_recomputation(run, kind))
    return _selective(run, kept) if run.recompute is Recompute.SELECTIVE else kept


def kept_and_recomputed(run: TrainingRun, kind: LayerKind) -> tuple[float, float]:
    """Return the bytes that a layer keeps, and what it holds besides while it is computed again.

    Args:
        run: the run; ``recompute`` applies to this layer, whichever others it leaves out (``recompute.of_layer``).
        kind: of the layer.
    """
    kept = kept_without_recomputation(run, kind)
    if run.compiled:
        kept = _by_compiler(kept)
    kept = _in_recipe(run, kind, kept)
    whole = kept.total
    if run.recompute is Recompute.NONE:
        return whole, 0.0
    if run.recompute is Recompute.FULL:
        return checkpoint_bytes(run) / run.recompute_group_layers, whole * run.recompute_group_layers
    per_op = run.recompute is Recompute.PER_OP
    left = _every_second_product(run, kind, kept) if per_op else _selective(run, kept).total
    return left, max(0.0, whole - left)
