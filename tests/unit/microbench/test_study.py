"""A study of a GPU in virtual time: all of it, cut off, with a part that raises, with a lost GPU; and its report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from microbench import cli, timing
from microbench.errors import TableError
from microbench.nvml import Nvml
from microbench.rows import Status
from microbench.study import attention, gradients, launches, overlap, part, record, sustained
from microbench.study import cli as study_cli
from microbench.study.part import Outcome, Part
from microbench.study.record import Attention, Entry, GradientProducts, Launches, Overlap, StageRecord, Step, Sustained
from microbench.study.report import report
from microbench.study.stages import LOST, STAGES, stages, unfinished
from microbench.survey import stages as planning
from microbench.survey.stages import Ended
from tests.unit.virtual_gpu import VirtualGpu, installed

pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")

BLOCK_BYTES = 131_072
START_S, KERNEL_S, TINY_KERNEL_S = 8.0, 2e-3, 2e-6


class PerSm:
    """A copy that takes as long as its programs need for their blocks."""

    def __init__(self, gpu: VirtualGpu, programs: int) -> None:
        self.gpu, self.programs = gpu, programs

    def run(self, blocks: int) -> None:
        self.gpu.host_s += 20e-6
        self.gpu.launch(blocks / self.programs * 5e-6)

    def held(self) -> int:
        return self.programs


class FakeLibrary:
    """A driver's library: a fixed state, and energy at 500 W of the virtual clock."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    class NVMLError(Exception):
        """What a refused query raises."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu = gpu

    def nvmlDeviceGetPowerUsage(self, handle: object) -> int:  # noqa: N802
        return 650_000

    def nvmlDeviceGetClockInfo(self, handle: object, kind: int) -> int:  # noqa: N802
        return 1755

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> float:  # noqa: N802
        return 500_000.0 * self.gpu.host_s

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: object) -> int:  # noqa: N802
        return 0x4


@contextmanager
def small_study(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualGpu]:
    """A virtual GPU on which every shape of the study is small, and every number of repetitions."""
    virtual = VirtualGpu(kernel_s=KERNEL_S)
    tiny = [(1, 8, 2, 1 + i % 2, 8, i % 2) for i in range(2)]
    clock = SimpleNamespace(
        perf_counter=virtual.clock,
        perf_counter_ns=lambda: int(virtual.clock() * 1e9),
        monotonic=virtual.clock,
        sleep=virtual.rest,
    )
    with installed(monkeypatch, virtual):
        for module in (part, sustained, planning, timing):
            monkeypatch.setattr(module, "time", clock)
        nvml = Nvml(FakeLibrary(virtual), 0)
        monkeypatch.setattr(sustained, "nvml", lambda: nvml)
        monkeypatch.setattr(attention, "shapes", lambda: tiny)
        monkeypatch.setattr(gradients, "LAYERS", ((8, 16),))
        monkeypatch.setattr(gradients, "TOKENS", (4,))
        monkeypatch.setattr(sustained, "PRODUCTS", (("bf16", 16, 16, 16), ("bf16", 32, 16, 16)))
        monkeypatch.setattr(overlap, "PRODUCTS", ((16, 16, 16),))
        monkeypatch.setattr(overlap, "copier", lambda programs: (PerSm(virtual, programs), "a copy", BLOCK_BYTES))
        monkeypatch.setattr(launches, "the_run", small_run)
        monkeypatch.setattr(launches, "QUEUED", 50)
        monkeypatch.setattr(launches, "REPETITIONS", 3)
        monkeypatch.setattr(launches, "STEP_SAMPLES", 2)
        monkeypatch.setattr(sustained, "SECONDS", 2.0)
        yield virtual


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualGpu]:
    with small_study(monkeypatch) as virtual:
        yield virtual


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a whole study."""
    out = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch, small_study(patch) as virtual:
        assert run_all(virtual, patch, out) == 0
        assert virtual.host_s < 9 * 60.0
    return out


def small_run() -> Any:
    from microbench.steps.check import small_copy
    from microbench.steps.configuration import CONFIGS, read_steps

    return small_copy(read_steps(CONFIGS, [launches.STEP])[0].run, "bf16")


def run_all(gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch, out: Path, minutes: float = 9.0) -> int:
    """Run a study as its command does, every stage in this process."""

    def stage(words: Sequence[str], seconds: float, log: Path) -> int:
        began = gpu.host_s
        gpu.kernel_s = TINY_KERNEL_S if "launches" in words else KERNEL_S
        status = cli.main(words[2:], age_s=0.0)
        gpu.host_s += START_S
        assert gpu.host_s - began <= seconds, words
        return status

    here = SimpleNamespace(device="H100", driver="580")
    monkeypatch.setattr(study_cli, "probe", lambda sheets: here)
    monkeypatch.setattr(study_cli, "run_command", stage)
    return cli.main(["study", "--out", str(out), "--minutes", str(minutes)])


