"""Activation recomputation: which rows of a layer run again before its backward pass, and which tensors are not kept.

Four choices of a layer: nothing, modules (Megatron-LM's selective recomputation), every second matrix product
(torchtitan's selective activation checkpointing per operation), and all of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from predictor.core.rows import OF_FFN, Kind, Module, Role, Row, Split
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute, RecomputeModule
from predictor.core.workload.tasks import TRAFFIC

# Tensors that each module of Megatron-LM's selective recomputation drops, and the modules whose they are; empty: any.
# Source: Megatron-LM, megatron/core/transformer/transformer_config.py, recompute_modules; CheckpointWithoutOutput for
# norms and activations.
ROUTED = frozenset({Module.EXPERTS, Module.DISPATCH, Module.MLP})
DROPPED: dict[RecomputeModule, tuple[frozenset[Role], frozenset[Module]]] = {
    RecomputeModule.CORE_ATTENTION: (frozenset({Role.SCORES}), frozenset()),
    RecomputeModule.MLP_ACTIVATION: (frozenset({Role.ACTIVATED}), frozenset({Module.MLP})),
    RecomputeModule.MOE_ACTIVATION: (frozenset({Role.ACTIVATED}), frozenset({Module.EXPERTS})),
    RecomputeModule.NORMS: (frozenset({Role.NORMED}), frozenset()),
    RecomputeModule.MLA_UP_PROJECTION: (frozenset({Role.QKV}), frozenset()),
    RecomputeModule.MLP: (frozenset({Role.INNER, Role.ACTIVATED}), frozenset({Module.MLP})),
    RecomputeModule.MOE: (frozenset({Role.INNER, Role.ACTIVATED, Role.ROUTED}), ROUTED),
    RecomputeModule.SHARED_EXPERTS: (frozenset({Role.INNER, Role.ACTIVATED}), frozenset({Module.SHARED_EXPERTS})),
}


def of_layer(run: TrainingRun, is_recomputed: bool) -> TrainingRun:
    """Return a run whose every layer is recomputed, or keeps all its activations."""
    all_alike = run.recompute_num_layers is None and run.recompute_every == 1
    as_asked = run.recompute is not Recompute.NONE if is_recomputed else not run.recompute_modules
    if all_alike and as_asked and (is_recomputed or run.recompute is Recompute.NONE):
        return run
    if is_recomputed:
        return replace(run, recompute_num_layers=None, recompute_every=1)
    return replace(run, recompute=Recompute.NONE, recompute_num_layers=None, recompute_every=1, recompute_modules=())


def recomputed_layers(run: TrainingRun, layers: int) -> int:
    """Return how many of a chunk's layers are recomputed.

    Source: Megatron-LM core/transformer/transformer_block.py, recompute_method "block": the first recompute_num_layers
    of each chunk; torchtitan distributed/activation_checkpoint.py: every layer whose number is a multiple.
    """
    if run.recompute is Recompute.NONE:
        return 0
    if run.recompute_num_layers is not None:
        return min(layers, run.recompute_num_layers)
    return layers // run.recompute_every


def modules(run: TrainingRun) -> tuple[RecomputeModule, ...]:
    """Return the modules that selective recomputation covers: the core of attention unless others are named."""
    return run.recompute_modules or (RecomputeModule.CORE_ATTENTION,)


def _in_module(module: RecomputeModule, row: Row, has_experts: bool) -> bool:
    """Return whether a module of selective recomputation runs a row.

    Source: Megatron-LM megatron/training/arguments.py, --recompute-modules; core/transformer/transformer_layer.py and
    moe/moe_layer.py.
    """
    match module:
        case RecomputeModule.CORE_ATTENTION:
            return row.module is Module.CORE
        case RecomputeModule.MLA_UP_PROJECTION:
            return row.module is Module.UP_PROJECTION and row.part not in TRAFFIC
        case RecomputeModule.NORMS:
            return row.kind is Kind.NORM
        case RecomputeModule.MLP_ACTIVATION | RecomputeModule.MOE_ACTIVATION:
            asked = module is RecomputeModule.MOE_ACTIVATION
            return row.kind is Kind.ACTIVATION and has_experts == asked
        case RecomputeModule.SHARED_EXPERTS:
            return row.module is Module.SHARED_EXPERTS and row.part not in TRAFFIC
        case RecomputeModule.MLP | RecomputeModule.MOE:
            asked = module is RecomputeModule.MOE
            added_outside = row.kind is Kind.BIAS and row.module is Module.MLP
            return row.module in OF_FFN and not added_outside and has_experts == asked


def selected(rows: list[Row], names: Collection[RecomputeModule], has_experts: bool) -> list[Row]:
    """Return rows of which the named modules run again; traffic beside other rows does not, but around the core."""
    recomputed = []
    for row in rows:
        runs = row.behind is None or row.module is Module.CORE
        again = runs and any(_in_module(name, row, has_experts) for name in names)
        for name in names:
            roles, places = DROPPED[name]
            is_elsewhere = bool(places) and row.module not in places
            if not is_elsewhere and (has_experts or name is not RecomputeModule.MOE):
                row = row.dropping(roles)
        recomputed.append(row.recomputed(1.0) if again else row)
    return recomputed


def whole(rows: list[Row]) -> list[Row]:
    """Return rows that all run again."""
    return [row.recomputed(1.0) for row in rows]


def until_last_saved(rows: list[Row], ends_with_product: bool) -> list[Row]:
    """Return rows without a second run of those behind the last activation that the backward pass needs.

    That is the input of the last product: the product, the sum of its outputs over tensor-parallel ranks, its bias and
    the addition to the residual stream are left out. With dropout or a norm behind the product, or where the layer has
    no FFN, only the addition is. Experts are computed again whole.

    Source: PyTorch torch/utils/checkpoint.py, set_checkpoint_early_stop.
    """
    last = max(number for number, row in enumerate(rows) if row.kind is Kind.ADDITION)
    left_out = {last}
    if ends_with_product:
        left_out |= {
            number
            for number, row in enumerate(rows)
            if row.module is Module.MLP
            and (row.kind in (Kind.SUM, Kind.BIAS) or (row.kind is Kind.PRODUCT and row.split is Split.ROW))
        }
    return [row.recomputed(0.0) if number in left_out else row for number, row in enumerate(rows)]


def every_second_product(rows: list[Row], saves_attention: bool) -> list[Row]:
    """Return rows of which every second product runs again, and everything element-wise.

    A Llama layer multiplies by the weights of queries, keys, values, attention's output, gate, up and down, in this
    order: those of keys, of attention's output and of the FFN's up are computed again. Gathers before column-parallel
    products run again, scatters do not. Experts are grouped products, which are not among the saved operations.

    Source: torchtitan distributed/activation_checkpoint.py, _op_sac_save_list and _apply_op_sac ("every second mm").

    Args:
        rows: of the layer, all of which run again but those behind the last saved activation.
        saves_attention: its core is one kernel, whose output is saved.
    """
    recomputed, number = [], 0
    for row in rows:
        share = row.again
        if row.behind is not None or row.kind is Kind.SUM or (saves_attention and row.module is Module.CORE):
            share = 0.0
        elif row.kind is Kind.PRODUCT and row.module is not Module.EXPERTS and row.matrix is not None:
            odd = [part for place, part in enumerate(row.parts) if (number + place) % 2]
            share = min(share, sum(odd))
            number += len(row.parts)
        recomputed.append(row.recomputed(share))
    return recomputed
