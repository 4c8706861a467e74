"""Starting an experiment's processes by torchrun, mpirun or the command itself: ranks, marks, saving, counting."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

from model_training_framework.config import ExecutionMode
from model_training_framework.prediction import predict_experiment
from model_training_framework.slurm import JobStatus, SLURMLauncher
from model_training_framework.slurm.job_values import Place, values
from predictor.formats.experiment import processes_per_node
from tests.launch.fake_slurm import experiment
from tests.launch.job_script import Script, wait_for

TORCHRUN = {"launcher": "torchrun", "gres": "gpu:2"}
# Prints its place, saves when told, and ends by itself where nobody tells it.
WORKER = """\
import os, pathlib, signal, sys, time
rank = os.environ["RANK"]
def save(number, frame):
    pathlib.Path(f"saved.{rank}").touch()
    sys.exit(75)
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, save)
pathlib.Path(f"rank.{rank}").write_text(os.environ["WORLD_SIZE"])
deadline = time.monotonic() + float(sys.argv[1])
while time.monotonic() < deadline:
    time.sleep(0.02)
"""
needs_torchrun = pytest.mark.skipif(
    not Path(sys.executable).with_name("torchrun").exists(), reason="torchrun is not installed beside this Python"
)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "worker.py").write_text(WORKER)
    script = Script(tmp_path)
    (tmp_path / "bin" / "scontrol").write_text(
        (tmp_path / "bin" / "scontrol")
        .read_text()
        .replace("show)", 'show) [ "$2" != hostnames ] || { echo 127.0.0.1; exit; }')
    )
    script.environment = {"SLURM_JOB_NODELIST": "here", "SLURM_NNODES": "1"}
    return script


def ranks(folder: Path) -> dict[str, str]:
    return {path.suffix[1:]: path.read_text() for path in folder.glob("rank.*")}


@needs_torchrun
def test_torchrun_starts_a_process_for_each_gpu(script: Script) -> None:
    process = script.start("python worker.py 0", slurm=TORCHRUN)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert ranks(script.folder) == {"0": "2", "1": "2"}
    assert script.end is JobStatus.COMPLETED
    assert "--nproc" not in str(values(experiment(), Place(script.folder, script.folder), None, None)["launch"])


@needs_torchrun
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_told_to_save_under_torchrun_it_goes_back_to_the_queue(script: Script, number: signal.Signals) -> None:
    process = script.start("python worker.py 100", slurm=TORCHRUN | {"max_restarts": 2})
    wait_for(lambda: len(ranks(script.folder)) == 2, 60)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert {path.name for path in script.folder.glob("saved.*")} == {"saved.0", "saved.1"}
    assert "requeue 5_2" in script.calls("scontrol")
    assert not list(script.experiment_dir.glob(".saved*")), "the next start is not taken for one that has saved"


@needs_torchrun
def test_torchrun_restarts_processes_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    found = experiment(
        "one",
        "bash -c 'echo $RANK >> starts.$RANK; [ $(wc -l < starts.$RANK) = 2 ]'",
        slurm=TORCHRUN | {"nodes": 2, "gres": "gpu:1", "max_restarts": 1},
    )
    launcher = SLURMLauncher(output_dir=tmp_path / "out", project_root=tmp_path)
    assert not launcher.submit_experiment_batch([found], ExecutionMode.LOCAL).failed
    assert {path.read_text() for path in tmp_path.glob("starts.*")} == {"0\n0\n", "1\n1\n"}


@pytest.mark.skipif(shutil.which("mpirun", path=Path(sys.executable).parent) is None, reason="mpirun is not installed")
def test_mpirun_starts_every_task_and_each_knows_its_rank(script: Script) -> None:
    assert script.run("python worker.py 0", slurm={"launcher": "mpirun", "ntasks_per_node": 2}) == 0
    assert ranks(script.folder) == {"0": "2", "1": "2"}
    assert script.end is JobStatus.COMPLETED
    assert not script.calls("srun")


def test_a_command_that_starts_its_own_processes_runs_once(script: Script) -> None:
    slurm = {"launcher": "none", "nodes": 2, "ntasks_per_node": 4}
    assert script.run("echo run >> runs", slurm=slurm) == 0
    assert (script.folder / "runs").read_text() == "run\n"
    assert not script.calls("srun")


@pytest.mark.parametrize(
    ("launcher", "command", "gres", "expected"),
    [
        ("srun", "python train.py", "gpu:4", 1),
        ("srun", "python train.py", None, 1),
        ("torchrun", "python train.py", "gpu:4", 4),
        ("none", "./run.sh", "gpu:4", 4),
        ("none", "./run.sh", None, 1),
        ("mpirun", "python train.py", "gpu:4", 1),
        ("srun", "torchrun --nproc-per-node 4 train.py", "gpu:a100:4", 4),
        ("srun", "python -m torch.distributed.run train.py", "gpu:4", 4),
        ("srun", "accelerate launch train.py", "gpu:4", 4),
        ("srun", "python composer_notes.py", "gpu:4", 1),
    ],
)
def test_processes_of_a_node(launcher: str, command: str, gres: str | None, expected: int) -> None:
    assert processes_per_node(launcher, command, gres, 1) == expected


def test_a_job_of_torchrun_is_predicted_on_all_its_gpus() -> None:
    model = {"name": "gpt", "hidden_size": 1024, "num_layers": 4, "num_heads": 16, "vocab_size": 50257}
    training = {"batch_size": 1, "learning_rate": 0.1, "max_steps": 1, "sequence_length": 1024}
    slurm = {"nodes": 2, "ntasks_per_node": 1, "gres": "gpu:4"}
    found = predict_experiment(
        experiment(
            command="torchrun --nproc-per-node 4 train.py",
            model=model,
            training=training,
            slurm=slurm,
            prediction={"system": "Perlmutter"},
        )
    )
    assert found.num_gpus == 8
    assert not any("gres" in note for note in found.notes)


def test_only_torchrun_restarts() -> None:
    with pytest.raises(ValueError, match=r"max_restarts is 1: only torchrun restarts"):
        experiment(slurm={"max_restarts": 1})


IMAGE = "'nvcr.io#nvidia/pytorch:25.01-py3'"


def test_containers(tmp_path: Path) -> None:
    def launch(**slurm: object) -> str:
        found = experiment(slurm={"container": IMAGE.strip("'"), **slurm})
        return str(values(found, Place(tmp_path / "one", tmp_path), None, None)["launch"]).partition("bash -c")[0]

    folders = f"--bind {tmp_path}/one --bind {tmp_path} --pwd {tmp_path}"
    assert launch().endswith(f"apptainer exec {folders} {IMAGE} ")
    pyxis = launch(container_runtime="pyxis")
    assert f"--container-image={IMAGE}" in pyxis
    assert f"--container-mounts={tmp_path}/one:{tmp_path}/one,{tmp_path}:{tmp_path}" in pyxis
    assert "apptainer" not in pyxis
    with pytest.raises(ValueError, match="pyxis, a plugin of srun, and launcher is mpirun"):
        launch(container_runtime="pyxis", launcher="mpirun")


def test_words_of_a_worker_stay_whole(tmp_path: Path) -> None:
    found = experiment("one", "echo 'a  b' \"$RANK\"", slurm=TORCHRUN)
    assert shlex.quote("a  b").strip("'") in str(values(found, Place(tmp_path, tmp_path), None, None)["launch"])
