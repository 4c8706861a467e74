"""Memory of a traced step in mixed precisions, its optimizer states read off its trace; amounts of memory as text."""

from __future__ import annotations

import re
from math import isfinite

from predictor.core.base.errors import ConfigError
from predictor.replay.graph.local_graph import LocalGraph
from predictor.replay.precision.memory import MemoryModel, PlanMemory
from predictor.replay.precision.operator_config import OperatorConfig
from predictor.replay.precision.operator_graph import OperatorGraph

UNITS = {"": 2**30, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
FORM = re.compile(r"\s*([0-9.eE+-]+)\s*([A-Za-z]*)\s*")
OPTIMIZER = re.compile(r"Optimizer\.step#(\w+)\.step")
# Moments of the optimizers of torch.optim. Source: PyTorch, torch/optim, the states that each of them initialises.
STATES = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adagrad": 1, "RMSprop": 1, "Adadelta": 2}
MOMENTUM = frozenset({"aten::mul_", "aten::_foreach_mul_", "aten::_fused_sgd_"})  # what SGD does with momentum alone
USUAL_STATES = 2


def memory_bytes(option: str, text: str) -> float:
    """Return bytes; a number alone counts GiB.

    Raises:
        ConfigError: it is no positive amount of memory.

    >>> memory_bytes("--mem_limit", "1.5"), memory_bytes("--mem_limit", "800MiB")
    (1610612736.0, 838860800.0)
    """
    form = FORM.fullmatch(text)
    unit = {name.lower(): size for name, size in UNITS.items()}.get(form[2].lower()) if form else None
    try:
        number = float(form[1]) if form else 0.0
    except ValueError:
        number = 0.0
    if unit is None or not (isfinite(number) and number > 0.0):
        raise ConfigError(f"{option} is {text}; expected a positive amount such as 16, 16GiB or 800MiB")
    return number * unit


def told(size_bytes: float) -> str:
    """Return an amount of memory in the unit that reads best.

    >>> told(3.2 * 2**30), told(700 * 2**20)
    ('3.20 GiB', '700.00 MiB')
    """
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes >= UNITS[unit]:
            return f"{size_bytes / UNITS[unit]:.2f} {unit}"
    return f"{size_bytes:.0f} B"


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
