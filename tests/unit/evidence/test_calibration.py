"""A few measured steps move named factors of a published system."""

from __future__ import annotations

import json
import shutil
from math import exp, log
from pathlib import Path

import pytest
import yaml

from predictor.__main__ import main
from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.errors import ConfigError
from predictor.core.base.files import write_whole
from predictor.core.costs.calibration import component_of
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.hardware.hardware import COMPONENTS
from predictor.core.plan.loading import prepare
from predictor.core.step.prediction import Prediction, predict
from predictor.evidence.calibration import publish as publishing
from predictor.evidence.calibration.answer import Calibrated, calibrate
from predictor.evidence.calibration.averaging import Row, averaged
from predictor.evidence.calibration.factor_estimate import estimate_factors
from predictor.evidence.calibration.inputs import read_observations
from predictor.evidence.calibration.linear_algebra import dot
from predictor.evidence.calibration.plausibility import check_factors
from predictor.evidence.calibration.priors import Prior, prior_of
from predictor.evidence.calibration.publish import publish
from tests.unit.calibration_runs import BASE, RUNS, SLOWER, content_of, seconds_of, write_run

Capture = pytest.CaptureFixture[str]


def calibrated(folder: Path, *names: str) -> Calibrated:
    return calibrate([str(write_run(folder, name)) for name in names], BASE)


def predicted(name: str, system: str | Path) -> Prediction:
    loaded = prepare({**content_of(name), "system": str(system)}, Path.cwd())
    return predict(loaded.run, loaded.system)


def test_every_operator_has_a_component() -> None:
    shapes = {name: (1024,) * len(operator.dimensions) for name, operator in catalogue().items()}
    parts = {name: component_of(operator, shapes[name]) for name, operator in catalogue().items()}
    assert {name for name, part in parts.items() if part is None} == {"host_to_device"}
    assert parts["ffn_up"] == "compute"
    assert parts["flash_attention"] == "attention" == parts["softmax"]
    assert parts["rms_norm"] == "memory_bound" == parts["optimizer_step"]
    assert component_of(COLLECTIVES["all_reduce"], (1024, 1, 4)) == "links_in_node"
    assert component_of(COLLECTIVES["all_reduce"], (1024, 2, 4)) == "links_between_nodes"


def test_runs_of_a_slower_cluster_predict_a_run_that_took_no_part(tmp_path: Path) -> None:
    publish(calibrated(tmp_path, "plain", "long", "split", "deep"), tmp_path / "mine")
    truth = seconds_of("wide", SLOWER) * 1e6
    before, after = predicted("wide", BASE), predicted("wide", tmp_path / "mine")
    assert abs(before.step.us / truth - 1.0) > 0.1
    assert abs(after.step.us / truth - 1.0) < abs(before.step.us / truth - 1.0) / 3.0
    assert after.step.low_us < truth < after.step.high_us
    assert after.step.high_us / after.step.low_us < before.step.high_us / before.step.low_us
    assert after.system == "mine"


def test_factors_go_where_the_cluster_is_slower(tmp_path: Path) -> None:
    result = calibrated(tmp_path, *RUNS)
    factors = {str(name): known.factor for name, known in result.calibration(BASE).factors.items()}
    assert all(factors[name] > 1.05 for name in SLOWER)
    assert factors["attention"] < factors["compute"]
    assert result.errors(result.fitted.after) < result.errors(result.fitted.before) / 5.0


def test_a_cluster_as_published_stays_as_published(tmp_path: Path) -> None:
    paths = [str(write_run(tmp_path, name, seconds_of(name, {}))) for name in ("plain", "long", "wide")]
    result = calibrate(paths, BASE)
    factors = result.calibration(BASE).factors
    assert not result.notes
    assert all(factor.factor == pytest.approx(1.0, abs=1e-6) for factor in factors.values())


def test_one_run_moves_less_than_it_misses(tmp_path: Path) -> None:
    result = calibrated(tmp_path, "plain")
    (before,), (after,), (left_out,) = result.fitted.before, result.fitted.after, result.fitted.left_out
    assert 0.0 < after < before
    assert left_out == pytest.approx(before)


def test_tighter_priors_move_less(tmp_path: Path) -> None:
    result = calibrated(tmp_path, "plain", "long")
    prior = prior_of(result.observations)
    tight = estimate_factors(result.observations, Prior(tuple(own / 10.0 for own in prior.own), prior.whole / 10.0))
    compute = COMPONENTS.index("compute")
    assert 0.0 < tight.logs[compute] < result.fitted.logs[compute]


