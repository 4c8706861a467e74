"""Groups of published steps that miss what the project asks of itself, and what is known about it.

The lists are exact: a group that no longer misses leaves its list, and no other group may enter one unseen.
"""

from __future__ import annotations

# Mean absolute error above GROUP_BARS.
ERROR: dict[str, str] = {}
# Share inside the 90 % interval below LEAST_INSIDE or above MOST_INSIDE.
COVERAGE: dict[str, str] = {}
# Intervals wider than WIDEST.
WIDTH: dict[str, str] = {}
