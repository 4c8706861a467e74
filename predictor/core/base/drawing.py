"""Draw SVG: elements, axis ticks and a colour-blind safe palette."""

from __future__ import annotations

from html import escape
from math import ceil, floor, log10

# Okabe and Ito 2008, "Color Universal Design" (jfly.uni-koeln.de/color): safe for all kinds of colour vision.
BLUE, SKY_BLUE, GREEN, YELLOW = "#0072b2", "#56b4e9", "#009e73", "#f0e442"
ORANGE, VERMILION, PURPLE, BLACK = "#e69f00", "#d55e00", "#cc79a7", "#000000"


def pixels(value: float) -> str:
    """Return a length in pixels, to a hundredth.

    >>> pixels(3.0), pixels(2.5049)
    ('3', '2.5')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def element(name: str, content: str = "", /, **attributes: str | float | None) -> str:
    """Return an SVG element; ``content`` is SVG, a title is text.

    ``class_`` becomes class, ``stroke_width`` stroke-width; attributes of None are left out.

    >>> element("circle", r=4.0, class_="dot", title="a < b")
    '<circle r="4" class="dot"><title>a &lt; b</title></circle>'
    """
    title = attributes.pop("title", None)
    if title is not None:
        content = f"<title>{escape(str(title))}</title>{content}"
    listed = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else pixels(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{listed}>{content}</{name}>" if content else f"<{name}{listed}/>"


def text(x: float | str, y: float | str, words: str, /, **attributes: str | float | None) -> str:
    """Return text at a position, in pixels or as a percentage."""
    return element("text", escape(words), x=x, y=y, **attributes)


def path(shape: str, /, **attributes: str | float | None) -> str:
    """Return a path."""
    return element("path", d=shape, **attributes)


def round_step(largest: float, most: int) -> float:
    """Return the step, 1, 2 or 5 times a power of ten, that reaches ``largest`` in at most ``most`` steps."""
    rough = largest / most
    power: float = 10.0 ** floor(log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))


def ticks(largest: float, most: int = 6) -> list[float]:
    """Return round numbers from 0 up to at least ``largest``."""
    step = round_step(largest, most) if largest > 0 else 1.0
    return [step * i for i in range(ceil(largest / step - 1e-9) + 1)]
