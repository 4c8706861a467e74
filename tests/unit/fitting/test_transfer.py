"""A new GPU with few tables, or without collectives, is published from its rows and those of a donor."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fitting.cli import main
from fitting.datasheet import read_errors
from fitting.systems import SystemFileError, measured_sources
from fitting.tables import Tables
from fitting.transfer_error import column, transfer_error
from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import Topology
from predictor.core.costs.cost import Source
from predictor.core.costs.operator import BOTH, Direction
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.transfer_errors import TRANSFER_ERRORS
from tests.unit.fitting_tables import GPU, SYSTEM, gelu_us, write_cluster, write_gelu

GELU, FFN_UP = catalogue()["gelu"], catalogue()["ffn_up"]
PERLMUTTER = REGRESSORS_FOLDER / "Perlmutter"


def write_few(folder: Path, rows: int) -> Path:
    """So many rows of the GELU table, evenly picked, and no collective."""
    write_gelu(folder / "operator")
    path = folder / "operator" / f"{GPU}_gelu_fp16.csv"
    frame = pd.read_csv(path)
    frame.iloc[:: len(frame) // rows].head(rows).to_csv(path, index=False)
    return folder


def write_system(path: Path, **hardware: Any) -> Path:
    content: dict[str, Any] = deepcopy(SYSTEM)
    content["hardware"] |= hardware
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def fitted(tmp_path: Path, rows: int, *words: str, **hardware: Any) -> PublishedSystem:
    system = write_system(tmp_path / "Testbed.yaml", **hardware)
    tables, out = write_few(tmp_path / "few", rows), tmp_path / "out" / "Testbed"
    command = ["fit", "--system", str(system), "--measurements", str(tables), "--out", str(out), *words]
    assert main(command) == 0
    return PublishedSystem(out, "fp16")


@pytest.mark.parametrize("rows", [25, 50])
def test_a_few_rows_of_a_new_gpu_are_fitted_and_the_rest_is_transferred(tmp_path: Path, rows: int) -> None:
    system = fitted(tmp_path, rows, "--donor", str(PERLMUTTER))
    for direction in BOTH:
        cost = system.cost(GELU, direction, (3072, 8192))
        assert cost.us == pytest.approx(gelu_us(3072, 8192, direction), rel=0.1)
        assert cost.source is Source.INTERPOLATED
        assert system.cost(FFN_UP, direction, (4096, 4096, 4096)).source is Source.ANALYTIC
    assert system.collective("all_reduce", 1e8, Topology(1, 4)).source is Source.ANALYTIC
    card = (system.folder / "card.md").read_text(encoding="utf-8")
    assert "| gelu forward | gelu |" in card
    assert "linear forward: no usable row: the physics of Perlmutter" in card
    assert "all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, point_to_point, deepep: analytic" in card


def test_rows_too_few_to_fit_set_the_level_of_a_transferred_regressor(tmp_path: Path) -> None:
    system = fitted(tmp_path, 10, "--donor", str(PERLMUTTER))
    cost = system.cost(GELU, Direction.FORWARD, (8192, 16384))
    assert cost.source is Source.ANALYTIC
    assert cost.us == pytest.approx(gelu_us(8192, 16384, Direction.FORWARD), rel=0.15)
    assert "too few rows to fit" in (system.folder / "card.md").read_text(encoding="utf-8")


def test_operators_alone_are_published_with_collectives_from_the_data_sheet(tmp_path: Path) -> None:
    donors = {"operators": "Vista", "intra_node": "Perlmutter", "inter_node": "Vista"}
    links = SYSTEM["hardware"]["links"] | {"wiring": "switch"}  # type: ignore[index]
    system = fitted(tmp_path, 50, transfer=donors, links=links, gpus_per_node=8)
    assert system.cost(GELU, Direction.FORWARD, (3072, 8192)).source is Source.INTERPOLATED
    assert system.cost(FFN_UP, Direction.FORWARD, (4096, 4096, 4096)).source is Source.ANALYTIC
    us = system.collective("all_reduce", 1e9, Topology(1, 8)).us
    assert 1.75e9 / us / 1e3 == pytest.approx(0.72 * 300.0, rel=0.05)
    assert set(system.hardware.host) == {"launch_forward_us", "launch_backward_us"}
    assert "as on Vista" in system.hardware.host["launch_forward_us"].source
    card = (system.folder / "card.md").read_text(encoding="utf-8")
    assert "(Perlmutter inside a node, Vista between nodes)" in card


def test_measured_operators_take_the_place_of_a_data_sheets(tmp_path: Path) -> None:
    system = fitted(tmp_path, 50, "--donor", str(REGRESSORS_FOLDER / "H200"))
    assert system.hardware.transfer == PublishedSystem(REGRESSORS_FOLDER / "H200", "fp16").hardware.transfer
    assert system.cost(GELU, Direction.FORWARD, (3072, 8192)).source is Source.INTERPOLATED
    assert system.cost(FFN_UP, Direction.FORWARD, (4096, 4096, 4096)).source is Source.ANALYTIC
    assert system.collective("all_gather", 1e8, Topology(2, 4)).source is Source.ANALYTIC


def test_a_regressor_fitted_here_has_no_basis_of_a_donor(tmp_path: Path) -> None:
    system = fitted(tmp_path, 50, "--donor", str(PERLMUTTER))
    text = (system.files.folder / system.files.name(GELU.regressor_name)).read_text(encoding="utf-8")
    assert '"basis"' not in text


def test_a_data_sheet_is_published_with_its_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    donors = {"operators": "Perlmutter", "intra_node": "Perlmutter", "inter_node": "Vista"}
    system = write_system(tmp_path / "Testbed.yaml", transfer=donors)
    out = tmp_path / "out" / "Testbed"
    words = ["datasheet", "--system", str(system), "--errors", str(TRANSFER_ERRORS), "--out", str(out)]
    assert main(words) == 0, capsys.readouterr().err
    answers = PublishedSystem(out, "fp16")
    assert answers.cost(FFN_UP, Direction.FORWARD, (4096, 4096, 4096)).source is Source.ANALYTIC
    entry = json.loads(TRANSFER_ERRORS.read_text(encoding="utf-8"))["operator_columns"][0]
    card = (out / "card.md").read_text(encoding="utf-8")
    assert f"| {entry['regressor']} {entry['direction']} | {entry['from']} → {entry['to']} |" in card


def test_a_data_sheet_replaces_a_data_sheet_and_nothing_measured_unless_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    donors = {"operators": "Perlmutter", "intra_node": "Perlmutter", "inter_node": "Vista"}
    measured = fitted(tmp_path, 50, transfer=donors)
    files = {path: path.read_bytes() for path in measured.folder.rglob("*") if path.is_file()}
    words = ["datasheet", "--system", str(tmp_path / "Testbed.yaml")]
    words += ["--out", str(measured.folder)]
    capsys.readouterr()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "measured operators are published there" in said
    assert {path: path.read_bytes() for path in measured.folder.rglob("*") if path.is_file()} == files
    for again in (["--replace"], []):
        assert main([*words, *again]) == 0
        assert "card.md, system.yaml" in capsys.readouterr().out
        assert not (measured.folder / "operator").exists()


def test_a_damaged_system_is_not_taken_for_a_data_sheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    donors = {"operators": "Perlmutter", "intra_node": "Perlmutter", "inter_node": "Vista"}
    measured = fitted(tmp_path, 50, transfer=donors)
    (measured.folder / "manifest.json").write_text("{", encoding="utf-8")
    words = ["datasheet", "--system", str(tmp_path / "Testbed.yaml")]
    assert main([*words, "--out", str(measured.folder)]) == 2
    assert "manifest.json is damaged" in capsys.readouterr().err
    assert (measured.folder / "operator").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["datasheet", "--system", "{tmp}/plain.yaml", "--errors", str(TRANSFER_ERRORS), "--out", "{tmp}/o"],
            "transfer section",
        ),
        (
            ["datasheet", "--system", "{tmp}/strange.yaml", "--errors", str(TRANSFER_ERRORS), "--out", "{tmp}/o"],
            "Frontier",
        ),
        (
            ["datasheet", "--system", "{tmp}/plain.yaml", "--errors", "{tmp}/absent", "--out", "{tmp}/o"],
            "transfer-error --out writes it",
        ),
        (["transfer-error", str(PERLMUTTER), "{tmp}", "{tmp}"], "is not a published system"),
        (["few-rows", str(PERLMUTTER), str(PERLMUTTER), "{tmp}/absent"], "no such folder of measurements"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    write_system(tmp_path / "plain.yaml")
    donors = {"operators": "Frontier", "intra_node": "Frontier", "inter_node": "Frontier"}
    write_system(tmp_path / "strange.yaml", transfer=donors)
    assert main([word.format(tmp=tmp_path) for word in words]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error


def test_errors_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "errors.json"
    path.write_text('{"format": "another"}', encoding="utf-8")
    with pytest.raises(SystemFileError, match="expected format estimate-train-time/transfer-error/1"):
        read_errors(path)


def test_a_system_predicts_itself_without_error_of_transfer(tmp_path: Path) -> None:
    measured = write_cluster(tmp_path / "measured" / "Testbed")
    system = write_system(tmp_path / "Testbed.yaml")
    folders = [tmp_path / "out" / name for name in ("One", "Other")]
    for folder in folders:
        assert main(["fit", "--system", str(system), "--measurements", str(measured), "--out", str(folder)]) == 0
    document = transfer_error(folders, measured)
    assert document["distance"] == {"flops": 0.0, "bytes": 0.0}
    assert {entry["regressor"] for entry in document["operator_columns"]} == {"gelu"}
    assert all(entry["mape"] < 3.0 for entry in document["operator_columns"])


def test_a_column_counts_every_shape_once(tmp_path: Path) -> None:
    table = Tables.find(write_few(tmp_path / "few", 50), GPU, "fp16")
    rows = [row for row in table.rows("gelu") if row.direction is Direction.FORWARD]
    regressor = fitted(tmp_path, 50).regressor(GELU, Direction.FORWARD)
    once, twice = column(regressor, Direction.FORWARD, rows), column(regressor, Direction.FORWARD, [*rows, *rows])
    assert once == twice


def test_systems_with_tables_of_their_own_are_told_from_data_sheets(tmp_path: Path) -> None:
    donors = {"operators": "Perlmutter", "intra_node": "Perlmutter", "inter_node": "Vista"}
    write_system(tmp_path / "Own.yaml")
    write_system(tmp_path / "Sheet.yaml", transfer=donors)
    assert list(measured_sources(tmp_path)) == ["Own"]


def test_a_bad_command_line_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--sistem", "x"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("error: ")
    assert said[0].endswith("--help lists what there is")
