"""One layer: token mixer, then FFN or experts, each between a norm and an addition to the residual stream."""

from __future__ import annotations

from typing import NamedTuple

from predictor.core.blocks.attention import attention, extras
from predictor.core.blocks.core import AS_MEASURED, CORE_OPERATORS, CoreKernel, core_names, core_rows
from predictor.core.blocks.experts import ExpertKernels, experts_rows
from predictor.core.blocks.ffn import ffn
from predictor.core.blocks.mixers import LayerKind, Mixer
from predictor.core.blocks.token_mixer import Around, Kernels
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import named, stream
from predictor.core.rows import MASK_BYTES, Kept, Kind, Module, Reads, Role, Row, Split, dropout_bytes
from predictor.core.workload.architecture import Architecture
from predictor.core.workload.layout import Layout
from predictor.core.workload.switches import Ffn, Normalization
from predictor.core.workload.tasks import Part

# What operators of a list (``layer_operators``) are in a layer; any other is the mixer's.
LISTED = {
    "qkv_projection": (Module.MIXER, Kind.PRODUCT, Split.COLUMN),
    "attention_output": (Module.MIXER, Kind.PRODUCT, Split.ROW),
    "ffn_up": (Module.MLP, Kind.PRODUCT, Split.COLUMN),
    "ffn_down": (Module.MLP, Kind.PRODUCT, Split.ROW),
    "gelu": (Module.MLP, Kind.ACTIVATION, None),
    "swiglu": (Module.MLP, Kind.ACTIVATION, None),
    "residual_add": (Module.RESIDUAL, Kind.ADDITION, None),
    "rms_norm": (Module.RESIDUAL, Kind.NORM, None),
    "layer_norm": (Module.RESIDUAL, Kind.NORM, None),
}


class LayerSettings(NamedTuple):
    """Layout and software of a layer's rows.

    Attributes:
        layout: of the ranks.
        core: kernel of attention.
        experts: software of experts.
    """

    layout: Layout
    core: CoreKernel = AS_MEASURED
    experts: ExpertKernels = ExpertKernels()


def _around_core(model: Architecture, kind: LayerKind, call: LayerCall) -> Around:
    """Return a token mixer before and behind the core of attention."""
    other = model.token_mixer(kind.mixer)
    kernels = Kernels(model.norm_operator, model.norm_width, model.fused_rope)
    if other is not None:
        around = other.rows(call, kernels, model.biases.of_attention_output)
    elif kind.mixer.is_attention:
        around = attention(model, kind, call)
    else:
        return Around([], [])
    if kind.mixer.is_attention:
        around = Around(around.before, around.behind + extras(model, call))
    if (beside := model.parallel_mixer(kind.mixer)) is not None:
        around = Around(around.before, around.behind + beside.rows(call, kernels, biases=False).before)
    return around


def _with_multiplications(model: Architecture, kind: LayerKind, call: LayerCall, core: list[Row]) -> list[Row]:
    """Return attention's core with its multiplications of a token: all keys count, masked or not."""
    keys, latent = model.keys_of(kind.mixer), model.latent_of(kind.mixer)
    if latent is not None:
        count = latent.core_multiplications(model.query_heads(kind.mixer), keys)
    else:
        count = 2.0 * keys * call.num_attention_heads * call.head_dim * (2 if model.differential_attention else 1)
    return [core[0]._replace(multiplications=count), *core[1:]] if core else core


def _mixer(
    model: Architecture, kind: LayerKind, call: LayerCall, settings: LayerSettings, names: tuple[str, ...]
) -> list[Row]:
    """Return a layer's token mixer; ``names``: operators of attention's core."""
    around = _around_core(model, kind, call)
    if not kind.mixer.is_attention:
        return around.before + around.behind
    latent = model.latent_of(kind.mixer)
    indexer = []
    # A layer that shares the choice of an earlier one runs no indexer.
    if latent is not None and latent.indexer is not None and kind.mixer is not Mixer.SHARED_INDEX:
        width, keys = latent.q_lora_rank or call.hidden_size, model.keys_of(kind.mixer)
        indexer = latent.indexer.rows(call, width, keys)
    core = core_rows(model, names, call, settings.core, settings.layout)
    return around.before + indexer + _with_multiplications(model, kind, call, core) + around.behind


def _norm(model: Architecture, call: LayerCall, reads_input: bool) -> Row:
    """Return a norm over the residual stream; ``reads_input``: no other norm keeps the same input."""
    size_bytes = float(call.unsplit_tokens * call.hidden_size * call.element_bytes)
    kept = [Kept(Role.INPUT, size_bytes)] if reads_input else []
    kept.append(Kept(Role.NORMED, size_bytes))
    if model.normalization is Normalization.RMS_NORM and reads_input:  # unfused, the product with 1/rms as well
        kept.append(Kept(Role.NORMED, size_bytes))
    weights = model.norm_width * call.hidden_size
    return named(model.norm_operator, Module.RESIDUAL, call, Kind.NORM, weights, tuple(kept))


def _post_norm(model: Architecture, call: LayerCall) -> Row:
    """Return a norm of a branch's output, which only its input is kept of."""
    row = _norm(model, call, reads_input=True)
    inputs, _, *products = row.keeps
    return row._replace(keeps=(inputs, *products))


