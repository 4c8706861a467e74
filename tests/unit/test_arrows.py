"""Imports inside ``predictor``: one core with rooms from the ground up, wings around it, the commands on top."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import TopologicalSorter

import pytest

from tests.unit.test_structure import imported_names, modules, relative

# The core from the ground up: the rooms that each may import.
TO_WORKLOAD = {"base", "hardware", "timeline", "costs", "workload"}
TO_PLAN = TO_WORKLOAD | {"schema", "checks", "plan"}
CORE: dict[str, set[str]] = {
    "base": set(),
    "hardware": {"base"},
    "timeline": {"base"},
    "costs": {"base", "hardware"},
    "workload": TO_WORKLOAD - {"workload"},
    "step": TO_WORKLOAD,
    "schema": TO_WORKLOAD,
    "reliability": {"base", "hardware", "schema"},
    "checks": TO_WORKLOAD | {"schema"},
    "plan": TO_PLAN - {"plan"},
    "report": TO_PLAN | {"step", "reliability"},
    "predict": TO_PLAN | {"step", "reliability", "report"},
}
# Wings import the core, and these wings: a plan is a search over searches (docs/adr/0042-training-plan.md).
WINGS: dict[str, set[str]] = {
    "layout_search": set(),
    "training_plan": {"layout_search"},
    "formats": set(),
    "recommender": set(),
    "replay": set(),
    "evidence": {"replay"},
    "watch": {"formats"},
}
ROOF: dict[str, set[str]] = {
    "serving": CORE.keys() | WINGS.keys(),
    "commands": CORE.keys() | WINGS.keys() | {"serving"},
    "__init__": CORE.keys() | WINGS.keys(),
    "__main__": CORE.keys() | {"commands"},
}
ALLOWED: dict[str, set[str]] = CORE | {wing: CORE.keys() | others for wing, others in WINGS.items()} | ROOF
TRAINERS = {"llm_trainer": CORE.keys() | {"replay"}, "hugectr": CORE.keys() | {"replay", "recommender"}}
# Blocks, transforms and folds describe the layer, as the room workload does.
LAYER = dict.fromkeys(("rows", "kernel_rows", "blocks", "transforms", "folds"), "workload")
PLACES = {f"predictor.core.{place}": room for place, room in ({room: room for room in CORE} | LAYER).items()}
PLACES |= {f"predictor.{room}": room for room in (*WINGS, *ROOF)}


def room_of(name: str) -> str | None:
    """Return the room of a dotted name inside predictor; None of one that lies in no room."""
    parts = name.split(".")
    return next(
        (PLACES[at] for at in (".".join(parts[:end]) for end in range(len(parts), 1, -1)) if at in PLACES), None
    )


def arrows(package: str) -> Iterator[tuple[str, str, str]]:
    """Every import of predictor's rooms by a package: the importing module, the imported room, and where."""
    for module, path in modules(package).items():
        for name, line in imported_names(path):
            if name.startswith("predictor.") and name != "predictor.__version__":
                yield module, room_of(name) or name, f"{relative(path)}:{line} imports {name}"


def test_every_file_is_in_a_room() -> None:
    doors = {"predictor", "predictor.__main__", "predictor.core"}
    strays = [module for module in modules("predictor") if room_of(module) is None and module not in doors]
    assert not strays, "give it a room:\n" + "\n".join(strays)


def test_the_core_imports_no_wing_and_a_wing_no_other() -> None:
    TopologicalSorter(ALLOWED).prepare()  # raises CycleError where the table itself has a circle
    doors = {"predictor": "__init__", "predictor.__main__": "__main__"}
    found = [(doors.get(module) or room_of(module), room, where) for module, room, where in arrows("predictor")]
    strays = [where for room, target, where in found if target != room and target not in ALLOWED[str(room)]]
    assert not strays, "move what both need into a room below both, or ask for it by name (wings.py):\n" + "\n".join(
        strays
    )
    assert len(found) > 1000


@pytest.mark.parametrize("trainer", TRAINERS)
def test_trainer_imports_the_core_and_its_wings(trainer: str) -> None:
    found = list(arrows(trainer))
    strays = [where for _, room, where in found if room not in TRAINERS[trainer]]
    assert not strays, "\n".join(strays)
    assert len(found) > 5
