"""Which sizes nccl-tests is asked for, and what becomes of each, against a binary that keeps to its source."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from microbench.cli import main
from microbench.collectives.errors import CollectiveError
from microbench.collectives.gpu import Gpu, find_gpu, gpu_of_nvidia_smi
from microbench.collectives.measure import Request, measure
from microbench.collectives.nccl_tests import BINARIES, writes_json
from microbench.collectives.sweep import Sweep
from microbench.errors import MeasureError
from microbench.table import Measurement, Status, read_tables
from predictor.core.costs.collectives import Topology
from tests.unit import nccl_tests_model

GIB = 2**30
# Stands for mpiexec: tells the number of ranks and starts the wrapper, which becomes the binary, once.
ALONE = """sh -c 'export RANKS=$2 CUDA_VISIBLE_DEVICES=0 MPI_LOCALRANKID=0; shift 2; exec "$@"' sh"""
H200 = Gpu("NVIDIAH200", "570", "bf16", 140 * GIB)
STYLES = ["new", "old"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of binaries."""
    script = Path(nccl_tests_model.__file__)
    for name in BINARIES.values():
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\n{script.read_text()}")
        path.chmod(0o755)
    writes_json.cache_clear()
    return tmp_path


def request(folder: Path, name: str, ranks: int, sizes: tuple[int, int], said: list[str] | None = None) -> Request:
    """Return a request for one collective on one node: all octaves between two sizes."""
    low, high = sizes
    return Request(
        names=(name,),
        backend="nccl-tests",
        sweep=Sweep(min_bytes=low, max_bytes=high, sizes_per_octave=1, samples=1, block_us=1, most_calls=1),
        topology=Topology(1, ranks),
        precision="bf16",
        results=folder / "results",
        launcher=ALONE,
        silence_s=20.0,
        nccl_tests=folder,
        gpu=H200,
        say=(said if said is not None else []).append,
    )


def rows(folder: Path, ranks: int) -> dict[int, Measurement]:
    """Return the rows over one topology by size."""
    (table,) = (
        t for t in read_tables(folder / "results", "collective") if t.provenance.identity.worker == f"1x{ranks}"
    )
    return {row.shape[0]: row for row in table.rows}


def statuses(folder: Path, ranks: int) -> dict[int, Status]:
    """Return what became of each size over one topology."""
    return {size: row.status for size, row in rows(folder, ranks).items()}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("ranks", "first"), [(6, 960), (128, 2048)])
def test_requested_sizes_are_printed_and_none_remains(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, first: int, style: str
) -> None:
    monkeypatch.setenv("STYLE", style)
    monkeypatch.setattr("microbench.collectives.measure.offered", lambda nodes, ranks: [Topology(nodes, ranks)])
    wanted = request(folder, "all_to_all", ranks, (1024, 16384))
    measured, there = measure(wanted, lambda part, row: None)
    assert (measured, there) == (len(statuses(folder, ranks)), 0)
    assert statuses(folder, ranks) == {first << octave: Status.OK for octave in range(measured)}
    monkeypatch.setenv("WITHOUT", "bfloat16")  # a run now would fail
    assert measure(wanted, lambda part, row: None) == (0, measured)