def test_the_search_ends_where_a_new_linear_model_says_the_same(tmp_path: Path) -> None:
    result = calibrated(tmp_path, "plain", "long", "split")
    fitted = result.fitted
    targets = [dot(row, fitted.logs) + miss for row, miss in zip(fitted.gradients, fitted.after, strict=True)]
    noises = [each.noise**2 for each in result.observations]
    again = averaged(list(map(Row, fitted.gradients, targets, noises)), prior_of(result.observations))
    assert again.logs == pytest.approx(fitted.logs, abs=1e-3)


def test_runs_that_are_unlike_hardly_move_factors(tmp_path: Path) -> None:
    times = {"plain": 1.15, "long": 0.88, "split": 1.1, "wide": 0.9}
    paths = [str(write_run(tmp_path, name, times[name] * seconds_of(name, {}))) for name in times]
    observed, _ = read_observations(paths, BASE)
    unlike = estimate_factors(observed, prior_of(observed))
    longer = 1.12 * exp(observed[0].expected)
    alike = calibrate([str(write_run(tmp_path, name, longer * seconds_of(name, {}))) for name in times], BASE)
    compute = COMPONENTS.index("compute")
    assert abs(unlike.logs[compute]) < 0.03 < 0.06 < alike.fitted.logs[compute]
    assert unlike.systematic < alike.fitted.systematic
    assert unlike.spread > alike.fitted.spread
    assert not alike.notes


def test_factors_that_help_nobody_are_declined(tmp_path: Path) -> None:
    expected = calibrate([str(write_run(tmp_path, "plain", None))], BASE).observations[0].expected
    times = {"plain": 1.08, "long": 0.93, "split": 1.08, "wide": 0.92}
    paths = [str(write_run(tmp_path, name, exp(expected) * times[name] * seconds_of(name, {}))) for name in times]
    with pytest.raises(ConfigError, match=r"err in different ways: .* nothing was written"):
        calibrate(paths, BASE)


def test_runs_of_one_configuration_count_as_one(tmp_path: Path) -> None:
    paths = [str(write_run(tmp_path, "plain", None, f"again {i}")) for i in range(4)]
    one, four = calibrate(paths[:1], BASE).fitted, calibrate(paths, BASE).fitted
    assert four.logs == pytest.approx(one.logs, rel=0.2)
    assert four.left_out == pytest.approx(four.before)
    assert four.residual > 0.9 * one.residual


def test_runs_of_one_configuration_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    first = write_run(tmp_path, "plain", 1.0, "first")
    second = write_run(tmp_path, "plain", 1.4, "second")
    with pytest.raises(ConfigError, match=r"first and second ran one configuration in 1 and 1.4 s"):
        calibrate([str(first), str(second)], BASE)


def test_a_run_that_no_factors_explain_is_refused_by_name(tmp_path: Path) -> None:
    paths = [str(write_run(tmp_path, name)) for name in ("plain", "long", "wide")]
    wrong = write_run(tmp_path, "deep", 3.0 * seconds_of("deep", SLOWER))
    with pytest.raises(ConfigError, match=r"deep contradicts 3 other runs"):
        calibrate([*paths, str(wrong)], BASE)


