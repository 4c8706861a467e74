from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from fitting import publish as publishing
from fitting.cli import main
from fitting.derive import rescaled, slowdown, slowed
from fitting.pipeline import Example, Job, run_job
from fitting.publish import publish, seal
from fitting.system_fit import fit_system
from fitting.tables import Tables
from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.errors import PublishedError
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import Topology
from predictor.core.costs.cost import Source
from predictor.core.costs.folder import HELD_OUT
from predictor.core.costs.operator import Direction
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.regressors import DirectionRegressor
from tests.unit.fitting_tables import GPU, SMS, SYSTEM, gelu_us, source, write_cluster, write_gelu

GELU = catalogue()["gelu"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cluster(tmp_path_factory.mktemp("measured") / "Testbed")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, measured: Path) -> Path:
    folder = tmp_path_factory.mktemp("regressors") / "Testbed"
    fit_system(source(), measured, folder, donor=None)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_published_answers_are_those_of_the_fit(measured: Path, published: Path) -> None:
    table = Tables.find(measured, GPU, "fp16")
    fitted = run_job(Job(source().hardware, table, "gelu", Direction.BACKWARD))
    assert fitted.model is not None
    memory = DirectionRegressor(fitted.model, ("gelu",), SMS)
    disk = PublishedSystem(published, "fp16")
    for shape in ((1024, 4096), (3000, 5000), (10**6, 4096)):
        assert disk.cost(GELU, Direction.BACKWARD, shape) == memory.answer(GELU, Direction.BACKWARD, shape)


def test_published_answers_are_right_and_say_where_they_come_from(published: Path) -> None:
    system = PublishedSystem(published, "fp16")
    inside = system.cost(GELU, Direction.FORWARD, (2048, 8192))
    assert inside.us == pytest.approx(gelu_us(2048, 8192, Direction.FORWARD), rel=0.02)
    assert inside.low_us < inside.us < inside.high_us
    assert inside.source is Source.INTERPOLATED
    assert system.cost(GELU, Direction.FORWARD, (10**6, 8192)).source is Source.EXTRAPOLATED
    unseen = system.collective("all_gather", 1e8, Topology(8, 1))
    assert unseen.us == pytest.approx(50.0 + 7e8 * 1e-4, rel=0.02)
    assert unseen.source is Source.EXTRAPOLATED
    assert system.collective("reduce_scatter", 1e8, Topology(2, 1)).source is Source.ANALYTIC


def test_same_tables_give_the_same_bytes(tmp_path: Path, measured: Path, published: Path) -> None:
    fit_system(source(), measured, tmp_path / "Testbed", donor=None)
    assert contents(tmp_path / "Testbed") == contents(published)


def test_no_measured_row_is_published(published: Path) -> None:
    text = b"".join(contents(published).values()).decode()
    assert str(round(gelu_us(3072, 4096, Direction.FORWARD), 4)) not in text


def test_card_prints_the_stored_numbers(published: Path) -> None:
    held_out = json.loads((published / HELD_OUT).read_text())
    card = (published / "card.md").read_text()
    for column in (*held_out["operator_columns"], *held_out["collective_columns"]):
        assert (
            f"| {column['column']} | {column['regressor']} | {column['rows']} | {column['kept']} | {column['mape']:.2f}"
            in card
        )


def test_edited_file_is_refused_until_sealed(tmp_path: Path, published: Path) -> None:
    copy = tmp_path / "Testbed"
    publish(copy, {name: content for name, content in contents(published).items() if name != "manifest.json"})
    regressor = copy / "operator" / f"{GPU}_gelu_fp16.json"
    regressor.write_text(regressor.read_text().replace('"overlapped":', '"overlapped": '))
    with pytest.raises(PublishedError, match="edited by hand"):
        PublishedSystem(copy, "fp16").cost(GELU, Direction.FORWARD, (1024, 1024))
    assert seal(copy) == len(contents(copy)) - 1
    PublishedSystem(copy, "fp16").cost(GELU, Direction.FORWARD, (1024, 1024))


def test_a_run_that_dies_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "Testbed"
    publish(folder, {"card.md": b"old"})
    before = contents(folder)

    def dies(files: dict[str, bytes]) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(publishing, "manifest_bytes", dies)
    with pytest.raises(KeyboardInterrupt):
        publish(folder, {"card.md": b"new"})
    assert contents(folder) == before
    assert list(tmp_path.iterdir()) == [folder]


def test_every_extra_term_has_a_kind() -> None:
    for operator in catalogue().values():
        for direction in operator.directions:
            work = operator.work((8,) * len(operator.dimensions), direction, SMS)
            assert len(work.extras) == len(operator.extra_kinds), operator.name


def test_derived_models_follow_the_ratios(published: Path) -> None:
    donor = PublishedSystem(published, "fp16")
    examples = tuple(Example("gelu", (tokens, 8192), 0.0) for tokens in (4096, 8192, 16384))
    ratio = slowdown(examples, Direction.BACKWARD, donor)
    assert ratio == pytest.approx(1.0, rel=0.05)  # both directions stream at one rate


