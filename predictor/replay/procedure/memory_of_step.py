"""Memory of a traced step in mixed precisions; its optimizer states are read off its trace."""

from __future__ import annotations

import re

from predictor.replay.graph.local_graph import LocalGraph
from predictor.replay.precision.memory import MemoryModel, PlanMemory
from predictor.replay.precision.operator_config import OperatorConfig
from predictor.replay.precision.operator_graph import OperatorGraph
from predictor.replay.procedure.sizes import told

OPTIMIZER = re.compile(r"Optimizer\.step#(\w+)\.step")
# Moments of the optimizers of torch.optim. Source: PyTorch, torch/optim, the states that each of them initialises.
STATES = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adagrad": 1, "RMSprop": 1, "Adadelta": 2}
MOMENTUM = frozenset({"aten::mul_", "aten::_foreach_mul_", "aten::_fused_sgd_"})  # what SGD does with momentum alone
USUAL_STATES = 2


def memory_model(local: LocalGraph, graph: OperatorGraph, config: OperatorConfig) -> tuple[MemoryModel, str]:
    """Return the memory of a step's operators by precision, and what its optimizer is."""
    name, states = _optimizer(local)
    others = graph.facts.get("other_weight_numel", 0)
    assert isinstance(others, int)
    return MemoryModel(config, optimizer_states=states, other_weights=others), name


def memory_text(memory: PlanMemory) -> str:
    """Return the memory of a plan with its parts."""
    if not memory.peak:
        return "not known, as the trace has no shapes; record with record_shapes=True"
    parts = {
        "weights": memory.weights,
        "their copies": memory.weight_copies,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
    }
    return f"{told(memory.peak)}: {', '.join(f'{name} {told(part)}' for name, part in parts.items() if part)}"


def _optimizer(local: LocalGraph) -> tuple[str, int]:
    names = {
        match[1]
        for operator in local.operators
        if operator.step_pass == "optimizer"
        for scope in operator.scope
        if (match := OPTIMIZER.fullmatch(scope)) is not None
    }
    if len(names) != 1:
        return "an unknown optimizer, taken as Adam", USUAL_STATES
    name = names.pop()
    if name == "SGD":
        calls = {operator.name for operator in local.operators if operator.step_pass == "optimizer"}
        return ("SGD with momentum", 1) if calls & MOMENTUM else ("SGD", 0)
    return name, STATES.get(name, USUAL_STATES)
