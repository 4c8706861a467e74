"""A published folder that is damaged, edited or incomplete does not answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from predictor.__main__ import main
from predictor.core.base.bundled import REGRESSORS_FOLDER, systems
from predictor.core.base.errors import PublishedError
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES, Topology
from predictor.core.costs.operator import Direction
from predictor.core.costs.published import PublishedSystem, measured_precisions, open_system
from predictor.core.schema.short_names import OPERATORS_BY_SHORT_NAME
from tests.unit.examples import short_form, write

GPU = "NVIDIAA100-SXM4-80GB"
LINEAR = f"operator/{GPU}_linear_fp16.json"


def seal(folder: Path, name: str) -> None:
    """Vouch for an edited file, or for its absence."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if (folder / name).exists():
        manifest["files"][name] = sha256((folder / name).read_bytes()).hexdigest()
    else:
        del manifest["files"][name]
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / LINEAR).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / LINEAR).write_bytes(content)


def truncate(folder: Path) -> None:
    (folder / LINEAR).write_bytes((folder / LINEAR).read_bytes()[:1000])


def edit_hardware(folder: Path) -> None:
    path = folder / "system.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("312.0", "624.0"), encoding="utf-8")


def edit_card(folder: Path) -> None:
    with (folder / "card.md").open("a", encoding="utf-8") as card:
        card.write("All errors are zero.\n")


def remove_file(folder: Path) -> None:
    (folder / LINEAR).unlink()


def remove_card(folder: Path) -> None:
    (folder / "card.md").unlink()


def break_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{", encoding="utf-8")


def unpublish_operator(folder: Path) -> None:
    (folder / LINEAR).unlink()
    seal(folder, LINEAR)


def seal_nonsense(folder: Path) -> None:
    (folder / LINEAR).write_text("{}", encoding="utf-8")
    seal(folder, LINEAR)


def _seal_forward(folder: Path, **changed: object) -> None:
    content = json.loads((folder / LINEAR).read_text(encoding="utf-8"))
    content["directions"]["forward"].update(changed)
    (folder / LINEAR).write_text(json.dumps(content), encoding="utf-8")
    seal(folder, LINEAR)


def seal_no_number(folder: Path) -> None:
    _seal_forward(folder, baseline=float("nan"))


def seal_negative_time(folder: Path) -> None:
    _seal_forward(folder, physics=[-1.0, 0.0, 0.0, 0.0, 0.0, 0.0])


def seal_missing_term(folder: Path) -> None:
    _seal_forward(folder, physics=[1.0, 0.0])


def remove_held_out(folder: Path) -> None:
    (folder / "held_out.json").unlink()


DAMAGES: dict[Callable[[Path], None], str] = {
    flip_a_byte: "damaged or was edited by hand",
    truncate: "damaged or was edited by hand",
    edit_hardware: "system.yaml is damaged or was edited by hand",
    edit_card: "card.md is damaged or was edited by hand",
    remove_file: "is missing although manifest.json lists it",
    remove_card: "a system without a card does not load",
    break_manifest: "manifest.json is damaged",
    unpublish_operator: "no fp16 regressor for qkv_projection (linear1); it has",
    remove_held_out: "held_out.json is missing although manifest.json lists it",
    seal_nonsense: "not a regressor",
    seal_no_number: "directions.forward.baseline",
    seal_negative_time: "directions.forward.physics.0",
    seal_missing_term: "physics has 2 numbers",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_one_line_and_no_number(
    damage: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "Copy"
    shutil.copytree(REGRESSORS_FOLDER / "Perlmutter", folder)
    damage(folder)
    folders = {"operator_data_folder": str(folder / "operator"), "nccl_data_folder": str(folder / "nccl")}
    assert main([str(write(short_form(**folders), tmp_path / "config.yml"))]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert DAMAGES[damage] in captured.err


def test_precision_that_was_not_measured() -> None:
    with pytest.raises(PublishedError, match="fp32"):
        PublishedSystem(REGRESSORS_FOLDER / "Perlmutter", "fp32")


@pytest.mark.parametrize("name", systems())
def test_every_documented_operator_and_collective_answers(name: str) -> None:
    folder = REGRESSORS_FOLDER / name
    assert "fp16" in measured_precisions(folder)
    system = PublishedSystem(folder, "fp16")
    documented = [catalogue()[operator] for operator in set(OPERATORS_BY_SHORT_NAME.values())]
    collectives = [COLLECTIVES[name] for name in ("all_reduce", "all_gather", "reduce_scatter", "point_to_point")]
    for operator in (*documented, *collectives):
        for direction in operator.directions:
            system.regressor(operator, direction)


def test_answers_say_how_far_they_reach() -> None:
    system = PublishedSystem(REGRESSORS_FOLDER / "Perlmutter", "fp16")
    ffn_up = catalogue()["ffn_up"]
    assert system.outside(ffn_up, Direction.FORWARD, (8192, 4096, 8192)) is None
    far = system.outside(ffn_up, Direction.FORWARD, (8192, 4096, 8192 * 1000))
    assert far is not None
    assert far.factor is not None
    assert far.factor > 10
    topology = system.outside(COLLECTIVES["all_reduce"], Direction.FORWARD, (10**8, 1000, 4))
    assert topology is not None
    assert (topology.dimension, topology.factor) == ("topology", None)


def test_forgetting_changes_no_answer() -> None:
    system = PublishedSystem(REGRESSORS_FOLDER / "Perlmutter", "fp16")
    shape = (8192, 4096, 8192)
    before = system.cost(catalogue()["ffn_up"], Direction.FORWARD, shape)
    system.forget()
    assert system.cost(catalogue()["ffn_up"], Direction.FORWARD, shape) == before


@pytest.mark.parametrize("name", ["Perlmutter", "Vista", "Selene", "H100"])
def test_a_gather_and_a_scatter_are_about_an_all_reduce(name: str) -> None:
    system = open_system(REGRESSORS_FOLDER / name, "fp16")
    for group in (Topology(1, 2), Topology(1, 4), Topology(2, 1)):
        if group.gpus_per_node > system.hardware.gpus_per_node:
            continue
        for size_bytes in (2.0**e for e in range(20, 31)):
            whole = system.collective("all_reduce", size_bytes, group).us
            halves = (
                system.collective(kind, size_bytes / group.ranks, group).us for kind in ("all_gather", "reduce_scatter")
            )
            assert 0.9 < sum(halves) / whole < 2.0, (group, size_bytes)  # two starts where messages are short


def test_no_interval_reaches_below_what_the_peak_allows() -> None:
    system = open_system(REGRESSORS_FOLDER / "H100", "fp16")
    shape = (8192, 8192, 28672)
    cost = system.cost(catalogue()["ffn_up"], Direction.FORWARD, shape)
    assert cost.low_us >= 2.0 * 8192 * 8192 * 28672 / (system.hardware.gpu.peak_tflop_per_s["fp16"].value * 1e6) * 0.999
    assert cost.low_us < cost.us
