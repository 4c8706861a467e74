"""Compilation: element-wise kernels of a layer are fused into their neighbours, and those of the loss.

torch.compile traces a layer into one graph; matrix products, attention and collectives stay calls of libraries, and
what lies between two of them becomes one generated kernel: a norm with the addition before it, the rotation of queries
and keys, the FFN's activation with its product, the loss with the widening of its logits.

Source: PyTorch torch/_inductor/scheduler.py (fusion of point-wise kernels into reductions); torchtitan
models/llama3/infra/parallelize.py, apply_compile (one graph per layer), components/loss.py (the loss is compiled too).
"""

from __future__ import annotations

from dataclasses import replace

from predictor.core.rows import Kind, Role, Row
from predictor.core.workload.transformer import Normalization, Transformer

# Of an addition's three passes over an activation, those that are left where a norm of the same layer is fused with it.
# Forward the norm reads the sum anyway, and the second addition meets no norm before the layer ends; backward both
# additions only add a read to the norm's kernel.
ADDITIONS_LEFT = ((2.0 / 3.0 + 1.0) / 2.0, 1.0 / 3.0)
# Element-wise results that one kernel computes again. Source: PyTorch torch/_functorch/partitioners.py,
# min_cut_rematerialization_partition.
COMPUTED_AGAIN = frozenset({Role.NORMED, Role.ACTIVATED, Role.MASK})


def fused(row: Row) -> Row:
    """Return a row of a compiled layer: additions run in norms' kernels, layouts are not copied."""
    row = row.dropping(COMPUTED_AGAIN)
    if row.kind is Kind.LAYOUT_COPY:
        return row.without_passes()
    if row.kind is not Kind.ADDITION or row.forward is None or row.backward is None:
        return row
    forward, backward = row.forward, row.backward
    return row._replace(
        forward=forward._replace(times=forward.times * ADDITIONS_LEFT[0], launches=forward.launches / 2),
        backward=backward._replace(times=backward.times * ADDITIONS_LEFT[1], launches=0.0),
    )


def compiled_model(model: Transformer) -> Transformer:
    """Return a model whose element-wise kernels are fused; a list of operators stays as it is."""
    if model.layer_operators is not None:
        return model
    rms = model.normalization is Normalization.RMS_NORM
    norm = Normalization.FUSED_RMS_NORM if rms else model.normalization
    return replace(model, fused_side_kernels=True, fused_rope=True, normalization=norm)
