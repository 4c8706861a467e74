"""``python -m hugectr train``."""

from __future__ import annotations

import argparse
import os

from hugectr.launchers import launched
from hugectr.train import train


def _say(line: str) -> None:
    print(line, flush=True)


def _say_nothing(line: str) -> None:
    """Leave the line to rank 0."""


def main(arguments: list[str]) -> int:
    """Train as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser("python -m hugectr train", description="Train as a solver clause describes.")
    parser.add_argument("config", help="a configuration, JSON")
    parser.add_argument("--plan", default="", help="file of a sharding plan, in place of HugeCTR's placement")
    parser.add_argument("--seed", type=int, default=0, help="of initial weights and dropout")
    given = parser.parse_args(arguments)
    place = launched(os.environ)
    report = _say if place is None or place.number == 0 else _say_nothing
    outcome = train(given.config, report, sharding_plan=given.plan, seed=given.seed)
    report(f"{outcome.iterations} iterations")
    return 0
