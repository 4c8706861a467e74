"""``predictor verify`` on a machine that others use: an emulated one, whose reference kernel takes what a test says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from fitting.publish import seal
from predictor.__main__ import main
from predictor.core.costs.published import read_hardware, read_manifest
from predictor.core.hardware.hardware import Quantity
from predictor.evidence.verification.drift import MOST_DRIFT, Reference, drift, is_disturbed, read_reference
from tests.unit.examples import full_form, write
from tests.unit.fake_runner import REFERENCES, fake_python, write_references

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[3]
GPU = "NVIDIAA100-SXM4-80GB"
QUIET_US = 1000.0


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Return a published system beside whose measurements the reference kernel took 1 ms, in two processes 1.5 ms."""
    folder = tmp_path / "measured"
    shutil.copytree(ROOT / "regressors" / "Perlmutter", folder)
    content = yaml.safe_load((folder / "system.yaml").read_text())
    us = {1: QUIET_US, 2: 1.5 * QUIET_US}
    content["reference_us"] = {count: {"value": value, "source": "made up"} for count, value in us.items()}
    (folder / "system.yaml").write_text(yaml.safe_dump(content))
    seal(folder)
    return folder


def verified(
    tmp_path: Path, system: Path, slower: list[float], *words: object, device: str = GPU, **sections: Any
) -> tuple[list[float], int]:
    """Verify a configuration while the reference kernel takes so many times the quiet time, and return the rest."""
    write_references(tmp_path, device, [QUIET_US * each for each in slower])
    path = write(full_form(**sections), tmp_path / "gpt.yaml")
    out = ["--system", str(system), "--out", str(tmp_path / "out"), "--python", fake_python(tmp_path)]
    code = main(["verify", str(path), *out, *map(str, words)])
    told = json.loads((tmp_path / REFERENCES).read_text())
    return told["us"], code


def test_a_quiet_machine_is_timed_before_between_and_after(tmp_path: Path, system: Path, capsys: Capture) -> None:
    left, code = verified(tmp_path, system, [1.0, 1.02, 1.04], "--json")
    assert (left, code) == ([], 0)
    document = json.loads(capsys.readouterr().out)
    (run,) = document["runs"]
    assert [launch["drift"] for launch in run["launches"]] == pytest.approx([1.01, 1.03])
    assert run["drift"] == pytest.approx(1.03)
    assert run["disturbed"] is False
    assert (document["summary"]["disturbed"], document["summary"]["largest_drift"]) == (0, pytest.approx(1.03))


def test_a_disturbed_launch_is_repeated_and_the_quietest_kept(tmp_path: Path, system: Path, capsys: Capture) -> None:
    left, _ = verified(tmp_path, system, [1.0, 3.0, 1.2, 1.4, 1.0], "--repeat", 1, "--json")
    assert left == [1000.0]  # the means beside the three launches are 2, 2.1 and 1.3
    told = capsys.readouterr()
    assert "gpt: the machine was 2.00 × slower than while it was measured; once more" in told.err
    (launch,) = json.loads(told.out)["runs"][0]["launches"]
    assert (launch["drift"], launch["tries"]) == (pytest.approx(1.3), 3)


def test_a_repetition_ends_as_soon_as_it_is_quiet(tmp_path: Path, system: Path, capsys: Capture) -> None:
    left, _ = verified(tmp_path, system, [3.0, 1.1, 0.9], "--repeat", 1)
    assert left == []
    (place,) = (tmp_path / "out").glob("*/run-*")
    reference = read_reference(place)
    assert reference is not None
    assert (reference.us, reference.tries, reference.processes) == (1000.0, 2, 1)
    text = capsys.readouterr().out
    assert "drift 1.00×, " in text
    assert "1.00 × as long beside this run as while Perlmutter was measured, the quietest of up to 2 tries." in text
    assert "DISTURBED" not in text


def test_a_report_of_disturbed_runs_says_so_first(tmp_path: Path, system: Path, capsys: Capture) -> None:
    page = tmp_path / "page.html"
    left, code = verified(tmp_path, system, [2.5] * 9, "--repeat", 1, "--again", 1, "--report", page)
    assert (len(left), code) == (6, 0)  # before, after, and after the one repetition
    text = capsys.readouterr().out
    assert text.startswith("DISTURBED: Every run is: the machine was up to 2.50 × slower than while it was measured")
    assert "drift 2.50×" in text
    assert "its error says little of the prediction" in text
    html = page.read_text()
    assert "on a disturbed machine</title>" in html
    assert html.count("DISTURBED") == 1
    assert html.count("2.50×") == 2  # in the table of runs, and in the headline of this one
    capsys.readouterr()
    assert main(["verify", "--run", str(tmp_path / "out"), "--system", str(system), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["disturbed"] is True


def test_several_runs_are_summed_without_the_disturbed_ones(tmp_path: Path, system: Path, capsys: Capture) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    for layers in (2, 4):
        write(full_form(model={"num_layers": layers}), folder / f"gpt-{layers}.yaml")
    write_references(tmp_path, GPU, [1000.0, 1000.0, 3000.0])
    words = ["--repeat", "1", "--again", "0", "--python", fake_python(tmp_path), "--out", str(tmp_path / "out")]
    assert main(["verify", str(folder), "--system", str(system), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("DISTURBED: 1 of 2 runs are: the machine was up to 2.00 × slower")
    assert lines[1].split()[-4:] == ["drift", "inside", "noise", "operators"]
    assert [line.split()[-4] for line in lines[2:4]] == ["1.00×", "2.00×"]
    assert any(line.startswith("Without the disturbed ones: median absolute error") for line in lines)


def test_ranks_are_compared_with_as_many_processes(tmp_path: Path, system: Path, capsys: Capture) -> None:
    layout = {"tensor_parallel_size": 2}
    verified(tmp_path, system, [1.5, 1.5], "--repeat", 1, "--json", parallelism=layout)
    assert json.loads((tmp_path / REFERENCES).read_text())["processes"] == [2, 2]
    assert json.loads(capsys.readouterr().out)["runs"][0]["drift"] == pytest.approx(1.0)


@pytest.mark.parametrize("why", ["no reference while measured", "another device", "no microbench"])
def test_an_unknown_drift_keeps_nothing_from_running(why: str, tmp_path: Path, system: Path, capsys: Capture) -> None:
    if why == "no microbench":
        path = write(full_form(), tmp_path / "gpt.yaml")
        out = ["--out", str(tmp_path / "out"), "--python", fake_python(tmp_path)]
        assert main(["verify", str(path), "--system", str(system), *out]) == 0
    elif why == "another device":
        assert verified(tmp_path, system, [5.0] * 3, device="Xeon") == ([], 0)
    else:
        assert len(verified(tmp_path, ROOT / "regressors" / "Perlmutter", [5.0] * 3)[0]) == 3
    told = capsys.readouterr()
    assert "Drift of the machine: not known" in told.out
    assert ("drift of the machine is not known: the reference kernel could" in told.err) == (why == "no microbench")


def test_drift_takes_the_nearest_number_of_processes(system: Path) -> None:
    hardware = read_hardware(system, read_manifest(system))
    assert hardware.reference_us == {
        1: Quantity(value=1000.0, source="made up"),
        2: Quantity(value=1500.0, source="made up"),
    }

    def of(processes: int) -> float | None:
        return drift(Reference(device=GPU, processes=processes, before_us=4000.0, after_us=2000.0), hardware)

    assert [of(1), of(2), of(8)] == [3.0, 2.0, 2.0]
    assert not is_disturbed(None)
    assert not is_disturbed(MOST_DRIFT)
    assert is_disturbed(1.2)