def test_a_calibrated_folder_is_small_and_names_its_base(tmp_path: Path, capsys: Capture) -> None:
    files = [str(write_run(tmp_path, name)) for name in ("plain", "long")]
    assert main(["calibrate", *files, "--system", BASE, "--out", str(tmp_path / "mine"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["mean_absolute_error"]["calibrated"] < document["mean_absolute_error"]["published"]
    assert sum(path.stat().st_size for path in (tmp_path / "mine").iterdir()) < 20_000
    stored = yaml.safe_load((tmp_path / "mine" / "system.yaml").read_text(encoding="utf-8"))
    assert stored["calibration"]["base"] == BASE
    assert "leaving one out" in (tmp_path / "mine" / "card.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("out", "message"), [("Perlmutter", "name of its own"), ("full", "not empty")])
def test_nothing_else_is_overwritten(tmp_path: Path, capsys: Capture, out: str, message: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine", encoding="utf-8")
    run = str(write_run(tmp_path, "plain"))
    assert main(["calibrate", run, "--system", BASE, "--out", str(tmp_path / out)]) == 2
    assert message in capsys.readouterr().err


def test_a_calibrated_system_is_not_calibrated_again(tmp_path: Path) -> None:
    publish(calibrated(tmp_path, "plain"), tmp_path / "mine")
    with pytest.raises(ConfigError, match="calibrated already"):
        calibrate([str(write_run(tmp_path, "long"))], str(tmp_path / "mine"))


def test_a_measured_time_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text(yaml.safe_dump(content_of("plain")), encoding="utf-8")
    with pytest.raises(ConfigError, match="measured_seconds is None"):
        calibrate([str(path)], BASE)


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        (1e3, "look like milliseconds"),
        (3.5, "of something else than one step"),
        (1e-30, "less than 1e-9"),
        (1e300, "more than 1e9"),
    ],
)
def test_times_that_no_machine_explains_are_refused(tmp_path: Path, capsys: Capture, times: float, reason: str) -> None:
    paths = [str(write_run(tmp_path, name, times * seconds_of(name, {}))) for name in ("plain", "long", "wide")]
    assert main(["calibrate", *paths, "--system", BASE, "--out", str(tmp_path / "mine")]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert "plain took" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "mine").exists()


def test_a_factor_that_no_machine_explains_is_refused() -> None:
    logs = [0.0] * len(COMPONENTS)
    check_factors([*logs[:-1], log(4.9)])
    with pytest.raises(ConfigError, match=f"{COMPONENTS[0]} would take 0.196 times as long"):
        check_factors([-log(5.1), *logs[1:]])


def test_writing_that_breaks_off_keeps_the_earlier_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, out = calibrated(tmp_path, "plain"), tmp_path / "mine"
    publish(result, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    write = write_whole

    def full_disk(path: Path, content: str | bytes) -> None:
        if path.name == "manifest.json":
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(publishing, "write_whole", full_disk)
    with pytest.raises(OSError, match="No space left"):
        publish(calibrated(tmp_path, "plain", "long"), out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["mine"]


@pytest.mark.parametrize("damage", ["no manifest", "half a file", "nothing"])
def test_a_folder_of_its_own_files_is_replaced(tmp_path: Path, damage: str) -> None:
    result, out = calibrated(tmp_path, "plain"), tmp_path / "mine"
    for path in publish(result, out):
        if damage == "nothing" or path.name == "manifest.json":
            path.unlink()
        elif damage == "half a file":
            path.write_bytes(path.read_bytes()[:100])
    publish(result, out)
    assert predicted("plain", out).system == "mine"


def test_another_system_of_the_same_files_is_not_replaced(tmp_path: Path) -> None:
    shutil.copytree(REGRESSORS_FOLDER / "Selene", tmp_path / "mine")
    with pytest.raises(ConfigError, match="no calibrated system"):
        publish(calibrated(tmp_path, "plain"), tmp_path / "mine")


def test_a_surprising_factor_is_said(tmp_path: Path) -> None:
    paths = [str(write_run(tmp_path, name, 2.0 * seconds_of(name, {}))) for name in ("plain", "long", "wide")]
    result = calibrate(paths, BASE)
    assert any("check system and configurations" in note for note in result.notes)


def test_intervals_of_a_component_do_not_widen(tmp_path: Path) -> None:
    publish(calibrated(tmp_path, "plain", "long"), tmp_path / "mine")
    system = prepare({**content_of("plain"), "system": str(tmp_path / "mine")}, Path.cwd()).system
    published = prepare(content_of("plain"), Path.cwd()).system
    task = next(iter(predicted("plain", BASE).tasks.calls(predicted("plain", BASE).tasks.stages[0])))[0]
    mine = system.cost(task.operator, task.direction, task.shape)
    theirs = published.cost(task.operator, task.direction, task.shape)
    component = component_of(task.operator, task.shape)
    assert component is not None
    calibration = system.hardware.calibration
    assert calibration is not None
    assert mine.us == pytest.approx(theirs.us * calibration.factors[component].factor)
    assert log(mine.high_us / mine.low_us) <= log(theirs.high_us / theirs.low_us) + 1e-9


def test_factors_apply_to_what_a_gpu_sustains(tmp_path: Path) -> None:
    content = {**content_of("wide"), "system": "H100"}
    content["training"] = {**content["training"], "precision": "bf16"}
    seconds = 1.2 * predict(*prepare(content, Path.cwd())[:2]).step.us / 1e6
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**content, "measured_seconds": seconds}), encoding="utf-8")
    result = calibrate([str(path)], "H100")
    publish(result, tmp_path / "mine")
    loaded = prepare({**content, "system": str(tmp_path / "mine")}, Path.cwd())
    assert result.calibration("H100").factors["compute"].factor > 1.05
    calibrated_us = predict(loaded.run, loaded.system).step.us
    assert log(seconds * 1e6 / calibrated_us) == pytest.approx(result.fitted.after[0], abs=1e-6)


def test_a_stored_system_answers_as_the_fit_did(tmp_path: Path) -> None:
    result = calibrated(tmp_path, "plain", "split")
    publish(result, tmp_path / "mine")
    for position, name in enumerate(("plain", "split")):
        step = predicted(name, tmp_path / "mine").step
        measured_us = result.observations[position].measured_us
        assert log(measured_us / step.us) == pytest.approx(result.fitted.after[position], abs=1e-6)
        assert step.high_us / step.low_us == pytest.approx(result.width(position)[1], rel=0.01)
