"""The files of a run's folder that say something about it: its model, parts of its layout, its training."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from predictor.core.base.errors import ConfigError
from predictor.formats.format import Format
from predictor.formats.source import LARGEST_BYTES, Source
from predictor.formats.table import format_of

SUFFIXES = (".json", ".yaml", ".yml", ".toml", ".sh", ".slurm", ".sbatch", ".args", ".bash")


def files_in(folder: Path) -> tuple[list[Path], str]:
    """Return a folder's files of known formats in the order in which one overrides another, and a note on them.

    Of several files of one format, the one counts that a training of the folder names; files of tools that are not
    read are left out, unless there is nothing else.

    Raises:
        ConfigError: there is none, or several that none of the others decides between.
    """
    told: dict[Path, Format] = {}
    unread: dict[Path, Format] = {}
    scripts_left: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.suffix in SUFFIXES and path.is_file() and path.stat().st_size <= LARGEST_BYTES:
            try:
                known = format_of(Source(path))
            except ConfigError:  # no text
                continue
            if known is not None:
                (told if known.module else unread)[path] = known
            elif path.suffix == ".sh":
                scripts_left.append(path.name)
    for path, known in unread.items() if not told else ():
        known.refuse_unread(Source(path))
    if not told:
        raise ConfigError(f"{folder} is a folder without a file of a known format; list-formats lists them")
    chosen = _one_of_each(folder, told)
    listed = ", ".join(f"{path.name} ({told[path].name})" for path in chosen)
    scripts = ", ".join(scripts_left)
    left = f" Not read, as of no known format: {scripts}; its arguments may change the run." if scripts else ""
    return chosen, f"Of the folder {folder.name} these files are read: {listed}.{left}"


def _one_of_each(folder: Path, told: dict[Path, Format]) -> list[Path]:
    """Return one file of each format, and one training.

    Raises:
        ConfigError: nothing decides between several.
    """
    groups: dict[str, list[Path]] = defaultdict(list)
    for path, known in told.items():
        groups["a training" if known.rank > 1 else known.name].append(path)
    trainings = "\n".join(path.read_text(encoding="utf-8-sig") for path in groups.get("a training", ()))
    chosen = []
    for files in groups.values():
        named = [path for path in files if path.name in trainings] if len(files) > 1 else files
        if len(named) != 1:
            raise ConfigError(
                f"{folder} has several files that may be meant: {', '.join(path.name for path in named or files)}; "
                "name those of the run one by one"
            )
        chosen += named
    return sorted(chosen, key=lambda path: (told[path].rank, path.name))
