"""A whole survey in virtual time: in this process, and with the kit, every stage a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from fitting.cli import main as fitting_main
from fitting.systems import read_system
from microbench import cli, profile
from microbench.kernels import build_function
from microbench.survey import stages as planning
from microbench.survey.archive import ARCHIVE, SUMMARY
from microbench.survey.probe import find_here
from microbench.survey.stages import stages, survey
from microbench.sweep import SWEEPS
from microbench.system import write_system
from microbench.table import read_tables
from predictor.__main__ import main as predictor_main
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Source
from predictor.core.costs.operator import BOTH, in_kernel
from predictor.core.costs.published import PublishedSystem
from tests.unit.microbench.test_survey import ROOT, made, made_once
from tests.unit.virtual_gpu import OTHER_KERNEL_SPEEDUP, VirtualGpu, installed, scaled_build

__all__ = ["made", "made_once"]

RUN = {
    "model": {
        "hidden_size": 4096, "num_attention_heads": 32, "ffn_hidden_size": 11008, "num_layers": 4,
        "sequence_length": 8192, "vocab_size": 32000, "attention": "flash",
    },
    "parallelism": {"data_parallel_size": 8},
}  # fmt: skip


class Virtual:
    """Runs a survey's stages in this process, on a virtual GPU."""

    START_S, TESTS_S, STEPS_S = 6.0, 15.0, 95.0

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu = gpu

    def __call__(self, words: Sequence[str], seconds: float) -> int | None:
        self.gpu.host_s += self.START_S  # Python, torch and CUDA
        self.gpu.kernel_s = 1.4e-3  # of the products that describe the system
        # The tests need a real GPU, and steps run for real in test_microbench_steps.py.
        takes_s = {"pytest": self.TESTS_S, "steps": self.STEPS_S}.get(words[1] if words[1] == "pytest" else words[2])
        if takes_s is None:
            return cli.main(words[2:])
        self.gpu.host_s += min(takes_s, seconds)
        return 0


def test_in_virtual_time_a_survey_ends_in_time_with_good_rows_of_every_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``SURVEY_SHAPES=120`` takes the standard sweep's whole number, several minutes long (make survey-emulated)."""
    pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")
    minutes, shapes = 9.0, int(os.environ.get("SURVEY_SHAPES", "6"))
    content = yaml.safe_load((SWEEPS / "standard.yaml").read_text())
    content |= {"shapes_per_operator": shapes, "shapes_per_linear": -(-shapes // 2)}
    content["models"]["sliding_window"] = [0]
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content))
    gpu, results = VirtualGpu(), tmp_path / "r"
    results.mkdir()
    with installed(monkeypatch, gpu, "NVIDIA H200"):
        monkeypatch.setattr(profile, "build_function", scaled_build(gpu, build_function))
        monkeypatch.setattr(planning, "time", SimpleNamespace(monotonic=gpu.clock))
        monkeypatch.setattr("microbench.system.PRODUCT_SIZES", {"cuda": (64,)})
        monkeypatch.setattr("microbench.system.memory_bandwidth_gb_per_s", lambda device: 4000.0)
        monkeypatch.setattr("microbench.system.SIZE", 64)
        planned = stages(results, ROOT, str(tmp_path / "sweep.yaml"), "bf16", ("bf16",))
        said: list[str] = []
        ended = survey(planned, minutes, Virtual(gpu), results / SUMMARY, said.append)
        print("\n".join(said))
        assert {stage.status for stage in ended} == {0}, capsys.readouterr().err
        assert gpu.host_s < 60.0 * minutes
        tables = read_tables(results, "operator")
        apart = {found.path.name for found in tables if found.provenance.identity.settings}
        assert apart == {f"{name}-cudnn_bf16.0of1.csv" for name in planning.attention()}
        names = {found.provenance.identity.name for found in tables}
        assert names == {name for name in catalogue() if "bf16" in catalogue()[name].precisions}
        for found in tables:
            assert any(row.kernel_samples_us for row in found.rows), f"{found.path.name} has no good row"
        survey(planned, minutes, Virtual(gpu), results / SUMMARY, said.append)
    again = {found.path: found for found in read_tables(results, "operator")}
    for found in tables:
        assert again[found.path].rows[: len(found.rows)] == found.rows, "a second survey measures what is left"
    system = yaml.safe_load((results / "system.yaml").read_text())["hardware"]
    assert system["name"] == "H200"
    assert system["gpu"]["sustained_product_ratio"]["value"] == pytest.approx(1.0, abs=0.2)


