"""Print predicted against measured steps by group: ``python -m tests.accuracy.report``.

``--rows GROUP`` prints the rows of the groups whose name contains a text, ``--parts`` the parts of the GPT-NeoX jobs
and vTrain's errors by layout, ``--markdown`` the tables of docs/accuracy.md, ``--write FILE`` puts them between their
marks in it, ``--missed`` prints the groups that miss what is asked and those that no longer do, ``--truth FOLDER``
judges other tables, ``--store COMMIT`` keeps the figures as those to compare with.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from predictor.evidence.published.runs import published_runs
from predictor.evidence.published.tables import STEPS
from predictor.evidence.verification.measured import fastest
from tests.accuracy.compare_steps import compare
from tests.accuracy.groups import Judged, current_commit, judge, missed, row_lines, store
from tests.accuracy.left_out_sources import left_out_evidence
from tests.accuracy.missed_groups import KNOWN
from tests.accuracy.recipes import recipe_table
from tests.accuracy.recommender_rows import FILE, report
from tests.accuracy.step_tables import measured_components, measured_steps
from tests.accuracy.summaries import left_out_lines, tables
from tests.accuracy.tables import Table
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
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/accuracy.md only")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between their marks in a document")
    parser.add_argument("--missed", action="store_true", help="print the groups that miss what is asked only")
    parser.add_argument("--store", metavar="COMMIT", nargs="?", const="", help="keep the figures, of this commit")
    return parser.parse_args(given)


def _print_rows(judged: Judged, name_contains: str) -> None:
    for name, rows in judged.groups.items():
        if name_contains.lower() in name.lower():
            print(name)
            print("\n".join(row_lines(rows)))


def _print_missed(judged: Judged) -> None:
    for kind, names in missed(judged)._asdict().items():
        print(f"{kind}: {', '.join(f'{name} {figure:.4g}' for name, figure in names.items())}")
        print(f"{kind}, listed and no longer missed: {', '.join(KNOWN[kind].keys() - names.keys())}")


def _tables(judged: Judged, truth: Path) -> Iterator[Table]:
    """Yield every table of docs/accuracy.md on whole steps."""
    yield from tables(judged, left_out_evidence(truth))
    yield recipe_table(judged.rows)


def _write(judged: Judged, truth: Path, document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for table in _tables(judged, truth):
        text = table.placed_in(text)
    document.write_text(text, encoding="utf-8")


def _print_report(judged: Judged, truth: Path, parts: bool) -> None:
    print("Whole steps that others measured")
    for table in _tables(judged, truth):
        print("\n".join(table.text()), end="\n\n", flush=True)
    print("\n".join(left_out_lines(judged)), end="\n\n")
    _print_published()
    _print_recommenders(truth)
    if parts and (truth / STEPS).is_file():
        _print_parts(truth)


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
        _print_rows(judged, arguments.rows)
    elif arguments.missed:
        _print_missed(judged)
    elif arguments.markdown:
        print("\n\n".join("\n".join(table.markdown()) for table in _tables(judged, arguments.truth)))
    elif arguments.write is not None:
        _write(judged, arguments.truth, arguments.write)
    else:
        if arguments.store is not None:
            store(judged, arguments.store or current_commit())
        _print_report(judged, arguments.truth, arguments.parts)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
