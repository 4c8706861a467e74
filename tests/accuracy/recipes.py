"""Published recipes beside the search's winner: ``python -m tests.accuracy.recipes [TEXT]`` prints each.

Both are predicted, so that what is compared is the ranking: how much slower than the fastest layout of the same model,
batch, GPUs and switches, under the same framework's rules, is the one that its makers chose and published?
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from predictor.core.base.errors import NoLayoutError
from predictor.core.plan.framework_rules import FrameworkRules, rules_behind
from predictor.core.plan.loading import prepare
from predictor.core.schema.inherited_keys import of_record
from predictor.core.step.memory import GIB
from predictor.core.workload.software import Framework
from predictor.layout_search.question import problem_around
from predictor.layout_search.rank import described, rank
from tests.accuracy.groups import Row, judge
from tests.accuracy.layouts import job_of
from tests.accuracy.tables import Table, percent
from tests.conftest import SHARED

# Those whose makers publish tuned recipes; other tables are sweeps, or runs of one layout.
TUNED_BY_MAKERS = (Framework.NEMO, Framework.MEGATRON_BRIDGE)
NEAR = 0.05
HEAD = ("recipes", "number", "within 5 %", "mean behind %", "worst %")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A published recipe beside the search's winner.

    Attributes:
        row: the measured step.
        winner: the search's first answer, in its short form.
        published_us, winner_us: both as modelled.
        published_gib, winner_gib, memory_gib: both as predicted, and that of a GPU.
    """

    row: Row
    winner: str
    published_us: float
    winner_us: float
    published_gib: float
    winner_gib: float
    memory_gib: float | None

    @property
    def slower(self) -> float:
        """Return how much slower the published layout is predicted, as a share; none where the winner is slower."""
        return max(0.0, self.published_us / self.winner_us - 1.0)

    @property
    def has_experts(self) -> bool:
        """Return whether the model has experts."""
        return self.row.compared.prediction.run.model.experts is not None


def published_recipes(rows: Iterable[Row]) -> list[Row]:
    """Return tuned recipes, each configuration once; of several layouts of a job the one that was measured fastest."""
    fastest: dict[str, Row] = {}
    for row in rows:
        step = row.compared.step
        if step.ordinary or step.config["training"]["framework"] not in TUNED_BY_MAKERS:
            continue
        run = row.compared.prediction.run
        job = job_of(row, run.micro_batch_size * run.num_micro_batches * run.layout.data_parallel_size)
        if job not in fastest or step.seconds < fastest[job].compared.step.seconds:
            fastest[job] = row
    return list(fastest.values())


def compared(row: Row) -> Recipe | None:
    """Search beside a recipe under its framework's rules; None where its framework's rules leave no layout."""
    step, prediction = row.compared.step, row.compared.prediction
    loaded = prepare(of_record(step.config), Path.cwd())
    rules: FrameworkRules | None = rules_behind(loaded.run.framework)
    problem = problem_around(loaded, rules)
    try:
        best = rank(problem.space, problem.system, problem.memory_gib, top=1).best[0]
    except NoLayoutError:
        return None
    return Recipe(
        row=row,
        winner=described(best.plan),
        published_us=prediction.modelled_us,
        winner_us=best.step_us,
        published_gib=row.predicted_gib,
        winner_gib=best.memory_bytes / GIB,
        memory_gib=problem.memory_gib,
    )


def _line(name: str, recipes: Sequence[Recipe]) -> list[str]:
    behind = [recipe.slower for recipe in recipes]
    near = fmean(each <= NEAR for each in behind)
    return [name, str(len(recipes)), percent(100 * near), percent(100 * fmean(behind), 1), percent(100 * max(behind))]


def recipe_table(rows: Sequence[Row]) -> Table:
    """Return the share of published recipes near the search's winner, dense models and experts apart."""
    kinds: dict[str, list[Recipe]] = defaultdict(list)
    for recipe in filter(None, map(compared, published_recipes(rows))):
        kinds["experts" if recipe.has_experts else "dense"].append(recipe)
    lines = [_line(name, recipes) for name, recipes in sorted(kinds.items())]
    if len(kinds) > 1:
        lines.append(_line("all", [recipe for recipes in kinds.values() for recipe in recipes]))
    return Table("recipes", "Published recipes beside the search's winner, both predicted", HEAD, lines)


def _told(recipe: Recipe) -> Iterator[str]:
    step, run = recipe.row.compared.step, recipe.row.compared.prediction.run
    layout = run.layout
    yield (
        f"{recipe.slower:+7.1%}  {step.name} ({step.groups[0]}): {recipe.published_us / 1e6:.4g} s, measured "
        f"{step.seconds:.4g} s, {recipe.published_gib:.1f} of {recipe.memory_gib or 0.0:.1f} GiB"
    )
    yield (
        f"    published tp {layout.tensor_parallel_size}, pp {layout.pipeline_parallel_size}, "
        f"dp {layout.data_parallel_size}, cp {layout.context_parallel_size}, ep {layout.expert_parallel_size}, "
        f"micro-batch {run.micro_batch_size} × {run.num_micro_batches}, {run.schedule} × "
        f"{run.virtual_pipeline_parallel_size}, recompute {run.recompute} {' '.join(run.recompute_modules)}"
    )
    yield f"    searched  {recipe.winner}: {recipe.winner_us / 1e6:.4g} s, {recipe.winner_gib:.1f} GiB"


def main() -> None:
    """Print every published recipe beside the search's winner."""
    wanted = sys.argv[1] if sys.argv[1:] else ""
    rows = published_recipes(judge(SHARED / "truth").rows)
    chosen = [row for row in rows if wanted in f"{row.compared.step.name} {row.compared.step.groups}"]
    for recipe in filter(None, map(compared, chosen)):
        print("\n".join(_told(recipe)), flush=True)


if __name__ == "__main__":
    main()
