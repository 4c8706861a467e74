"""A survey of a GPU: what travels, what runs when, what comes back, and the whole of it in virtual time."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from microbench import cli
from microbench.device import COMMIT_FILE
from microbench.device import commit as current_commit
from microbench.errors import MeasureError
from microbench.survey import archive as archiving
from microbench.survey import kit, measure
from microbench.survey import stages as planning
from microbench.survey.archive import ARCHIVE, SUMMARY, Saver, pack, unpack
from microbench.survey.probe import Probe, why_not_continued
from microbench.survey.stages import Ended, Stage, ranked, run_command, stages, survey
from microbench.sweep import read_sweep, shapes_of
from microbench.table import Writer, read_table, table_path
from predictor.core.costs.catalogue import catalogue
from tests.unit.microbench.test_table import SESSION, SHAPES, identity, pair, write

ROOT = Path(__file__).resolve().parents[3]
HERE = Probe(device="NVIDIAH200", driver="580", versions={"torch": "2"}, precisions=("bf16", "fp8"), system={})


def table(folder: Path) -> Path:
    return table_path(folder, "operator", "gelu", "fp32", "0of1")


def test_an_archive_is_unpacked_over_an_earlier_archive(tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    write(table(there), SHAPES[:1])
    (there / "system.yaml").write_text("a: 1\n")
    with Saver(there, tmp_path / "out" / ARCHIVE, every_s=60.0, say=print):
        assert (tmp_path / "out" / ARCHIVE).is_file(), "packed at once"
        write(table(there), SHAPES)
    unpack(tmp_path / "out" / ARCHIVE, back)
    assert len(read_table(table(back)).rows) == 2 * len(SHAPES)
    unpack(tmp_path / "out" / ARCHIVE, back)
    assert (back / "system.yaml").read_text() == "a: 1\n"


def test_a_save_that_fails_is_said_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    tries = threading.Semaphore(0)

    def full(folder: Path, archive: Path) -> None:
        tries.release()
        raise OSError(28, "No space left on device")

    (tmp_path / "there").mkdir()
    with Saver(tmp_path / "there", tmp_path / ARCHIVE, 0.01, said.append):
        monkeypatch.setattr(archiving, "pack", full)
        for _ in range(3):
            assert tries.acquire(timeout=60.0)
        monkeypatch.undo()
    assert len(said) >= 2
    assert "results.tar.gz: not saved: [Errno 28] No space left on device; tried again in 0.01 s" in said[0]
    assert (tmp_path / ARCHIVE).is_file()


def test_tables_that_were_measured_apart_are_not_overwritten(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    write(table(one), SHAPES[:2])
    write(table(other), SHAPES[1:])
    pack(other, tmp_path / ARCHIVE)
    before = table(one).read_bytes()
    with pytest.raises(MeasureError, match="they were measured apart; unpack into another folder"):
        unpack(tmp_path / ARCHIVE, one)
    assert table(one).read_bytes() == before


def test_a_table_that_was_packed_in_the_middle_of_a_call_can_be_read(tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    write(table(there), SHAPES)
    whole = table(there).read_bytes()
    table(there).write_bytes(whole[:-7])
    pack(there, tmp_path / ARCHIVE)
    unpack(tmp_path / ARCHIVE, back)
    assert len(read_table(table(back)).rows) == 2 * (len(SHAPES) - 1)
    table(there).write_bytes(whole)
    pack(there, tmp_path / ARCHIVE)
    unpack(tmp_path / ARCHIVE, back)
    assert len(read_table(table(back)).rows) == 2 * len(SHAPES)


@pytest.mark.parametrize("name", ["../evil", "/evil"])
def test_an_archive_writes_nothing_beside_its_folder(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / ARCHIVE, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(MeasureError, match="is not a file of a results folder"):
        unpack(tmp_path / ARCHIVE, tmp_path / "into")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("content", [b"", b"not an archive"])
def test_a_file_that_is_no_archive_is_one_line(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ARCHIVE).write_bytes(content)
    assert cli.main(["unpack", str(tmp_path / ARCHIVE), "--into", str(tmp_path / "into")]) == 2
    assert "not an archive of a survey" in capsys.readouterr().err


def test_unpacking_names_the_folder_after_the_system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(table(tmp_path / "r"), SHAPES)
    pack(tmp_path / "r", tmp_path / ARCHIVE)
    words = ["unpack", str(tmp_path / ARCHIVE), "--into", str(tmp_path / "gpu")]
    assert cli.main(words) == 2
    assert "no system.yaml: the survey ended before it had described the GPU" in capsys.readouterr().err
    (tmp_path / "r/system.yaml").write_text("hardware: {name: H200, gpu: {name: NVIDIAH200}}\n")
    pack(tmp_path / "r", tmp_path / ARCHIVE)
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'gpu/H200'}\n"
    assert len(read_table(table(tmp_path / "gpu/H200")).rows) == 2 * len(SHAPES)


@pytest.mark.parametrize(
    ("change", "why"),
    [({}, None), ({"driver": "535"}, "driver was 580, is 535"), ({"versions": {"torch": "3"}}, "versions was")],
)
def test_earlier_results_go_on_where_the_gpu_and_its_libraries_are_the_same(
    tmp_path: Path, change: dict[str, Any], why: str | None
) -> None:
    of = identity(device="NVIDIAH200", device_kind="cuda", driver="580", versions={"torch": "2"})
    with Writer(table(tmp_path), of, SESSION) as writer:
        writer.append(pair(SHAPES[0]))
    found = why_not_continued(tmp_path, HERE.model_copy(update=change))
    assert found is None if why is None else why in str(found)


def test_a_stage_ends_when_its_time_is_up_and_leaves_the_rest_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(planning, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ran: list[tuple[str, float]] = []
    takes = {"quick": 10.0, "slow": 200.0, "late": 50.0, "last": 0.0}

    def run(words: Sequence[str], seconds: float) -> int | None:
        ran.append((words[0], seconds))
        now[0] += min(seconds, takes[words[0]])
        return None if takes[words[0]] > seconds else 3 if words[0] == "late" else 0

    planned = [Stage(name, (name,), until) for name, until in (("quick", 0.2), ("slow", 0.5), ("late", 0.99))]
    said: list[str] = []
    ended = survey([*planned, Stage("last", ("last",), 0.6)], 5.0, run, tmp_path / SUMMARY, said.append)
    assert ran == [("quick", 60.0), ("slow", 140.0), ("late", 147.0)]
    assert ended == [
        Ended("quick", 0, 10.0),
        Ended("slow", None, 140.0),
        Ended("late", 3, 50.0),
        Ended("last", None, 0.0),
    ]
    assert "slow: its time was up after 140 s" in said[1]
    assert [stage["status"] for stage in json.loads((tmp_path / SUMMARY).read_text())["stages"]] == [0, None, 3]


def test_a_command_whose_time_is_up_is_asked_to_say_what_it_has_seen(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(
        "import time\ndef test_bad(): assert 1 == 2\ndef test_slow(): time.sleep(99)\n"
    )
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path / "test_slow.py")]
    assert run_command(words, 12.0, tmp_path / "log") is None
    assert "assert 1 == 2" in (tmp_path / "log").read_text()


def test_a_command_that_hangs_is_ended_and_what_it_said_is_kept(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(99)"
    )
    log = tmp_path / "log"
    assert run_command(["-c", stubborn], 3.0, log) is None
    assert run_command(["-c", "raise SystemExit(3)"], 60.0, log) == 3
    assert "here" in log.read_text()


def test_every_operator_has_one_place_and_what_every_transformer_runs_comes_first() -> None:
    order = ranked("bf16")
    assert sorted(name for group in order for name in group) == [
        name for name, operator in catalogue().items() if "bf16" in operator.precisions
    ]
    assert {catalogue()[name].family for name in order.products[:-2]} == {"linear"}
    assert order.products[-2:] == ["flash_attention", "grouped_query_attention"]
    assert {"rms_norm", "swiglu", "rope", "optimizer_step", "torch_cross_entropy"} <= set(order.transformer)
    assert {"embedding_bag", "ssd_scan", "softmax"} <= set(order.rest)
    assert "fp8_quantize" in ranked("fp8").transformer


def test_steps_come_before_operators_and_slow_tests_last(tmp_path: Path) -> None:
    def names(*offered: str) -> list[str]:
        return [stage.name for stage in stages(tmp_path, ROOT, "standard", "bf16", offered)]

    assert names("bf16", "fp8") == [
        "smoke tests",
        "system and sustained clock",
        "steps",
        "linear layers and attention in bf16",
        "attention by cudnn in bf16",
        "other operators of transformers in bf16",
        "linear layers in fp8",
        "operators of few models in bf16",
        "GPU tests",
    ]
    assert "fp8" not in " ".join(names("bf16"))
    ends = [stage.until for stage in stages(tmp_path, ROOT, "standard", "bf16", ("bf16", "fp8", "fp8_block"))]
    assert ends == sorted(ends)


@pytest.mark.parametrize(
    ("wheel", "there"),
    [
        ("pydantic-2.14.3-py3-none-any.whl", True),
        ("pydantic_core-2.50.4-{own}-{own}-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True),
        ("pydantic_core-2.50.4-{own}-{own}-manylinux2014_aarch64.manylinux_2_17_aarch64.whl", False),
        ("pydantic_core-2.50.4-cp39-cp39-manylinux_2_17_x86_64.whl", False),
        ("hypothesis-6.1-cp310-abi3-manylinux_2_17_x86_64.whl", True),
        ("nvidia_ml_py-13.6-py3-none-any.whl", True),
        ("sortedcontainers-2.4.0-py2.py3-none-any.whl", True),
    ],
)
def test_a_kit_takes_the_wheels_of_the_python_that_is_there(
    monkeypatch: pytest.MonkeyPatch, wheel: str, there: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert measure.fits(wheel.format(own=f"cp{sys.version_info[0]}{sys.version_info[1]}")) is there


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make kits small and without wheels: this Python has what they need."""
    monkeypatch.setattr(kit, "download", lambda packages, python, machine, folder: folder.mkdir(exist_ok=True))
    monkeypatch.setattr(kit, "SWEEP", "smoke")
    monkeypatch.setattr(kit, "PRECISIONS", ("bf16",))


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a kit and with earlier results."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "gpu/H200").mkdir(parents=True)
    (folder / "gpu/H200/system.yaml").write_text("hardware: {}\n")  # an earlier survey's, damaged
    with pytest.MonkeyPatch.context() as monkeypatch:
        small(monkeypatch)
        size = kit.make_kit(ROOT, folder / "kit", ("3.12",), ("x86_64",), folder / "gpu", lambda text: None)
        assert 0 < size < kit.LARGEST_BYTES
    return folder


