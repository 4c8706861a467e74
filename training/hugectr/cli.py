"""``python -m hugectr train``."""

from __future__ import annotations

import argparse

from hugectr.train import train


def main(arguments: list[str]) -> int:
    """Train as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser("python -m hugectr train", description="Train as a solver clause describes.")
    parser.add_argument("config", help="a configuration, JSON")
    parser.add_argument("--plan", default="", help="file of a sharding plan, in place of HugeCTR's placement")
    parser.add_argument("--seed", type=int, default=0, help="of initial weights and dropout")
    given = parser.parse_args(arguments)
    outcome = train(given.config, lambda line: print(line, flush=True), sharding_plan=given.plan, seed=given.seed)
    print(f"{outcome.iterations} iterations")
    return 0
