"""The range of every number of the hardware that somebody may give: what lies outside is taken for a slip."""

from __future__ import annotations

from predictor.core.base.errors import ConfigError

# From a CPU's core and a slow network to some fifty times the largest GPU in print; every formula stays finite.
RANGES = {
    "peak_tflop_per_s": (1e-3, 1e6),
    "num_multiprocessors": (1.0, 1e5),
    "memory_bandwidth_gb_per_s": (1e-1, 1e6),
    "l2_cache_mb": (1e-3, 1e6),
    "memory_gib": (1e-3, 1e5),
    "board_power_w": (1e-1, 1e5),
    "power_limit_w": (1e-1, 1e5),
    "rank_spread": (1e-6, 1.0),
    "intra_node_gb_per_s": (1e-3, 1e6),
    "inter_node_gb_per_s": (1e-3, 1e6),
    "host_gb_per_s": (1e-3, 1e6),
    "host_memory_gb_per_s": (1e-3, 1e6),
    "host_memory_gib": (1e-3, 1e6),
    "launch_forward_us": (1e-1, 1e4),
    "launch_backward_us": (1e-1, 1e4),
}


def check_range(key: str, value: float) -> None:
    """Check that a number of the hardware is one that a machine may have; keys without a range have none.

    Raises:
        ConfigError: it is not; a ValueError.
    """
    smallest, largest = RANGES.get(key, (value, value))
    if not smallest <= value <= largest:
        raise ConfigError(f"expected {smallest:,g} to {largest:,.0f}, anything else is taken for a slip")