@pytest.fixture
def made(made_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the kit, as a GPU machine has it."""
    small(monkeypatch)
    shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "kit"


def test_a_kit_holds_the_code_its_commit_and_what_was_measured_before(made: Path) -> None:
    commit = (made / "code" / COMMIT_FILE.relative_to(ROOT)).read_text().strip()
    assert commit == current_commit()
    assert (made / "earlier/H200/system.yaml").is_file()
    assert not list(made.rglob("__pycache__"))
    words = [sys.executable, "-c", "import microbench.device as d; print(d.__file__, d.commit())"]
    paths = f"{made}/code:{made}/code/profiling"
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={"PYTHONPATH": paths}, cwd=made)
    assert done.stdout.split() == [f"{made}/code/profiling/microbench/device.py", *commit.split()]


def test_a_kit_brings_the_shapes_of_its_sweep(made: Path) -> None:
    computed = shapes_of("gelu", read_sweep("smoke"), "bf16")
    program = (
        "import microbench.sweep as s; s._computed = None; print(s.shapes_of('gelu', s.read_sweep('smoke'), 'bf16'))"
    )
    paths = f"{made}/code:{made}/code/profiling"
    words = [sys.executable, "-P", "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={"PYTHONPATH": paths}, cwd=made)
    assert done.stdout.strip() == str(computed)


def test_a_kit_that_is_started_in_a_checkout_runs_its_own_code(made: Path, tmp_path: Path) -> None:
    shadow = tmp_path / "checkout/predictor"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("raise SystemExit('the code of the current folder')\n")
    words = [sys.executable, str(made / "measure.py"), "--out", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=shadow.parent)
    assert done.returncode == 2
    assert "the code of the current folder" not in done.stderr
    assert done.stderr.startswith("error: ")


def test_a_failed_kit_leaves_the_old_kit_and_touches_no_other_folder(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise MeasureError("pip brought no wheels")

    monkeypatch.setattr(kit, "download", refuse)
    with pytest.raises(MeasureError, match="pip brought no wheels"):
        kit.make_kit(ROOT, made, ("3.12",), ("x86_64",), None, lambda text: None)
    assert (made / "measure.py").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"kit", "gpu"}
    with pytest.raises(MeasureError, match="is there and is not a kit"):
        kit.make_kit(ROOT, tmp_path / "gpu", ("3.12",), ("x86_64",), None, lambda text: None)
    monkeypatch.setattr(kit, "LARGEST_BYTES", 1000)
    monkeypatch.setattr(kit, "download", lambda *_: None)
    with pytest.raises(MeasureError, match="more than 0: name fewer --python"):
        kit.make_kit(ROOT, made, ("3.12",), ("x86_64",), None, lambda text: None)
