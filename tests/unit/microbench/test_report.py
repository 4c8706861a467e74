"""The report: a page that stands alone, whose plots have axes with units, and that says what is missing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

from microbench.errors import MeasureError
from microbench.provenance import Identity, Session
from microbench.report.figures import points_of
from microbench.report.page import html_table, page, read_system
from microbench.report.svg import Series, log_plot
from microbench.table import Measurement, Status, Writer, read_tables, table_path
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.operator import Direction

QUANTITY = {"value": 10.0, "source": "test"}
SYSTEM = {
    "hardware": {
        "name": "here", "gpus_per_node": 2, "host": {},
        "gpu": {
            "name": "Some<CPU>", "num_multiprocessors": QUANTITY, "peak_tflop_per_s": {"fp32": QUANTITY},
            "memory_bandwidth_gb_per_s": QUANTITY, "l2_cache_mb": QUANTITY,
        },
        "links": {"intra_node_gb_per_s": QUANTITY, "inter_node_gb_per_s": QUANTITY},
    }
}  # fmt: skip


def write(results: Path, kind: str, name: str, worker: str, rows: list[Measurement]) -> None:
    operator = COLLECTIVES[name] if kind == "collective" else catalogue()[name]
    identity = Identity(
        kind="collective" if kind == "collective" else "operator", name=name, precision="fp32", worker=worker,
        dimensions=operator.dimensions, directions=(Direction.FORWARD,), device="x", device_kind="cpu", driver=None,
        versions={}, config_hash="0",
    )  # fmt: skip
    session = Session(started="2026-01-01T00:00:00+00:00", host="h", commit="c", state_before={})
    with Writer(table_path(results, kind, name, "fp32", worker), identity, session) as table:
        for row in rows:
            table.append([row])
        table.finish({})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "system.yaml").write_text(yaml.safe_dump(SYSTEM))
    sizes = [2**power for power in range(10, 15)]
    messages = [Measurement((s, 1, 2), Direction.FORWARD, (s / 100, s / 90), "gloo") for s in sizes]
    too_big = Measurement((2**40, 1, 2), Direction.FORWARD, (), "too big", Status.OUT_OF_MEMORY)
    write(tmp_path, "collective", "all_reduce", "1x2", [*messages, too_big])
    gemms = [Measurement((s, s, s), Direction.FORWARD, (float(s), s + 1.0), "torch") for s in (64, 128)]
    write(tmp_path, "operator", "ffn_up", "0of1", gemms)
    return tmp_path


def test_the_page_stands_alone_and_its_plots_parse(results: Path) -> None:
    text = page(results, None)
    assert "<script" not in text
    assert not re.findall(r"(?:src|href)=", text)
    assert "Some&lt;CPU&gt;" in text
    assert "1 out_of_memory" in text
    plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(plots) == 2  # the roofline and one collective
    for plot in plots:
        ElementTree.fromstring(plot)
    for unit in ("FLOP per byte", "GFLOP/s", "GB/s", "bytes"):
        assert unit in text


def test_only_what_was_timed_is_drawn(results: Path) -> None:
    assert len(points_of(read_tables(results, "collective"))) == 5


def test_a_plot_keeps_its_points_within_its_axes() -> None:
    plot = log_plot("t", ("x, s", "y, m"), [Series("", [(1.0, 10.0), (1000.0, 0.02), (0.0, 5.0)])], (200, 100))
    places = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', plot)]
    assert len(places) == 2  # zero has no place on a logarithmic axis
    assert all(62 <= x <= 262 and 26 <= y <= 126 for x, y in places)
    assert "nothing to show" in log_plot("t", ("x", "y"), [], (10, 10))


def test_missing_parts_are_named(results: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(MeasureError, match="no measurement tables; snakemake profile_all measures them"):
        page(tmp_path_factory.mktemp("empty"), None)
    (results / "system.yaml").write_text("hardware: {}")
    with pytest.raises(MeasureError, match=r"system\.yaml: not a description of a system"):
        read_system(results)
    (results / "system.yaml").unlink()
    with pytest.raises(MeasureError, match=r"python -m microbench system writes it"):
        read_system(results)
    assert html_table(("a",), []) == "<p>None.</p>"


def test_the_page_fits_a_phone(results: Path) -> None:
    text = page(results, None)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert text.count("<table>") == text.count('<div class="scroll"><table>')
    assert re.search(r"\.scroll,figure\{overflow-x:auto;max-width:100%\}", text), "what is wider scrolls by itself"
    assert "prefers-color-scheme:dark" in text
