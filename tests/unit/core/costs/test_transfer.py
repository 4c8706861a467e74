"""Systems that were not measured, what-if hardware, stand-ins and collectives by their links."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from hashlib import sha256
from math import log
from pathlib import Path

import pytest
import yaml

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.errors import PublishedError
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES, Topology
from predictor.core.costs.cost import Source
from predictor.core.costs.folder import MANIFEST_FORMAT
from predictor.core.costs.links import link_use
from predictor.core.costs.operator import Direction, Operator, Shape, StandIn
from predictor.core.costs.published import PublishedSystem, measured_precisions, open_system, with_hardware
from predictor.core.costs.transfer import log_error
from predictor.core.costs.transfer_errors import transfer_errors
from predictor.core.hardware.hardware import Quantity, System

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
DATA_SHEETS = ("Selene", "V100")
FFN_UP, GELU = catalogue()["ffn_up"], catalogue()["gelu"]
SHAPES = {FFN_UP: (8192, 4096, 16384), GELU: (8192, 16384), catalogue()["flash_attention"]: (4, 4096, 32, 128, 1)}


def opened(name: str) -> PublishedSystem:
    return open_system(REGRESSORS_FOLDER / name, "fp16")


def stripped(name: str, parent: Path) -> PublishedSystem:
    """A system as its data sheet alone would give it: without its own regressors."""
    folder = parent / name
    shutil.copytree(REGRESSORS_FOLDER / name, folder, ignore=shutil.ignore_patterns("operator", "nccl"))
    seal(folder)
    return PublishedSystem(folder, "fp16")


def changed(system: System, **numbers: float) -> System:
    """The same system with some numbers of its GPU or its links replaced."""

    def updated(section: object, names: set[str]) -> dict[str, Quantity]:
        return {name: Quantity(value=numbers[name], source="what if") for name in names & set(numbers)}

    gpu = system.gpu.model_copy(update=updated(system.gpu, {"memory_bandwidth_gb_per_s", "num_multiprocessors"}))
    links = system.links.model_copy(update=updated(system.links, {"intra_node_gb_per_s", "inter_node_gb_per_s"}))
    return system.model_copy(update={"gpu": gpu, "links": links})


def seal(folder: Path) -> None:
    """Vouch for whatever lies in a folder."""
    files = {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }
    manifest = {"format": MANIFEST_FORMAT, "files": files}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def bus_gb_per_s(name: str, collective: str, group: Topology, size_bytes: float = 4e9) -> float:
    """Bus bandwidth as nccl-tests defines it, of a large message; all-gather by the size of all shards together."""
    ranks = group.ranks
    if collective == "all_reduce":
        us = opened(name).collective(collective, size_bytes, group).us
        return 2.0 * (ranks - 1) / ranks * size_bytes / us / 1e3
    us = opened(name).collective(collective, size_bytes / ranks, group).us
    return (ranks - 1) / ranks * size_bytes / us / 1e3


@pytest.mark.parametrize("name", DATA_SHEETS)
def test_a_data_sheet_answers_for_every_measured_operator_and_every_collective(name: str) -> None:
    system = opened(name)
    assert measured_precisions(REGRESSORS_FOLDER / name) == ["fp16"]
    donor = opened("Perlmutter" if name == "Selene" else "Vista")
    for operator in catalogue().values():
        assert system.measured(operator) == donor.measured(operator), operator.name
    for collective in COLLECTIVES:
        for group in (Topology(1, 8), Topology(4, 8), Topology(4, 1)):
            cost = system.collective(collective, 1e8, group)
            assert cost.low_us < cost.us < cost.high_us
            assert cost.source is Source.ANALYTIC


@pytest.mark.parametrize("name", DATA_SHEETS)
def test_every_number_of_a_data_sheet_has_its_source_on_the_card(name: str) -> None:
    system = opened(name).hardware
    card = (REGRESSORS_FOLDER / name / "card.md").read_text(encoding="utf-8")
    for quantity in (
        system.gpu.memory_gib,
        system.gpu.board_power_w,
        system.gpu.memory_bandwidth_gb_per_s,
        *system.gpu.peak_tflop_per_s.values(),
        system.links.intra_node_gb_per_s,
        system.links.inter_node_gb_per_s,
    ):
        assert quantity is not None
        assert f"{quantity.value:g} – {quantity.source}" in card
    assert "linear forward | Perlmutter → Vista" in card


def test_the_same_gpu_in_another_cluster_answers_as_measured() -> None:
    selene, perlmutter = opened("Selene"), opened("Perlmutter")
    for operator, shape in SHAPES.items():
        for direction in operator.directions:
            assert selene.cost(operator, direction, shape) == perlmutter.cost(operator, direction, shape)
    assert selene.cost(FFN_UP, BACKWARD, SHAPES[FFN_UP]).source is Source.INTERPOLATED


def test_terms_follow_the_peaks_that_bound_them(tmp_path: Path) -> None:
    vista, h200 = opened("Vista"), stripped("H200", tmp_path)
    # One chip, one peak, 4.0 and 4.8 TB/s.
    gemm = [system.cost(FFN_UP, FORWARD, SHAPES[FFN_UP]) for system in (vista, h200)]
    stream = [system.cost(GELU, FORWARD, SHAPES[GELU]) for system in (vista, h200)]
    assert gemm[1].us == pytest.approx(gemm[0].us, rel=0.03)
    assert stream[1].us == pytest.approx(stream[0].us / 1.2, rel=0.01)
    assert {gemm[1].source, stream[1].source} == {Source.ANALYTIC}
    assert log(gemm[1].high_us / gemm[1].us) >= transfer_errors().kinds["compute"]


def test_no_gpu_is_surer_than_the_two_that_were_measured() -> None:
    vista = opened("Vista").hardware.gpu
    for name in set(DATA_SHEETS) - {"Selene"}:
        assert log_error(FFN_UP, vista, opened(name).hardware.gpu, "fp16") >= transfer_errors().kinds["compute"]


# Reported for large messages, by issue of nccl-tests: eight A100 behind NVSwitch about 200 GB/s in a node (149, a
# user); two such nodes 91 % of their adapters' bandwidth, 100 GB/s there (100, a user); NVLink4 370 GB/s for rings
# (212, a maintainer); 46 to 48 GB/s per 400 Gb/s adapter (290, a maintainer).
@pytest.mark.parametrize(
    ("name", "group", "reported"),
    [
        ("Selene", Topology(1, 8), 200.0),
        ("Selene", Topology(2, 8), 182.0),
        ("H100", Topology(1, 8), 370.0),
        ("H100", Topology(16, 1), 47.0),
    ],
)
def test_bus_bandwidth_of_a_data_sheet_is_what_such_machines_report(
    name: str, group: Topology, reported: float
) -> None:
    for collective in ("all_reduce", "all_gather"):
        assert bus_gb_per_s(name, collective, group) == pytest.approx(reported, rel=0.15)


def test_a_switch_gives_every_group_all_links_and_a_mesh_its_share() -> None:
    pairs, whole = Topology(1, 2), Topology(1, 8)
    assert bus_gb_per_s("Selene", "all_gather", pairs) == pytest.approx(
        bus_gb_per_s("Selene", "all_gather", whole), rel=0.05
    )
    assert bus_gb_per_s("MI300X", "all_gather", pairs) == pytest.approx(
        bus_gb_per_s("MI300X", "all_gather", whole) / 7.0, rel=0.05
    )


def test_link_use_of_a_measured_collective_is_its_bandwidth() -> None:
    system = opened("Perlmutter")
    model = system.files.read(COLLECTIVES["all_reduce"])[FORWARD].model
    use = link_use(model, system.hardware)
    assert use.node_efficiency is not None
    assert bus_gb_per_s("Perlmutter", "all_reduce", Topology(1, 4)) == pytest.approx(
        use.node_efficiency * 300.0, rel=0.05
    )


@pytest.mark.parametrize("name", ["Perlmutter", "Vista"])
@pytest.mark.parametrize("collective", ["all_to_all", "broadcast"])
def test_a_collective_that_was_not_measured_is_analytic_and_grows_with_its_bytes(name: str, collective: str) -> None:
    system = opened(name)
    small, large = (system.collective(collective, size, Topology(8, 1)) for size in (1e8, 2e8))
    assert small.source is Source.ANALYTIC
    assert small.us < large.us < 2.0 * small.us
    outside = system.outside(COLLECTIVES[collective], FORWARD, (10**8, 8, 1))
    assert outside is not None
    assert outside.dimension == "operator"


def test_links_that_were_not_measured_are_one_line() -> None:
    with pytest.raises(
        PublishedError, match="Vista: no measurement of links inside a node; their efficiency is taken from Vista"
    ):
        opened("Vista").collective("broadcast", 1e6, Topology(1, 4))


@pytest.mark.parametrize("name", ["Perlmutter", "Vista", "H100", "Selene"])
def test_unchanged_hardware_changes_no_answer(name: str) -> None:
    system = opened(name)
    same = with_hardware(system, system.hardware)
    for operator, shape in SHAPES.items():
        for direction in operator.directions:
            assert same.cost(operator, direction, shape) == system.cost(operator, direction, shape)
    for collective in COLLECTIVES:
        group = Topology(4, 1)
        assert same.collective(collective, 1e8, group) == system.collective(collective, 1e8, group)


def test_faster_memory_moves_what_it_bounds_and_nothing_else() -> None:
    system = opened("Perlmutter")
    faster = with_hardware(system, changed(system.hardware, memory_bandwidth_gb_per_s=2.0 * 2039.0))
    before, after = (one.cost(GELU, FORWARD, SHAPES[GELU]) for one in (system, faster))
    assert after.us == pytest.approx(before.us / 2.0, rel=0.02)
    assert after.source is Source.ANALYTIC
    assert after.high_us / after.us > before.high_us / before.us
    group = Topology(2, 4)
    assert faster.collective("all_reduce", 1e8, group) == system.collective("all_reduce", 1e8, group)


def test_a_faster_network_moves_collectives_between_nodes_only() -> None:
    system = opened("Vista")
    faster = with_hardware(system, changed(system.hardware, inter_node_gb_per_s=100.0))
    before, after = (one.collective("all_reduce", 1e9, Topology(8, 1)) for one in (system, faster))
    assert after.us == pytest.approx(before.us / 2.0, rel=0.02)
    assert after.source is Source.ANALYTIC
    assert faster.cost(FFN_UP, FORWARD, SHAPES[FFN_UP]) == system.cost(FFN_UP, FORWARD, SHAPES[FFN_UP])
    perlmutter = opened("Perlmutter")
    inside = with_hardware(perlmutter, changed(perlmutter.hardware, inter_node_gb_per_s=100.0))
    group = Topology(1, 4)
    assert inside.collective("all_reduce", 1e8, group) == perlmutter.collective("all_reduce", 1e8, group)


def test_a_small_change_is_a_small_step() -> None:
    system = opened("Perlmutter")
    nearly = with_hardware(system, changed(system.hardware, memory_bandwidth_gb_per_s=2040.0))
    before, after = (one.cost(GELU, FORWARD, SHAPES[GELU]) for one in (system, nearly))
    assert (after.us, after.low_us, after.high_us) == pytest.approx(
        (before.us, before.low_us, before.high_us), rel=2e-3
    )


def test_whatif_on_a_data_sheet_is_the_data_sheet_with_that_number(tmp_path: Path) -> None:
    h100, h200 = (stripped(name, tmp_path) for name in ("H100", "H200"))
    faster = with_hardware(h100, changed(h100.hardware, memory_bandwidth_gb_per_s=4800.0))
    for operator, shape in SHAPES.items():
        assert faster.cost(operator, FORWARD, shape) == h200.cost(operator, FORWARD, shape)


def test_a_switch_instead_of_pairs_is_seen_by_a_pair() -> None:
    system = opened("Perlmutter")
    links = system.hardware.links.model_copy(update={"wiring": "switch"})
    switched = with_hardware(system, system.hardware.model_copy(update={"links": links}))
    group = Topology(1, 2)
    ratio = system.collective("all_gather", 1e9, group).us / switched.collective("all_gather", 1e9, group).us
    assert ratio > 3.0
    assert switched.collective("all_reduce", 1e8, Topology(2, 4)) == system.collective(
        "all_reduce", 1e8, Topology(2, 4)
    )


def _standing_in(name: str, times: float, shape: Shape | None = None) -> Operator:
    def stand_in(asked: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
        return StandIn(name, shape or asked, times)

    return replace(GELU, name="new", stand_in=stand_in)


def test_a_stand_in_answers_so_many_times_over_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    system = PublishedSystem(REGRESSORS_FOLDER / "Perlmutter", "fp16")
    own = system.cost(GELU, BACKWARD, (8192, 8192))
    second = _standing_in("gelu", 3.0)
    first = replace(_standing_in("second", 2.0), name="first")
    monkeypatch.setitem(catalogue(), "second", replace(second, name="second"))
    found = system.cost(first, BACKWARD, (8192, 8192))
    assert found.us == pytest.approx(6.0 * own.us)
    assert found.source is Source.EXTRAPOLATED
    assert found.high_us / found.us > own.high_us / own.us
    outside = system.outside(first, BACKWARD, (8192, 8192))
    assert outside is not None
    assert (outside.dimension, outside.factor) == ("operator", None)
    assert not system.measured(first)
    assert system.measured(GELU)


def test_stand_ins_for_each_other_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    system = PublishedSystem(REGRESSORS_FOLDER / "Perlmutter", "fp16")
    circle = _standing_in("new", 1.0)
    monkeypatch.setitem(catalogue(), "new", circle)
    with pytest.raises(PublishedError, match="stand in for each other"):
        system.cost(circle, FORWARD, (8, 8))


def test_an_operator_that_was_not_measured_and_nothing_stands_in_for_has_no_answer() -> None:
    with pytest.raises(PublishedError, match="no fp16 regressor for new; it has"):
        opened("Perlmutter").cost(replace(GELU, name="new"), FORWARD, (8, 8))


def test_a_donor_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "Mine"
    shutil.copytree(REGRESSORS_FOLDER / "H100", folder)
    path = folder / "system.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("operators: Vista", "operators: Frontier"))
    seal(folder)
    with pytest.raises(PublishedError, match="names the donor Frontier, which is published neither in"):
        PublishedSystem(folder, "fp16")


def test_a_folder_elsewhere_finds_donors_among_the_bundled_systems(tmp_path: Path) -> None:
    folder = tmp_path / "Mine"
    shutil.copytree(REGRESSORS_FOLDER / "H100", folder)
    cost = PublishedSystem(folder, "fp16").cost(FFN_UP, FORWARD, SHAPES[FFN_UP])
    assert cost == opened("H100").cost(FFN_UP, FORWARD, SHAPES[FFN_UP])


def test_own_regressors_precede_those_of_a_donor(tmp_path: Path) -> None:
    folder = tmp_path / "Mine"
    shutil.copytree(REGRESSORS_FOLDER / "Vista", folder)
    for path in (*folder.glob("nccl/*.json"), *folder.glob("operator/*gelu*.json")):
        path.unlink()
    content = yaml.safe_load((folder / "system.yaml").read_text(encoding="utf-8"))
    content["transfer"] = {"operators": "Vista", "intra_node": "Perlmutter", "inter_node": "Vista"}
    content["gpu"]["memory_bandwidth_gb_per_s"]["value"] = 8000.0
    (folder / "system.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    seal(folder)
    mine, vista = PublishedSystem(folder, "fp16"), opened("Vista")
    shape = SHAPES[FFN_UP]
    assert mine.cost(FFN_UP, FORWARD, shape) == vista.cost(FFN_UP, FORWARD, shape)
    assert mine.cost(GELU, FORWARD, SHAPES[GELU]).source is Source.ANALYTIC
    assert mine.cost(GELU, FORWARD, SHAPES[GELU]).us < vista.cost(GELU, FORWARD, SHAPES[GELU]).us
    assert mine.collective("all_reduce", 1e8, Topology(4, 1)).source is Source.ANALYTIC
    assert "gelu" in mine.regressor_names("operator")


def test_damaged_transfer_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, told in (("{}", "is damaged"), ("[", "is damaged"), (None, "No such file")):
        path = tmp_path / "transfer_error.json"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content, encoding="utf-8")
        monkeypatch.setattr("predictor.core.costs.transfer_errors.TRANSFER_ERRORS", path)
        with pytest.raises(PublishedError, match=told):
            transfer_errors.__wrapped__()


def test_a_partly_measured_system_takes_the_rest_from_a_donor_in_the_other_half_precision(tmp_path: Path) -> None:
    folder = stripped("H200", tmp_path).folder
    gelu = json.loads((REGRESSORS_FOLDER / "Vista/operator/NVIDIAGH200120GB_gelu_fp16.json").read_text())
    (folder / "operator").mkdir()
    own = folder / "operator/NVIDIAH200_gelu_bf16.json"
    own.write_text(json.dumps(gelu | {"gpu": "NVIDIAH200", "precision": "bf16"}))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][f"operator/{own.name}"] = sha256(own.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    system = PublishedSystem(folder, "bf16")
    forward = Direction.FORWARD
    assert system.cost(catalogue()["gelu"], forward, (4096, 8192)).source is not Source.ANALYTIC
    transferred = system.cost(catalogue()["cross_entropy"], forward, (4096, 32000, 4))
    whole = opened("H200").cost(catalogue()["cross_entropy"], forward, (4096, 32000, 4))
    assert (transferred.us, transferred.source) == (whole.us, Source.ANALYTIC)
    assert system.operator_donor() is None, "it was measured, if not whole"
