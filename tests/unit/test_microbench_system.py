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
from microbench.system import read_datasheet, with_datasheet

ROOT = Path(__file__).resolve().parents[2]
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


def described(name: str) -> dict[str, Any]:
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
    found = with_datasheet(described("NVIDIAH200"), SHEET, device("cuda", "NVIDIAH200"))
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


def test_a_processor_takes_the_links_only() -> None:
    hardware = with_datasheet(described("CPU"), SHEET, device("cpu", "CPU"))["hardware"]
    assert hardware["links"] == SHEET["links"]
    assert hardware["gpu"]["peak_tflop_per_s"]["bf16"]["value"] == 880.0


def test_another_gpus_data_sheet_is_refused() -> None:
    with pytest.raises(MeasureError, match="device is NVIDIAB200, the data sheet is of NVIDIAH200; name the sheet"):
        with_datasheet(described("NVIDIAB200"), SHEET, device("cuda", "NVIDIAB200"))


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("a: [", "not YAML"), ("hardware: {gpu: {}}", "needs gpu, links and gpus_per_node")],
)
def test_a_bad_data_sheet_is_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "sheet.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(MeasureError, match=message):
        read_datasheet(path)


def test_the_command_for_a_gpu_is_the_one_that_was_tried_on_a_cpu() -> None:
    if shutil.which("make") is None:
        pytest.skip("no make here")

    def commands(*changes: str) -> list[list[str]]:
        words = ["make", "-n", "--no-print-directory", "-o", ".venv", "profile-gpu", "PROFILE_READY=", *changes]
        # A make that runs the tests would tell this one that it is a part of it.
        own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, env=own)
        lines = done.stdout.splitlines()
        return [shlex.split(line) for line in lines]

    gpu = commands()
    cpu = commands("GPU_DEVICE=cpu", "GPU_SWEEP=smoke", "GPU_PRECISION=fp32", "GPU_OUT=/tmp/out")
    assert len(gpu) == len(cpu) == 5
    changed = [(a, b) for one, other in zip(gpu, cpu, strict=True) for a, b in zip(one, other, strict=True) if a != b]
    assert set(changed) == {
        ("cuda", "cpu"),
        ("standard", "smoke"),
        ("bf16", "fp32"),
        ("regressors/H200", "/tmp/out"),
    }
    for words in gpu:
        if words[2] == "microbench":
            cli.parser().parse_args(words[3:])


def test_the_data_sheet_that_the_command_names_is_there() -> None:
    sheet = ROOT / "training" / "systems" / "H200.yaml"
    assert yaml.safe_load(sheet.read_text(encoding="utf-8"))["hardware"]["gpu"]["name"] == "NVIDIAH200"
    assert read_datasheet(sheet)["links"]
