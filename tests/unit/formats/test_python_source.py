"""Python code is evaluated from its syntax tree: what it sets is known, what only a run would tell is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.formats.python_source.calls import evaluate_call, load_module
from predictor.formats.python_source.values import External, Record, Unknown


def returned(tmp_path: Path, body: str, above: str = "") -> Any:
    """What a function with a body returns."""
    path = tmp_path / "code.py"
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    path.write_text(f"{above}\ndef recipe():\n{lines}", encoding="utf-8")
    return evaluate_call(load_module(path), "recipe")[0]


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("return 2 * (3 + 4) // 2", 7),
        ("return [1, *range(2, 4)] + [0] * 2", [1, 2, 3, 0, 0]),
        ("return {**{'a': 1}, 'b': 2}", {"a": 1, "b": 2}),
        ("x = 4\nx += 1\nreturn x if x > 4 else None", 5),
        ("x, y = 1, 2\nreturn f'{x}-{y}'", "1-2"),
        ("size = 3\nreturn {(1, 1): 'a', (3, 1): 'b'}[(size, 1)]", "b"),
        ("total = 0\nfor i in range(4):\n    total += i\nreturn total", 6),
        ("return [2 * i for i in range(4) if i % 2]", [2, 6]),
        ("x = {}\nx['a'] = 1\nx.update(b=2)\nreturn x.get('b')", 2),
        ("name = 'fp8_cs'\nif name == 'bf16':\n    return 1\nelif name.startswith('fp8'):\n    return 2\nreturn 3", 2),
        ("return not None and 1 < 2 < 3", True),
        ("import torch\nreturn torch.bfloat16", External("torch.bfloat16")),
        ("return max(3, len('four'))", 4),
        ("return list({'a': 1}.items())", [("a", 1)]),
        ("import torch\nreturn {'a': torch.bfloat16}.get('a')", External("torch.bfloat16")),
    ],
)
def test_values_are_those_that_python_would_give(body: str, value: Any, tmp_path: Path) -> None:
    assert returned(tmp_path, body) == value


def test_objects_carry_what_the_code_sets(tmp_path: Path) -> None:
    above = """
from dataclasses import dataclass, field
from elsewhere import make

@dataclass
class Base:
    layers: int = 2
    width: int = 64
    names: list = field(default_factory=list)

@dataclass
class Model(Base):
    width: int = 128

def grown(model, *, by=2, **more):
    model.layers = model.layers * by
    return model
"""
    model = returned(tmp_path, "m = grown(Model(names=['a']), by=3, other=1)\nm.inner.size = 5\nreturn m", above)
    assert (model.short_kind, model.fields["layers"], model.fields["width"]) == ("Model", 6, 128)
    assert model.fields["names"] == ["a"]
    assert model.fields["inner"].fields == {"size": 5}
    made = returned(tmp_path, "x = make('id', n=1).to_model(load=False)\nx.size = 3\nreturn x", above)
    assert (made.kind, made.fields) == ("elsewhere.make.to_model", {"load": False, "size": 3})
    assert made.of.arguments == ["id"]


def test_functions_and_constants_of_other_files_are_followed(tmp_path: Path) -> None:
    package = tmp_path / "pack" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").write_text("from pack.inner.sizes import big as large\n", encoding="utf-8")
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("WIDTH = 8\nTABLE = {'x': WIDTH}\ndef big(n=2):\n    return WIDTH * n\n")
    path = package / "recipe.py"
    path.write_text(
        "from pack import large\nfrom .sizes import TABLE\nfrom . import sizes\n"
        "def recipe():\n    TABLE['x'] += 1\n    return large(n=3), TABLE['x'], sizes.WIDTH\n"
        "def again():\n    return TABLE['x']\n",
        encoding="utf-8",
    )
    module = load_module(path)
    assert evaluate_call(module, "recipe")[0] == (24, 9, 8)
    assert evaluate_call(module, "again")[0] == 8  # a call changes no constant of another


@pytest.mark.parametrize(
    "body",
    [
        "import os\nx = 2\nif os.environ.get('FAST'):\n    x = 4\nreturn x",
        "return undefined_name",
        "return 1 / 0",
        "return [0] * 10**9",
        "while True:\n    x = 1\nreturn x",
        "return recipe()",
        "return open('/etc/passwd').read()",
        "return __import__('os').getcwd()",
        "return eval('1')",
        "raise ValueError('never')",
    ],
)
def test_what_only_a_run_would_tell_is_unknown(body: str, tmp_path: Path) -> None:
    assert isinstance(returned(tmp_path, body), Unknown | Record)
    assert not isinstance(returned(tmp_path, body), Record) or "open" in body


def test_both_branches_of_an_open_condition_may_agree(tmp_path: Path) -> None:
    body = "import os\nx = 2\ny = 3\nif os.environ.get('FAST'):\n    x = 2\n    y = 4\nreturn {'x': x, 'y': y}"
    found = returned(tmp_path, body)
    assert found["x"] == 2
    assert "os.environ" in found["y"].why
    assert found["y"].why.startswith("code.py:")


def test_nothing_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "side.py").write_text("print('imported')\nX = 1\n", encoding="utf-8")
    assert returned(tmp_path, "print('called')\nfrom side import X\nreturn X") == 1
    assert capsys.readouterr().out == ""


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text("def (:", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"code\.py is not Python code"):
        load_module(path)
