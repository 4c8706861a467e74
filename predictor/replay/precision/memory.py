"""Memory of mixed precisions: weights and their copies, gradients, optimizer states, retained activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from predictor.replay.precision.operator_config import EIGHT_BITS, OperatorConfig, own_operators
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Plan, Precision
from predictor.replay.precision.plan_time import propagate
from predictor.replay.precision.rules import RULES, PrecisionRules

MASK = "mask"


class PlanMemory(NamedTuple):
    """Bytes of one rank at the end of its forward pass, when the most activations are kept.

    Attributes:
        weights: master copies.
        weight_copies: weights that were cast for operators in other precisions, which their backward reads again.
        gradients: of the master copies, in their precision, as PyTorch accumulates them.
        optimizer: its states.
        activations: what backward keeps.
    """

    weights: float
    weight_copies: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def peak(self) -> float:
        """Return the whole; without the allocator's rounding, work spaces of kernels and buckets of gradients."""
        return sum(self)


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """How much memory operators take in a precision.

    What a plan changes is a sum over operators, so that ``bytes_of`` is a budget of ``fastest_plan_under``: copies of
    weights, and what backward keeps in the precision of the inputs. QSync counts the same kinds of operators
    (``mem_relevant_op``); those without an 8-bit kernel (``implement_limit_ops``) keep 16 bits there.

    Attributes:
        config: what backward keeps of each operator.
        rules: precision of inputs and of master copies.
        optimizer_states: copies of the weights in fp32 that the optimizer keeps: Adam 2, SGD with momentum 1.
        other_weights: elements of weights that no operator of the graph casts: norms, embeddings.
    """

    config: OperatorConfig = field(default_factory=own_operators)
    rules: PrecisionRules = RULES
    optimizer_states: int = 2
    other_weights: int = 0

    def bytes_of(self, node: OperatorNode, precision: Precision) -> float:
        """Return the bytes that an operator takes in a precision: its weights' copy, and what its backward keeps."""
        return self.copy_bytes(node, precision) + self.saved_bytes(node, precision)

    def copy_bytes(self, node: OperatorNode, precision: Precision) -> float:
        """Return the bytes of its weights in the precision, where they are not the master copies."""
        used = self.rules.input_of(precision)
        return 0.0 if used is self.rules.weights else float(node.weight_numel * used.bytes)

    def saved_bytes(self, node: OperatorNode, precision: Precision) -> float:
        """Return the bytes that its backward keeps: inputs as they are read, outputs as they are written, masks."""
        keeps = self.config.of(self.config.saves, node.name)
        if keeps == MASK:
            return float(node.saved_numel)
        kept = self.rules.output_of(precision) if keeps == "output" else self.rules.input_of(precision)
        has_no_kernel = any(name in self.config.implement_limit_ops for name in self.config.names(node.name))
        if has_no_kernel and kept in EIGHT_BITS:
            kept = Precision.FP16
        return float(node.saved_numel * kept.bytes)

    def fixed_bytes(self, graph: OperatorGraph) -> float:
        """Return the bytes that no plan changes: weights, gradients and optimizer states."""
        return self._weights(graph) * (2 * self.rules.weights.bytes + self.optimizer_states * Precision.FP32.bytes)

    def of_plan(self, graph: OperatorGraph, plan: Plan) -> PlanMemory:
        """Return the memory of a plan.

        Raises:
            PlanError: the graph cannot have the plan.
        """
        return self.of_precisions(graph, propagate(graph, plan, self.rules))

    def of_precisions(self, graph: OperatorGraph, precisions: Sequence[Precision]) -> PlanMemory:
        """Return the memory of operators in these precisions."""
        weights = float(self._weights(graph))
        pairs = list(zip(graph.nodes, precisions, strict=True))
        return PlanMemory(
            weights=weights * self.rules.weights.bytes,
            weight_copies=sum(self.copy_bytes(node, precision) for node, precision in pairs),
            gradients=weights * self.rules.weights.bytes,
            optimizer=weights * self.optimizer_states * Precision.FP32.bytes,
            activations=sum(self.saved_bytes(node, precision) for node, precision in pairs),
        )

    def _weights(self, graph: OperatorGraph) -> int:
        return self.other_weights + sum(node.weight_numel for node in graph.nodes)
