"""Critical paths through a pipeline: to a stage, through all the work of that stage, and out again.

To the steady state of a stage a path passes the warm-up of an earlier stage, or the last stage and back; on the way out
likewise. In between it stays on a single stage or, with long messages, alternates between first and last stages.
docs/adr/0012-schedules.md derives them.

m is the number of micro-batches; f, b and w are durations of slots per stage, x the duration of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

Durations = Sequence[float]
PerChunk = Sequence[Durations]


def _counts(m: int, p: int) -> Sequence[int]:
    """Return the number of slots of one pass, minus one, that each stage runs in a row at the ends of 1F1B."""
    return range(p - 1, -1, -1) if m >= p else [m - 1] * (p - m) + list(range(m - 1, -1, -1))


def waiting(m: int, f: list[float], b: list[float], x: float, ends: Durations) -> float:
    """1F1B with messages that only the receiver waits for."""
    p = len(f)
    filled, drained = _filled(m, f, x, 0.0), _drained(m, b, x, 0.0, ends)
    steady = [periods * (fs + bs) for periods, fs, bs in zip(range(m - p, m), f, b, strict=True)]
    best = _through(f, b, steady, filled, drained, (x, x, 0.0))
    return max(best, _zigzag(m, f, b, [0.0] * p, x) + ends[0]) if x else best


def meeting(m: int, f: list[float], b: list[float], x: float, ends: Durations) -> float:
    """1F1B with blocking messages: gradient and activation cross on every link."""
    p = len(f)
    filled = _filled(m, f, x, 2 * x)
    drained = _drained(m, b, x, 2 * x, [ends[0], *[end + x for end in ends[1:]]])  # the last message follows its slot
    stay = [2 * x, *[4 * x] * (p - 2), 2 * x]
    steady = [n * (fs + bs + messages) for n, fs, bs, messages in zip(range(m - p, m), f, b, stay, strict=True)]
    hops = (0.0, 2 * x, 2 * x)
    if m >= p:
        return _through(f, b, steady, filled, drained, hops)
    low = p - m  # before it, stages have no steady state in which messages cross
    return _through(f[low:], b[low:], steady[low:], filled[low:], drained[low:], hops)


def split_backward(m: int, f: list[float], b: list[float], w: list[float], x: float, ends: Durations) -> float:
    """ZB-H1: 1F1B in which stage s computes its last s + 1 weight gradients after its last message.

    Between its first backward and its last forward every stage has m − p of them.
    """
    p = len(f)
    filled, drained = _filled(m, f, x, 0.0), _weights_owed(m, b, w, x, ends)
    held = max(0, m - p)
    steady = [n * (fs + bs) + held * ws for n, fs, bs, ws in zip(range(m - p, m), f, b, w, strict=True)]
    best = _through(f, b, steady, filled, drained, (x, x, 0.0))
    return max(best, _zigzag(m, f, b, w, x) + ends[0]) if x else best


def _filled(m: int, f: Durations, x: float, stay: float) -> list[float]:
    """Return the earliest end of each stage's warm-up, paced by the slowest of the stages up to it.

    ``stay`` is the time of a slot's blocking messages in the stage's period, half of it on the first stage.
    """
    filled: list[float] = []
    arrived, slowest, messages = -x, -1.0, stay / 2
    for others, fs in zip(_counts(m, len(f)), f, strict=True):
        arrived += fs + x
        if fs + messages > slowest:
            slowest = fs + messages
        filled.append(arrived + others * slowest)
        messages = stay
    return filled


def _drained(m: int, b: Durations, x: float, stay: float, ends: Durations) -> list[float]:
    """Return the least time from each stage's cool-down to the end, paced by the slowest of the stages up to it."""
    drained: list[float] = []
    slowest, messages = -1.0, stay / 2
    left = below = 0.0
    for others, bs, end in zip(_counts(m, len(b)), b, ends, strict=True):
        if end > left:
            left = end
        below += bs + x
        period = bs + messages
        here = bs + left + others * period
        if period > slowest:
            slowest, below = period, bs + left
            drained.append(here)
        else:
            there = below + others * slowest
            drained.append(there if there > here else here)
        left += bs + x
        messages = stay
    return drained


def _weights_owed(m: int, b: Durations, w: Durations, x: float, ends: Durations) -> list[float]:
    """Return ZB-H1's least time from each stage's cool-down to the end."""
    p = len(b)
    counts = _counts(m, p)
    between: Sequence[int] = counts
    owed: Sequence[int] = range(1, p + 1)
    if m < p:
        between = [min(others, max(0, m - 1 - stage)) for stage, others in enumerate(counts)]
        owed = [min(stage + 1, m) for stage in range(p)]
    drained: list[float] = []
    slowest, left, below = -1.0, 0.0, 0.0
    for others, weights, last, bs, ws, end in zip(counts, between, owed, b, w, ends, strict=True):
        finished = last * ws + end
        if finished > left:
            left = finished
        below += bs + x
        here = bs + left + others * bs + weights * ws
        period = bs + ws if weights == others else bs
        if period > slowest:
            slowest, below = period, bs + left
        there = below + others * slowest
        drained.append(there if there > here else here)
        left += bs + x
    return drained


