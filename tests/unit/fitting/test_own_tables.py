"""Tables of microbench become a published system as imported ones do, in fp32 too."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from fitting.cli import main
from fitting.gate import BEATS_MEMORY, gate
from fitting.own_tables import HOST_BOUND, find_tables
from fitting.tables import Row, Tables
from microbench.errors import TableError
from microbench.provenance import Identity, Session, provenance_path
from microbench.table import Measurement, Status, Writer, table_path
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.operator import BOTH, Direction
from predictor.core.costs.published import PublishedSystem, measured_precisions
from tests.unit.fitting_tables import GPU, SYSTEM, gelu_us
from tests.unit.fitting_tables import source as half_source

SESSION = Session(started="2026-01-01T00:00:00+00:00", host="here", commit="abc", state_before={})
HARDWARE = SYSTEM["hardware"]
FP32 = SYSTEM | {
    "hardware": HARDWARE  # type: ignore[operator]
    | {"gpu": HARDWARE["gpu"] | {"peak_tflop_per_s": {"fp32": {"value": 60, "source": "test"}}}}  # type: ignore[index]
}
SHAPES = list(product((256, 384, 512, 1024, 2048, 4096), (512, 1024, 1536, 2048, 4096, 8192)))


def write(
    results: Path, name: str = "gelu", device_kind: str = "cpu", gap_us: float = 50.0, precision: str = "fp32"
) -> Path:
    operator = catalogue()[name]
    identity = Identity.model_validate({
        "kind": "operator", "name": name, "precision": precision, "worker": "0of1", "dimensions": operator.dimensions,
        "directions": operator.directions, "device": GPU, "device_kind": device_kind, "driver": None,
        "versions": {}, "config_hash": "",
    })  # fmt: skip
    path = table_path(results, "operator", name, precision, "0of1")
    with Writer(path, identity, SESSION) as table:
        for tokens, width in SHAPES:
            shape = (tokens, width) if name == "gelu" else (tokens, width // 64, 64)
            times = {direction: gelu_us(tokens, width, direction) for direction in BOTH}
            table.append(
                [
                    Measurement(shape, d, (us + gap_us, us + gap_us), "test", Status.OK, (us, us), host_us=gap_us)
                    for d, us in times.items()
                ]
            )
        if name == "gelu":
            table.append([Measurement((10**6, 10**6), d, (), "needs 9 TB", Status.OUT_OF_MEMORY) for d in BOTH])
    return path


def write_collective(
    results: Path,
    precision: str,
    name: str = "all_reduce",
    topology: tuple[int, int] = (1, 4),
    backend: str = "nccl",
    device: str = GPU,
) -> Path:
    worker = "{}x{}".format(*topology)
    identity = Identity.model_validate({
        "kind": "collective", "name": name, "precision": precision, "worker": worker,
        "dimensions": COLLECTIVES[name].dimensions, "directions": [Direction.FORWARD], "device": device,
        "device_kind": "cuda", "driver": None, "versions": {}, "settings": {"backend": backend}, "config_hash": "",
    })  # fmt: skip
    path = table_path(results, "collective", name, precision, worker)
    with Writer(path, identity, SESSION) as table:
        for size in (1024 * 2**octave for octave in range(20)):
            us = (20.0 + size / 50e3,) * 2
            table.append([Measurement((size, *topology), Direction.FORWARD, us, "test", Status.OK)])
    return path


def used(tables: Tables) -> set[str]:
    return {path.name for paths in tables.paths().values() for path in paths}


def test_own_tables_are_fitted_published_and_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    (tmp_path / "system.yaml").write_text(yaml.safe_dump(FP32))
    published = tmp_path / "published"
    words = ["fit", "--system", str(tmp_path / "system.yaml"), "--measurements", str(tmp_path), "--out", str(published)]
    assert main(words) == 0, capsys.readouterr().err
    system = PublishedSystem(published, "fp32")
    for direction in BOTH:
        cost = system.cost(catalogue()["gelu"], direction, (1024, 1024))
        assert cost.us == pytest.approx(gelu_us(1024, 1024, direction), rel=0.1), (
            "kernel time, not the clock's on the wall"
        )
    assert main(["evaluate", str(published), str(tmp_path)]) == 0
    assert "res_add" not in (published / "card.md").read_text()


def test_the_reference_kernel_beside_the_tables_is_published(tmp_path: Path) -> None:
    write(tmp_path / "tables")
    write_collective(tmp_path / "tables", "fp32", topology=(1, 2))
    for path, times in (("operator", [(1000.0, 1020.0), (1040.0,)]), ("collective", [(1500.0, 1700.0)])):
        (file,) = (tmp_path / "tables" / path).glob("*.provenance.json")
        document = json.loads(file.read_text())
        document["sessions"] = [document["sessions"][0] | {"reference_us": us} for us in times]
        file.write_text(json.dumps(document))
    (tmp_path / "system.yaml").write_text(yaml.safe_dump(FP32))
    words = ["--system", tmp_path / "system.yaml", "--measurements", tmp_path / "tables", "--out", tmp_path / "own"]
    assert main(["fit", *map(str, words)]) == 0
    known = PublishedSystem(tmp_path / "own", "fp32").hardware.reference_us
    assert known is not None
    assert {processes: us.value for processes, us in known.items()} == {1: 1020.0, 2: 1600.0}


def test_a_row_without_a_time_is_no_row(tmp_path: Path) -> None:
    write(tmp_path)
    (tables,) = find_tables(tmp_path, GPU, ["fp32"])
    assert len(tables.rows("gelu")) == 2 * len(SHAPES)


@pytest.mark.parametrize(("kind", "launches"), [("cpu", 0), ("cuda", 2)])
def test_launches_cost_a_host_only_where_there_are_any(tmp_path: Path, kind: str, launches: int) -> None:
    write(tmp_path, "rope", kind, gap_us=10_000.0)
    (tables,) = find_tables(tmp_path, GPU, ["fp32"])
    found = tables.launch_quantities()
    assert found is not None
    assert len(found) == launches
    if found:
        assert found["launch_forward_us"].value == pytest.approx(1000.0, rel=0.1)


def test_a_gpus_row_without_the_kernels_own_time_is_refused_and_counted(tmp_path: Path) -> None:
    write(tmp_path, "rope", "cuda")
    path = table_path(tmp_path, "operator", "rope", "fp32", "0of1")
    lines = path.read_text().splitlines()
    values = [line.rsplit(',"[', 1)[0] for line in lines[1:3]]
    lines[1:3] = [f"{value},[]".replace(",ok,", ",host_bound,") for value in values]
    path.write_text("\n".join(lines) + "\n")
    (tables,) = find_tables(tmp_path, GPU, ["fp32"])
    rows = tables.rows("rope")
    assert [row.unusable for row in rows[:3]] == [HOST_BOUND, HOST_BOUND, None]
    forward = [row for row in rows if row.direction is Direction.FORWARD]
    counted = gate(forward, half_source().hardware, "fp16").columns["rope forward"]
    assert counted.dropped[HOST_BOUND] == 1
    assert rows[0] not in gate(forward, half_source().hardware, "fp16").kept


def test_fp32_elements_are_twice_as_many_bytes_for_a_physical_limit() -> None:
    shape = (8192, 32768)
    work = catalogue()["gelu"].work(shape, Direction.FORWARD, 1)
    us = 1.5 * work.size_bytes / 2000e3  # possible for 2-byte elements at 2,000 GB/s, not for 4-byte ones
    rows = [Row(catalogue()["gelu"], "gelu", Direction.FORWARD, shape, us)]
    assert gate(rows, half_source().hardware, "fp16").kept
    system = half_source().hardware
    gpu = system.gpu.model_copy(update={"peak_tflop_per_s": {"fp32": system.gpu.peak_tflop_per_s["fp16"]}})
    dropped = gate(rows, system.model_copy(update={"gpu": gpu}), "fp32").columns["gelu forward"].dropped
    assert dropped[BEATS_MEMORY] == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "the last row is half written"),
        (lambda path: provenance_path(path).write_text("{}"), "not a provenance file"),
        (lambda path: path.write_text("a,b\n1,2\n"), "columns are"),
    ],
)
def test_a_table_that_cannot_be_trusted_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: object, message: str
) -> None:
    path = write(tmp_path)
    damage(path)  # type: ignore[operator]
    (tmp_path / "system.yaml").write_text(yaml.safe_dump(FP32))
    words = [
        "fit",
        "--system",
        str(tmp_path / "system.yaml"),
        "--measurements",
        str(tmp_path),
        "--out",
        str(tmp_path / "p"),
    ]
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_collectives_of_another_half_precision_serve_and_that_is_said(tmp_path: Path) -> None:
    write(tmp_path, precision="bf16")
    write_collective(tmp_path, "fp16")
    write_collective(tmp_path, "fp16", topology=(2, 4))
    write_collective(tmp_path, "bf16", topology=(2, 4))
    said: list[str] = []
    (tables,) = find_tables(tmp_path, GPU, ["fp16", "bf16"], said.append)
    assert tables.precision == "bf16"
    assert used(tables) == {"gelu_bf16.0of1.csv", "all_reduce_fp16.1x4.csv", "all_reduce_bf16.2x4.csv"}
    assert said == [
        "collective/all_reduce_fp16.1x4.csv is used for bf16: measured in fp16, since the time follows the bytes",
        "collective/all_reduce_fp16.2x4.csv is not used: closer tables of all_reduce over 2x4 serve bf16",
    ]


def test_each_precision_takes_its_own_collectives_and_nothing_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    for precision in ("fp16", "bf16"):
        write(tmp_path, precision=precision)
        write_collective(tmp_path, precision)
    for tables in find_tables(tmp_path, GPU, ["fp16", "bf16"], said.append):
        assert used(tables) == {f"gelu_{tables.precision}.0of1.csv", f"all_reduce_{tables.precision}.1x4.csv"}
    assert not said


def test_wider_elements_serve_only_from_a_backend_that_has_no_others(tmp_path: Path) -> None:
    write(tmp_path, precision="bf16")
    write_collective(tmp_path, "fp32", "all_gather")
    write_collective(tmp_path, "fp32", "broadcast", backend="mpi")
    write_collective(tmp_path, "fp32", "all_reduce", backend="mpi")
    write_collective(tmp_path, "fp16", "all_reduce")
    said: list[str] = []
    (tables,) = find_tables(tmp_path, GPU, ["bf16"], said.append)
    assert used(tables) == {"gelu_bf16.0of1.csv", "broadcast_fp32.1x4.csv", "all_reduce_fp16.1x4.csv"}
    assert said == [
        "collective/all_gather_fp32.1x4.csv is not used: measure it with --precision bf16, as the operators were",
        "collective/all_reduce_fp16.1x4.csv is used for bf16: measured in fp16, since the time follows the bytes",
        "collective/all_reduce_fp32.1x4.csv is not used: closer tables of all_reduce over 1x4 serve bf16",
        "collective/broadcast_fp32.1x4.csv is used for bf16: measured in fp32, since the time follows the bytes",
    ]


def test_tables_that_are_not_used_are_named_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, precision="fp16")
    write(tmp_path, "rope", precision="fp16")
    write_collective(tmp_path, "fp32", device="OTHER")
    said: list[str] = []
    (tables,) = find_tables(tmp_path, GPU, ["fp32"], said.append)
    assert used(tables) == {"gelu_fp32.0of1.csv"}
    assert said == [
        f"collective/all_reduce_fp32.1x4.csv is not used: it is of OTHER, the system has {GPU}",
        f"tables in fp16 are not used: the data sheet has no peak of {GPU} in fp16 (gpu.peak_tflop_per_s)",
    ]


def test_collectives_of_another_precision_are_published_and_named_on_the_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, precision="fp16")
    write_collective(tmp_path, "bf16")
    write_collective(tmp_path, "fp32")
    (tmp_path / "system.yaml").write_text(yaml.safe_dump(SYSTEM))
    words = ["--system", str(tmp_path / "system.yaml"), "--measurements", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(["fit", *words]) == 0
    said = capsys.readouterr().err
    card = (tmp_path / "out" / "card.md").read_text()
    for text in (said, card):
        assert "all_reduce_bf16.1x4.csv is used for fp16" in text
        assert "all_reduce_fp32.1x4.csv is not used: measure it with --precision fp16, as the operators were" in text
    system = PublishedSystem(tmp_path / "out", "fp16")
    assert system.cost(COLLECTIVES["all_reduce"], Direction.FORWARD, (2**20, 1, 4)).us == pytest.approx(40.97, rel=0.1)


def test_tables_of_another_device_are_said(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(TableError, match=f"no table of OTHER in fp32; tables there are of {GPU} in fp32"):
        find_tables(tmp_path, "OTHER", ["fp32"])


def test_a_donor_in_another_precision_does_not_hinder_an_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, precision="bf16")
    hardware: dict[str, Any] = dict(SYSTEM["hardware"])  # type: ignore[call-overload]
    peak = {"value": 300, "source": "test"}
    hardware["gpu"] = hardware["gpu"] | {"peak_tflop_per_s": {"fp16": peak, "bf16": peak}}
    hardware["transfer"] = {"operators": "Vista", "intra_node": "Perlmutter", "inter_node": "Vista"}
    (tmp_path / "system.yaml").write_text(yaml.safe_dump(SYSTEM | {"hardware": hardware}))
    out = tmp_path / "published"
    words = ["--system", str(tmp_path / "system.yaml"), "--measurements", str(tmp_path), "--out", str(out)]
    assert main(["fit", *words]) == 0
    assert measured_precisions(out) == ["bf16", "fp16"]
    capsys.readouterr()
    assert main(["evaluate", str(out), str(tmp_path), "--json"]) == 0
    columns = json.loads(capsys.readouterr().out)["columns"]
    assert [(column["column"], column["precision"]) for column in columns] == [
        ("gelu forward", "bf16"),
        ("gelu backward", "bf16"),
    ]
    assert all(column["mape"] < 10.0 for column in columns)
