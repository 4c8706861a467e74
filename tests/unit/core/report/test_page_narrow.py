"""Pages on a phone, 390 pixels wide: words keep their size, and nothing is wider than the screen but what scrolls."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from predictor.__main__ import main
from predictor.core.report.page.charts import LEFT, RIGHT, Bar, bars
from predictor.core.report.page.style import CONTENT_WIDTH, STYLE
from predictor.core.timeline.picture import picture
from predictor.evidence.verification.answer import Verification
from predictor.evidence.verification.page import page as verification_page
from predictor.replay.page import page as replay_page
from tests.unit.core.timeline.test_picture import step
from tests.unit.evidence.test_page import run
from tests.unit.examples import full_form, write
from tests.unit.replay.test_answer import answer

Element = ElementTree.Element
SVG = "{http://www.w3.org/2000/svg}"
PHONE, SMALLEST = 390, 10.0
CHARACTER = 0.6  # of the font's size, wider than the mean of system-ui
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PAGES = ("report", "replay", "verify")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the text of every kind of page."""
    folder = tmp_path_factory.mktemp("pages")
    layout = {"pipeline_parallel_size": 4, "data_parallel_size": 2}
    path, out = write(full_form(parallelism=layout), folder / "c.yml"), folder / "page.html"
    assert main(["report", str(path), "--out", str(out), "--search"]) == 0
    verified = run(folder / "a-run-with-a-name", parallelism={"pipeline_parallel_size": 2})
    return {
        "report": out.read_text(encoding="utf-8"),
        "replay": replay_page(answer("host*=0.5")),
        "verify": verification_page(Verification((verified,))),
    }


def body(page: str) -> Element:
    return ElementTree.fromstring(re.sub(r"<!doctype html>|<meta [^>]*>", "", page))


def walk(element: Element, scrolls: bool = False) -> Iterator[tuple[Element, bool]]:
    """Yield every element, and whether a box that scrolls holds it."""
    yield element, scrolls
    for child in element:
        yield from walk(child, scrolls or element.get("class") == "scroll")


def charts(page: str) -> list[Element]:
    """Return the pictures of a page that do not scroll, without those inside them."""
    shown = [e for e, scrolls in walk(body(page)) if not scrolls and e.tag.removeprefix(SVG) == "svg"]
    return [e for e in shown if (e.get("class") or "").startswith("chart")]


def sizes(text: str) -> list[float]:
    """Return the sizes of all fonts that a text names."""
    return [float(size) for size in re.findall(r"font(?:-size)?[:=]\s*\"?([\d.]+)(?:px)?[ ;\"}/]", text)]


@pytest.mark.parametrize("name", PAGES)
def test_no_picture_shrinks_with_the_screen(pages: dict[str, str], name: str) -> None:
    screen = re.sub(r"@media print \{.*", "", STYLE)
    assert not re.search(r"svg[^{]*\{[^}]*width", screen), "a rule scales pictures"
    for element, scrolls in walk(body(pages[name])):
        if element.tag.removeprefix(SVG) == "svg" and not scrolls:
            assert element.get("viewBox") is None, element.get("aria-label")
        if element.tag == f"{SVG}svg" and scrolls:
            assert float(element.get("width") or 0) <= CONTENT_WIDTH


@pytest.mark.parametrize("name", PAGES)
def test_no_text_is_smaller_than_ten_pixels(pages: dict[str, str], name: str) -> None:
    found = sizes(pages[name])
    assert len(found) >= 6
    assert min(found) >= SMALLEST


@pytest.mark.parametrize("name", PAGES)
def test_only_what_scrolls_is_wider_than_a_phone(pages: dict[str, str], name: str) -> None:
    for element, scrolls in walk(body(pages[name])):
        if element.tag == "table":
            assert scrolls
        if element.tag.removeprefix(SVG) == "svg" and not scrolls:
            assert "width" not in element.attrib, "a picture of a fixed width does not scroll"


@pytest.mark.parametrize("name", PAGES)
def test_charts_stay_between_their_margins(pages: dict[str, str], name: str) -> None:
    found = charts(pages[name])
    assert found or name == "verify"
    for drawn in found:
        margins = re.search(
            r"margin:\d+px (\d+)px \d+(?:px)? (\d+)px;width:calc\(100% - (\d+)px\)", drawn.get("style") or ""
        )
        assert margins is not None
        right, left, both = map(int, margins.groups())
        assert both == left + right < PHONE / 2
        for element, _ in walk(drawn):
            for at in ("x", "cx", "x1", "x2"):
                place = element.get(at, "0")
                if place.endswith("%"):
                    assert 0.0 <= float(place[:-1]) + float(element.get("width", "0").rstrip("%")) <= 100.01
            if element.get("text-anchor") == "end" and element.get("x") == "-8":
                assert len(element.text or "") * 12 * CHARACTER + 8 <= left
            if element.get("text-anchor") == "middle" and (element.get("x") or "").startswith("100"):
                assert len(element.text or "") * 12 * CHARACTER / 2 <= right


def test_every_second_number_of_a_crowded_axis_is_left_out_on_a_phone() -> None:
    drawn = bars([Bar("stage 0", {"forward": 58_000.0})], "ms", "time")
    numbers = re.findall(r'text-anchor="middle"( class="minor")?>([\d,]+)<', drawn)
    shown = [number for minor, number in numbers if not minor]
    room = (PHONE - 2 * 16 - LEFT - RIGHT) / (len(numbers) - 1) * 2
    assert len(numbers) > 4
    assert max(map(len, shown)) * 12 * CHARACTER < room
    assert re.search(r"@media \(max-width: 600px\) \{.*\.minor \{ display: none; \}", STYLE, re.DOTALL)


def test_the_legend_of_a_pipeline_takes_as_many_rows_as_it_needs() -> None:
    trace = step("interleaved_1f1b", 4, 8, 2)
    for width in (390, 600, CONTENT_WIDTH):
        root = ElementTree.fromstring(picture(trace, width))
        for text in root.iter(f"{SVG}text"):
            if text.get("class") != "title" and text.get("text-anchor") is None and text.get("x"):
                assert float(text.get("x") or 0) + len(text.text or "") * 6.2 <= width
            if text.get("y"):
                assert float(text.get("y") or 0) <= float(root.get("height") or 0)


MEASURE = """<script>
const small = [...document.querySelectorAll("svg text, p, li, td, th, dd, dt")].filter(
  e => parseFloat(getComputedStyle(e).fontSize) * (e.getScreenCTM ? e.getScreenCTM().d || 1 : 1) < 10);
document.title = "seen " + document.documentElement.scrollWidth + " " + innerWidth + " " + small.length;
</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome here")
@pytest.mark.parametrize("name", PAGES)
def test_a_browser_shows_it_so(pages: dict[str, str], name: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(pages[name].replace("</body>", MEASURE), encoding="utf-8")
    command = [
        str(BROWSER),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path}/profile",
    ]
    command += [f"--window-size={PHONE},800", "--dump-dom", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    seen = re.search(r"<title>seen (\d+) (\d+) (\d+)</title>", shown)
    assert seen is not None
    width, screen, small = map(int, seen.groups())
    assert width <= screen
    assert screen <= 500  # no browser makes its window narrower than this
    assert small == 0
