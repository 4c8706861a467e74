"""Inject faults into real trainings and judge the monitor: ``python -m tests.faults --out FOLDER``.

Runs whose result lies in FOLDER are not run again, so a changed monitor is judged in seconds (``--judge``).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.faults.judge import judge, misses, table
from tests.faults.truth import TRUTH, Kind, faults


def main() -> int:
    """Run what is missing, and print the confusion table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ranks", type=int, choices=(2, 4), nargs="+", default=[2, 4])
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--kind", type=Kind, choices=list(Kind), nargs="+", default=list(Kind))
    parser.add_argument("--out", type=Path, default=Path("results/faults"), help="folder of the runs' events")
    parser.add_argument("--judge", action="store_true", help="run nothing")
    parser.add_argument("--misses", action="store_true", help="print every run that was judged wrongly")
    arguments = parser.parse_args()
    if not arguments.judge:
        from tests.faults.runner import run_all  # needs torch

        run_all(faults(arguments.runs, tuple(arguments.ranks), arguments.seed, tuple(arguments.kind)), arguments.out)
    verdicts = [found for path in sorted(arguments.out.glob(f"*/{TRUTH}")) if (found := judge(path.parent)) is not None]
    print(table(verdicts))
    if arguments.misses:
        print("\n" + misses(verdicts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
