"""Helpers of a loop of one's own: seeds, log, a checkpoint in one file, and memory."""

from __future__ import annotations

import logging
import mmap
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning_fabric")

from llm_trainer.exceptions import TrainingError  # noqa: E402
from llm_trainer.training.optimizer import create_optimizer  # noqa: E402
from llm_trainer.training.scheduler import create_scheduler  # noqa: E402
from llm_trainer.training.utils import (  # noqa: E402
    get_device,
    get_memory_usage,
    load_checkpoint,
    save_checkpoint,
    set_seed,
    setup_logging,
)
from tests.llm_trainer import small  # noqa: E402


def numbers() -> list[Any]:
    return [random.random(), float(np.random.normal()), torch.randn(2).tolist()]


def test_a_seed_is_for_every_generator() -> None:
    set_seed(3)
    drawn = numbers()
    set_seed(3)
    assert numbers() == drawn
    set_seed(4)
    assert all(a != b for a, b in zip(numbers(), drawn, strict=True))


def parts() -> tuple[Any, Any, Any]:
    model = small.model()
    optimizer = create_optimizer(model, learning_rate=0.01)
    return model, optimizer, create_scheduler(optimizer, "cosine", 10, 2)


def step(model: Any, optimizer: Any, scheduler: Any) -> float:
    ids = torch.arange(20)[None]
    loss = model.eval()(ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    return float(loss.detach())


def test_a_loop_goes_on_from_its_file(tmp_path: Path) -> None:
    whole = parts()
    expected = [step(*whole) for _ in range(4)]
    first = parts()
    for _ in range(2):
        loss = step(*first)
    save_checkpoint(*first, epoch=1, step=2, loss=loss, save_path=tmp_path / "new" / "a.pt", config={"d_model": 32})
    second = parts()
    place = load_checkpoint(tmp_path / "new" / "a.pt", *second, device="cpu")
    assert place == {"epoch": 1, "step": 2, "loss": loss, "config": {"d_model": 32}}
    assert [step(*second) for _ in range(2)] == expected[2:]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.pt"]


def test_a_file_that_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    model, optimizer, scheduler = parts()
    path = tmp_path / "a.pt"
    with pytest.raises(TrainingError, match="cannot be read"):
        load_checkpoint(path, model)
    with pytest.raises(TrainingError, match=r"it must not run code|as it must not run code"):
        save_checkpoint(model, optimizer, scheduler, 0, 0, 0.0, path, {"model": model})
    assert not list(tmp_path.iterdir())
    save_checkpoint(model, optimizer, scheduler, 0, 0, 0.0, path)
    with pytest.raises(TrainingError, match="of another model"):
        load_checkpoint(path, small.model(d_ff=96))
    with pytest.raises(TrainingError, match="of another optimizer"):
        load_checkpoint(path, model, torch.optim.AdamW(model.parameters()))


def test_logging_is_set_up_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = list(logging.getLogger().handlers)
    try:
        setup_logging("debug")
        setup_logging(level="info", log_file=tmp_path / "logs" / "run.log")
        logging.getLogger("llm_trainer").info("12 squared")
        logging.getLogger("llm_trainer").debug("not this")
        assert capsys.readouterr().err.count("12 squared") == 1
        assert (tmp_path / "logs" / "run.log").read_text().count("12 squared") == 1
        with pytest.raises(TrainingError, match="level is 'loud'; expected debug, info"):
            setup_logging("loud")
    finally:
        setup_logging("warning")
        for handler in set(logging.getLogger().handlers) - set(before):
            logging.getLogger().removeHandler(handler)


def test_memory_is_measured_in_gib() -> None:
    before = get_memory_usage()
    held = mmap.mmap(-1, 64 << 20)  # not from the allocator, which may have kept as much from other tests
    held.write(b"1" * (64 << 20))
    after = get_memory_usage()
    grown = after["peak_resident"] - before["peak_resident"]
    assert after["peak_resident"] > 0.05, "torch alone takes more"
    assert grown <= 0.5
    assert after.get("resident", 1.0) - before.get("resident", 0.95) > 0.04, "64 MiB are 0.0625 GiB"
    held.close()


def test_the_device_is_one_of_this_machine() -> None:
    assert torch.ones(2, device=get_device()).sum() == 2
    assert get_device().type == ("cuda" if torch.cuda.is_available() else get_device().type)