def attention_measured(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Measure attention on a virtual H200 as a survey does, 40 shapes of each name."""
    content = yaml.safe_load((SWEEPS / "standard.yaml").read_text()) | {"shapes_per_operator": 40}
    sweep = folder.with_suffix(".yaml")
    sweep.write_text(yaml.safe_dump(content))
    gpu = VirtualGpu()
    with installed(monkeypatch, gpu, "NVIDIA H200"):
        monkeypatch.setattr(profile, "build_function", scaled_build(gpu, build_function))
        write_system(folder, find_here(ROOT / planning.DATASHEETS).system)
        words = ["--device", "cuda", "--precision", "bf16", "--sweep", str(sweep), "--out", str(folder)]
        assert cli.main(["operator", *names, *words]) == 0


def test_two_kernels_of_attention_are_published_and_the_configuration_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")
    results, out = tmp_path / "r", tmp_path / "H200_measured"
    attention_measured(results, monkeypatch, "flash_attention", "flash_attention-cudnn")
    assert {
        (found.path.stem.partition("_bf16")[0], row.kernel)
        for found in read_tables(results, "operator")
        for row in found.rows
    } == {
        ("flash_attention", "flash_2: torch scaled_dot_product_attention, flash backend"),
        ("flash_attention-cudnn", "cudnn: torch scaled_dot_product_attention, cuDNN backend"),
    }
    known = ROOT / "regressors/H200"
    fit = ["fit", "--system", str(results / "system.yaml"), "--measurements", str(results), "--keep", str(known)]
    assert fitting_main([*fit, "--name", "H200_measured", "--out", str(out)]) == 0, capsys.readouterr().err
    capsys.readouterr()
    card = (out / "card.md").read_text()
    for column in ("flash_attention forward", "flash_attention-cudnn forward", "flash_attention-cudnn backward"):
        assert f"| {column} |" in card
    assert "- flash_2: where a run names none, or this one." in card
    system, attention = PublishedSystem(out, "bf16"), catalogue()["flash_attention"]
    shape = (2, 4096, 32, 128, 1)
    for direction in BOTH:
        unnamed, default, other = (
            system.cost(in_kernel(attention, kernel), direction, shape) for kernel in ("", "flash_2", "cudnn")
        )
        assert unnamed == default
        assert {default.source, other.source} <= {Source.INTERPOLATED, Source.EXTRAPOLATED}, "measured, not a ratio"
        assert default.us / other.us == pytest.approx(OTHER_KERNEL_SPEEDUP, rel=0.05)
    # The published table of a third kernel is kept as that kernel's.
    assert system.cost(in_kernel(attention, "flash_3"), BOTH[0], shape) == PublishedSystem(known, "bf16").cost(
        attention, BOTH[0], shape
    )
    steps = {}
    for kernel in ("", "cudnn"):
        path = tmp_path / f"run{kernel}.yaml"
        training = {"precision": "bf16", "micro_batch_size": 1, "num_micro_batches": 1} | (
            {"attention_kernel": kernel} if kernel else {}
        )
        path.write_text(yaml.safe_dump(RUN | {"training": training}))
        assert predictor_main(["predict", str(path), "--system", str(out), "--json"]) == 0, capsys.readouterr().err
        steps[kernel] = json.loads(capsys.readouterr().out)["step"]["time_us"]
    assert steps["cudnn"] < 0.99 * steps[""], "the configuration chooses"


def test_a_kernel_that_does_not_run_costs_its_own_rows_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")
    forced = torch.nn.attention.sdpa_kernel
    gpu, content = VirtualGpu(), yaml.safe_load((SWEEPS / "smoke.yaml").read_text())
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content | {"shapes_per_operator": 3}))
    with installed(monkeypatch, gpu, "NVIDIA H200"):
        monkeypatch.setattr(torch.nn.attention, "sdpa_kernel", forced)  # a processor has no cuDNN
        words = ["--device", "cuda", "--sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "r")]
        assert cli.main(["operator", "flash_attention-cudnn", "gelu", *words]) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if "flash_attention-cudnn" in line]
    assert len(said) == 1
    assert said[0].startswith("flash_attention-cudnn is left out: No viable backend")
    assert [found.path.name for found in read_tables(tmp_path / "r", "operator")] == ["gelu_bf16.0of1.csv"]


@pytest.mark.skipif("SURVEY_EMULATED" not in os.environ, reason="takes four minutes: make survey-emulated")
def test_a_kit_with_every_stage_a_process_ends_in_a_published_system_that_predicts(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One peak fails, stages are cut off, and what comes back is fitted beside the present H100."""
    pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")
    paths = os.pathsep.join(map(str, (ROOT / "tests/emulated_gpu", made / "code", made / "code/profiling")))
    environment = dict(os.environ, PYTHONPATH=paths, FAILING_PEAK="fp16")
    words = [sys.executable, str(made / "measure.py"), "--minutes", "3", "--out", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    print(done.stderr)
    assert "surveying NVIDIAH10080GBHBM3, driver 580" in done.stderr
    assert "its time was up" in done.stderr, "three minutes are too few for all stages"
    assert "the peak in fp16 is not measured here" in (tmp_path / "out/survey.log").read_text()
    folder, out = tmp_path / "gpu/H100", tmp_path / "regressors/H100_measured"
    assert cli.main(["unpack", str(tmp_path / "out" / ARCHIVE), "--into", str(tmp_path / "gpu")]) == 0
    known = ROOT / "regressors/H100"
    fit = ["fit", "--system", str(folder / "system.yaml"), "--measurements", str(folder), "--keep", str(known)]
    assert fitting_main([*fit, "--name", "H100_measured", "--out", str(out)]) == 0, capsys.readouterr().err
    own = {path.name for path in (out / "operator").glob("*.json")}
    assert "NVIDIAH10080GBHBM3_linear_bf16.json" in own
    assert "NVIDIAH10080GBHBM3_flash_attention_bf16.json" in own
    assert "NVIDIAH10080GBHBM3_flash_attention-cudnn_bf16.json" in own
    assert (out / "nccl/NVIDIAH10080GBHBM3_all_reduce_bf16.json").is_file(), "kept from the present system"
    options = ["--model", "llama3-8b", "--system", str(out), "--gpus", "8", "--global-batch-size", "64"]
    assert predictor_main(["predict", *options]) == 0
    assert "Step time" in capsys.readouterr().out


@pytest.mark.parametrize("script", ["measure.py", "study.py"])
def test_a_kit_on_a_machine_without_a_gpu_is_one_line(made: Path, tmp_path: Path, script: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    words = [sys.executable, str(made / script), "--out", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert (
        done.stderr.strip() == "error: device is cuda, but torch finds no GPU here; --device cpu measures the processor"
    )


def test_a_survey_of_which_every_stage_is_cut_off_can_be_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")
    with installed(monkeypatch, VirtualGpu()):
        here = find_here(ROOT / planning.DATASHEETS)
    monkeypatch.setattr("microbench.survey.cli.probe", lambda datasheets: here)
    monkeypatch.setattr("microbench.survey.cli.run_command", lambda words, seconds, log: None)
    assert cli.main(["survey", "--out", str(tmp_path), "--minutes", "1"]) == 0
    assert cli.main(["unpack", str(tmp_path / ARCHIVE), "--into", str(tmp_path / "gpu")]) == 0
    hardware = read_system(tmp_path / "gpu/H100/system.yaml").hardware
    assert hardware.gpu.peak_tflop_per_s["bf16"].value == 989.5, "the data sheet's"
    assert hardware.links.wiring == "switch"
