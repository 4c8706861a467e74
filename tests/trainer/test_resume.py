"""Whatever stops a run, the resumed one ends where the undisturbed one does, bit by bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.trainer import faults
from tests.trainer.job import Kill, Scenario
from tests.trainer.runs import Left, difference, finish, left, start

SCENARIOS = {
    "accumulation, dropout, validation": Scenario(),
    "two workers, bf16, plateau": Scenario(samples=24, workers=2, precision="bf16-mixed", scheduler="plateau"),
    "two ranks, DDP": Scenario(samples=32, ranks=2),
    "two ranks, FSDP2": Scenario(samples=20, max_epochs=1, ranks=2, strategy="fsdp"),
}


@pytest.fixture(scope="module", params=SCENARIOS, ids=str)
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Scenario, Left]:
    scenario = SCENARIOS[request.param]
    reference, codes = finish(scenario, tmp_path_factory.mktemp("reference"), [])
    assert codes == [[0] * scenario.ranks]
    return scenario, reference


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def events(reference: Left, share: float, rank: int) -> int:
    return int(share * reference.results[rank]["events"])


def test_killed_twice_and_resumed_equals_undisturbed(undisturbed: tuple[Scenario, Left], folder: Path) -> None:
    scenario, reference = undisturbed
    last = scenario.ranks - 1
    kills = [
        Kill(events(reference, 0.55, last), signal.SIGKILL, last),
        Kill(events(reference, 0.3, 0), signal.SIGKILL, 0),
    ]
    resumed, codes = finish(scenario, folder, kills)
    assert len(codes) == 3
    assert difference(reference, resumed) == ""


@pytest.mark.parametrize(("number", "share"), [(signal.SIGUSR1, 0.2), (signal.SIGTERM, 0.45)], ids=["USR1", "TERM"])
def test_preempted_saves_exits_75_and_goes_on(
    undisturbed: tuple[Scenario, Left], folder: Path, number: int, share: float
) -> None:
    scenario, reference = undisturbed
    last = scenario.ranks - 1
    resumed, codes = finish(scenario, folder, [Kill(events(reference, share, last), number, last)])
    assert codes == [[75] * scenario.ranks, [0] * scenario.ranks]  # one rank got the signal, all left
    assert difference(reference, resumed) == ""


def test_a_difference_would_be_seen(undisturbed: tuple[Scenario, Left], folder: Path) -> None:
    scenario, reference = undisturbed
    other = Scenario(**{name: getattr(scenario, name) for name in Scenario.__slots__} | {"seed": 8})
    folder.mkdir()
    assert not any(start(other, folder))
    assert difference(reference, left(other, folder)).startswith("line 0")


def test_a_drawn_seed_is_kept_by_checkpoints(folder: Path) -> None:
    folder.mkdir()
    scenario = Scenario(samples=16, seed=None)
    assert start(scenario, folder, Kill(9000, signal.SIGUSR1)) == [75]
    seen = (folder / "steps.jsonl").read_text()
    assert start(scenario, folder) == [0]
    assert (folder / "steps.jsonl").read_text().startswith(seen)


@pytest.mark.skipif(not os.environ.get("TRAINER_FAULTS"), reason="minutes; TRAINER_FAULTS=1 runs it")
@pytest.mark.parametrize("ranks", [1, 2])
def test_fifty_random_kill_points(ranks: int, tmp_path: Path) -> None:
    scenarios = faults.ONE_RANK if ranks == 1 else faults.TWO_RANKS
    outcomes = [
        outcome
        for label, scenario in scenarios.items()
        for outcome in faults.disturb(label, scenario, 25, 0, tmp_path / label)
    ]
    assert len(outcomes) == 50
    assert [outcome for outcome in outcomes if outcome.difference] == []
