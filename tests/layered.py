"""Draw a graph in layers: a box for each node, its imports below it, arrows that follow from others left out.

Sugiyama, Tagawa and Toda 1981: layers by the longest path, dummy nodes where arrows cross one, order by barycentres.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from statistics import fmean

from predictor.core.base.drawing import BLUE, VERMILION, element, path, text

Edge = tuple[str, str]
Node = str | tuple[Edge, int]  # a name, or where an arrow crosses a layer
CHARACTER, PADDING, GAP, DUMMY = 7.4, 22.0, 14.0, 8.0
BOX, LAYER, MARGIN = 30.0, 84.0, 16.0
SWEEPS = 24
STYLE = f""".layered {{ font: 13px system-ui, sans-serif; background: #ffffff; }}
.layered .box {{ fill: #eef4fa; stroke: {BLUE}; }}
.layered text {{ fill: #1c1e21; text-anchor: middle; }}
.layered .arrow {{ fill: none; stroke: #5b6770; stroke-width: 1.1; }}
.layered .circle {{ stroke: {VERMILION}; stroke-dasharray: 5 3; }}"""


def without_circles(imports: Mapping[str, Iterable[str]]) -> tuple[dict[str, set[str]], set[Edge]]:
    """Return the imports without circles, and the arrows left out for that; the same for the same imports."""
    kept = {name: set(imports[name]) for name in sorted(imports)}
    left: set[Edge] = set()
    while True:
        try:
            TopologicalSorter(kept).prepare()
        except CycleError as error:
            circle = error.args[1]  # each node is imported by the next one
            importer, imported = max(zip(circle[1:], circle, strict=False))
            kept[importer].discard(imported)
            left.add((importer, imported))
        else:
            return kept, left


def reachable(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return all that a node imports, directly or through others; ``imports`` has no circle."""
    found: dict[str, set[str]] = {}
    for name in TopologicalSorter(imports).static_order():
        found[name] = set(imports[name]).union(*(found[target] for target in imports[name]))
    return found


def reduced(imports: Mapping[str, set[str]]) -> set[Edge]:
    """Return the arrows that follow from no others (transitive reduction)."""
    below = reachable(imports)
    return {
        (name, target)
        for name, targets in imports.items()
        for target in targets
        if not any(target in below[other] for other in targets)
    }


def layers(imports: Mapping[str, set[str]], edges: Iterable[Edge]) -> tuple[list[list[Node]], list[tuple[Node, Node]]]:
    """Return nodes and dummies of each layer from the ground up, and the pieces of arrows between adjacent layers."""
    height: dict[str, int] = {}
    for name in TopologicalSorter(imports).static_order():
        height[name] = max((height[target] + 1 for target in imports[name]), default=0)
    rows: list[list[Node]] = [[] for _ in range(max(height.values(), default=-1) + 1)]
    for name in sorted(height):
        rows[height[name]].append(name)
    pieces: list[tuple[Node, Node]] = []
    for edge in sorted(edges):
        upper: Node = edge[0]
        for level in range(height[edge[0]] - 1, height[edge[1]], -1):
            rows[level].append((edge, level))
            pieces.append((upper, (edge, level)))
            upper = (edge, level)
        pieces.append((upper, edge[1]))
    return rows, pieces


def crossings(rows: list[list[Node]], pieces: list[tuple[Node, Node]]) -> int:
    """Return how many arrows cross between adjacent layers."""
    place = {node: at for row in rows for at, node in enumerate(row)}
    count = 0
    for row in rows:
        own = [(place[upper], place[lower]) for upper, lower in pieces if lower in row]
        count += sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for i, a in enumerate(own) for b in own[:i])
    return count


def ordered(rows: list[list[Node]], pieces: list[tuple[Node, Node]]) -> list[list[Node]]:
    """Return each layer ordered by the mean place of its neighbours: the order with fewest crossings of all sweeps."""
    neighbours: dict[Node, list[Node]] = {node: [] for row in rows for node in row}
    for upper, lower in pieces:
        neighbours[upper].append(lower)
        neighbours[lower].append(upper)
    best, fewest = rows, crossings(rows, pieces)
    for sweep in range(SWEEPS):
        rows = [list(row) for row in rows]
        order = range(len(rows)) if sweep % 2 == 0 else range(len(rows) - 1, -1, -1)
        for level in order:
            beside = rows[level - 1 if sweep % 2 == 0 else (level + 1) % len(rows)]
            place = {node: at / len(beside) for at, node in enumerate(beside)}
            own = {node: at / len(rows[level]) for at, node in enumerate(rows[level])}
            means = {
                node: fmean([place[other] for other in neighbours[node] if other in place] or [own[node]])
                for node in rows[level]
            }
            rows[level].sort(key=lambda node: (means[node], own[node]))
        if crossings(rows, pieces) < fewest:
            best, fewest = rows, crossings(rows, pieces)
    return best


def width(node: Node) -> float:
    return CHARACTER * len(node) + PADDING if isinstance(node, str) else DUMMY


def _curve(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x, y), (x2, y2) = start, end
    middle = (y + y2) / 2
    return f"M{x:.0f} {y:.0f}C{x:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"


def picture(title: str, imports: Mapping[str, Iterable[str]]) -> str:
    """Return the SVG of who imports whom; arrows of a circle are dashed."""
    acyclic, circles = without_circles(imports)
    rows, pieces = layers(acyclic, reduced(acyclic))
    rows = ordered(rows, pieces)
    widths = [sum(map(width, row)) + GAP * (len(row) - 1) for row in rows]
    total = max(widths, default=0.0) + 2 * MARGIN
    middles: dict[Node, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        x, spare = MARGIN, (total - 2 * MARGIN - widths[level]) / max(len(row), 1)
        for node in row:
            middles[node] = (x + (width(node) + spare) / 2, MARGIN + BOX / 2 + LAYER * (len(rows) - 1 - level))
            x += width(node) + spare + GAP
    drawn = []
    for upper, lower in [*pieces, *sorted(circles)]:
        (x, y), (x2, y2) = middles[upper], middles[lower]
        from_box, to_box = (BOX / 2 if isinstance(node, str) else 0.0 for node in (upper, lower))
        drawn.append(
            path(
                _curve((x, y + from_box), (x2, y2 - to_box)),
                class_="arrow circle" if (upper, lower) in circles else "arrow",
                marker_end="url(#tip)" if isinstance(lower, str) else None,
            )
        )
    for name, (x, y) in ((node, at) for node, at in middles.items() if isinstance(node, str)):
        drawn.append(
            element("rect", class_="box", x=x - width(name) / 2, y=y - BOX / 2, width=width(name), height=BOX, rx=4)
        )
        drawn.append(text(x, y + 4.5, name))
    tip = element(
        "marker",
        path("M0 0L8 4L0 8z", fill="#5b6770"),
        id="tip", viewBox="0 0 8 8", refX=8, refY=4, markerWidth=7, markerHeight=7, orient="auto",
    )  # fmt: skip
    high = 2 * MARGIN + BOX + LAYER * (len(rows) - 1)
    content = (element("style", STYLE), element("defs", tip), *drawn)
    return element(
        "svg", "\n".join(content), xmlns="http://www.w3.org/2000/svg", class_="layered", role="img", aria_label=title,
        width=total, height=high, viewBox=f"0 0 {total:.0f} {high:.0f}",
    )  # fmt: skip
