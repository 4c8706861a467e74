"""Print published best layouts beside the search's own: ``python -m tests.accuracy.best_layouts``.

Both are predicted, so that what is compared is the ranking: how much slower than the search's winner is what its makers
chose, under the same framework's rules? Where a system's measurements are to blame, the row is also judged on another
system, without them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from predictor.core.base.read_yaml import read_mapping
from predictor.core.step.memory import GIB
from predictor.core.step.memory_verdict import MemoryVerdict, memory_verdict
from predictor.core.workload.run_choices import Recompute, RecomputeModule
from predictor.layout_search.candidate import Degrees, Plan
from predictor.layout_search.footprint import Footprints
from predictor.layout_search.lines import plans
from predictor.layout_search.question import SearchProblem, SearchQuestion, search_problem
from predictor.layout_search.rank import described, rank
from predictor.layout_search.stages import Pipelines
from predictor.layout_search.timer import Timer

FILE = Path(__file__).with_suffix(".yaml")
LIMIT = 0.05


@dataclass(frozen=True, slots=True)
class Compared:
    """A published layout beside the search's winner.

    Attributes:
        name: of the row.
        published, winner: their plans.
        published_us, winner_us: their predicted steps.
        published_gib, memory_gib: what the published one needs, and what a GPU has.
        is_searched: the search considers it.
        reason: why it is farther from the winner than the limit; none expected where empty.
        winner_gib: what the winner needs.
        published_nodes, winner_nodes: that each spreads its experts over.
    """

    name: str
    published: Plan
    winner: Plan
    published_us: float
    winner_us: float
    published_gib: float
    memory_gib: float
    is_searched: bool
    reason: str
    winner_gib: float
    published_nodes: int
    winner_nodes: int

    @property
    def slower(self) -> float:
        """Return how much slower the published layout is predicted, as a share."""
        return self.published_us / self.winner_us - 1.0

    @property
    def agrees(self) -> bool:
        """Return whether the published layout is one of the search's, may fit and is near its winner."""
        verdict = memory_verdict(self.published_gib * GIB, self.memory_gib)
        return self.is_searched and self.slower <= LIMIT and verdict is not MemoryVerdict.DOES_NOT_FIT


def is_explained(row: dict[str, Any], found: Compared) -> bool:
    """Return whether a row's reason is borne out: other products, fewer nodes, larger micro-batches, more memory."""
    if row["reason"] in _file()["instead"]:
        return compared(row, instead=True).agrees
    if row["reason"] == "nodes":
        return found.winner_nodes < found.published_nodes
    if row["reason"] == "micro-batches":
        return found.winner.micro_batch_size > found.published.micro_batch_size
    return row["reason"] == "memory" and found.winner_gib > found.published_gib * (1.0 + LIMIT)


def question_of(row: dict[str, Any]) -> SearchQuestion:
    """Return the search that a row asks for."""
    # NeMo and Megatron-Bridge run Transformer Engine's fused loss, which Megatron-LM's own arguments no longer take.
    model: dict[str, Any] = {"preset": row["model"], "loss": "fused"}
    if "length" in row:
        model["sequence_length"] = row["length"]
    if "mtp" in row:
        model["num_mtp_layers"] = row["mtp"]
    training: dict[str, Any] = {"gemm_recipe": row["recipe"]} if "recipe" in row else {}
    training |= {"cuda_graphs": row["graphs"]} if row.get("graphs") else {}
    training |= {"fused_experts": True} if row.get("fused") else {}
    parallelism: dict[str, Any] = {"gather_precision": "fp8"} if "recipe" in row else {}
    parallelism |= {"expert_dispatcher": row["dispatcher"]} if "dispatcher" in row else {}
    parallelism |= {"overlap_expert_parallel": True} if row.get("overlap") else {}
    content: dict[str, Any] = {"system": row["system"], "model": model}
    content |= {"training": training, "parallelism": parallelism}
    return SearchQuestion(content, row["gpus"], global_batch_size=row["batch"], framework="megatron")


def plan_of(row: dict[str, Any]) -> Plan:
    """Return the layout of a row."""
    tp, pp, cp, vp, size = (row.get(key, 1) for key in ("tp", "pp", "cp", "vp", "b"))
    dp, modules = row["gpus"] // (tp * pp * cp), tuple(map(RecomputeModule, row.get("recompute", ())))
    return Plan(
        degrees=Degrees(tp, cp, pp, dp, row.get("ep", 1), 1 if row.get("whole") else None),
        zero_stage=1,
        sequence_parallel=tp > 1,
        micro_batch_size=size,
        num_micro_batches=row["batch"] // (dp * size),
        recompute=Recompute.SELECTIVE if modules else Recompute.NONE,
        schedule="interleaved_1f1b" if vp > 1 else "1f1b",
        num_chunks=vp,
        modules=modules,
    )


def compared(row: dict[str, Any], instead: bool = False) -> Compared:
    """Predict a row's layout and search for a faster one.

    Args:
        row: of the file.
        instead: on the system that answers without what is wrong with the row's own.
    """
    question = question_of(row)
    if instead:
        assert isinstance(question.model, dict)
        question = replace(question, model=question.model | _file()["instead"][row["reason"]])
    problem: SearchProblem = search_problem(question)
    space, published = problem.space, plan_of(row)
    pipelines = Pipelines(space)
    found = rank(space, problem.system, problem.memory_gib, top=1)
    best = (found.unsure or found.best)[0]  # what is published did fit
    assert problem.memory_gib is not None
    return Compared(
        name=row["name"],
        published=published,
        winner=best.plan,
        published_us=Timer(space, problem.system, pipelines).step_us(published),
        winner_us=best.step_us,
        published_gib=Footprints(space, pipelines).memory_bytes(published) / GIB,
        memory_gib=problem.memory_gib,
        is_searched=any(plan == published for plan in plans(space)),
        reason=" ".join(_file()["reasons"][row["reason"]].split()) if "reason" in row and not instead else "",
        winner_gib=best.memory_bytes / GIB,
        published_nodes=space.layout(published.degrees).expert_group().nodes,
        winner_nodes=space.layout(best.plan.degrees).expert_group().nodes,
    )


@cache
def _file() -> dict[str, Any]:
    return read_mapping(FILE)


def rows() -> list[dict[str, Any]]:
    """Return the rows of the file."""
    return list(_file()["layouts"])


def line(found: Compared) -> list[str]:
    """Return a comparison as lines."""
    verdict = "agrees" if found.agrees else found.reason or "no reason known"
    return [
        f"{found.name:30} {found.slower:+7.1%}  {found.published_gib:6.1f} of {found.memory_gib:5.1f} GiB  {verdict}",
        f"    published {described(found.published)}: {found.published_us / 1e6:.4g} s",
        f"    searched  {described(found.winner)}: {found.winner_us / 1e6:.4g} s",
    ]


def main() -> None:
    """Print every published layout beside the search's."""
    chosen = [row for row in rows() if not sys.argv[1:] or sys.argv[1] in row["name"]]
    near = []
    for row in chosen:
        found = compared(row)
        print("\n".join(line(found)))
        if found.reason and row["reason"] in _file()["instead"]:
            other = compared(row, instead=True)
            print("\n".join(f"  instead: {text}" for text in line(other)))
        near.append(found.agrees)
    print(f"{sum(near)} of {len(chosen)} published layouts are within {LIMIT:.0%} of the search's winner")


if __name__ == "__main__":
    main()
