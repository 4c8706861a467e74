"""A lazy property is computed once per object, also on frozen dataclasses, and stays out of what they are."""

from __future__ import annotations

from dataclasses import dataclass, replace

from predictor.core.base.lazy import lazy
from predictor.core.costs.layer_call import LayerCall

computed: list[int] = []


@dataclass(frozen=True)
class Square:
    """A square."""

    side: int

    @lazy
    def area(self) -> int:
        """Return its area."""
        computed.append(self.side)
        return self.side**2


def test_a_value_is_computed_once_per_object() -> None:
    computed.clear()
    three, four = Square(3), Square(4)
    assert [three.area, three.area, four.area, three.area] == [9, 9, 16, 9]
    assert computed == [3, 4]


def test_a_kept_value_is_no_part_of_the_object() -> None:
    known, fresh = Square(3), Square(3)
    assert known.area == 9
    assert (known, hash(known), repr(known)) == (fresh, hash(fresh), repr(fresh))
    assert replace(known, side=5).area == 25, "a changed copy computes its own"


def test_the_class_shows_the_property_with_its_docstring() -> None:
    assert isinstance(LayerCall.__dict__["tokens"], lazy)
    assert Square.area.__doc__ == "Return its area."