def stored(out: Path, stage: str) -> StageRecord:
    found = record.read_record(out, stage)
    assert found is not None
    return found


def measured(out: Path, stage: str) -> list[Any]:
    return [entry.measured for entry in stored(out, stage).entries]


def test_a_study_ends_in_time_with_a_record_per_stage_and_a_report(study: Path) -> None:
    assert {stage["stage"] for stage in json.loads((study / "study.json").read_text())["stages"]} == set(STAGES)
    first = measured(study, "attention")[0]
    assert isinstance(first, Attention)
    assert {(each.name, each.direction.value) for each in first.passes} == {
        (name, direction) for name in attention.BACKENDS for direction in ("forward", "backward")
    }
    flash = [each for each in first.passes if each.name == "flash"]
    assert all(each.status is Status.OK and each.kernel_us for each in flash)
    layer = measured(study, "gradient-products")[0]
    assert isinstance(layer, GradientProducts)
    forms = {each.name: each.status for each in layer.passes}
    assert [name for name, status in forms.items() if status is Status.OK] == [
        "forward",
        "dgrad",
        "wgrad",
        "wgrad, then added to fp32",
    ], "a processor has no product of bf16 into fp32"
    text = report(study)
    for title in (
        "Attention, forward",
        "Products beside a copy",
        "Products of linear",
        "without a pause",
        "Host time per",
    ):
        assert title in text
    assert "attention, efficient, forward: error: No viable backend" in text


def test_a_product_that_shares_nothing_with_a_copy_is_not_slowed(study: Path) -> None:
    pairs = measured(study, "overlap")
    assert [pair.programs for pair in pairs] == list(overlap.SMS)
    for pair in pairs:
        assert isinstance(pair, Overlap)
        assert pair.held == pair.programs
        assert pair.product_beside_us == pytest.approx(pair.product_alone_us, rel=0.05)
        assert pair.copy_beside_us == pytest.approx(pair.copy_alone_us, rel=0.05)
        assert pair.copy_bytes % BLOCK_BYTES == 0


def test_a_run_that_its_cover_does_not_cover_is_repeated_with_a_longer_cover_or_refused(gpu: VirtualGpu) -> None:
    import torch

    copy, side = PerSm(gpu, 4), torch.cuda.Stream()

    def product() -> None:
        gpu.host_s += 5e-6
        gpu.launch(1e-3)

    def longer(size: overlap.Cover) -> overlap.Cover:
        return size._replace(blocks=2 * size.blocks)

    runs = overlap.covered(product, copy, overlap.Cover(10, 2000), longer, "product_is_inside", side)
    assert runs[0].copy_us == pytest.approx(20_000, rel=0.01), (
        "2,000 blocks take 2.5 ms; 10 products and a head start, 10.1"
    )
    with pytest.raises(RuntimeError, match="not product is inside with 10 products beside 8 blocks"):
        overlap.covered(product, copy, overlap.Cover(10, 1), longer, "product_is_inside", side)


def test_a_sustained_product_logs_every_block_and_never_idles(study: Path) -> None:
    product = measured(study, "sustained-products")[0]
    assert isinstance(product, Sustained)
    assert len(product.moments) == len(product.blocks) + 1
    assert len(product.blocks) == pytest.approx(2.0 / sustained.BLOCK_S, abs=3)
    assert [block.us for block in product.blocks] == [pytest.approx(2000.0, rel=0.001)] * len(product.blocks), (
        "no gap between two blocks"
    )
    assert {moment.event_reasons for moment in product.moments} == {("power cap",)}
    row = next(line for line in report(study).splitlines() if line.startswith("bf16 16 16 16"))
    assert "1755 → 1755" in row
    assert "  500  " in row, "by the counted energy, not by the averaged power"


def test_launches_cost_the_host_its_time_and_a_graph_none(study: Path) -> None:
    found = measured(study, "launches")
    kinds = {each.name: each for each in found if isinstance(each, Launches)}
    assert set(kinds) == set(launches.KINDS)
    assert kinds["element-wise addition in place"].host_us == pytest.approx([6.0] * 3, rel=0.01)
    eager, graph = (each for each in found if isinstance(each, Step))
    assert (eager.form, graph.form) == ("eager", "graph")
    assert max(graph.wall_us) < 0.5 * min(eager.wall_us), "kernels of 2 µs, launches of 6"
    assert max(graph.device_us) < 0.5 * min(eager.device_us)


