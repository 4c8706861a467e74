"""The parameters that one rank holds, by what trains them and who sums their gradients."""

from __future__ import annotations

from typing import NamedTuple


class RankParameters(NamedTuple):
    """Parameters on one rank, by the ranks that sum their gradients.

    Attributes:
        dense: summed over the data- and context-parallel ranks.
        routed: of routed experts; summed over the ranks that hold the same experts.
        frozen_dense, frozen_routed: as both, of weights that do not train.
    """

    dense: int
    routed: int
    frozen_dense: int = 0
    frozen_routed: int = 0

    @property
    def total(self) -> int:
        """Return the number of those that train."""
        return self.dense + self.routed

    @property
    def held(self) -> RankParameters:
        """Return all weights, trained or not."""
        return RankParameters(self.dense + self.frozen_dense, self.routed + self.frozen_routed)

    def plus(self, other: RankParameters, times: int = 1) -> RankParameters:
        """Return these and ``times`` as many as the others together."""
        return RankParameters(
            self.dense + times * other.dense,
            self.routed + times * other.routed,
            self.frozen_dense + times * other.frozen_dense,
            self.frozen_routed + times * other.frozen_routed,
        )

    def frozen(self, trained: int = 0, trained_routed: int = 0) -> RankParameters:
        """Return the same parameters as frozen ones, beside so many others that train."""
        return RankParameters(trained, trained_routed, self.dense, self.routed)
