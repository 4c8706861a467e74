"""An engine that is installed and does not load costs its own operators, and one line says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from microbench.cli import main
from microbench.engines import load_engine
from microbench.sweep import SWEEPS

pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")

ERRORS = (
    'OSError("Could not load this library: /x/tbe_index_select.so")',
    'ImportError("libtorch.so: undefined symbol: _ZN3c10")',
)


@pytest.fixture(params=ERRORS, ids=["OSError", "ImportError"])
def broken(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install an FBGEMM whose import fails; return the text of its error."""
    package = tmp_path / "broken" / "fbgemm_gpu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"raise {request.param}\n")
    monkeypatch.syspath_prepend(package.parent)
    for name in [name for name in sys.modules if name.partition(".")[0] == "fbgemm_gpu"]:
        monkeypatch.delitem(sys.modules, name)
    return str(request.param).split('"')[1]


def sweep(folder: Path) -> str:
    """Write a sweep of one operator with an engine and one without, a shape each."""
    document = yaml.safe_load((SWEEPS / "recommender.yaml").read_text())
    document |= {"operators": ["kjt_permute", "relu"], "shapes_per_operator": 1, "largest_call_mb": 0.1}
    path = folder / "few.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.mark.parametrize(("names", "status"), [(["all"], 0), (["kjt_permute", "relu"], 1)])
def test_a_broken_engine_costs_its_own_operators(
    names: list[str], status: int, broken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["operator", *names, "--device", "cpu", "--sweep", sweep(tmp_path), "--out", str(tmp_path / "r")]
    assert main(words) == status
    printed = capsys.readouterr()
    (line,) = [line for line in printed.err.splitlines() if "left out" in line]
    assert line.startswith(
        f"kjt_permute is left out: fbgemm_gpu is installed, but does not load ({broken}); pip install"
    )
    measured = {Path(path).name.partition("_fp32")[0] for path in printed.out.splitlines()}
    assert "relu" in measured
    assert "kjt_permute" not in measured


def test_an_absent_engine_is_none() -> None:
    assert not load_engine("no_such_engine")
