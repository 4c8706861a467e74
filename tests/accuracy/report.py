"""Print predicted against measured steps by group: ``python -m tests.accuracy.report``.

``--rows GROUP`` prints the rows of the groups whose name contains a text, ``--parts`` the parts of the GPT-NeoX jobs
and vTrain's errors by layout, ``--markdown`` the table of docs/accuracy.md, ``--missed`` the groups that miss what is
asked, ``--truth FOLDER`` judges other tables, ``--store COMMIT`` keeps the figures as those to compare with.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from predictor.evidence.published.runs import published_runs
from predictor.evidence.published.tables import STEPS
from predictor.evidence.verification.measured import fastest
from tests.accuracy.compare_steps import compare
from tests.accuracy.groups import current_commit, judge, markdown, missed, row_lines, store, table
from tests.accuracy.recommender_rows import FILE, report
from tests.accuracy.step_tables import measured_components, measured_steps
from tests.accuracy.text import components_text, jobs_text, layouts_text, published_text, summary_text
from tests.accuracy.tolerances import MISSED_RECOMMENDERS, MOST_GPUS
from tests.conftest import SHARED

TRUTH = SHARED / "truth"


def _print_published() -> None:
    print("Whole steps that others published, on a cluster known from data sheets (Selene)")
    print("\n".join(published_text([compare(step) for step in published_runs()])))
    print()


def _print_recommenders(truth: Path) -> None:
    if not (truth / FILE).is_file():
        print(f"no steps of recommenders: {truth / FILE} is absent", file=sys.stderr)
        return
    print("Whole steps of recommenders that others published, on data sheets")
    print("\n".join(report(truth / FILE)))
    for identity, known in MISSED_RECOMMENDERS.items():
        print(f"{identity} misses 20 %: {known}")
    print()


def _print_parts(truth: Path) -> None:
    """Print the parts of jobs, and errors by layout."""
    steps = list(measured_steps(truth))
    jobs = [compare(step) for step in fastest(step for step in steps if step.table == "gpumodeling25")]
    print("Whole steps, GPT-NeoX jobs, against the fastest batch")
    print("\n".join(jobs_text(jobs)))
    print("\nParts of those steps, µs; three numbers are the first, a middle and the last stage")
    print("\n".join(components_text(jobs, measured_components(truth))))
    single = [compare(step) for step in steps if step.table == "vtrain_single"]
    small = [row for row in single if row.step.num_gpus <= MOST_GPUS]
    large = [row for row in single if row.step.num_gpus > MOST_GPUS]
    if small:
        print(f"\nWhole steps, vTrain rows of up to {MOST_GPUS} GPUs: error by layout")
        print("\n".join(layouts_text(small)))
        print(summary_text(f"all {len(small)} rows", small))
    if large:
        print(summary_text(f"{len(large)} rows of more than {MOST_GPUS} GPUs, used for intervals", large))


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy.report", description=__doc__)
    parser.add_argument("--truth", type=Path, default=TRUTH, metavar="FOLDER", help="folder of the tables")
    parser.add_argument("--rows", metavar="GROUP", help="print the rows of groups whose name contains this text")
    parser.add_argument("--parts", action="store_true", help="also print the parts of steps")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/accuracy.md only")
    parser.add_argument("--missed", action="store_true", help="print the groups that miss what is asked only")
    parser.add_argument("--store", metavar="COMMIT", nargs="?", const="", help="keep the figures, of this commit")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Print the report; what needs measured steps is left out where there are none."""
    arguments = _arguments(given)
    try:
        judged = judge(arguments.truth)
    except FileNotFoundError as error:
        print(f"no measured steps: {error}", file=sys.stderr)
        _print_published()
        return 0
    if arguments.rows is not None:
        for name, rows in judged.groups.items():
            if arguments.rows.lower() in name.lower():
                print(name)
                print("\n".join(row_lines(rows)))
        return 0
    if arguments.missed:
        for kind, names in missed(judged)._asdict().items():
            print(f"{kind}: {', '.join(f'{name} {figure:.4g}' for name, figure in names.items())}")
        return 0
    if arguments.markdown:
        print("\n".join(markdown(judged)))
        return 0
    if arguments.store is not None:
        store(judged, arguments.store or current_commit())
    print("Whole steps that others measured, by group")
    print("\n".join(table(judged)))
    print()
    _print_published()
    _print_recommenders(arguments.truth)
    if arguments.parts and (arguments.truth / STEPS).is_file():
        _print_parts(arguments.truth)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
