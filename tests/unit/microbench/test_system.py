"""A GPU that is measured takes peaks and links from its data sheet, and the one command for it is the one for a CPU."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from microbench import cli
from microbench.device import Device
from microbench.errors import MeasureError
from microbench.system import INCOMPLETE, described, read_datasheet, sheet_of, with_datasheet

ROOT = Path(__file__).resolve().parents[3]
SHEET = {
    "name": "H200",
    "gpus_per_node": 8,
    "gpu": {
        "name": "NVIDIAH200",
        "peak_tflop_per_s": {"bf16": {"value": 989.5, "source": "data sheet"}},
        "memory_bandwidth_gb_per_s": {"value": 4800, "source": "data sheet"},
        "memory_gib": {"value": 140.4, "source": "data sheet"},
    },
    "links": {"intra_node_gb_per_s": {"value": 450, "source": "data sheet"}, "wiring": "switch"},
    "host": {},
    "transfer": {"operators": "Vista", "intra_node": "Perlmutter", "inter_node": "Vista"},
}


def device(kind: Any, name: str) -> Device:
    return Device(kind, name, None, 2**20, 1, 2**30, ("bf16",))


def measured(name: str) -> dict[str, Any]:
    peak = {"value": 880.0, "source": "measured here"}
    gpu = {
        "name": name,
        "num_multiprocessors": {"value": 132, "source": "torch"},
        "peak_tflop_per_s": {"bf16": peak, "fp32": peak},
        "memory_bandwidth_gb_per_s": {"value": 4400.0, "source": "measured here"},
        "l2_cache_mb": {"value": 60.0, "source": "device"},
    }
    links = {"intra_node_gb_per_s": peak, "inter_node_gb_per_s": peak}
    hardware = {"name": "mine", "gpus_per_node": 1, "gpu": gpu, "links": links, "host": {}}
    return {"hardware": hardware, "provenance": {"measured_by": "x", "known": ["driver 1"], "not_stated": []}}


def test_a_gpu_takes_peaks_and_links_from_its_data_sheet() -> None:
    found = with_datasheet(measured("NVIDIAH200"), SHEET, device("cuda", "NVIDIAH200"))
    hardware = found["hardware"]
    assert hardware["name"] == "mine"
    assert hardware["gpus_per_node"] == 8
    assert hardware["links"] == SHEET["links"]
    assert hardware["transfer"]["intra_node"] == "Perlmutter"
    assert hardware["gpu"]["peak_tflop_per_s"] == {"bf16": {"value": 989.5, "source": "data sheet"}}
    assert hardware["gpu"]["num_multiprocessors"]["source"] == "torch"  # what the sheet does not say stays
    known = found["provenance"]["known"]
    assert "driver 1" in known
    assert "memory, GB/s: 4000 measured here" in known
    assert "bf16, TFLOP/s: 800 measured here" in known
    assert any("links" in line and "not measured" in line for line in known)


@pytest.mark.parametrize(("site", "gpus"), [("Vista", 1), ("Perlmutter", 4)])
def test_a_site_takes_its_sheets_values_with_their_sources(site: str, gpus: int) -> None:
    sheet = read_datasheet(ROOT / "training" / "systems" / f"{site}.yaml")
    own = device("cuda", sheet["gpu"]["name"])
    hardware = with_datasheet(measured(own.name), sheet, own)["hardware"]
    assert hardware["gpus_per_node"] == gpus
    for name in ("inter_node_gb_per_s", "intra_node_gb_per_s", "host_gb_per_s"):
        assert hardware["links"][name] == sheet["links"][name]
        assert hardware["links"][name]["source"]
    for name in ("memory_bandwidth_gb_per_s", "memory_gib", "board_power_w"):
        assert hardware["gpu"][name]["source"] == sheet["gpu"][name]["source"] != "measured here"


def test_a_processor_takes_the_links_only() -> None:
    hardware = with_datasheet(measured("CPU"), SHEET, device("cpu", "CPU"))["hardware"]
    assert hardware["links"] == SHEET["links"]
    assert hardware["gpu"]["peak_tflop_per_s"]["bf16"]["value"] == 880.0


def test_another_gpus_data_sheet_is_refused() -> None:
    with pytest.raises(MeasureError, match="device is NVIDIAB200, the data sheet is of NVIDIAH200; name the sheet"):
        with_datasheet(measured("NVIDIAB200"), SHEET, device("cuda", "NVIDIAB200"))


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), ("a: [", "not YAML"), ("hardware: {gpu: {}}", "needs gpu, links and gpus_per_node")],
)
def test_a_bad_data_sheet_is_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "sheet.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(MeasureError, match=message):
        read_datasheet(path)


def make_lines(target: str, *changes: str) -> list[list[str]]:
    """Return the commands that a target would run."""
    if shutil.which("make") is None:
        pytest.skip("no make here")
    words = ["make", "-n", "--no-print-directory", target, "TEST_READY=", *changes]
    # A make that runs the tests would tell this one that it is a part of it.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, env=own)
    return [shlex.split(line) for line in done.stdout.replace("\\\n", " ").splitlines()]


def test_the_commands_for_a_gpu_parse() -> None:
    (kit,) = make_lines("gpu-kit")
    parsed = cli.parser().parse_args(kit[3:])
    assert (parsed.out, parsed.python) == (Path("gpu-kit"), ["3.11", "3.12", "3.13", "3.14"])
    _, measure = make_lines("profile-gpu", "GPU_PYTHON=/opt/python", "GPU_MINUTES=5")
    assert measure[:2] == ["/opt/python", "gpu-kit/measure.py"]
    assert cli.parser().parse_args(["survey", *measure[2:]]).minutes == 5.0
    _, study = make_lines("study-gpu", "GPU_STUDY=there")
    assert study[:2] == ["python3", "gpu-kit/study.py"]
    assert cli.parser().parse_args(["study", *study[2:]]).out == Path("there")
    text = " ".join(word for line in make_lines("publish-gpu") for word in line)
    for command in ("microbench unpack", "fitting fit", "fitting held-out", "microbench compare-steps"):
        assert command in text


@pytest.mark.parametrize(
    ("name", "sheet"),
    [
        ("NVIDIAH200", "H200"),
        ("NVIDIAH10080GBHBM3", "H100"),
        ("NVIDIAA100-SXM4-80GB", "A100"),
        ("NVIDIAH100PCIe", None),
    ],
)
def test_a_gpu_is_recognised_by_its_data_sheet(name: str, sheet: str | None) -> None:
    found = sheet_of(device("cuda", name), ROOT / "training" / "systems")
    assert (found.stem if found else None) == sheet


def test_the_data_sheet_that_the_command_names_is_there() -> None:
    sheet = ROOT / "training" / "systems" / "H200.yaml"
    assert yaml.safe_load(sheet.read_text(encoding="utf-8"))["hardware"]["gpu"]["name"] == "NVIDIAH200"
    assert read_datasheet(sheet)["links"]


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Return a device whose bf16 product fails, as where cuBLAS has no memory."""

    def peak(device: Device, precision: str) -> float:
        if precision == "bf16":
            raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED\nand where")
        return 60.0

    monkeypatch.setattr("microbench.system.peak_tflop_per_s", peak)
    monkeypatch.setattr("microbench.system.memory_bandwidth_gb_per_s", lambda device: 10.0)
    found = Device("cpu", "NVIDIAH200", None, 2**20, 1, 2**30, ("bf16", "fp32"))
    monkeypatch.setattr("microbench.cli.find_device", lambda kind, threads: found)
    return found


