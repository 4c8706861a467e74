"""Kill runs at random points, resume them until they are done, and compare them with undisturbed ones.

``python -m tests.trainer.faults --kills 50`` prints how many of them ended equal bit by bit: losses, learning rates,
metrics, weights, and what callbacks counted. A kill point is the nth call or return in the trainer's code, drawn
evenly over a whole run, so it may lie anywhere: in a step, a validation, or half-way through a checkpoint.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.trainer.job import Kill, Scenario
from tests.trainer.runs import Left, difference, finish, remove

SIGNALS = (signal.SIGKILL, signal.SIGUSR1, signal.SIGKILL, signal.SIGUSR1, signal.SIGTERM)
ONE_RANK = {
    "1 rank": Scenario(),
    "1 rank, 2 workers, bf16-mixed": Scenario(workers=2, precision="bf16-mixed", scheduler="plateau"),
}
TWO_RANKS = {
    "2 ranks, DDP": Scenario(ranks=2),
    "2 ranks, FSDP2": Scenario(ranks=2, strategy="fsdp", samples=36),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One disturbed run: what was done to it, how often it started, and in what it differs."""

    label: str
    kills: list[Kill]
    starts: int
    difference: str


def plan(draw: random.Random, reference: Left) -> list[Kill]:
    """Draw one to three kills; the first lies anywhere in the run, later ones soon after the resume or anywhere."""
    kills = []
    for number in range(draw.choice((1, 1, 2, 3))):
        rank = draw.randrange(len(reference.results))
        events = reference.results[rank]["events"]
        last = events if number == 0 or draw.random() < 0.5 else events // 3
        kills.append(Kill(draw.randint(1, last), draw.choice(SIGNALS), rank))
    return kills


def disturb(label: str, scenario: Scenario, kills: int, seed: int, folder: Path) -> Iterator[Outcome]:
    """Run once undisturbed, then so many times disturbed."""
    draw = random.Random(f"{label} {seed}")
    reference, _ = finish(scenario, folder / "reference", [])
    for number in range(kills):
        planned = plan(draw, reference)
        place = folder / str(number)
        try:
            found, codes = finish(scenario, place, planned)
            yield Outcome(label, planned, len(codes), difference(reference, found))
        except AssertionError as error:
            yield Outcome(label, planned, 0, f"not finished: {error}")
        remove(place)


def main() -> int:
    """Print every outcome and their number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="disturbed runs for each number of ranks")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    equal: Counter[int] = Counter()
    signals = starts = 0
    for ranks, scenarios in ((1, ONE_RANK), (2, TWO_RANKS)):
        shares = [arguments.kills - arguments.kills // 2, arguments.kills // 2]
        for (label, scenario), share in zip(scenarios.items(), shares, strict=True):
            with tempfile.TemporaryDirectory() as folder:
                for outcome in disturb(label, scenario, share, arguments.seed, Path(folder)):
                    equal[ranks] += not outcome.difference
                    signals += len(outcome.kills)
                    starts += outcome.starts
                    verdict = outcome.difference or "equal"
                    print(f"{label}: {outcome.kills} {outcome.starts} starts: {verdict}", flush=True)
    total = 2 * arguments.kills
    print(f"equal bit by bit: {equal.total()} of {total} ({dict(equal)} by ranks); {signals} signals, {starts} starts")
    return 0 if equal.total() == total else 1


if __name__ == "__main__":
    sys.exit(main())