@pytest.mark.parametrize("style", STYLES)
def test_what_the_binary_says_that_memory_forbids_is_stored_as_such(
    folder: Path, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    """The GPUs of other nodes have less memory than that of this one, so only the binary knows."""
    monkeypatch.setenv("STYLE", style)
    monkeypatch.setenv("GPU_BYTES", str(24 * GIB))
    said: list[str] = []
    measure(request(folder, "all_gather", 2, (1 * GIB, 16 * GIB), said), lambda part, row: None)
    ok, full = Status.OK, Status.OUT_OF_MEMORY
    assert statuses(folder, 2) == {1 * GIB: ok, 2 * GIB: ok, 4 * GIB: full, 8 * GIB: full, 16 * GIB: full}
    assert "due to memory limitation" in rows(folder, 2)[4 * GIB].kernel
    assert any("all_gather over 1x2: all_gather_perf goes up to" in line for line in said)
    # A sweep of large sizes only: the run would crash, or print a size of its own.
    (folder / "other").mkdir()
    wanted = request(folder, "all_reduce", 2, (16 * GIB, 32 * GIB))
    assert measure(wanted, lambda part, row: None) == (2, 0)
    assert {
        row.status for t in read_tables(folder / "results", "collective") for row in t.rows if row.shape[0] > 8 * GIB
    } == {full}


@pytest.mark.parametrize("style", STYLES)
def test_a_size_whose_buffers_do_not_fit_costs_no_other_size(
    folder: Path, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    monkeypatch.setenv("STYLE", style)
    monkeypatch.setenv("GPU_BYTES", str(140 * GIB))
    monkeypatch.setenv("FREE_BYTES", str(80 * GIB))
    wanted = request(folder, "all_reduce", 2, (8 * GIB, 64 * GIB))
    assert measure(wanted, lambda part, row: None) == (4, 0)
    ok, full = Status.OK, Status.OUT_OF_MEMORY
    assert statuses(folder, 2) == {8 * GIB: ok, 16 * GIB: ok, 32 * GIB: full, 64 * GIB: full}
    assert "'out of memory'" in rows(folder, 2)[32 * GIB].kernel
    assert "3 buffers of 68719476736 bytes" in rows(folder, 2)[64 * GIB].kernel, "known before anything is started"


@pytest.mark.parametrize("style", STYLES)
def test_memory_that_others_hold_is_an_error_and_no_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    monkeypatch.setenv("STYLE", style)
    monkeypatch.setenv("FREE_BYTES", "1000")
    with pytest.raises(CollectiveError, match=r"less than half of the GPU's .* another process holds its memory"):
        measure(request(folder, "broadcast", 2, (1024, 4096)), lambda part, row: None)
    assert not rows(folder, 2)


def test_a_size_that_is_not_printed_is_an_error_and_the_others_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOST", "2048")
    wanted = request(folder, "point_to_point", 2, (1024, 4096))
    with pytest.raises(CollectiveError, match="sendrecv_perf printed no row of 2048 bytes"):
        measure(wanted, lambda part, row: None)
    assert statuses(folder, 2) == {1024: Status.OK, 4096: Status.OK}
    monkeypatch.delenv("LOST")
    assert measure(wanted, lambda part, row: None) == (1, 2)


def test_a_type_that_the_binary_does_not_know_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WITHOUT", "bfloat16")
    with pytest.raises(CollectiveError, match="does not know bfloat16 and would measure float"):
        measure(request(folder, "all_reduce", 2, (1024, 4096)), lambda part, row: None)
    assert not rows(folder, 2)


def test_a_collective_without_a_size_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("microbench.collectives.measure.offered", lambda nodes, ranks: [Topology(nodes, ranks)])
    said: list[str] = []
    assert measure(request(folder, "all_to_all", 1024, (1024, 8192), said), lambda part, row: None) == (0, 0)
    (line,) = said
    assert line.startswith("all_to_all over 1x1024 is not measured: its sizes are multiples of 16384 bytes")


def nvidia_smi(folder: Path, answer: str, refused: str = "nothing") -> None:
    """Write the driver's program; it refuses a query for one field."""
    path = folder / "nvidia-smi"
    path.write_text(f'#!/bin/sh\ncase "$*" in *{refused}*) echo "not a valid field"; exit 2;; esac\necho "{answer}"\n')
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("answer", "refused", "gpu"),
    [
        ("NVIDIA H200, 570.86, 143771, 9.0", "nothing", Gpu("NVIDIAH200", "570", "bf16", 143771 * 2**20)),
        ("Tesla V100-SXM2-32GB, 570.86, 32768, 7.0", "nothing", Gpu("TeslaV100-SXM2-32GB", "570", "fp16", 2**35)),
        ("NVIDIA A100-SXM4-80GB, 470.1, 81920", "compute_cap", Gpu("NVIDIAA100-SXM4-80GB", "470", None, 80 * GIB)),
        ("NVIDIA GB10, 580.95, [N/A], 12.1", "nothing", Gpu("NVIDIAGB10", "580", "bf16", None)),
    ],
)
def test_the_driver_tells_of_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, refused: str, gpu: Gpu
) -> None:
    nvidia_smi(tmp_path, answer, refused)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert gpu_of_nvidia_smi({}) == gpu
    assert gpu_of_nvidia_smi({"CUDA_VISIBLE_DEVICES": ""}) is None


def test_the_command_needs_no_torch_and_measures_in_bf16(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    nvidia_smi(folder, "NVIDIA H200, 570.86, 143771, 9.0")
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (folder / "sweep.yaml").write_text(
        "{min_bytes: 1024, max_bytes: 4096, sizes_per_octave: 2, samples: 1, block_us: 1, most_calls: 1}"
    )
    words = ["collective", "all", "--backend", "nccl-tests", "--nccl-tests", str(folder), "--launcher", ALONE]
    words += ["--sweep", str(folder / "sweep.yaml"), "--out", str(folder / "results")]
    assert main(words) == 0, capsys.readouterr().err
    tables = read_tables(folder / "results", "collective")
    assert {t.provenance.identity.precision for t in tables} == {"bf16"}
    assert {t.provenance.identity.device for t in tables} == {"NVIDIAH200"}
    assert {len(t.rows) for t in tables} == {5}
    assert main(words) == 0
    assert "0 calls measured, 30 were there already" in capsys.readouterr().err


def test_no_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MeasureError, match="no GPU here: nvidia-smi does not answer, and torch is not installed"):
        find_gpu("nccl-tests")