def test_rescaling_takes_each_terms_own_peak(measured: Path) -> None:
    table = Tables.find(measured, GPU, "fp16")
    model = run_job(Job(source().hardware, table, "gelu", Direction.FORWARD)).model
    assert model is not None
    donor = source().hardware.gpu
    quantity = donor.memory_bandwidth_gb_per_s
    own = donor.model_copy(update={"memory_bandwidth_gb_per_s": quantity.model_copy(update={"value": 4000.0})})
    scaled = rescaled(model, GELU, donor, own, "fp16")
    assert scaled.physics == pytest.approx((model.physics[0], model.physics[1], model.physics[2] / 2.0), rel=1e-6)
    assert (scaled.trees, scaled.origin, scaled.rows) == ((), "analytic", 0)
    slower = slowed(model, 2.0)
    assert slower.physics == pytest.approx((model.physics[0], *(2.0 * c for c in model.physics[1:])), rel=1e-6)


def test_command_line_fits_evaluates_and_reports(
    tmp_path: Path, measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system, out = tmp_path / "Testbed.yaml", tmp_path / "out" / "Testbed"
    system.write_text(yaml.safe_dump(SYSTEM))
    assert main(["fit", "--system", str(system), "--measurements", str(measured), "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(out), str(measured.parent), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [column["column"] for column in document["columns"]] == [
        "gelu forward",
        "gelu backward",
        "allgather_large 2x1",
        "allgather_large 4x1",
    ]
    assert document["operators"]["mape"] < 2.0
    assert main(["held-out", str(system), str(measured)]) == 0
    text = capsys.readouterr().out
    assert "the reference" in text
    assert "6.98" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "{out}", "{tmp}/absent"], "no such folder of measurements"),
        (["evaluate", "{tmp}", "{measured}"], "is not a published system"),
        (["evaluate", "{out}", "{tmp}/other"], "no table operator/TESTGPU_*_{fp16}.csv"),
        (["evaluate", "{out}", "{tmp}/more"], "has no fp16 regressor for rope; it has gelu"),
        (["evaluate", "{out}", "{tmp}/strange"], "unknown operator 'conv2d'; known: RMSlayernorm"),
        (["held-out", "{tmp}/absent.yaml", "{measured}"], "no such system file"),
        (["held-out", "{tmp}/broken.yaml", "{measured}"], "hardware is missing"),
        (["seal", "{tmp}"], "is not a published system"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path,
    measured: Path,
    published: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "broken.yaml").write_text("provenance: {}\n")
    for folder, name in (("more", "RoPE"), ("strange", "conv2d")):
        write_gelu(tmp_path / folder / "operator")
        (tmp_path / folder / "operator" / f"{GPU}_{name}_fp16.csv").write_text("mp,b,h,l,dim,F_dur(us),B_dur(us)\n")
    places = {"out": published, "tmp": tmp_path, "measured": measured}
    assert main([argument.format(**places) for argument in arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error


def test_tables_in_a_precision_without_a_peak_are_named_once_on_the_card_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured, out = write_cluster(tmp_path / "measured"), tmp_path / "out"
    write_gelu(measured / "operator", precision="bf16")
    (tmp_path / "system.yaml").write_text(yaml.safe_dump(SYSTEM))
    words = ["--system", str(tmp_path / "system.yaml"), "--measurements", str(measured), "--out", str(out)]
    assert main(["fit", *words]) == 0
    note = f"tables in bf16 are not used: the data sheet has no peak of {GPU} in bf16 (gpu.peak_tflop_per_s)"
    assert capsys.readouterr().err.count(note) == 1
    assert (out / "card.md").read_text(encoding="utf-8").count(f"- {note}.") == 1


def test_what_was_not_measured_is_kept_from_another_system_of_the_gpu_with_its_source(
    tmp_path: Path, published: Path
) -> None:
    """A survey of one GPU measures no collective: those of the published system stay."""
    write_gelu(tmp_path / "Own/operator")
    (tmp_path / "Own/nccl").mkdir()
    fit_system(source(), tmp_path / "Own", tmp_path / "Testbed_measured", donor=None, keep=published)
    system = PublishedSystem(tmp_path / "Testbed_measured", "fp16")
    kept = PublishedSystem(published, "fp16")
    assert system.collective("all_gather", 1e8, Topology(8, 1)) == kept.collective("all_gather", 1e8, Topology(8, 1))
    card = (tmp_path / "Testbed_measured/card.md").read_text()
    kept_lines = card.partition("## Kept from Testbed: not measured here\n")[2].splitlines()
    assert kept_lines[1].startswith("- Source and licence: ")
    assert any("all_gather" in line for line in kept_lines)
    assert not any("gelu" in line for line in kept_lines)


def test_a_system_of_another_gpu_is_not_mixed_in(tmp_path: Path, measured: Path) -> None:
    with pytest.raises(PublishedError, match="keeps regressors of its own GPU only"):
        fit_system(source(), measured, tmp_path / "Testbed", donor=None, keep=REGRESSORS_FOLDER / "H100")
    assert not (tmp_path / "Testbed").exists()


def test_a_published_system_is_replaced_only_where_that_is_said(
    tmp_path: Path, published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "Testbed"
    assert main(["publish", str(published), "--out", str(out)]) == 0
    assert contents(out) == contents(published)
    assert main(["publish", str(published), "--out", str(out)]) == 2
    assert "is published already and stays as it is; --replace replaces it" in capsys.readouterr().err
    assert main(["publish", str(published), "--out", str(out), "--replace"]) == 0
