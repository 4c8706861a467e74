"""What a collective takes from the kernels beside it: multiprocessors and memory bandwidth.

NCCL runs one block per channel, and a multiprocessor that has one runs no other kernel's blocks. It launches as many
channels as the links need. A matrix product has the multiprocessors that are left; a kernel that streams memory shares
the memory's bandwidth with what the collective stores and reads again.

Sources: NVIDIA/nccl issue 689 (blocks of NCCL do not share a multiprocessor with computing kernels; 16 of them drive
the 190 GB/s of a node with eight network cards, two the 12 to 24 GB/s of one card), issue 1428 (memory traffic is at
least twice that of the links), src/graph/connect.cc (channels found by the search are doubled).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp
from typing import NamedTuple

from predictor.costs.collectives import COLLECTIVES
from predictor.costs.hardware import System
from predictor.costs.operator import Direction, Operator, Shape

# 190 GB/s over 16 channels (issue 689).
CHANNEL_GB_PER_S = 12.0
# On an NVSwitch: the 12 rings that the search finds, doubled; over a network with eight cards: 8 rings, doubled.
MOST_CHANNELS_INSIDE, MOST_CHANNELS_BETWEEN = 24, 16
# What arrives is stored, then read to be forwarded or added (issue 1428).
MEMORY_PASSES = 2
# Half and twice: kernels beside collectives took 18.9 % longer on average and 40 % at most on A100, H100, MI210 and
# MI250. Source: arXiv:2507.03114, abstract.
LEAST, MOST = 0.0, 2.0


class Slowdown(NamedTuple):
    """How many times as long kernels take beside traffic, with its 90 % interval."""

    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0


NO_SLOWDOWN = Slowdown()


MOST_LOST = 0.9  # share of its speed that a kernel loses beside traffic, at most


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
    times: float
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


def slowdown(system: System, traffic: Sequence[Call], streaming: float = 0.0) -> Slowdown:
    """Return how many times as long kernels take while collectives run beside them.

    Args:
        system: with the GPU that both run on.
        traffic: the collectives; other traffic, by copy engines, takes nothing.
        streaming: share of the kernels' time that streams memory instead of computing products.
    """
    if system.links.engine == "processor":
        return NO_SLOWDOWN
    held = memory = us = 0.0
    sms = system.gpu.num_multiprocessors.value
    bandwidth = system.gpu.memory_bandwidth_gb_per_s.value * 1e3  # bytes per µs
    for operator, shape, times, call_us in traffic:
        us += call_us
        if operator.name not in COLLECTIVES:
            continue
        _, nodes, gpus = shape
        held += channels(system, nodes, gpus) / sms * call_us
        memory += MEMORY_PASSES * operator.work(shape, Direction.FORWARD, 1).size_bytes * times / bandwidth
    if not us or not held:
        return NO_SLOWDOWN
    share, used = min(held / us, 0.9), min(memory / us, 1.0)
    added = (1.0 - streaming) * share / (1.0 - share) + streaming * used
    return Slowdown(1.0 + added, 1.0 + LEAST * added, 1.0 + MOST * added)
