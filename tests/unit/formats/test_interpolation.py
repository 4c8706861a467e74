"""References of YAML configurations: followed by OmegaConf, marked where they lead out of the file."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.formats.interpolation import filled
from predictor.formats.shell.words import is_unknown


def test_references_are_filled_in() -> None:
    content: dict[Any, Any] = {
        "a": {"b": 2, "c": "${.b}", "d": "${multiply:3, ${a.b}}", "e": "x${.b}y"},
        "g": ["${a.c}", {"h": "${a}"}],
        3: "${divide_ceil:7,${a.b}}",
    }
    got = filled(content, "a.yaml")
    assert (got["a"]["c"], got["a"]["d"], got["a"]["e"], got["g"][0], got["3"]) == (2, 6, "x2y", 2, 4)
    assert got["g"][1]["h"] == got["a"]


@pytest.mark.parametrize(
    "value",
    [
        "${nowhere}",
        "${oc.env:HOME}",
        "${oc.env:NODES,4}",
        "${multiply:2,${oc.env:NODES}}",
        "${divide_floor:4,0}",
        "${own_resolver:4}",
        "${not a reference",
        "${a}",
        "???",
    ],
)
def test_what_comes_from_elsewhere_is_marked(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODES", "8")
    got = filled({"a": value, "b": "${a}", "c": "${multiply:2,${a}}"}, "a.yaml")
    assert all(map(is_unknown, got.values()))


def test_sections_that_hold_each_other_end() -> None:
    got = filled({"a": {"x": "${b}"}, "b": {"y": "${a}"}}, "a.yaml")
    assert "circle" in str(got)


def test_file_without_references_needs_no_omegaconf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "omegaconf", None)
    content: dict[str, Any] = {"a": [1, {"b": "$HOME"}]}
    assert filled(content, "a.yaml") is content
    with pytest.raises(ConfigError, match=r"a\.yaml has \$\{…\}: pip install 'estimate-train-time\[readers\]'"):
        filled({"a": "${b}"}, "a.yaml")
