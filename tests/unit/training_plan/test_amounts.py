"""Numbers of GPUs, batches and dates as people write them."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from predictor.training_plan.amounts import Calendar, Range, as_range, batch_sizes, gpu_counts


@pytest.mark.parametrize(
    ("written", "counts"),
    [
        (64, (64,)),
        ([128, 64, 64], (64, 128)),
        ("64,96", (64, 96)),
        ("64, 128", (64, 128)),
        ("64,128,1024", (64, 128, 1024)),
        ("up to 32", (8, 16, 24, 32)),
        ("UP TO 1,024", (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)),
        ("64-100", (64, 96)),
        ("60 to 200", (64, 96, 128, 192, 200)),
        ("up to 4", (1, 2, 3, 4)),
    ],
)
def test_gpus_are_listed_or_whole_nodes_of_a_range(written: object, counts: tuple[int, ...]) -> None:
    given = as_range(written)
    assert isinstance(given, Range)
    assert gpu_counts(given, 8) == counts


@pytest.mark.parametrize("written", [0, -8, True, "some", "", [], [1.5], "128-64", "up to 0", {"from": 8}, 10**9])
def test_what_is_no_number_of_gpus_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"expected|between|above"):
        as_range(written)


@pytest.mark.parametrize(
    ("written", "way_out"),
    [
        ("1,024", r"write 1024, or \[1, 24\]"),
        ("512,768", r"write 512768, or \[512, 768\]"),
        ("1,048,576", r"write 1048576, or \[1, 48, 576\]"),
    ],
)
def test_a_number_with_commas_that_may_be_a_list_is_refused(written: str, way_out: str) -> None:
    with pytest.raises(ValueError, match=way_out):
        as_range(written)


def test_a_range_of_batches_is_doubled() -> None:
    given = as_range("256-2048")
    assert isinstance(given, Range)
    assert batch_sizes(given) == (256, 512, 1024, 2048)


def test_the_last_day_counts_and_days_are_counted_from_the_start() -> None:
    start = date(2027, 1, 30)
    assert Calendar(start, date(2027, 1, 30)).hours == 24.0
    assert Calendar(start, 2.5).hours == 60.0
    assert Calendar(start).hours is None
    assert [Calendar(start).day(hours) for hours in (0.0, 24.0, 24.1)] == [start, start, start + timedelta(days=1)]
    assert Calendar(start).day(1e12) is None
