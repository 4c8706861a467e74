"""Draw the house: ``python -m tests.architecture`` writes the generated parts of docs/architecture.md and its pictures.

A room is a package, or a package within one; an arrow is an import, those for type checkers included. A package with
several rooms has a picture of its own. Packages are those that pyproject.toml installs.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.layered import picture

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PICTURES = ROOT / "docs" / "pictures"
MOST_FIRST = ("predictor",)  # pictures in this order, then by name
FEWEST_ROOMS = 3
GENERATED = re.compile(r"(?<=<!-- drawn: make architecture -->\n).*?(?=<!-- end -->)", re.DOTALL)


class House(NamedTuple):
    """Rooms with their imports of each other; ``name`` is the package around them, or nothing."""

    name: str
    rooms: dict[str, Path]
    imports: dict[str, set[str]]


def packages(root: Path = ROOT) -> dict[str, Path]:
    """Return the installed packages by their import names."""
    hatch = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    folders = (root / name for name in hatch["targets"]["wheel"]["only-include"])
    return {folder.name: folder for folder in folders if any(folder.glob("*.py"))}


def modules(package: str, folder: Path) -> dict[str, Path]:
    """Return the modules of a package by dotted name."""
    found = {}
    for file in sorted(folder.rglob("*.py")):
        parts = (package, *file.relative_to(folder).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def imported(file: Path) -> frozenset[str]:
    """Return the dotted names that a file imports, in functions and for type checkers too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def house(name: str, rooms: dict[str, Path], known: dict[str, Path]) -> House:
    """Return the rooms, dotted names of packages with their folders, with the imports among them."""

    def room_of(dotted: str) -> str | None:
        return next((room for room in rooms if dotted == room or dotted.startswith(f"{room}.")), None)

    imports: dict[str, set[str]] = {room: set() for room in rooms}
    for module, file in known.items():
        room = room_of(module)
        if room is not None:
            imports[room] |= {target for target in map(room_of, imported(file)) if target is not None} - {room}
    return House(name, rooms, imports)


def houses(root: Path = ROOT) -> list[House]:
    """Return the packages beside each other, then each package with several rooms."""
    top = packages(root)
    known = {module: file for package, folder in top.items() for module, file in modules(package, folder).items()}
    found = []
    inside = [(package, folder) for package, folder in top.items()]
    while inside:
        name, folder = inside.pop()
        rooms = {f"{name}.{own.name}": own for own in sorted(folder.iterdir()) if any(own.glob("*.py"))}
        inside += rooms.items()
        if len(rooms) >= FEWEST_ROOMS:
            found.append(house(name, rooms, known))
    found.sort(key=lambda one: (one.name.partition(".")[0] not in MOST_FIRST, one.name))
    return [house("", top, known), *found]


def purpose(folder: Path) -> str:
    """Return the first sentence of a package's docstring; nothing without one."""
    door = folder / "__init__.py"
    docstring = ast.get_docstring(ast.parse(door.read_text(encoding="utf-8"))) if door.is_file() else None
    return (docstring or "").partition("\n")[0].replace("|", "\\|").replace("``", "`").rstrip(".")


def short(room: str, around: str) -> str:
    return room.removeprefix(f"{around}.")


def file_name(drawn: House) -> str:
    return f"architecture-{drawn.name.replace('.', '-') or 'packages'}.svg"


def title(drawn: House) -> str:
    return f"Rooms of {drawn.name}" if drawn.name else "Packages"


def section(drawn: House) -> str:
    """Return the picture and the table of one house."""
    heading = f"### Rooms of `{drawn.name}`" if drawn.name else "### Packages"
    rows = [
        f"| `{short(room, drawn.name)}` | {purpose(drawn.rooms[room])} | "
        f"{', '.join(f'`{short(target, drawn.name)}`' for target in sorted(drawn.imports[room])) or '–'} |"
        for room in sorted(drawn.rooms)
    ]
    image = f"![{title(drawn)}](pictures/{file_name(drawn)})"
    return "\n".join([heading, "", image, "", "| room | purpose | imports |", "|---|---|---|", *rows, ""])


def outputs(root: Path = ROOT, page: Path = PAGE) -> dict[str, str]:
    """Return the page and its pictures as they must be, by path from the root."""
    drawn = houses(root)
    sections = "\n".join(section(one) for one in drawn)
    files = {"docs/architecture.md": GENERATED.sub(lambda _: f"\n{sections}\n", page.read_text(encoding="utf-8"))}
    for one in drawn:
        imports = {
            short(room, one.name): {short(target, one.name) for target in targets}
            for room, targets in one.imports.items()
        }
        files[f"docs/pictures/{file_name(one)}"] = f"{picture(title(one), imports)}\n"
    return files


def main() -> None:
    """Write what is out of date, and remove pictures of rooms that are gone."""
    written = outputs()
    for old in PICTURES.glob("architecture-*.svg"):
        if f"docs/pictures/{old.name}" not in written:
            old.unlink()
    for name, content in written.items():
        (ROOT / name).write_text(content, encoding="utf-8")
        sys.stderr.write(f"wrote {name}\n")


if __name__ == "__main__":
    main()
