"""Memories that many questions share."""

from __future__ import annotations

from functools import partial

from predictor.core.base.remembered import MOST_OBJECTS, per_object, remembered


def test_a_value_is_computed_once_while_it_is_remembered() -> None:
    memory: dict[int, int] = {}
    asked: list[int] = []

    def tenfold(key: int) -> int:
        asked.append(key)
        return 10 * key

    assert [remembered(memory, key, partial(tenfold, key), most=2) for key in (1, 1, 2, 3, 1)] == [10, 10, 20, 30, 10]
    assert asked == [1, 2, 3, 1]
    assert len(memory) <= 2


def test_equal_objects_are_told_apart_and_outlive_their_numbers() -> None:
    asked: list[list[int]] = []

    @per_object
    def total(numbers: list[int]) -> int:
        asked.append(numbers)
        return sum(numbers)

    first, second = [1, 2], [1, 2]
    assert [total(each) for each in (first, second, first, second)] == [3, 3, 3, 3]
    assert len(asked) == 2
    assert [total([number]) for number in range(3 * MOST_OBJECTS)] == list(range(3 * MOST_OBJECTS))
