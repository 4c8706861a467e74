"""One results folder with tables in 16 and in 8 bits becomes one system that answers, and accounts, for both."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
import yaml

from fitting.cli import main
from microbench.provenance import Identity, Session
from microbench.table import Measurement, Status, Writer, table_path
from predictor.core.base.errors import ConfigError, PublishedError
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.folder import own_precisions
from predictor.core.costs.operator import Direction
from predictor.core.costs.published import PublishedSystem, measured_precisions
from predictor.core.costs.work import BLACKWELL_PRECISIONS, FP8_PRECISIONS, PRECISION_BYTES, STEP_PRECISIONS
from predictor.core.plan.loading import open_measured
from tests.unit.fitting_tables import GPU, SYSTEM

SESSION = Session(started="2026-01-01T00:00:00+00:00", host="here", commit="abc", state_before={})
PEAKS = {"bf16": 300.0, "fp8": 600.0, "fp8_block": 600.0}
GB_PER_S = 1500.0
MEASURED = (("ffn_up", "bf16"), ("ffn_up", "fp8"), ("fp8_quantize", "fp8"), ("ffn_up", "fp8_block"))
SIZES = (256, 512, 1024, 2048, 4096)


def microseconds(name: str, precision: str, shape: tuple[int, ...], direction: Direction) -> float:
    """A GPU that reaches two thirds of the peak, and is never faster than its memory."""
    work = catalogue()[name].work(shape, direction, 1)
    moved = work.size_bytes * catalogue()[name].byte_scale(precision)
    return 3.0 + 1.5 * work.flops / (PEAKS[precision] * 1e6) + 1.5 * moved / (GB_PER_S * 1e3)


def write(results: Path, name: str, precision: str) -> None:
    operator = catalogue()[name]
    identity = Identity.model_validate({
        "kind": "operator", "name": name, "precision": precision, "worker": "0of1", "dimensions": operator.dimensions,
        "directions": operator.directions, "device": GPU, "device_kind": "cuda", "driver": "1", "versions": {},
        "config_hash": "",
    })  # fmt: skip
    with Writer(table_path(results, "operator", name, precision, "0of1"), identity, SESSION) as table:
        for shape in product(SIZES, repeat=len(operator.dimensions)):
            rows = [(d, microseconds(name, precision, shape, d)) for d in operator.directions]
            table.append([Measurement(shape, d, (us + 5.0,) * 2, "test", Status.OK, (us,) * 2) for d, us in rows])


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    for name, precision in MEASURED:
        write(results, name, precision)
    hardware = dict(SYSTEM["hardware"])  # type: ignore[call-overload]
    peaks = {precision: {"value": value, "source": "test"} for precision, value in PEAKS.items()}
    hardware["gpu"] = hardware["gpu"] | {"peak_tflop_per_s": peaks}
    (results / "system.yaml").write_text(yaml.safe_dump(SYSTEM | {"hardware": hardware}))
    out = results / "published"
    words = ["fit", "--system", str(results / "system.yaml"), "--measurements", str(results), "--out", str(out)]
    assert main(words) == 0
    return out


def test_every_precision_is_known_by_its_files(published: Path) -> None:
    assert measured_precisions(published) == ["bf16", "fp8", "fp8_block"]
    assert own_precisions({"operator/X_fp8_quantize_fp8_block.json": ""}) == {"fp8_block"}
    assert set(PRECISION_BYTES) == {*STEP_PRECISIONS, *FP8_PRECISIONS, *BLACKWELL_PRECISIONS}


@pytest.mark.parametrize(("name", "precision"), MEASURED)
def test_what_was_measured_answers_in_its_precision(published: Path, name: str, precision: str) -> None:
    shape = (1024, 2048, 1024)[: len(catalogue()[name].dimensions)]
    for direction in Direction:
        cost = PublishedSystem(published, precision).cost(catalogue()[name], direction, shape)
        assert cost.us == pytest.approx(microseconds(name, precision, shape, direction), rel=0.1)


def test_fp8_answers_for_all_linear_layers_and_for_nothing_that_does_not_exist_in_it(published: Path) -> None:
    system = PublishedSystem(published, "fp8")
    for name in ("qkv_projection", "lm_head"):
        assert system.cost(catalogue()[name], Direction.FORWARD, (1024, 1024, 1024)).us > 0.0
    with pytest.raises(PublishedError, match="gelu does not exist in fp8; it is measured in fp16, bf16, fp32"):
        system.cost(catalogue()["gelu"], Direction.FORWARD, (1024, 1024))
    with pytest.raises(PublishedError, match="has no fp8_block regressor for fp8_quantize; it has linear"):
        PublishedSystem(published, "fp8_block").cost(catalogue()["fp8_quantize"], Direction.FORWARD, (1024, 1024))


def test_card_and_held_out_account_for_every_precision(published: Path) -> None:
    document = json.loads((published / "held_out.json").read_text())
    assert document["precisions"] == ["bf16", "fp8", "fp8_block"]
    columns = {column["column"]: column["kept"] for column in document["operator_columns"]}
    expected = {f"{name} {direction} {precision}" for name, precision in MEASURED for direction in Direction}
    assert columns.keys() == expected
    assert all(kept > 0 for kept in columns.values())
    card = (published / "card.md").read_text()
    assert f"{GPU}, bf16, fp8, fp8_block" in card
    assert all(f"| {name} |" in card for name in expected)


def test_a_message_tells_whole_steps_from_single_operators(published: Path) -> None:
    assert open_measured(published, "fp8").precision == "fp8"
    with pytest.raises(
        ConfigError, match=r"was measured in bf16, and single operators in fp8 and fp8_block: --precision bf16"
    ):
        open_measured(published, "fp32")