def _branch(model: Architecture, call: LayerCall, rows: list[Row], norm: Row, bias_of: Module | None) -> list[Row]:
    """Return a residual branch: its norms, its rows, the bias behind its sum over ranks, the addition."""
    behind = [_post_norm(model, call)] if model.post_norms else []
    if (
        bias_of is not None and not model.fused_side_kernels
    ):  # added behind the sum over ranks; others are added by products
        size_bytes = 2 * call.unsplit_tokens * call.hidden_size * call.element_bytes
        behind.insert(0, stream("bias_additions", bias_of, call, (size_bytes, 0), (1, 0), Kind.BIAS))
    addition = named("residual_add", Module.RESIDUAL, call, Kind.ADDITION)
    return [norm, *rows, *behind, addition]


def _dropout(model: Architecture, kind: LayerKind, call: LayerCall) -> list[Row]:
    """Return the dropout of both branches; fused, forward only its mask is written more."""
    if not model.hidden_dropout:
        return []
    elements = kind.branches * call.unsplit_tokens * call.hidden_size
    own = dropout_bytes(call)
    forward, launches = (MASK_BYTES, 0) if model.fused_side_kernels else (own, kind.branches)
    masks = (kind.branches - kind.has_experts) * call.unsplit_tokens * call.hidden_size * MASK_BYTES
    return [
        stream(
            "hidden_dropout",
            Module.RESIDUAL,
            call,
            (elements * forward, elements * own),
            (launches, kind.branches),
            keeps=(Kept(Role.MASK, float(masks)),),
        )
    ]


def _bias_gradients(model: Architecture, kind: LayerKind, call: LayerCall) -> list[Row]:
    """Return the sums over tokens that the gradients of biases are: two kernels each, one reads all rows."""
    split = whole = launches = 0
    if kind.mixer.is_attention and model.biases.of_attention_output:
        split, whole, launches = call.qkv_width, call.hidden_size, 4
    if kind.ffn is not Ffn.NONE and model.biases.of_ffn:
        split, whole, launches = split + call.ffn_width, whole + call.hidden_size, launches + 4
    if not launches:
        return []
    size_bytes = (call.tokens * split + call.unsplit_tokens * whole) * call.element_bytes
    kind_of_row = Kind.BIAS_GRADIENT
    return [stream("bias_gradients", Module.RESIDUAL, call, (0, size_bytes), (0, launches), kind_of_row)]


def _listed(names: tuple[str, ...], rows: list[Row], call: LayerCall) -> list[Row]:
    """Return the operators of a list in place of a layer's own; weights and kept tensors are the layer's."""
    own = [
        row.without_passes() if row.part is Part.OPERATORS and row.module is not Module.CORE else row for row in rows
    ]
    own = [row.without_passes() if row.kind is Kind.ACTIVATION else row for row in own]
    listed = []
    for name in names:
        if name not in CORE_OPERATORS:
            module, kind, split = LISTED.get(name, (Module.MIXER, Kind.OTHER, None))
            listed.append(named(name, module, call, kind)._replace(split=split))
    return listed + own


def layer_rows(model: Architecture, kind: LayerKind, call: LayerCall, settings: LayerSettings) -> list[Row]:
    """Return the rows of a layer in the order of its forward pass.

    Args:
        model: its sizes and switches.
        kind: of the layer.
        call: sizes on one rank.
        settings: layout and software.
    """
    listed = model.layer_operators
    rows: list[Row] = []
    if kind.mixer is not Mixer.NONE:
        names = core_names(model, kind) if kind.mixer.is_attention else ()
        if listed is not None:
            names = tuple(name for name in listed if name in CORE_OPERATORS)
        has_bias = kind.mixer.is_attention and model.biases.of_attention_output
        mixer = _mixer(model, kind, call, settings, names)
        norm = _norm(model, call, reads_input=True)
        rows += _branch(model, call, mixer, norm, Module.MIXER if has_bias else None)
    if kind.ffn is not Ffn.NONE:
        if kind.has_experts:
            branch = experts_rows(model, call, settings.layout, settings.experts)
        else:
            reads = Reads(Role.NORMED, call.unsplit_tokens * call.hidden_size)
            branch = ffn(model, Module.MLP, call, call.ffn_width, reads)
        side_by_side = bool(rows) and model.parallel_residual
        norm = _norm(model, call, reads_input=not side_by_side)
        if rows and model.shared_input_norm:
            norm = norm._replace(forward=None, backward=None, weights=0)
        bias_of = Module.RESIDUAL if kind.has_experts else Module.MLP
        rows += _branch(model, call, branch, norm, bias_of if model.biases.of_ffn else None)
    rows += _dropout(model, kind, call)
    if model.per_layer_inputs is not None:
        rows += model.per_layer_inputs.rows(call, model.norm_operator, model.norm_width * call.hidden_size)
    if (others := model.other_parameters // model.num_layers) and rows:
        rows[0] = rows[0]._replace(weights=rows[0].weights + others)
    rows += _bias_gradients(model, kind, call)
    return rows if listed is None else _listed(listed, rows, call)
