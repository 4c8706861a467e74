"""Notes on a layout: groups that straddle NVLink domains or nodes although their ranks would fit inside."""

from __future__ import annotations

from predictor.core.base.words import counted
from predictor.core.workload.layout import Layout


def straddling_notes(layout: Layout) -> list[str]:
    """Return a note for each group that exchanges activations and whose traffic crosses the network."""
    kind = "nodes" if layout.gpus_per_domain is None else "NVLink domains"
    groups = {
        "Tensor-parallel": (layout.tensor_parallel_size, layout.tensor_group()),
        "Expert-parallel": (layout.expert_parallel_size, layout.expert_group()),
    }
    said = []
    for name, (size, group) in groups.items():
        if size > 1 and group.nodes > 1:
            fits = size <= layout.reach
            remedy = "; they would fit in another rank_order or size" if fits else ""
            said.append(
                f"{name} groups of {size} ranks straddle {group.nodes} {kind} with "
                f"{counted(layout.reach, 'GPU')} each, so their traffic crosses the network{remedy}."
            )
    return said
