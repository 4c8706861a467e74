"""What a collective takes from the kernels beside it.

NCCL runs one block per channel, and a multiprocessor that has one runs no other kernel's blocks. It launches as many
channels as the links need. A kernel that could use the remaining multiprocessors evenly would take 1/(1 - share) times
as long; kernels lose more, because blocks that fill a GPU once need a second wave, and because a collective stores and
reads again at least twice what it sends.

Sources: NVIDIA/nccl issue 689 (blocks of NCCL do not share a multiprocessor with computing kernels; 16 of them drive
the 190 GB/s of a node with eight network cards, two the 12 to 24 GB/s of one card), issue 1428 (memory traffic),
src/graph/connect.cc (channels found by the search are doubled).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp
from typing import NamedTuple

from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.operator import Operator, Shape
from predictor.core.hardware.hardware import System

# 190 GB/s over 16 channels (issue 689).
CHANNEL_GB_PER_S = 12.0
# On an NVSwitch: the 12 rings that the search finds, doubled; over a network with eight cards: 8 rings, doubled.
MOST_CHANNELS_INSIDE, MOST_CHANNELS_BETWEEN = 24, 16
# Time that kernels lose over what the multiprocessors that a collective holds would cost them, measured kernel by
# kernel beside an all-gather of 24 channels inside a node: a matrix product on an H100 1.70 times as long, 3.2 times
# the loss of 24 of 132 (forums.developer.nvidia.com, topic 337991); a product on an A100 1.76 times and attention 1.83
# times, 2.7 and 2.9 times the loss of 24 of 108 (issue 1428).
LOSS = 3.0
# The multiprocessors alone; and element-wise kernels, 2.5 times as long (issue 1428).
LEAST_LOSS, MOST_LOSS = 1.0, 5.2
MOST_LOST = 0.9  # share of its speed that a kernel loses beside traffic, at most


class Slowdown(NamedTuple):
    """How many times as long kernels take beside traffic, with its 90 % interval."""

    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0


NO_SLOWDOWN = Slowdown()


def calibrated_slowdown(published: Slowdown, system: System) -> Slowdown:
    """Return how many times as long kernels take where steps of one's own hide less traffic than published, or more.

    Traffic that is hidden costs the kernels 1 - 1/``factor`` of its time; each hundredth of a calibration's factor
    above 1 makes it a hundredth more.
    """
    if system.calibration is None or "overlap" not in system.calibration.factors:
        return published
    known = system.calibration.factors["overlap"]

    def changed(slower: float, log_error: float) -> float:
        lost = 1.0 - 1.0 / slower + known.factor * exp(log_error) - 1.0
        return 1.0 / (1.0 - min(max(lost, 0.0), MOST_LOST))

    here = changed(published.factor, 0.0)
    low = max(changed(published.factor, -known.log_error), changed(published.low, 0.0))
    high = min(changed(published.factor, known.log_error), changed(published.high, 0.0))
    return Slowdown(here, min(here, low), max(here, high))


class Call(NamedTuple):
    """Traffic as it is timed: a collective, its shape, and the time that all calls of it take."""

    operator: Operator
    shape: Shape
    us: float


def channels(system: System, nodes: int, gpus_per_node: int) -> int:
    """Return the channels of a collective over so many nodes, which are the multiprocessors that it holds.

    A ring over several nodes passes the node's whole network bandwidth through each of its GPUs.
    """
    inside = system.links.intra_node_gb_per_s.value
    if nodes == 1:
        return min(MOST_CHANNELS_INSIDE, ceil(inside / CHANNEL_GB_PER_S))
    network = gpus_per_node * system.links.inter_node_gb_per_s.value
    rate = min(network, inside) if gpus_per_node > 1 else network
    return min(MOST_CHANNELS_BETWEEN, ceil(rate / CHANNEL_GB_PER_S))


def slowdown(system: System, traffic: Sequence[Call]) -> Slowdown:
    """Return how many times as long kernels take while collectives run beside them.

    Args:
        system: with the GPU that both run on.
        traffic: the collectives; other traffic, by copy engines, takes nothing.
    """
    if system.links.engine == "processor":
        return NO_SLOWDOWN
    held_us = us = 0.0
    for operator, shape, call_us in traffic:
        us += call_us
        if operator.name in COLLECTIVES:
            _, nodes, gpus = shape
            held_us += channels(system, nodes, gpus) * call_us
    if not held_us:
        return NO_SLOWDOWN
    share = min(held_us / us / system.gpu.num_multiprocessors.value, 0.5)
    loss = share / (1.0 - share)
    return Slowdown(1.0 + LOSS * loss, 1.0 + LEAST_LOSS * loss, 1.0 + MOST_LOSS * loss)
