"""What a prediction prints adds up, says its sources, and fits where it is printed."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.encoding import encodable
from predictor.core.base.quantities import duration
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.published import PublishedSystem
from predictor.core.plan.loading import Loaded, load, prepare, read_config
from predictor.core.report.json_document import FORMAT, to_json
from predictor.core.report.text import render
from predictor.core.step.breakdown import answers, busiest_stage, exposed_costs, source_shares, stage_parts
from predictor.core.step.prediction import Prediction, predict
from tests.unit.examples import full_form, short_form, write

ROOT = Path(__file__).resolve().parents[4]
CASES: dict[str, dict[str, Any]] = {
    "example": short_form(),
    "one GPU": full_form(),
    "two stages": short_form(pp=2),
    "sixteen stages": short_form(pp=16, steps_per_update=32),
    "all forward, all backward": short_form(schedule="all_forward_all_backward"),
    "not blocking": short_form(blocking_transfers=False),
    "overlapped": short_form(overlap_gradient_reduction=True, comm_bucket=50_000_000),
    "tied": short_form(tied_embeddings=True),
    "ZeRO-0": short_form(zero_stage=0),
    "selective": full_form(
        training={"recompute": "selective"}, parallelism={"tensor_parallel_size": 4, "data_parallel_size": 2}
    ),
    "brain float": short_form(precision="bf16"),
    "long": short_form(l=262144, b=1),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Prediction, Loaded]:
    return _predicted(CASES[request.param], tmp_path)


def test_parts_of_every_stage_add_up_to_the_step(case: tuple[Prediction, Loaded]) -> None:
    prediction, _ = case
    for index, parts in enumerate(stage_parts(prediction)):
        assert math.isclose(parts.step_us, prediction.step.us, rel_tol=1e-9), f"stage {index}"
        for name in parts.__slots__:
            assert getattr(parts, name) >= -1e-6 * prediction.step.us, f"stage {index}: {name} is negative"
    assert math.isclose(
        stage_parts(prediction)[prediction.critical_stage].bubble_us, prediction.bubble_us, abs_tol=1e-3
    )


def test_json_is_plain_and_agrees_with_the_prediction(case: tuple[Prediction, Loaded]) -> None:
    prediction, loaded = case
    content = to_json(prediction, loaded)
    assert json.loads(json.dumps(content, allow_nan=False)) == content, "plain lists, dictionaries and numbers"
    assert content["format"] == FORMAT
    assert content["step"]["low_us"] <= content["step"]["time_us"] <= content["step"]["high_us"]
    critical = content["stages"][content["critical_stage"]]
    assert math.isclose(critical["step_us"], content["step"]["time_us"], rel_tol=1e-9)
    assert sum(stage["num_layers"] for stage in content["stages"]) == content["run"]["num_layers"]
    tokens = content["throughput"]["tokens_per_s"] * content["step"]["time_us"] / 1e6
    assert math.isclose(tokens, content["run"]["tokens_per_step"], rel_tol=1e-9)


def test_answers_account_for_what_a_stage_does(case: tuple[Prediction, Loaded]) -> None:
    prediction, loaded = case
    largest = answers(prediction, loaded.system)
    assert largest == sorted(largest, key=lambda answer: -answer.step_us)
    parts = stage_parts(prediction)
    hidden = max(part.data_parallel_hidden_us for part in parts)
    busy = max(part.step_us - part.bubble_us - part.waiting_us - part.host_us - part.not_modelled_us for part in parts)
    assert sum(answer.step_us for answer in largest) >= (busy - hidden) * 0.98


def test_sources_account_for_the_busiest_stage(case: tuple[Prediction, Loaded]) -> None:
    prediction, loaded = case
    parts = stage_parts(prediction)
    busiest = parts[busiest_stage(prediction)]
    us = sum(cost.us for cost in exposed_costs(prediction, loaded.system))
    idle_us = busiest.bubble_us + busiest.waiting_us + busiest.not_modelled_us
    assert math.isclose(us, busiest.step_us - idle_us, rel_tol=0.02)
    shares = source_shares(prediction, loaded.system)
    assert math.isclose(sum(shares.values()), 1.0)
    assert list(shares) == sorted(shares)


def test_headline_gives_the_share_of_every_source(tmp_path: Path) -> None:
    prediction, loaded = _predicted(short_form(), tmp_path)
    shares = source_shares(prediction, loaded.system)
    assert 0.01 < shares[Source.EXTRAPOLATED] < 0.99
    first = render(prediction, loaded).partition("\n")[0]
    assert f"{shares[Source.EXTRAPOLATED]:.0%} extrapolated" in first


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_table_fits_its_width(case: tuple[Prediction, Loaded], width: int) -> None:
    prediction, loaded = case
    text = render(prediction, loaded, width)
    table = text.partition("Where the step goes\n")[2].partition("\n* the critical")[0].partition("\nData-par")[0]
    table = table.partition("\nNot inter")[0].partition("\nEvery answer")[0]
    assert max(map(len, table.splitlines())) <= max(width, 46)
    count = len(prediction.stages)
    shown = re.findall(r"stage (\d+)", table.partition("\n")[0])
    assert shown == sorted(shown, key=int)
    if width >= 80 and count > 1:
        assert {"0", str(count - 1), str(prediction.critical_stage), str(busiest_stage(prediction))} <= set(shown)
    is_cut = f"{len(shown)} of {count} stages; --json has all." in " ".join(text.split())
    assert is_cut == (1 < len(shown) < count or (len(shown) == 1 < count))


def test_report_says_what_it_must(tmp_path: Path) -> None:
    text = render(*_predicted(short_form(), tmp_path))
    for words in (
        "90 % interval",
        "MFU",
        "tokens/s",
        "bubble",
        "optimizer",
        "card.md",
        "6.85B parameters",
        "8, 9, 9, 6",
    ):
        assert words in text, words
    assert "nan" not in text


def test_extrapolation_is_named(tmp_path: Path) -> None:
    prediction, loaded = _predicted(short_form(l=262144, b=1), tmp_path)
    assert "outside the measured range" in render(prediction, loaded)
    far = [one for one in to_json(prediction, loaded)["answers"] if one["outside"]]
    assert any((one["outside"]["factor"] or 0) > 2 for one in far)


def test_brain_float_is_noted(tmp_path: Path) -> None:
    prediction, loaded = _predicted(short_form(precision="bf16"), tmp_path)
    assert any("bf16 was not measured" in note for note in to_json(prediction, loaded)["notes"])
    assert "bf16 was not measured" in render(prediction, loaded)


def _wide_notes(prediction: Prediction, loaded: Loaded) -> list[str]:
    noted = [note for note in to_json(prediction, loaded)["notes"] if note.startswith("The 90 % interval is wide")]
    text = " ".join(render(prediction, loaded).split())
    assert ("Note: The 90 % interval is wide" in text) is bool(noted)
    assert all(f"Note: {note}" in text for note in noted)
    return noted


def test_narrow_interval_needs_no_note(tmp_path: Path) -> None:
    prediction, loaded = _predicted(short_form(), tmp_path)
    assert prediction.step.high_us < 2 * prediction.step.low_us
    assert not _wide_notes(prediction, loaded)


@pytest.mark.parametrize(
    ("name", "shown"), [("flash_attention", "flash_attention backward"), ("all_reduce", "all_reduce")]
)
def test_wide_interval_names_what_makes_it_wide(
    name: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = PublishedSystem.cost

    def doubtful(system: PublishedSystem, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        cost = answered(system, operator, direction, shape)
        if operator.name != name:
            return cost
        return Cost(cost.us, cost.us / 20, cost.us * 20, cost.source)

    monkeypatch.setattr(PublishedSystem, "cost", doubtful)
    prediction, loaded = _predicted(short_form(mp=4), tmp_path)
    (note,) = _wide_notes(prediction, loaded)
    factor = prediction.step.high_us / prediction.step.low_us
    assert f"a factor of {factor:.2g} apart: {shown} contributes most to its width." in note


def test_hidden_reduction_does_not_widen_the_interval(tmp_path: Path) -> None:
    shown = short_form(pp=1, mp=1, dp=2, comm_bucket=10_000_000)
    widths = []
    for overlaps in (False, True):
        prediction, loaded = _predicted({**shown, "overlap_gradient_reduction": overlaps}, tmp_path)
        widths.append(next(one.width_us for one in answers(prediction, loaded.system) if one.operator == "all_reduce"))
    assert widths[1] < widths[0]


def test_every_key_of_the_json_is_documented(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")

    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value).union(*map(keys, value.values())) if value else set()
        return set().union(*map(keys, value)) if isinstance(value, list) and value else set()

    missing = [key for key in sorted(keys(to_json(*_predicted(short_form(), tmp_path)))) if f"`{key}`" not in text]
    assert not missing, f"docs/json.md does not mention {', '.join(missing)}"


def test_parameters_of_a_known_model(tmp_path: Path) -> None:
    run, _ = load(write(full_form(model={"num_layers": 2, "vocab_size": 1000}), tmp_path / "config.yml"))
    dim = 2048
    assert run.model.num_parameters() == 2 * (12 * dim * dim + 2 * dim) + 2 * 1000 * dim + dim


@pytest.mark.parametrize(
    ("us", "text"),
    [(9_552_000, "9.552 s"), (1234.5, "1.234 ms"), (0.5, "0.5 µs"), (1.5e9, "1,500 s"), (99_999, "100 ms")],
)
def test_durations(us: float, text: str) -> None:
    assert duration(us) == text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8", None])
def test_text_for_any_encoding(encoding: str | None) -> None:
    encodable("4 × 2 – « 3 µs » 漢", encoding).encode(encoding or "ascii")


def _predicted(content: dict[str, Any], folder: Path) -> tuple[Prediction, Loaded]:
    loaded = prepare(*read_config(write(content, folder / "config.yml")))
    return predict(loaded.run, loaded.system), loaded


def test_narrow_output_is_wrapped(tmp_path: Path) -> None:
    lines = render(*_predicted(short_form(), tmp_path), width=60).splitlines()
    assert max(map(len, lines)) <= 60
