"""One recommender of a sweep, from which the shapes of its operators follow."""

from __future__ import annotations

from dataclasses import dataclass

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
