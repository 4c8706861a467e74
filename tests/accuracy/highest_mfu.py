"""The highest MFU of published steps by GPU, precision and kind of model: ``python -m tests.accuracy.highest_mfu``.

``--store`` writes ``predictor/core/step/highest_mfu.yaml``, beside which predictions above it are said to be so.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import yaml

from predictor.core.base.errors import ConfigError, PublishedError
from predictor.core.costs.low_precision import peak_tflop_per_s
from predictor.core.plan.loading import SAME_RATE, prepare
from predictor.core.step.highest_mfu import DATA, HighestMfu
from predictor.core.workload.low_precision import product_precision
from predictor.evidence.published.row import UnexpressedError
from predictor.evidence.published.tables import RECENT_STEPS, STEPS, converted, read_rows
from tests.conftest import SHARED

DIGITS = 4
HEAD = """\
# Highest MFU among steps that others published, by GPU, precision of matrix products and kind of model: this project's
# count of model FLOP (attention counts every key, as published figures do) over the measured step and the GPU's dense
# peak.
# python -m tests.accuracy.highest_mfu --store writes this file from tables of published steps. No time follows from it.

"""


def _at_one_rate(precision: str) -> tuple[str, ...]:
    """Return the precisions in which products run as fast as in one of them."""
    return next((tuple(sorted(pair)) for pair in SAME_RATE.items() if precision in pair), (precision,))


def converted_mfu(cells: Mapping[str, str]) -> HighestMfu | None:
    """Return one published step; None where no configuration expresses it, or no system predicts it."""
    try:
        step = converted(cells)
        loaded = prepare(step.config, Path.cwd())
    except (UnexpressedError, ConfigError, PublishedError):
        return None
    run, gpu = loaded.run, loaded.system.hardware.gpu
    precision = product_precision(run)
    flops = run.model_flops_per_token * run.tokens_per_step / run.layout.num_gpus
    assert run.framework is not None, f"{step.name}: every converter names the software"
    return HighestMfu(
        gpu=gpu.name,
        precisions=_at_one_rate(precision),
        rows=1,
        experts=run.model.experts is not None,
        mfu=round(flops / step.seconds / (peak_tflop_per_s(gpu, precision) * 1e12), DIGITS),
        framework=run.framework,
        num_gpus=run.layout.num_gpus,
        source=cells["source"],
    )


def highest(folder: Path) -> list[HighestMfu]:
    """Return the highest of every GPU, precision and kind of model in a folder of tables."""
    by: dict[tuple[str, tuple[str, ...], bool], list[HighestMfu]] = defaultdict(list)
    for name in (STEPS, RECENT_STEPS):
        for cells in read_rows(folder / name):
            row = converted_mfu(cells)
            if row is not None:
                by[row.gpu, row.precisions, row.experts].append(row)
    return [max(rows, key=lambda row: row.mfu).model_copy(update={"rows": len(rows)}) for _, rows in sorted(by.items())]


def main(given: list[str] | None = None) -> int:
    """Print the table, or store it."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy.highest_mfu", description=__doc__)
    parser.add_argument("--truth", type=Path, default=SHARED / "truth", metavar="FOLDER", help="folder of the tables")
    parser.add_argument("--store", action="store_true", help="write predictor/core/step/highest_mfu.yaml")
    arguments = parser.parse_args(given)
    rows = highest(arguments.truth)
    for row in rows:
        kind = "experts" if row.experts else "dense"
        what = f"{row.gpu:24} {' '.join(row.precisions):10} {kind:8}{row.rows:4}"
        print(f"{what} {row.mfu:6.1%}  {row.framework}, {row.source}")
    if arguments.store:
        entries = [row.model_dump(mode="json") for row in rows]
        DATA.write_text(HEAD + yaml.safe_dump({"highest": entries}, sort_keys=False, width=120), encoding="utf-8")
        print(f"wrote {DATA}, {len(entries)} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
