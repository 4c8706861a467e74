"""Tables of microbench become a published system like anybody's, in fp32 too."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import yaml

from fitting.cli import main
from fitting.gate import BEATS_MEMORY, gate
from fitting.own_tables import HOST_BOUND, find_own
from fitting.tables import Row, TableError
from microbench.provenance import Identity, Session, provenance_path
from microbench.table import Measurement, Status, Writer, table_path
from predictor.costs.catalogue import catalogue
from predictor.costs.operator import BOTH, Direction
from predictor.costs.published import PublishedSystem
from tests.unit.fitting_tables import GPU, SYSTEM, gelu_us
from tests.unit.fitting_tables import source as half_source

SESSION = Session(started="2026-01-01T00:00:00+00:00", host="here", commit="abc", state_before={})
HARDWARE = SYSTEM["hardware"]
FP32 = SYSTEM | {
    "hardware": HARDWARE  # type: ignore[operator]
    | {"gpu": HARDWARE["gpu"] | {"peak_tflop_per_s": {"fp32": {"value": 60, "source": "test"}}}}  # type: ignore[index]
}
SHAPES = list(product((256, 384, 512, 1024, 2048, 4096), (512, 1024, 1536, 2048, 4096, 8192)))


def write(results: Path, name: str = "gelu", device_kind: str = "cpu", gap_us: float = 50.0) -> Path:
    operator = catalogue()[name]
    identity = Identity.model_validate({
        "kind": "operator", "name": name, "precision": "fp32", "worker": "0of1", "dimensions": operator.dimensions,
        "directions": operator.directions, "device": GPU, "device_kind": device_kind, "driver": None,
        "versions": {}, "config_hash": "",
    })  # fmt: skip
    path = table_path(results, "operator", name, "fp32", "0of1")
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


def test_a_row_without_a_time_is_no_row(tmp_path: Path) -> None:
    write(tmp_path)
    (tables,) = find_own(tmp_path, GPU, ["fp32"])
    assert len(tables.rows("gelu")) == 2 * len(SHAPES)


@pytest.mark.parametrize(("kind", "launches"), [("cpu", 0), ("cuda", 2)])
def test_launches_cost_a_host_only_where_there_are_any(tmp_path: Path, kind: str, launches: int) -> None:
    write(tmp_path, "rope", kind, gap_us=10_000.0)
    (tables,) = find_own(tmp_path, GPU, ["fp32"])
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
    (tables,) = find_own(tmp_path, GPU, ["fp32"])
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


def test_tables_of_another_device_are_said(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(TableError, match=f"no table of OTHER in fp32; tables there are of {GPU} in fp32"):
        find_own(tmp_path, "OTHER", ["fp32"])