def test_a_system_is_described_before_its_first_peak_and_a_failed_peak_costs_itself(refusing: Device) -> None:
    said: list[str] = []
    seen = [
        (sorted(document["hardware"]["gpu"]["peak_tflop_per_s"]), INCOMPLETE in document["provenance"]["known"])
        for document in described(refusing, "here", said.append)
    ]
    assert seen == [([], True), ([], True), (["fp32"], True), (["fp32"], False)]
    assert said == ["the peak in bf16 is not measured here and is left out: CUBLAS_STATUS_ALLOC_FAILED"]


def test_a_run_that_is_cut_off_leaves_the_peaks_so_far_and_spoils_no_whole_file(
    refusing: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(device: Device, precision: str) -> float:
        raise KeyboardInterrupt

    def peaks() -> list[str]:
        return sorted(yaml.safe_load((tmp_path / "system.yaml").read_text())["hardware"]["gpu"]["peak_tflop_per_s"])

    words = ["system", "--device", "cpu", "--out", str(tmp_path)]
    whole = "microbench.system.peak_tflop_per_s"
    monkeypatch.setattr(whole, lambda device, precision: 1.0 if precision == "bf16" else cut_off(device, precision))
    with pytest.raises(KeyboardInterrupt):
        cli.main(words)
    assert peaks() == ["bf16"]
    monkeypatch.setattr(whole, lambda *_: 1.0)
    assert cli.main(words) == 0
    assert peaks() == ["bf16", "fp32"]
    monkeypatch.setattr(whole, cut_off)
    with pytest.raises(KeyboardInterrupt):
        cli.main(words)
    assert peaks() == ["bf16", "fp32"]
