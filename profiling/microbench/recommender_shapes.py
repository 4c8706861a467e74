"""Shapes of recommenders' operators, from one recommender of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from predictor.core.costs.operator import Shape
from predictor.recommender.workload.keys import KeyDistribution

DENSE_FEATURES = 13  # of Criteo's data
NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True)
class RecommenderCall:
    """What one rank computes of one recommender.

    Attributes:
        batch_size: samples of the rank.
        slots: categorical features of each sample.
        hotness: lookups of each sample and slot.
        table_rows: keys of each slot.
        key_exponent: of the power law that keys follow; 0 is uniform.
        width: of an embedding vector.
        fan_in, fan_out: of a fully connected layer.
        states: that the optimizer of the tables keeps per weight.
        key_bytes: of a key in the input.
    """

    batch_size: int
    slots: int
    hotness: int
    table_rows: int
    key_exponent: float
    width: int
    fan_in: int
    fan_out: int
    states: int
    key_bytes: int

    @property
    def bags(self) -> int:
        """Return the pooled vectors of a batch."""
        return self.batch_size * self.slots

    @property
    def lookups(self) -> int:
        """Return the lookups of a batch."""
        return self.bags * self.hotness

    @property
    def rows(self) -> int:
        """Return the different rows that a batch is expected to look up."""
        per_slot = KeyDistribution(self.key_exponent).distinct(self.batch_size * self.hotness, self.table_rows)
        return max(1, min(self.lookups, round(per_slot * self.slots)))


def _input_bytes(call: RecommenderCall) -> Shape:
    per_sample = (1 + DENSE_FEATURES) * NUMBER_BYTES + call.slots * call.hotness * call.key_bytes
    return (call.batch_size * per_sample,)


def _activation(call: RecommenderCall) -> Shape:
    return (call.batch_size * call.fan_out,)


RECOMMENDER_SHAPES: Mapping[str, Callable[[RecommenderCall], Shape]] = MappingProxyType(
    {
        "batch_norm": lambda call: (call.batch_size, call.fan_out),
        "cross_layer": lambda call: (call.batch_size, DENSE_FEATURES + call.slots * call.width),
        "dot_interaction": lambda call: (call.batch_size, 1 + call.slots, call.width),
        "dropout": _activation,
        "embedding_bag": lambda call: (call.bags, call.lookups, call.rows, call.width),
        "embedding_update": lambda call: (call.lookups, call.rows, call.width, call.states),
        "fm_order2": lambda call: (call.batch_size, call.slots, call.width),
        "host_to_device": _input_bytes,
        "kjt_permute": lambda call: (call.slots, call.lookups),
        "mlp_linear": lambda call: (call.batch_size, call.fan_in, call.fan_out),
        "relu": _activation,
        "tensor_copy": _activation,
    }
)
