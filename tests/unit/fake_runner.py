"""A stand-in for a Python with torch and the trainer: it answers the probe and writes made-up records."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import yaml

from tests.unit.measured_runs import OPERATORS, write_launch

ROOT = Path(__file__).resolve().parents[2]
REFERENCES = "references.json"
TRACEBACK = """Traceback (most recent call last):
  File "run.py", line 1, in <module>
ValueError: no such thing as this layer
E1122 06:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:1018] failed (exitcode: 1)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""


def fake_python(folder: Path, behaviour: str = "runs") -> str:
    """Write the program and return its path.

    Args:
        folder: to write it to.
        behaviour: "runs", "no torch", "hangs", "leaves nothing", or "fails" on configurations of three layers.
    """
    path = folder / f"python-{behaviour.replace(' ', '-')}"
    start = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from tests.unit.fake_runner import main"
    path.write_text(f"#!{sys.executable}\n{start}\nmain({behaviour!r}, sys.argv[1:])\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def write_references(folder: Path, device: str, us: list[float]) -> None:
    """Let the program answer with these times of the reference kernel, one after the other."""
    (folder / REFERENCES).write_text(json.dumps({"device": device, "us": us, "processes": []}), encoding="utf-8")


def _time_reference(path: Path, processes: int) -> None:
    if not path.is_file():
        sys.exit("No module named microbench")
    told = json.loads(path.read_text(encoding="utf-8"))
    print(json.dumps({"device": told["device"], "us": told["us"].pop(0)}))
    told["processes"].append(processes)
    path.write_text(json.dumps(told), encoding="utf-8")


def _after(words: list[str], option: str, default: str) -> str:
    return words[words.index(option) + 1] if option in words else default


def main(behaviour: str, words: list[str]) -> None:
    if words[0] == "-c":
        if behaviour == "no torch":
            sys.exit("ModuleNotFoundError: No module named 'torch'")
        print("cpu")
        return
    if words[1:3] == ["microbench", "reference"]:
        _time_reference(Path(sys.argv[0]).parent / REFERENCES, int(_after(words, "--processes", "1")))
        return
    config = next(Path(after) for word, after in pairwise(words) if word.endswith(".measure"))
    out, ranks = Path(_after(words, "--out", "")), int(_after(words, "--nproc-per-node", "1"))
    content = yaml.safe_load(config.read_text(encoding="utf-8"))
    if behaviour == "hangs":
        below = subprocess.Popen(["sleep", "60"], start_new_session=True)
        (out / "pids").write_text(f"{below.pid}\n", encoding="utf-8")
        time.sleep(60)
    if behaviour == "fails" and content.get("model", {}).get("num_layers") == 3:
        sys.exit(TRACEBACK)
    if behaviour == "leaves nothing":
        return
    stages = content.get("parallelism", {}).get("pipeline_parallel_size", 1)
    scale = 1.02 if out.name == "run-2" else 1.0
    samples = [1e3 * scale * (1 + 0.001 * step) for step in range(int(_after(words, "--steps", "3")))]
    write_launch(
        out,
        content,
        ranks,
        OPERATORS,
        ranks=[{"pipeline_stage": rank * stages // ranks} for rank in range(ranks)],
        samples_us=tuple(samples),
        profiled_us=(1100.0, 1101.0, 1102.0),
        threads=int(_after(words, "--threads", "0")),
        commit=" ".join(words),
    )
