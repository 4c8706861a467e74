"""``search_plans``: the fastest sharding of a recommender's embedding tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from os import PathLike
from typing import Any

from predictor.core.base.command_line import on_terminal, progress
from predictor.core.base.errors import ConfigError
from predictor.core.base.sizes import whole
from predictor.core.costs.cost import Cost
from predictor.core.predict.prediction import USUAL_WIDTH
from predictor.recommender.hugectr.to_run import to_run
from predictor.recommender.options import opened, options_of
from predictor.recommender.report import plans as report
from predictor.recommender.sharding import answer
from predictor.recommender.sharding.solve import silent
from predictor.recommender.workload.plan import ShardingPlan

MOST_SHOWN = 1000


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PlanSearchResult:
    """The sharding plans of a search.

    Attributes:
        plans: that fit, the fastest first; ``write_plan`` writes one.
        steps: their times, with the 90 % interval.
        details: predictions, and what the search proved.
    """

    plans: tuple[ShardingPlan, ...]
    steps: tuple[Cost, ...]
    details: answer.PlanSearch

    def to_dict(self) -> dict[str, Any]:
        """Return what ``search --json`` prints."""
        return report.to_json(self.details)

    def to_csv(self) -> str:
        """Return the plans as ``search --csv`` writes them."""
        return report.to_csv(self.details)

    def text(self, width: int = USUAL_WIDTH) -> str:
        """Return the page that ``search`` prints, its sentences wrapped at ``width`` columns."""
        return report.render(self.details, width)

    def __str__(self) -> str:
        """Return the page."""
        return self.text()

    def __repr__(self) -> str:
        """Return size and fastest step in a line."""
        return f"<{len(self.plans)} plans on {self.details.system.name}, the fastest {self.steps[0].us:.6g} us>"


def search_plans(
    config: str | PathLike[str] | Mapping[str, Any],
    *,
    gpus: int | None = None,
    system: str | PathLike[str] | None = None,
    batch_size: int | None = None,
    precision: str | None = None,
    plan: str | PathLike[str] | None = None,
    key_exponent: float | None = None,
    cached_share: float | None = None,
    memory_gib: float | None = None,
    top: int = 10,
) -> PlanSearchResult:
    """Find the fastest sharding plans of a HugeCTR configuration; arguments are those of the command ``search``.

    On a terminal, stderr says how far the search is.

    Args:
        config: path of the JSON file, or a mapping with the same clauses.
        gpus: in place of the solver's.
        system: published system, a name or a folder, in place of the clause ``prediction``'s.
        batch_size: samples of a step over all GPUs, in place of the solver's.
        precision: fp32, fp16 or bf16, in place of the solver's.
        plan: file of a sharding plan to compare, in place of the clause ``prediction``'s.
        key_exponent: of the power law of keys; 0 is uniform.
        cached_share: of every table's rows that device memory holds; the host has the others.
        memory_gib: memory of one GPU in GiB, instead of the system's.
        top: plans of the search to predict, up to 1,000.

    Raises:
        FileNotFoundError: there is no such configuration.
        KeyError: a required clause or key is missing.
        ValueError: a value is not allowed, nothing fits, or nothing published answers for it.
    """
    if memory_gib is not None and (isinstance(memory_gib, bool) or not isinstance(memory_gib, int | float)):
        raise ConfigError(f"--memory-gib is {memory_gib!r}; expected GiB of one GPU")
    if memory_gib is not None and not 0 < memory_gib < inf:
        raise ConfigError(f"--memory-gib is {memory_gib}; expected a number above 0")
    options = options_of(
        system=system,
        gpus=gpus,
        batch_size=batch_size,
        plan=plan,
        key_exponent=key_exponent,
        precision=precision,
        cached_share=cached_share,
    )
    _, read, base = opened(config)
    loaded = to_run(read, options, base)
    shown = whole("--top", top, largest=MOST_SHOWN)
    details = answer.search_plans(loaded.run, loaded.system, memory_gib, shown, progress if on_terminal() else silent)
    return PlanSearchResult(
        tuple(winner.plan for winner in details.winners),
        tuple(winner.prediction.step for winner in details.winners),
        details,
    )
