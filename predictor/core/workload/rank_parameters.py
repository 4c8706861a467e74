"""Parameters on one rank: trained or frozen, dense or routed."""

from __future__ import annotations

from typing import NamedTuple


class RankParameters(NamedTuple):
    """Parameters on one rank, by the ranks that sum their gradients.

    Attributes:
        dense: summed over the data- and context-parallel ranks.
        routed: of routed experts; summed over the ranks that hold the same experts.
        frozen_dense, frozen_routed: as both, of weights that do not train.
        narrow_dense, narrow_routed: those of the frozen ones that are kept in few bits.
        matrix_dense, matrix_routed: those of the trained ones that are in matrices of layers.
    """

    dense: int
    routed: int
    frozen_dense: int = 0
    frozen_routed: int = 0
    narrow_dense: int = 0
    narrow_routed: int = 0
    matrix_dense: int = 0
    matrix_routed: int = 0

    @property
    def total(self) -> int:
        """Return the number of those that train."""
        return self.dense + self.routed

    @property
    def held(self) -> RankParameters:
        """Return all weights, trained or not."""
        whole = self.dense + self.frozen_dense, self.routed + self.frozen_routed
        return RankParameters(*whole, narrow_dense=self.narrow_dense, narrow_routed=self.narrow_routed)

    @property
    def narrow(self) -> RankParameters:
        """Return those in few bits alone."""
        return RankParameters(self.narrow_dense, self.narrow_routed)

    @property
    def matrices(self) -> RankParameters:
        """Return those that train in matrices of layers alone."""
        return RankParameters(self.matrix_dense, self.matrix_routed)

    def plus(self, other: RankParameters, times: int = 1) -> RankParameters:
        """Return these and ``times`` as many as the others together."""
        return RankParameters(
            self.dense + times * other.dense,
            self.routed + times * other.routed,
            self.frozen_dense + times * other.frozen_dense,
            self.frozen_routed + times * other.frozen_routed,
            self.narrow_dense + times * other.narrow_dense,
            self.narrow_routed + times * other.narrow_routed,
            self.matrix_dense + times * other.matrix_dense,
            self.matrix_routed + times * other.matrix_routed,
        )

    def frozen(self, trained: int = 0, trained_routed: int = 0) -> RankParameters:
        """Return the same parameters as frozen ones, beside so many others that train."""
        return RankParameters(trained, trained_routed, self.dense, self.routed)