def _through(
    f: Durations,
    b: Durations,
    steady: list[float],
    filled: list[float],
    drained: list[float],
    hops: tuple[float, float, float],
) -> float:
    """Return the longest path that stays on one stage in the steady state.

    ``steady`` is the time of each stage from its first backward to its last forward. ``hops`` are the messages of a
    path between the last stage and its neighbour, between other stages, and at a turn on a stage that is not the last.
    """
    first_hop, hop, turn = hops
    start, rest = filled[-1], drained[-1]
    best = start + steady[-1] + rest
    start += b[-1] + first_hop
    rest += f[-1] + first_hop
    stages = zip(f[-2::-1], b[-2::-1], steady[-2::-1], filled[-2::-1], drained[-2::-1], strict=True)
    for fs, bs, middle, warm, cool in stages:
        if warm > start:
            start = warm
        if cool > rest:
            rest = cool
        # Without a steady state the first backward follows the last forward, so no path passes the stage on both ways.
        path = start + middle + rest if middle > 0.0 else max(warm + rest, start + cool)
        if path + turn > best:
            best = path + turn
        start += bs + hop
        rest += fs + hop
    return best


def _zigzag(m: int, f: Durations, b: Durations, w: Durations, x: float) -> float:
    """Return the path that alternates between the first and the last stage as often as possible.

    A turn over d stages passes d micro-batches: the more stages, the more messages per micro-batch. On the first stage
    it includes a weight gradient, if the schedule has one there.
    """
    p = len(f)
    turns, depth = divmod(m - 1, p)
    there_and_back = sum(f) + sum(b) + 2 * (p - 1) * x
    path = there_and_back + turns * (there_and_back + w[0]) + w[0]
    if depth:
        top = p - depth
        path += sum(f[top:]) + sum(b[top:]) + 2 * (depth - 1) * x + (w[top] if turns else 0.0)
    return path


def _laps(durations: PerChunk, x: float) -> float:
    """Return the time of a group of as many micro-batches as stages through all virtual stages.

    Between two chunks the path either passes all stages, or stays on the slowest stage for the rest of the group.
    """
    p = len(durations)
    chunks = list(zip(*durations, strict=True))
    path = sum(map(sum, chunks)) + (len(chunks) * p - 1) * x
    reached = 0
    for chunk, following in pairwise(chunks):
        together = p * max(chunk)
        if together > sum(chunk) + p * x:
            stage = chunk.index(max(chunk))
            gained = together - sum(chunk[stage:]) - sum(following[:stage]) - p * x
            if gained > 0.0 and stage >= reached:
                path += gained
                reached = stage
    return path


def interleaved(m: int, f: PerChunk, b: PerChunk, x: float, ends: Durations) -> float:
    """Interleaved 1F1B: 1F1B over virtual stages.

    A stage's first backward follows 2(p − s − 1) + (v − 1)p + 1 forwards: p of each chunk but the last, then of the
    last chunk, then of the next group's first; its last forward precedes as many backwards.
    """
    p, v = len(f), len(f[0])
    start, rest = _laps(f, x), _laps(b, x) + ends[0]
    lefts: list[float] = []
    left = 0.0
    for end, bs in zip(ends, b, strict=True):
        if end > left:
            left = end
        lefts.append(left)
        left += bs[0] + x
    arrived = [0.0, *accumulate(chunks[0] + x for chunks in f)]
    best = 0.0
    steady = (m - p) * v + p - 1  # forwards that the last stage still runs behind its first backward
    warm = 1
    for fs, bs, at, left in zip(reversed(f), reversed(b), arrived[-2::-1], reversed(lefts), strict=True):
        last = warm if warm < p else p
        first = warm - last if m > p else 0
        sum_f, sum_b = sum(fs), sum(bs)
        own_f = p * (sum_f - fs[-1]) + last * fs[-1] + first * fs[0]
        own_b = p * (sum_b - bs[-1]) + last * bs[-1] + first * bs[0]
        between = m * (sum_f + sum_b) - own_f - own_b
        filled, drained = at + own_f, own_b + left
        if filled > start:
            start = filled
        if drained > rest:
            rest = drained
        path = start + between + rest if steady > 0 else filled + between + drained
        if path > best:
            best = path
        start += bs[-1] + x
        rest += fs[-1] + x
        warm += 2
        steady -= 2
    return best
