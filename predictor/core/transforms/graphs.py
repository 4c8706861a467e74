"""CUDA graphs of some modules of a layer: the host no longer launches their kernels one by one.

Source: Megatron-LM --cuda-graph-scope; core/transformer/transformer_layer.py, _te_cuda_graph_capture: attention with
the norm before it; the router, with shared experts where they are; the preparation of the exchange of tokens.
"""

from __future__ import annotations

from predictor.core.rows import OF_FFN, Kind, Module, Pass, Row
from predictor.core.workload.run_choices import GraphModule
from predictor.core.workload.tasks import TRAFFIC

# Module calls and views of a layer that a graph of its attention replaces.
ATTENTION_OVERHEAD = 0.5
OF_EXPERTS = frozenset({GraphModule.MOE, GraphModule.MOE_ROUTER, GraphModule.MOE_PREPROCESS})


def _captured(modules: tuple[GraphModule, ...], has_experts: bool, row: Row) -> bool:
    """Return whether a graph of one of the modules holds a row."""
    if not (row.module in OF_FFN or row.part in TRAFFIC):
        return GraphModule.ATTENTION in modules
    if not has_experts:
        return GraphModule.MLP in modules
    if GraphModule.MOE in modules:
        return True
    if row.module is Module.ROUTER and row.kind is not Kind.TRAFFIC:
        return GraphModule.MOE_ROUTER in modules
    return row.module is Module.DISPATCH and row.part not in TRAFFIC and GraphModule.MOE_PREPROCESS in modules


def _launchless(one: Pass | None) -> Pass | None:
    return one and one._replace(launches=0.0)


def in_graphs(rows: list[Row], modules: tuple[GraphModule, ...], has_experts: bool) -> list[Row]:
    """Return rows without the launches that graphs of the modules replace."""
    return [
        row._replace(forward=_launchless(row.forward), backward=_launchless(row.backward))
        if _captured(modules, has_experts, row)
        else row
        for row in rows
    ]


def overhead_share(modules: tuple[GraphModule, ...]) -> float:
    """Return the share of a layer's module calls and views that the host still runs."""
    return ATTENTION_OVERHEAD if GraphModule.ATTENTION in modules else 1.0


def graph_launches(modules: tuple[GraphModule, ...], has_experts: bool) -> float:
    """Return the graphs that a pass through a layer launches: neighbouring modules share one."""
    of_ffn = OF_EXPERTS if has_experts else {GraphModule.MLP}
    return float((GraphModule.ATTENTION in modules) + bool(of_ffn & set(modules)))
