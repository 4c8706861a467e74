"""A key that no reader knows is refused where it speaks of cost; otherwise one line of the answer names it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.reading import READING, Reading
from predictor.formats.fields import Fields
from predictor.formats.known_keys import KnownKeys, rest, speaks_of_cost

KNOWN = KnownKeys(
    irrelevant=frozenset({"seed"}), refused={"lion": "only Adam is modelled"}, noted={"moe_z": "a note on moe_z"}
)


@pytest.fixture
def _as_before() -> Iterator[None]:
    token = READING.set(Reading())
    yield
    READING.reset(token)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_dimension", 64),
        ("trainer.microBatchSize", 2),
        ("context-parallel-size", 2),
        ("model.use_fp8", True),
        ("weights", "bf16"),
        ("recompute_layers", 3),
        ("overlap_comm", True),
        ("data_parallel_size", 4),
        ("cpu_offload", {"enabled": True}),
        ("loss_chunks", 8),
    ],
)
def test_what_speaks_of_cost(key: str, value: object) -> None:
    assert speaks_of_cost(key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("eval_batch_size", 8),
        ("wandb_run_group", "a"),
        ("lr_schedule", "cosine"),
        ("overlap_comm", False),
        ("save.num_layers", 3),
        ("project", "x"),
        ("max_steps", 100),
        ("dtype", ""),
    ],
)
def test_what_does_not(key: str, value: object) -> None:
    assert not speaks_of_cost(key, value)


@pytest.mark.usefixtures("_as_before")
def test_a_key_is_passed_over_noted_refused_or_named() -> None:
    fields = Fields({"seed": 1, "moe_z": 0.1, "project": "x", "lion": False, "used": 3}, "a.yml")
    fields.whole("used")
    named = "a.yml: not known here, and taken to cost nothing: project (--strict refuses such keys)"
    assert rest(KNOWN, "tool", [fields]) == ["a note on moe_z", named]
    READING.set(Reading(verbose=True))
    assert rest(KNOWN, "tool", [fields])[-1] == "a.yml: passed over, as they change no cost of a step: seed"
    READING.set(Reading(strict=True))
    with pytest.raises(ConfigError, match=r"a\.yml: project is 'x'; of tool it is not known here"):
        rest(KNOWN, "tool", [fields])


def test_a_key_that_matters_is_refused_with_its_meaning() -> None:
    problems: list[str] = []
    fields = Fields({"lion": True, "hiden_size": 64}, "a.yml", problems=problems)
    assert rest(KNOWN, "tool", [fields], read=["hidden_size"]) == []
    assert problems[0] == "a.yml: lion is True; only Adam is modelled"
    assert problems[1].startswith("a.yml: hiden_size is 64; of tool it is not known here. Did you mean hidden_size?")


def test_many_unknown_keys_are_counted() -> None:
    values = {f"colour_{number}": "red" for number in range(1000)}
    [note] = rest(KNOWN, "the tool", [Fields(values, "run.yaml")])
    assert "colour_39 and 960 others" in note
    assert "colour_40," not in note
    holder = Fields({f"micro_batch_{number}": 2 for number in range(1000)}, "run.yaml", problems=[])
    rest(KNOWN, "the tool", [holder])
    assert holder.problems is not None
    assert len(holder.problems) == 41
    assert holder.problems[-1] == "run.yaml: 960 further keys of the tool are not known here"
