"""docs/architecture.md and its pictures are drawn from the imports as they are; so they are from any tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture import PICTURES, ROOT, House, houses, outputs, packages, section
from tests.layered import layers, ordered, picture, reduced, without_circles

PYPROJECT = """
[tool.hatch.build.targets.wheel]
only-include = ["source/shop", "tools", "data"]
"""
FILES = {
    "source/shop/__init__.py": '"""Sell | things.\n\nMore."""',
    "source/shop/till/__init__.py": "",
    "source/shop/till/money.py": "from shop.shelf import goods\nimport shop.paper.sheets",
    "source/shop/shelf/goods.py": "from shop.paper.sheets import Sheet",
    "source/shop/paper/sheets.py": "",
    "source/shop/clerk/hand.py": "def ask():\n    from shop.till.money import Coin\n    from shop.shelf import goods",
    "tools/saw.py": "from shop import till",
    "data/table.json": "{}",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_page_and_its_pictures_are_those_of_the_imports() -> None:
    made = outputs()
    old = [name for name, content in made.items() if (ROOT / name).read_text(encoding="utf-8") != content]
    assert not old, f"out of date: {', '.join(old)}; make architecture draws them again"
    drawn = {f"docs/pictures/{path.name}" for path in PICTURES.glob("architecture-*.svg")}
    assert drawn <= made.keys(), "pictures of rooms that are gone; make architecture removes them"
    assert {"docs/architecture.md", "docs/pictures/architecture-predictor.svg"} <= made.keys()


def test_rooms_of_another_tree(tree: Path) -> None:
    assert packages(tree) == {"shop": tree / "source/shop", "tools": tree / "tools"}
    top, shop = houses(tree)
    assert top.imports == {"shop": set(), "tools": {"shop"}}
    assert shop.name == "shop"
    assert shop.imports == {
        "shop.clerk": {"shop.till", "shop.shelf"},
        "shop.till": {"shop.shelf", "shop.paper"},
        "shop.shelf": {"shop.paper"},
        "shop.paper": set(),
    }
    assert "| `shop` | Sell \\| things | – |" in section(top)
    assert "| `clerk` |  | `shelf`, `till` |" in section(shop)


def test_arrows_that_follow_from_others_are_left_out() -> None:
    imports = {"top": {"middle", "ground"}, "middle": {"ground"}, "ground": set[str]()}
    assert reduced(imports) == {("top", "middle"), ("middle", "ground")}
    drawn = picture("Three", imports)
    assert drawn.count('class="arrow"') == 2
    heights = [float(re.findall(rf'y="([\d.]+)">{name}<', drawn)[0]) for name in ("top", "middle", "ground")]
    assert heights == sorted(heights)


def test_a_circle_is_drawn_and_dashed() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "alone": set[str]()}
    acyclic, circles = without_circles(imports)
    assert sum(map(len, acyclic.values())) == 2
    assert len(circles) == 1
    assert picture("Circle", imports).count('class="arrow circle"') == 1


def test_an_arrow_over_a_layer_passes_between_its_boxes() -> None:
    imports = {"a": {"b", "z"}, "b": {"c"}, "c": set[str](), "z": {"y"}, "y": {"x"}, "x": {"c"}}
    rows, pieces = layers(imports, reduced(imports))
    assert [len(row) for row in rows] == [1, 2, 2, 2, 1]
    places = {node: level for level, row in enumerate(rows) for node in row}
    assert all(places[upper] == places[lower] + 1 for upper, lower in pieces)
    assert {node for row in ordered(rows, pieces) for node in row} == places.keys()


def test_nothing_is_drawn_of_no_rooms() -> None:
    assert picture("Empty", {}).startswith("<svg ")
    assert section(House("empty", {}, {})).count("\n|") == 2
