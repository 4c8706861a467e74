"""Compilation: element-wise kernels of a layer are fused into their neighbours.

torch.compile traces a layer into one graph; matrix products, attention and collectives stay calls of libraries, and
what lies between two of them becomes one generated kernel: a norm with the addition before it, the rotation of queries
and keys, the FFN's activation with its product.

Source: PyTorch torch/_inductor/scheduler.py (fusion of point-wise kernels into reductions); torchtitan
models/llama3/infra/parallelize.py, apply_compile (one graph per layer).
"""

from __future__ import annotations

from predictor.core.rows import Kind, Role, Row

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
