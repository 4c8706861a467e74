"""``predictor verify`` from its command line, with a stand-in for the Python that has torch and the trainer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from fitting.publish import seal
from predictor.__main__ import main
from predictor.core.base.errors import PublishedError
from predictor.evidence.verification.configurations import read_configurations
from predictor.evidence.verification.launching import Runner, last_line
from predictor.replay.files.measured_run import read_launches
from predictor.replay.files.measured_step import record_path
from predictor.replay.files.verified_run import read_verified_run
from tests.unit.examples import full_form, write
from tests.unit.fake_runner import TRACEBACK, fake_python
from tests.unit.measured_runs import write_launch

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[3]


def config(folder: Path, name: str = "gpt.yaml", **sections: Any) -> Path:
    return write(full_form(**sections), folder / name)


def verify(*words: object, tmp_path: Path, behaviour: str = "runs") -> int:
    out = ["--out", str(tmp_path / "out"), "--python", fake_python(tmp_path, behaviour)]
    return main(["verify", *map(str, words), *out])


def test_one_configuration_is_run_and_compared_in_detail(tmp_path: Path, capsys: Capture) -> None:
    path = config(tmp_path)
    assert verify(path, "--steps", 4, tmp_path=tmp_path) == 0
    told = capsys.readouterr()
    assert "gpt: launch 1 of 2, 1 rank, cpu" in told.err
    assert "gpt on Perlmutter: predicted " in told.out
    assert "Noise: the medians of 2 launches are 2.0% apart." in told.out
    for expected in ("Where the step goes", "recompute", "not measured", "not predicted: no such task"):
        assert (expected in told.out) is (expected != "recompute")
    (folder,) = (tmp_path / "out").iterdir()
    content = yaml.safe_load((folder / "config.yaml").read_text())
    assert "system" not in content
    assert content["model"]["num_layers"] == 8
    launches = read_launches(folder)
    assert [len(launch.samples_us) for launch in launches] == [4, 4]
    assert read_verified_run(folder).name == "gpt"


def test_what_is_recorded_is_not_run_again(tmp_path: Path, capsys: Capture) -> None:
    path = config(tmp_path)
    assert verify(path, tmp_path=tmp_path) == 0
    capsys.readouterr()
    # Python without torch would say so if it were asked; another system needs no new run.
    assert verify(path, "--system", "Vista", "--json", tmp_path=tmp_path, behaviour="no torch") == 0
    told = capsys.readouterr()
    assert "launch" not in told.err
    assert json.loads(told.out)["runs"][0]["system"] == "Vista"
    (folder,) = (tmp_path / "out").iterdir()
    record_path(folder / "run-2", 0).unlink()
    assert verify(path, tmp_path=tmp_path) == 0
    said = capsys.readouterr().err
    assert "launch 2 of 2" in said
    assert "launch 1 of 2" not in said
    changed = config(tmp_path, training={"micro_batch_size": 1})
    assert verify(changed, "--no-run", tmp_path=tmp_path) == 1
    assert "are not recorded" in capsys.readouterr().err
    assert verify(path, "--threads", 2, "--repeat", 1, tmp_path=tmp_path) == 0
    assert read_launches(folder)[0].provenance.configuration["training"]["micro_batch_size"] == 2


def test_ranks_are_started_by_torchrun_on_the_loopback(tmp_path: Path) -> None:
    layout = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    assert verify(config(tmp_path, parallelism=layout), "--repeat", 1, tmp_path=tmp_path) == 0
    (folder,) = (tmp_path / "out").iterdir()
    (launch,) = read_launches(folder)
    called = launch.provenance.commit.split()  # where the stand-in notes its own arguments
    assert called[:6] == ["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "4"]
    assert called[called.index("--rdzv-endpoint") + 1] == "127.0.0.1:0"
    assert [rank.provenance.pipeline_stage for rank in launch.ranks] == [0, 0, 1, 1]


def test_children_see_no_job_that_this_process_is_part_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_NTASKS", "OMP_NUM_THREADS", "MASTER_ADDR"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    environment = Runner("python", "cpu", 3, 2, 60.0).environment()
    assert not {"RANK", "WORLD_SIZE", "SLURM_NTASKS"} & set(environment)
    assert (environment["MASTER_ADDR"], environment["OMP_NUM_THREADS"]) == ("127.0.0.1", "2")
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize(
    ("dropped", "told"),
    [
        (
            {"in a column whose neighbouring sizes scatter by more than 30 %": 26},
            "noisy: 26 in a column whose neighbouring sizes scatter by more than 30 %; measure it again on a quiet",
        ),
        ({"faster than the links": 26}, "all 26 rows were dropped: 26 faster than the links; see the card"),
        ({}, "its 26 rows are too few to fit; measure more sizes"),
    ],
)
def test_rows_that_were_all_dropped_are_said(dropped: dict[str, int], told: str, tmp_path: Path) -> None:
    lacking = tmp_path / "lacking"
    shutil.copytree(ROOT / "regressors" / "Perlmutter", lacking)
    next((lacking / "nccl").glob("*point_to_point*")).unlink()
    path = lacking / "held_out.json"
    document = json.loads(path.read_text())
    columns = [column for column in document["collective_columns"] if column["regressor"] != "point_to_point"]
    lost = {"column": "point_to_point 1x2", "regressor": "point_to_point", "direction": "forward"}
    document["collective_columns"] = [*columns, {**lost, "rows": 26, "kept": 0, "dropped": dropped}]
    path.write_text(json.dumps(document))
    seal(lacking)
    piped = config(tmp_path, parallelism={"pipeline_parallel_size": 2})
    with pytest.raises(PublishedError, match="point_to_point was measured, but") as error:
        read_configurations([str(piped)], str(lacking))[0].workload.predict()
    assert told in str(error.value)


def test_several_configurations_are_a_table_with_a_summary(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    for layers in (2, 4):
        config(folder, f"gpt-{layers}.yaml", model={"num_layers": layers})
    assert verify(folder, "--report", tmp_path / "page.html", tmp_path=tmp_path) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:2] == ["run", "ranks"]
    assert [line[0] for line in lines[1:3]] == ["gpt-2", "gpt-4"]
    assert "2 runs: median absolute error of the step" in out
    assert "Noise, the same configuration launched again: median 2.0%, worst 2.0%." in out
    assert "Operators that take 1 % of their step or more: median absolute error" in out


def test_a_run_that_fails_is_one_line_and_the_others_go_on(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    for layers in (2, 3, 4):
        config(folder, f"gpt-{layers}.yaml", model={"num_layers": layers})
    assert verify(folder, "--json", "--repeat", 1, tmp_path=tmp_path, behaviour="fails") == 1
    answer = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in answer["runs"]] == ["gpt-2", "gpt-4"]
    (failed,) = answer["failed"]
    assert failed["name"] == "gpt-3"
    assert failed["reason"].startswith("ValueError: no such thing as this layer; log: ")
    assert TRACEBACK.splitlines()[0] in Path(failed["reason"].split("log: ")[1]).read_text()
    assert answer["summary"]["runs"] == 2


def test_what_the_system_cannot_predict_is_not_run(tmp_path: Path, capsys: Capture) -> None:
    lacking = tmp_path / "lacking"
    shutil.copytree(ROOT / "regressors" / "Perlmutter", lacking)
    manifest = json.loads((lacking / "manifest.json").read_text())
    name = "nccl/NVIDIAA100-SXM4-80GB_point_to_point_fp16.json"
    del manifest["files"][name]
    (lacking / name).unlink()
    (lacking / "manifest.json").write_text(json.dumps(manifest))
    folder = tmp_path / "configs"
    folder.mkdir()
    config(folder, "flat.yaml")
    piped = config(folder, "piped.yaml", parallelism={"pipeline_parallel_size": 2})
    assert verify(folder, "--system", lacking, "--repeat", 1, tmp_path=tmp_path) == 1
    told = capsys.readouterr()
    assert "piped: not compared: Perlmutter has no fp16 regressor for point_to_point" in told.out
    assert "piped: launch" not in told.err
    assert verify(piped, "--system", lacking, tmp_path=tmp_path) == 2
    assert "has no fp16 regressor for point_to_point" in capsys.readouterr().err


def test_a_run_that_leaves_no_record_is_said(tmp_path: Path, capsys: Capture) -> None:
    assert verify(config(tmp_path), tmp_path=tmp_path, behaviour="leaves nothing") == 1
    assert "gpt: not compared: " in (out := capsys.readouterr().out)
    assert "has no records of measured steps" in out


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path, capsys: Capture) -> None:
    assert verify(config(tmp_path), "--timeout", 2, tmp_path=tmp_path, behaviour="hangs") == 1
    assert "not done after 2 s (--timeout)" in capsys.readouterr().out


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_no_process_behind(how: signal.Signals, tmp_path: Path) -> None:
    words = [config(tmp_path), "--out", tmp_path / "out", "--python", fake_python(tmp_path, "hangs"), "--device", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "predictor", "verify", *map(str, words)],
        stderr=subprocess.PIPE,
        env=environment,
        preexec_fn=lambda: signal.signal(how, signal.SIG_DFL),  # tests in the background of a shell ignore SIGINT
    )
    deadline = time.monotonic() + 60
    while not (told := list(tmp_path.glob("out/*/run-1/pids"))) or not told[0].read_text().strip():
        assert time.monotonic() < deadline, "the stand-in was not started"
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.05)
    below = int(told[0].read_text())
    process.send_signal(how)
    assert process.wait(30) != 0
    while time.monotonic() < deadline and Path(f"/proc/{below}").exists():
        time.sleep(0.05)
        with_state = Path(f"/proc/{below}/stat")
        if with_state.exists() and with_state.read_text().rpartition(")")[2].split()[0] == "Z":
            return  # dead, and not yet collected by whoever inherits it
    assert not Path(f"/proc/{below}").exists()


REFUSED: dict[str, tuple[list[str], str]] = {
    "nothing": ([], "nothing to verify: name configurations"),
    "too few steps": (["gpt.yaml", "--steps", "1"], "--steps is 1; it must be at least 3"),
    "no repetition": (["gpt.yaml", "--repeat", "0"], "--repeat is 0"),
    "no such file": (["lost.yaml"], "lost.yaml does not exist"),
    "no such system": (["gpt.yaml", "--system", "Perlmuter"], "Did you mean Perlmutter?"),
    "no such python": (["gpt.yaml", "--python", "nowhere/python"], "which is no program"),
    "a folder without any": (["empty"], "empty has no configuration"),
    "one name twice": (["gpt.yaml", "./gpt.yaml"], "have one name, gpt"),
    "no record": (["--run", "empty"], "empty holds no recorded run"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    words, expected = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    config(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["verify", *words]) == 2
    told = capsys.readouterr()
    assert expected in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)


def test_without_torch_it_says_what_to_install(tmp_path: Path, capsys: Capture) -> None:
    assert verify(config(tmp_path), tmp_path=tmp_path, behaviour="no torch") == 2
    told = capsys.readouterr().err
    assert "No module named 'torch'" in told
    assert "pip install" in told
    assert told.count("\n") == 1
    assert verify(config(tmp_path), "--device", "cuda", tmp_path=tmp_path) == 2
    assert "sees no GPU" in capsys.readouterr().err


def test_recorded_runs_are_compared_by_their_own_configuration(tmp_path: Path, capsys: Capture) -> None:
    content = full_form()
    write_launch(tmp_path / "job", content)
    assert main(["verify", "--run", str(tmp_path / "job"), "--system", "Vista"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("job on Vista: predicted ")
    assert "Launched once, so the noise between launches is not known." in out
    assert "Operators: not recorded in this run." in out
    assert (tmp_path / "job" / "comparison.json").is_file()
    assert main(["verify", "--run", str(tmp_path / "job" / "step_records"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["system"] == "Perlmutter"


def test_a_record_without_configuration_takes_a_named_one(tmp_path: Path, capsys: Capture) -> None:
    write_launch(tmp_path / "job", {"note": "a script of one's own"})
    assert main(["verify", "--run", str(tmp_path / "job")]) == 2
    assert "name its file as CONFIG" in capsys.readouterr().err
    assert main(["verify", str(config(tmp_path)), "--run", str(tmp_path / "job")]) == 0
    assert capsys.readouterr().out.startswith("gpt on Perlmutter")
    for name in ("a", "b"):
        write_launch(tmp_path / "jobs" / name, full_form())
    assert main(["verify", "--run", str(tmp_path / "jobs")]) == 0
    assert "2 runs: " in capsys.readouterr().out
    (tmp_path / "jobs" / "a" / "step_records" / "rank-00000.json").write_text("{")
    assert main(["verify", "--run", str(tmp_path / "jobs")]) == 1
    assert "a: not compared: " in (out := capsys.readouterr().out)
    assert "does not read as JSON" in out
    assert main(["verify", "--run", str(tmp_path / "jobs" / "a")]) == 2
    assert "does not read as JSON" in capsys.readouterr().err
    assert main(["verify", str(config(tmp_path)), "--run", str(tmp_path / "jobs")]) == 2
    assert "holds 2 runs and 1 configurations are named" in capsys.readouterr().err


def test_an_experiment_of_the_trainer_is_verified(tmp_path: Path, capsys: Capture) -> None:
    sizes = {"hidden_size": 256, "num_layers": 4, "num_heads": 4, "vocab_size": 1000}
    content = {
        "experiment_name": "small",
        "model": {"name": "gpt", **sizes},
        "training": {
            "batch_size": 2,
            "gradient_accumulation_steps": 4,
            "max_steps": 10,
            "precision": "bf16",
            "sequence_length": 256,
        },
    }
    write_launch(tmp_path / "job", content)
    assert main(["verify", "--run", str(tmp_path / "job"), "--system", "H100"]) == 0
    assert capsys.readouterr().out.startswith("job on H100: predicted ")
    assert main(["verify", "--run", str(tmp_path / "job")]) == 2
    assert "prediction.system is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (TRACEBACK, "ValueError: no such thing as this layer"),
        ("error: config.yaml: it has no moe\n", "config.yaml: it has no moe"),
        ("W torch/distributed/run.py:766] started\nChildFailedError:\n", "ChildFailedError:"),
        ("[rank1]: AttributeError: no stage\n", "AttributeError: no stage"),
        ("", "it printed nothing"),
    ],
)
def test_the_line_that_says_what_went_wrong(log: str, expected: str) -> None:
    assert last_line(log) == expected
