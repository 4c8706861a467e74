"""Folders of the procedure, for traces, inputs and outputs; the names are the specification's.

Traces lie in ``traces/MODEL/NAME.json`` (``.json.gz``; ``traces/exp/MODEL`` too), or, of a job of several ranks, one
file a rank in the folder ``traces/MODEL/NAME``. A model that the root does not have is read from the samples beside
this package; everything is written below the root.
"""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from predictor.core.base.errors import ConfigError, nearest

SAMPLES = Path(__file__).resolve().parents[1]
EXPERIMENTS = "exp"
TRACE_FOLDERS = ("traces", f"traces/{EXPERIMENTS}", "Traces")
TRACE_NAME = re.compile(r"(?P<name>.+?)(?:[._-]rank[._-]?(?P<rank>\d+))?\.json(?:\.gz)?")
RANK_FILE = re.compile(r"(?:.*[._-])?rank[._-]?(?P<rank>\d+).*\.json(?:\.gz)?")
HEAD_BYTES = 65_536  # of an execution trace, where its list of nodes begins
RECORD = "python -m microbench trace MODEL --out traces --input input_data"

Kind = Literal["cng", "cng_data", "node_data", "dag_graph_folder", "fwd_graph", "casting_cost"]


@dataclass(frozen=True, slots=True)
class Folders:
    """A root folder of the procedure, and the samples that stand in for what it does not have."""

    root: Path
    samples: Path = SAMPLES

    def models(self) -> list[str]:
        """Return the models that there are traces of: the root's, or those of the samples where it has none."""
        for root in (self.root, self.samples):
            bases = [root / name for name in TRACE_FOLDERS]
            folders = [folder for base in bases if base.is_dir() for folder in base.iterdir() if folder.is_dir()]
            models = {folder.name for folder in folders if folder.name != EXPERIMENTS and _recorded(folder)}
            if models:
                return sorted(models)
        return []

    def trace_names(self, model: str) -> list[str]:
        """Return the file names of a model's traces, without their ending."""
        return sorted({name for base in self._bases(model) for name in _recorded(base)})

    def is_sample(self, path: Path) -> bool:
        """Return whether a trace lies among the samples."""
        return path.resolve().is_relative_to(self.samples.resolve())

    def costs(self, is_sample: bool) -> list[Path]:
        """Return the files of measured costs for the root's traces, or for the samples.

        Samples have those of the machine that recorded them. Where the root is their folder, its own come first: traces
        may have been added there.
        """
        own = sorted((self.root / "tmp_data" / "casting_cost").glob("*.json"))
        if not is_sample or (own and self.root.resolve() == self.samples.resolve()):
            return own
        return sorted((self.samples / "casting_cost").glob("*.json"))

    def traces(self, model: str, file_name: str) -> list[Path]:
        """Return a trace's files in the order of their ranks.

        Raises:
            ConfigError: there is none of that name; the message lists those that there are.
        """
        _simple("--file_name", file_name)
        for base in self._bases(model):
            files = _recorded(base).get(file_name)
            if files:
                return files
        names = self.trace_names(model)
        if not names:
            models = ", ".join(self.models()) or "none"
            expected = self.root / "traces" / model / f"{file_name}.json"
            raise ConfigError(
                f"there is no trace of --model_name {model}: no {expected}; the models that have traces are {models}; "
                f"{RECORD} records"
            )
        raise ConfigError(
            f"--file_name {file_name} is no trace of {model}.{nearest(file_name, names)} There are: {', '.join(names)}"
        )

    def execution_trace(self, model: str, file_name: str | None = None) -> Path | None:
        """Return the execution trace of a model: of its input data, or beside its traces; None where there is none."""
        for base in (self.root, self.samples):
            for path in _json(base / "input_data", _simple("--model_name", model)):
                if b'"nodes"' in _head(path):
                    return path
        for base in self._bases(model):
            names = [file_name] if file_name is not None else sorted(_recorded(base))
            for name in names:
                paths = [path for path in sorted((base / name).glob("execution*")) if ".json" in path.suffixes]
                if paths:
                    return paths[0]
        return None

    def output(self, kind: Kind, model: str, file_name: str) -> Path:
        """Return the path of an output, in a folder that exists."""
        path = self.root / "tmp_data" / kind / _simple("--model_name", model) / f"{file_name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def outputs(self, kind: Kind, model: str) -> list[Path]:
        """Return what was written of a kind for a model."""
        return sorted((self.root / "tmp_data" / kind / model).glob("*.json"))

    def log(self, model: str, file_name: str) -> Path:
        """Return the path of the log of a topological order, in a folder that exists."""
        path = self.root / ".log" / _simple("--model_name", model) / f"{file_name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _bases(self, model: str) -> list[Path]:
        """Return the folders of a model's traces: those of the root, or of the samples where it has none."""
        _simple("--model_name", model)
        own, samples = ([root / name / model for name in TRACE_FOLDERS] for root in (self.root, self.samples))
        return own if any(_recorded(base) for base in own) else samples


def _simple(option: str, name: str) -> str:
    """Check that a name is no path."""
    if not name or name in {".", ".."} or Path(name).name != name:
        raise ConfigError(f"{option} is {name!r}; it must be the name of a folder or file below traces, not a path")
    return name


def _json(folder: Path, name: str) -> list[Path]:
    return [path for path in (folder / f"{name}.json", folder / f"{name}.json.gz") if path.is_file()]


def _head(path: Path) -> bytes:
    """Return the beginning of a file, unpacked; nothing of one that is damaged."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return stream.read(HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""


def _recorded(folder: Path) -> dict[str, list[Path]]:
    """Return the traces in a model's folder by name: the files of their ranks."""
    ranks: dict[str, list[tuple[int, Path]]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir():
            matches = [(RANK_FILE.fullmatch(inner.name), inner) for inner in sorted(path.iterdir())]
            files = [(int(match["rank"]), inner) for match, inner in matches if match is not None]
            if files:
                ranks[path.name] = files
        elif (match := TRACE_NAME.fullmatch(path.name)) is not None:
            ranks.setdefault(match["name"], []).append((int(match["rank"] or 0), path))
    return {name: [path for _, path in sorted(files)] for name, files in ranks.items()}