def test_a_part_that_raises_costs_itself_and_the_next_study_tries_it_again_last(
    gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(programs: int) -> Any:
        if programs == 8:
            raise RuntimeError("Triton: no C compiler")
        return PerSm(gpu, programs), "a copy", BLOCK_BYTES

    monkeypatch.setattr(overlap, "copier", broken)
    words = ["study-stage", "overlap", "--out", str(tmp_path)]
    assert cli.main(words) == 1
    assert "overlap, 16 16 16 8: error: Triton: no C compiler" in capsys.readouterr().err
    assert [entry.status for entry in stored(tmp_path, "overlap").entries].count(Status.OK) == len(overlap.SMS) - 1
    assert "overlap, 16 16 16 8: error: Triton: no C compiler" in report(tmp_path)
    assert "attention: not begun" in report(tmp_path)
    monkeypatch.setattr(overlap, "copier", lambda programs: (PerSm(gpu, programs), "a copy", BLOCK_BYTES))
    assert cli.main(words) == 0
    again = stored(tmp_path, "overlap")
    assert {entry.status for entry in again.entries} == {Status.OK}
    assert len(again.sessions) == 2


def test_a_stage_begins_no_part_that_may_end_late(gpu: VirtualGpu, tmp_path: Path) -> None:
    began = gpu.host_s
    minutes = 1.2 * sustained.PART_S / 60.0
    assert (
        cli.main(["study-stage", "sustained-products", "--out", str(tmp_path), "--budget-minutes", f"{minutes}"]) == 0
    )
    assert len(measured(tmp_path, "sustained-products")) == 1
    assert gpu.host_s - began < 60.0 * minutes


@pytest.fixture
def of_two(gpu: VirtualGpu, tmp_path: Path) -> Callable[..., Outcome]:
    """Return a run of two parts of a stage, the second as the test says."""
    from microbench.device import find_device

    def run(second: Callable[[], Any], is_lost: bool = False) -> Outcome:
        opened = part.open_record(tmp_path, "launches", find_device("cuda"))
        first = Launches(name="one", launches=1, host_us=(5.0,), device_us=(1.0,))
        parts = [Part("one", 1.0, lambda: first), Part("two", 1.0, second), Part("three", 1.0, lambda: first)]
        return part.run_parts(parts, opened, tmp_path, float("inf"), lambda: is_lost, lambda text: None)

    return run


def test_a_study_killed_in_a_part_keeps_every_part_before_it(of_two: Callable[..., Outcome], tmp_path: Path) -> None:
    def killed() -> Any:
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        of_two(killed)
    assert [entry.part for entry in stored(tmp_path, "launches").entries] == ["one"]
    text = report(tmp_path)
    assert any(line.split() == ["one", "5.00", "5.00", "1.00"] for line in text.splitlines())
    assert "launches: cut off; the same command with the same folder goes on" in text


def test_a_lost_gpu_ends_the_stage_and_the_next_process_takes_that_part_last(
    of_two: Callable[..., Outcome], tmp_path: Path
) -> None:
    def lost() -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert of_two(lost, is_lost=True) == Outcome(measured=1, failed=1, not_begun=1, is_lost=True)
    assert stored(tmp_path, "launches").missing(["one", "two", "three"]) == ["three", "two"]
    planned = stages(tmp_path)
    ended = [Ended("attention", 0, 1.0), Ended("overlap", LOST, 1.0), Ended("launches", None, 1.0)]
    assert [stage.name for stage in unfinished(planned, ended)] == ["overlap", "launches"]


def test_a_folder_of_another_machine_is_refused(of_two: Callable[..., Outcome], tmp_path: Path) -> None:
    path = record.record_path(tmp_path, "launches")
    of_two(lambda: Launches(name="two", launches=1, host_us=(5.0,), device_us=(1.0,)))
    content = json.loads(path.read_text())
    content["machine"]["device"] = "A100"
    path.write_text(json.dumps(content))
    with pytest.raises(TableError, match="device was A100, is NVIDIAH10080GBHBM3; choose another --out"):
        of_two(lambda: None)


def test_a_report_of_no_study_and_of_a_damaged_one_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["study-report", str(tmp_path)]) == 2
    assert "no record of a study (attention.json" in capsys.readouterr().err
    (tmp_path / "overlap.json").write_text("{}")
    assert cli.main(["study-report", str(tmp_path)]) == 2
    assert "overlap.json: not a stage of a study" in capsys.readouterr().err


def test_sixty_shapes_and_a_prefix_that_has_seen_small_and_large_ones() -> None:
    known = attention.shapes()
    assert len(set(known)) == len(known) == 60
    assert {length for _, length in attention.SIZES} <= {shape[1] for shape in known[:12]}
    assert all(heads % kv_heads == 0 for _, _, heads, kv_heads, _, _ in known)


def test_an_entry_replaces_the_failure_before_it() -> None:
    machine = record.Machine(device="d", driver=None, versions={}, processor="p", cores=1)
    kept = StageRecord.model_construct(stage="s", machine=machine, sessions=(), entries=())
    failed = Entry(part="a", status=Status.ERROR, reason="r", seconds=0.0)
    good = Entry(part="a", status=Status.OK, seconds=0.0)
    assert kept.with_entry(failed).with_entry(good).entries == (good,)
