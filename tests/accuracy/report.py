"""Print predicted against measured steps and their parts: ``python -m tests.accuracy.report``."""

from __future__ import annotations

import sys

from predictor.verification.compare import compare
from predictor.verification.measured import fastest
from predictor.verification.published_runs import published_runs
from predictor.verification.step_tables import STEPS, measured_components, measured_steps
from predictor.verification.text import components_text, jobs_text, layouts_text, published_text, summary_text
from tests.accuracy.recommender_rows import FILE, report
from tests.accuracy.tolerances import MISSED_RECOMMENDERS, MOST_GPUS, OUTSIDE
from tests.conftest import SHARED

TRUTH = SHARED / "truth"


def main() -> int:
    """Print the report; what needs measured steps is left out where there are none."""
    print("Whole steps that others published, on a cluster known from data sheets (Selene)")
    print("\n".join(published_text([compare(step) for step in published_runs()])))
    for label, known in OUTSIDE.items():
        print(f"{label} is outside: {known}")
    print()
    if (TRUTH / FILE).is_file():
        print("Whole steps of recommenders that others published, on data sheets")
        print("\n".join(report(TRUTH / FILE)))
        for identity, known in MISSED_RECOMMENDERS.items():
            print(f"{identity} misses 20 %: {known}")
        print()
    else:
        print(f"no steps of recommenders beside the checkout: ../shared/truth/{FILE} is absent", file=sys.stderr)
    if not (TRUTH / STEPS).is_file():
        print(f"no measured steps beside the checkout: ../shared/truth/{STEPS} is absent", file=sys.stderr)
        return 0
    steps = list(measured_steps(TRUTH))
    jobs = [compare(step) for step in fastest(step for step in steps if step.table == "gpumodeling25")]
    print("Whole steps, GPT-NeoX jobs, against the fastest batch")
    print("\n".join(jobs_text(jobs)))
    print("\nParts of those steps, µs; three numbers are the first, a middle and the last stage")
    print("\n".join(components_text(jobs, measured_components(TRUTH))))
    single = [compare(step) for step in steps if step.table == "vtrain_single"]
    small = [row for row in single if row.step.num_gpus <= MOST_GPUS]
    large = [row for row in single if row.step.num_gpus > MOST_GPUS]
    if small:
        print(f"\nWhole steps, vTrain rows of up to {MOST_GPUS} GPUs: error by layout")
        print("\n".join(layouts_text(small)))
        print(summary_text(f"all {len(small)} rows", small))
    if large:
        print(summary_text(f"{len(large)} rows of more than {MOST_GPUS} GPUs, used for no choice", large))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
