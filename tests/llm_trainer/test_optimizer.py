"""Optimizers: what decays, and that every kind trains. Learning rates: the formula at points computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning_fabric")

from llm_trainer.exceptions import TrainingError  # noqa: E402
from llm_trainer.training.optimizer import create_optimizer  # noqa: E402
from llm_trainer.training.scheduler import create_scheduler, resolve_warmup_steps  # noqa: E402
from tests.llm_trainer import small  # noqa: E402


def rates(scheduler_type: str, steps: int, warmup: int, least: float, **options: float) -> list[float]:
    """Return the learning rate of every step of a run, and the one after it, of a peak of 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = create_scheduler(optimizer, scheduler_type, steps, warmup, least, **options)
    taken = []
    for _ in range(steps + 1):
        taken.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return taken


def test_matrices_decay_and_nothing_else_does() -> None:
    model = small.model()
    decaying, plain = create_optimizer(model, weight_decay=0.3).param_groups
    assert (decaying["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    names = {id(weight): name for name, weight in model.named_parameters()}
    assert all(names[id(weight)].endswith("weight") and weight.ndim == 2 for weight in decaying["params"])
    assert all("norm" in names[id(weight)] or names[id(weight)].endswith("bias") for weight in plain["params"])
    assert len(decaying["params"]) + len(plain["params"]) == len(names)


@pytest.mark.parametrize("optimizer_type", ["adamw", "adam", "sgd"])
def test_a_step_is_the_formula(optimizer_type: str) -> None:
    weight = torch.nn.Parameter(torch.tensor([[2.0]]))
    model = torch.nn.Module()
    model.weight = weight
    optimizer = create_optimizer(model, optimizer_type, 0.1, 0.5, (0.8, 0.9), 1e-12)
    weight.grad = torch.tensor([[3.0]])
    optimizer.step()
    # Adam's first step is the rate times the gradient's sign; decay is in the gradient of adam and sgd.
    by_hand = {"adamw": 2.0 * (1 - 0.1 * 0.5) - 0.1, "adam": 2.0 - 0.1, "sgd": 2.0 - 0.1 * (3.0 + 0.5 * 2.0)}
    assert weight.item() == pytest.approx(by_hand[optimizer_type], abs=1e-6)


def test_a_fused_step_is_the_plain_one() -> None:
    results = []
    for fused in (True, False):
        model = small.model()
        optimizer = create_optimizer(model, learning_rate=0.01, fused=fused)
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, 0.5)
        optimizer.step()
        results.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-7)


def test_frozen_weights_are_left_out_and_a_frozen_model_is_refused() -> None:
    model = small.model()
    assert model.embed is not None
    model.embed.requires_grad_(False)
    trained = [weight for group in create_optimizer(model).param_groups for weight in group["params"]]
    assert all(weight is not model.embed.tokens.weight for weight in trained)
    model.requires_grad_(False)
    with pytest.raises(TrainingError, match="no weight that requires a gradient"):
        create_optimizer(model)


def test_an_unknown_optimizer_names_the_known_ones() -> None:
    with pytest.raises(TrainingError, match="optimizer_type is 'lion'; expected adamw, adam, sgd"):
        create_optimizer(small.model(), "lion")


def test_warm_up_rises_to_the_peak_and_does_not_begin_at_zero() -> None:
    assert rates("constant", 6, 3, 0.0) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("scheduler_type", "by_hand"),
    [
        ("cosine", [1.0, 0.1 + 0.9 * 0.8535533906, 0.55, 0.1 + 0.9 * 0.1464466094, 0.1]),
        ("linear", [1.0, 0.775, 0.55, 0.325, 0.1]),
        ("polynomial", [1.0, 0.1 + 0.9 * 0.5625, 0.1 + 0.9 * 0.25, 0.1 + 0.9 * 0.0625, 0.1]),
        ("constant", [1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_decay_at_quarters(scheduler_type: str, by_hand: list[float]) -> None:
    assert rates(scheduler_type, 6, 2, 0.1)[2:] == pytest.approx(by_hand)


def test_polynomial_of_power_one_is_linear() -> None:
    assert rates("polynomial", 9, 2, 0.2, power=1.0) == pytest.approx(rates("linear", 9, 2, 0.2))


def test_a_run_of_warm_up_alone_divides_by_nothing() -> None:
    assert rates("cosine", 3, 3, 0.1) == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates("cosine", 2, 1000, 0.1) == pytest.approx([1 / 1001, 2 / 1001, 3 / 1001])


def test_after_the_end_the_rate_stays() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = create_scheduler(optimizer, "polynomial", 2, 0, 0.1)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_warmup_ratio_counts_where_warmup_steps_is_zero() -> None:
    assert resolve_warmup_steps(0, 0.1, 500) == 50
    assert resolve_warmup_steps(7, 0.1, 500) == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheduler_type": "step"}, "expected cosine, linear, polynomial, constant"),
        ({"num_training_steps": 0}, "num_training_steps is 0"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"min_lr_ratio": 1.5}, "min_lr_ratio is 1.5"),
    ],
)
def test_bad_schedules_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(TrainingError, match=message) as caught:
        create_scheduler(optimizer, **changes)
    assert "\n" not in str(caught.value)
