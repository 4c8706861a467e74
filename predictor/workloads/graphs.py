"""Which kernels of a layer CUDA graphs launch where they hold only some of its modules.

Source: Megatron-LM --cuda-graph-scope; core/transformer/transformer_layer.py, _te_cuda_graph_capture: attention with
the norm before it; the router, with shared experts where they are; the preparation of the exchange of tokens.
"""

from __future__ import annotations

from predictor.workloads.run import GraphModule, TrainingRun
from predictor.workloads.tasks import TRAFFIC, Task
from predictor.workloads.transformer import LayerKind

ROUTER = frozenset({"router_projection", "router"})
PREPARATION = frozenset({"token_permutation"})
# Module calls and views of a layer that a graph of its attention replaces.
ATTENTION_OVERHEAD = 0.5


def _captured(modules: tuple[GraphModule, ...], kind: LayerKind, task: Task) -> bool:
    """Return whether a graph of one of the modules holds a task."""
    if not (task.of_ffn or task.part in TRAFFIC):
        return GraphModule.ATTENTION in modules
    if not kind.has_experts:
        return GraphModule.MLP in modules
    if GraphModule.MOE in modules:
        return True
    if task.name in ROUTER:
        return GraphModule.MOE_ROUTER in modules
    return task.name in PREPARATION and GraphModule.MOE_PREPROCESS in modules


def overhead_share(run: TrainingRun) -> float:
    """Return the share of a layer's module calls and views that the host still runs."""
    return ATTENTION_OVERHEAD if GraphModule.ATTENTION in run.graph_modules else 1.0


def launched(run: TrainingRun, kind: LayerKind, task: Task) -> float:
    """Return the launches of a task that the host issues one by one."""
    return 0.0 if run.graph_modules and _captured(run.graph_modules, kind, task) else task.launches


def graph_launches(run: TrainingRun, kind: LayerKind) -> float:
    """Return the graphs that a pass through a layer launches: neighbouring modules share one."""
    modules = run.graph_modules
    if not modules:
        return 0.0
    of_ffn = (
        {GraphModule.MOE, GraphModule.MOE_ROUTER, GraphModule.MOE_PREPROCESS} if kind.has_experts else {GraphModule.MLP}
    )
    return float((GraphModule.ATTENTION in modules) + bool(of_ffn & set(modules)))
