"""Activations that a layer keeps from its forward to its backward pass, in bytes.

Those of a GPT layer without biases in flash attention add up to Korthikanti et al. 2022, arXiv:2205.05198, sections 4.1
to 4.2: s·b·h·(10 + 24/t + 5·a·s/(h·t)), and s·b·h/t·(34 + 5·a·s/h) with sequence parallelism, with one difference: they
count a key-value pair per query head, and this counts what the architecture has.
"""

from __future__ import annotations

from predictor.core.blocks.mixers import LayerKind
from predictor.core.folds import KeptBytes, kept_bytes
from predictor.core.rows import Role, Row
from predictor.core.transforms.compilation import fused
from predictor.core.transforms.recomputation import modules, selected
from predictor.core.workload.layer_table import kept_rows
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute


def checkpoint_bytes(run: TrainingRun) -> float:
    """Return the bytes of a layer's input, which full recomputation keeps."""
    call = run.call()
    split = run.partition_activations and not run.sequence_parallel
    tokens = call.tokens / call.tensor_parallel_size if split else call.unsplit_tokens
    return float(tokens * call.hidden_size * call.element_bytes)


def _every_second_product(run: TrainingRun, kind: LayerKind, kept: KeptBytes) -> float:
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
    inner = kept.of(Role.INNER) * gated
    whole = kept.of(Role.LATENT, Role.CORE, Role.SCORES, Role.ROUTED)
    return kept.of(Role.INPUT) / 2 + queries + values + whole + inner + last


def kept_of_layer(run: TrainingRun, kind: LayerKind) -> KeptBytes:
    """Return what one layer of a kind keeps of what selective recomputation leaves, in its recipe's precision."""
    rows = kept_rows(run, kind)
    if run.recompute is Recompute.SELECTIVE:
        rows = selected(rows, modules(run), kind.has_experts)
    return kept_bytes(rows)


def kept_and_recomputed(run: TrainingRun, kind: LayerKind, rows: list[Row] | None = None) -> tuple[float, float]:
    """Return the bytes that a layer keeps, and what it holds besides while it is computed again.

    Args:
        run: the run; ``recompute`` applies to this layer, whichever others it leaves out (``of_layer``).
        kind: of the layer.
        rows: of the layer before recomputation, where they are at hand.
    """
    rows = kept_rows(run, kind) if rows is None else rows
    if run.compiled:
        rows = [fused(row) for row in rows]
    kept = kept_bytes(rows)
    if run.recompute is Recompute.NONE:
        return kept.total, 0.0
    if run.recompute is Recompute.FULL:
        return checkpoint_bytes(run) / run.recompute_group_layers, kept.total * run.recompute_group_layers
    if run.recompute is Recompute.PER_OP:
        left = _every_second_product(run, kind, kept)
    else:
        left = kept_bytes(selected(rows, modules(run), kind.has_experts)).total
    return left, max(0.0, kept.total - left)
