"""Trainer: it learns, goes on where it was stopped, and says in one line what it cannot do."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning_fabric")
pytest.importorskip("tokenizers")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from llm_trainer.config import DataConfig, TrainingConfig  # noqa: E402
from llm_trainer.exceptions import ModelConfigurationError, TrainingError  # noqa: E402
from llm_trainer.models import TransformerLM  # noqa: E402
from llm_trainer.training import Trainer  # noqa: E402
from llm_trainer.training.engine import Engine  # noqa: E402
from llm_trainer.training.length import run_length  # noqa: E402
from llm_trainer.training.settings import precision_of  # noqa: E402
from model_training_framework.trainer import GenericTrainer, TrainingCallback  # noqa: E402
from model_training_framework.trainer.checkpoint import Snapshot  # noqa: E402
from tests.llm_trainer import small  # noqa: E402


def make(folder: Path, model_changes: Mapping[str, Any] | None = None, **changes: Any) -> Trainer:
    """Return a trainer of the small model with samples to train and to evaluate on."""
    tokenizer = small.tokenizer()
    samples = small.dataset(of=tokenizer)
    return Trainer(
        small.model(**(model_changes or {})), tokenizer, small.training_config(folder, **changes), samples, samples
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return what steps.jsonl says, without times."""
    read = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.endswith("_s")} for line in read]


def weights(trainer: Trainer) -> Any:
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


class StopAt(TrainingCallback):
    """Interrupts a run as a user's Ctrl-C does, without a checkpoint of that place."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer: Any, global_step: int) -> None:
        if global_step == self.step:
            raise KeyboardInterrupt


def test_training_learns_and_reports(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    before = trainer.evaluate()
    after = trainer.train()
    assert before["val_loss"] == pytest.approx(math.log(300), rel=0.05), "untrained, every token is as likely"
    assert after["val_loss"] < before["val_loss"] - 1.0
    assert after["val_perplexity"] == pytest.approx(math.exp(after["val_loss"]))
    assert trainer.evaluate()["val_loss"] == pytest.approx(after["val_loss"], rel=1e-6)
    assert trainer.effective_batch_size == 8


def test_the_loss_is_that_of_the_next_token(tmp_path: Path) -> None:
    trainer = make(tmp_path, {"dropout": 0.0, "attention_dropout": 0.0}, max_steps=1)
    reference = small.model(dropout=0.0, attention_dropout=0.0)
    loss = trainer.train()["train_loss"]
    item = small.dataset()[0]["input_ids"]
    logits = reference(item[None]).logits[0]
    shifted = torch.nn.functional.cross_entropy(logits[:-1], item[1:])
    torch.testing.assert_close(reference(item[None], labels=item[None]).loss, shifted)
    assert loss == pytest.approx(math.log(300), rel=0.05)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_stopped_run_goes_on_bit_by_bit(tmp_path: Path, accumulation: int) -> None:
    """Dropout, shuffling, evaluations and checkpoints in between; the second start is a trainer of its own."""
    changes: dict[str, Any] = {"gradient_accumulation_steps": accumulation, "save_steps": 2, "eval_steps": 3}
    whole = make(tmp_path / "whole", **changes)
    whole.train()

    interrupted = make(tmp_path / "parts", **changes)
    interrupted.add_callback(StopAt(7))
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()
    resumed = make(tmp_path / "parts", **changes)
    torch.manual_seed(99)
    resumed.train()
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert torch.equal(weights(resumed), weights(whole))


def test_epochs_one_by_one_are_the_whole_run(tmp_path: Path) -> None:
    whole, parts = make(tmp_path / "whole"), make(tmp_path / "parts")
    whole.train()
    losses = [parts._train_epoch()["train_loss"] for _ in range(2)]
    assert losses[1] < losses[0]
    assert torch.equal(weights(parts), weights(whole))
    trained = [[line for line in lines(tmp_path / name) if line["phase"] == "train"] for name in ("whole", "parts")]
    assert trained[0] == trained[1]


def test_a_complete_run_is_not_trained_again(tmp_path: Path) -> None:
    first = make(tmp_path)
    result = first.train()
    again = make(tmp_path)
    assert again.train() == result
    assert torch.equal(weights(again), weights(first))


def test_another_run_does_not_go_on_from_these_checkpoints(tmp_path: Path) -> None:
    make(tmp_path, max_steps=2).train()
    said = r"is of another run: .*learning_rate: checkpoint 0\.003, now 0\.1.* name what may change in resume_changes"
    with pytest.raises(TrainingError, match=said):
        make(tmp_path, learning_rate=0.1).train()
    with pytest.raises(TrainingError, match=r"is of another run: d_ff: checkpoint .*, now 96"):
        make(tmp_path, {"d_ff": 96}).train()
    taken = make(tmp_path, learning_rate=0.1, max_steps=3, resume_changes=["learning_rate"])
    taken.train()
    assert lines(tmp_path)[-1]["step"] == 3
    with pytest.raises(ModelConfigurationError, match="resume_changes is 'data'; expected a list of names"):
        make(tmp_path, resume_changes="data")


def test_a_checkpoint_of_an_earlier_version_is_compared_by_what_it_kept(tmp_path: Path) -> None:
    make(tmp_path, max_steps=2).train()
    engine = make(tmp_path)._make_engine(1)
    with pytest.MonkeyPatch.context() as patch:
        kept = {"learning_rate": 0.003, "betas": [0.9, 0.999]}
        patch.setattr(GenericTrainer, "stored_identity", lambda self, content: None)
        content = Snapshot({"trainer": {"identity": kept}}, {})
        assert engine.stored_identity(content) == kept


def test_a_run_may_be_made_longer(tmp_path: Path) -> None:
    make(tmp_path, max_steps=4).train()
    trainer = make(tmp_path, max_steps=6)
    trainer.train()
    assert trainer.engine is not None
    assert trainer.engine.state.global_step == 6


def test_a_checkpoint_is_saved_loaded_and_gone_on_from(tmp_path: Path) -> None:
    first = make(tmp_path / "first", max_steps=6, save_steps=3)
    with pytest.raises(TrainingError, match="nothing to resume before train"):
        first._save_checkpoint()
    first.train()
    assert first._save_checkpoint().is_dir()
    (third,) = (tmp_path / "first").glob("step-00000003-*")

    second = make(tmp_path / "second", max_steps=6, save_steps=3)
    assert second._load_checkpoint(third).global_step == 3
    assert not torch.equal(weights(second), weights(first))
    second.train()
    assert torch.equal(weights(second), weights(first))
    assert make(tmp_path / "third")._load_checkpoint(tmp_path / "first").global_step == 6
    with pytest.raises(TrainingError, match="has no checkpoint that can be loaded"):
        make(tmp_path / "empty")._load_checkpoint()


def test_accumulation_gives_the_gradients_of_the_whole_batch(tmp_path: Path) -> None:
    quiet = {"dropout": 0.0, "attention_dropout": 0.0}
    results = []
    for name, batch, accumulation in (("one", 8, 1), ("four", 2, 4)):
        trainer = make(
            tmp_path / name,
            quiet,
            batch_size=batch,
            gradient_accumulation_steps=accumulation,
            optimizer="sgd",
            max_steps=3,
        )
        trainer.train()
        assert trainer.effective_batch_size == 8
        results.append(weights(trainer))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_gradient_checkpointing_changes_no_loss(tmp_path: Path) -> None:
    quiet = {"dropout": 0.0, "attention_dropout": 0.0}
    plain = make(tmp_path / "plain", quiet, max_steps=3).train()
    recomputed = make(tmp_path / "recomputed", quiet | {"gradient_checkpointing": True}, max_steps=3).train()
    assert recomputed == plain


def test_a_compiled_model_learns_alike_and_keeps_the_names_of_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the backend that needs no C++ compiler: what is tested is that the compiled forward pass is the one run."""
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(TransformerLM, "compile", lambda self: torch.nn.Module.compile(self, backend=counter))
    quiet = {"dropout": 0.0, "attention_dropout": 0.0}
    plain = make(tmp_path / "plain", quiet, max_steps=2, eval_strategy="no").train()
    trainer = make(tmp_path / "compiled", quiet, max_steps=2, eval_strategy="no", compile_model=True)
    assert trainer.train()["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-5)
    assert counter.frame_count > 0
    trainer.save_model(tmp_path / "model")
    assert torch.equal(weights(Trainer.from_pretrained(tmp_path / "model")), weights(trainer))


def test_strategies_of_evaluation(tmp_path: Path) -> None:
    for strategy, steps in (("no", []), ("epoch", [14, 28]), ("steps", [5, 10, 15, 20, 25, 28])):
        make(tmp_path / strategy, eval_strategy=strategy).train()
        assert [line["step"] for line in lines(tmp_path / strategy) if line["phase"] == "validation"] == steps


def test_padded_samples_weigh_by_their_tokens(tmp_path: Path) -> None:
    tokenizer = small.tokenizer()
    from llm_trainer.data import LanguageModelingDataset

    texts = ["12 squared", small.TEXT[:60], "7"]
    samples = LanguageModelingDataset(texts, tokenizer, small.SEQUENCE, pack_sequences=False)
    trainer = Trainer(small.model(), tokenizer, small.training_config(tmp_path, batch_size=1), samples, samples)
    loss = tokens = 0.0
    for text in texts:
        ids = torch.tensor(tokenizer.encode(text))[None]
        loss += trainer.model.eval()(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    assert trainer.evaluate()["val_loss"] == pytest.approx(loss / tokens, rel=1e-5)


def test_float16_on_a_cpu_trains_in_float32_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, which has float16")
    with caplog.at_level(logging.WARNING):
        loss = make(tmp_path / "amp", use_amp=True, max_steps=3).train()["train_loss"]
    assert "amp_dtype is float16, which training on a CPU cannot use: training in float32" in caplog.text
    assert loss == make(tmp_path / "plain", max_steps=3).train()["train_loss"]


def test_bfloat16_trains_in_mixed_precision(tmp_path: Path) -> None:
    trainer = make(tmp_path / "amp", use_amp=True, amp_dtype="bfloat16", max_steps=3)
    loss = trainer.train()["train_loss"]
    plain = make(tmp_path / "plain", max_steps=3).train()["train_loss"]
    assert loss != plain
    assert loss == pytest.approx(plain, rel=0.02)
    assert next(trainer.model.parameters()).dtype is torch.float32, "the weights stay whole"
    assert trainer.engine is not None
    output = trainer.engine.model(**trainer.engine.inputs({"input_ids": torch.arange(9)[None]}))
    assert (output.loss.dtype, output.logits.dtype) == (torch.float32, torch.bfloat16), "no logit is copied"


@pytest.mark.parametrize(
    ("use_amp", "amp_dtype", "device", "precision"),
    [
        (True, "float16", "cuda", "16-mixed"),
        (True, "bfloat16", "cuda", "bf16-mixed"),
        (True, "float16", "cpu", "32-true"),
        (True, "bfloat16", "cpu", "bf16-mixed"),
        (False, "float16", "cuda", "32-true"),
    ],
)
def test_precision(use_amp: bool, amp_dtype: str, device: str, precision: str) -> None:
    assert precision_of(TrainingConfig(use_amp=use_amp, amp_dtype=amp_dtype), device) == precision


def test_a_scaled_loss_that_is_clipped_has_no_fused_optimizer(tmp_path: Path) -> None:
    """Fabric refuses to clip the gradients of an optimizer that unscales them itself."""
    engine = Engine(small.training_config(tmp_path))
    fused = {}
    for precision, max_grad_norm in (("32-true", 1.0), ("16-mixed", 1.0), ("16-mixed", None)):
        engine.config = replace(engine.config, precision=precision, max_grad_norm=max_grad_norm)
        optimizer = engine.make_optimizer(small.model())
        fused[precision, max_grad_norm] = bool(optimizer.defaults["fused"])
        unscales = getattr(optimizer, "_step_supports_amp_scaling", False)
        assert unscales is fused[precision, max_grad_norm]
    assert fused == {("32-true", 1.0): True, ("16-mixed", 1.0): False, ("16-mixed", None): True}


def test_save_model_and_from_pretrained(tmp_path: Path) -> None:
    trainer = make(tmp_path / "run", max_steps=2)
    trainer.train()
    trainer.save_model(tmp_path / "model")
    loaded = Trainer.from_pretrained(tmp_path / "model")
    assert torch.equal(weights(loaded), weights(trainer))
    assert loaded.config == trainer.config
    assert loaded.tokenizer.encode("3 squared") == trainer.tokenizer.encode("3 squared")
    other = TrainingConfig(batch_size=3)
    assert Trainer.from_pretrained(tmp_path / "model", tmp_path / "model", other).config is other


def test_train_from_config_reads_texts_and_keeps_their_tokens(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text(small.TEXT)
    data = DataConfig(
        train_file=str(tmp_path / "texts.txt"), validation_file=str(tmp_path / "texts.txt"), max_length=small.SEQUENCE,
        preprocessing_num_workers=0, dataloader_num_workers=0,
    )  # fmt: skip
    config = small.training_config(tmp_path / "run", max_steps=3)
    trainer = Trainer(small.model(), small.tokenizer(), config)
    assert trainer.train_from_config(trainer.model.config, data)["val_loss"] > 0
    assert (tmp_path / "run" / "data" / "train.json").is_file()
    with pytest.raises(TrainingError, match=r"model_config.d_ff is 96; the model's is 64"):
        trainer.train_from_config(small.model(d_ff=96).config, data)


def test_tensorboard_files_are_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    make(tmp_path, report_to=["tensorboard"], max_steps=2).train()
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_a_csv_file_has_every_number_once(tmp_path: Path) -> None:
    for steps in (4, 6):
        make(tmp_path, report_to=["csv"], max_steps=steps, eval_steps=2).train()
    rows = [line.split(",") for line in (tmp_path / "steps.csv").read_text().splitlines()]
    assert rows[0] == ["step", "name", "value"]
    losses = [(int(step), float(value)) for step, name, value in rows[1:] if name == "train/loss"]
    assert losses == [(line["step"], line["loss"]) for line in lines(tmp_path) if line["phase"] == "train"]
    assert [int(step) for step, name, _ in rows[1:] if name == "val_loss"] == [2, 4, 6]


def test_without_data_there_is_one_line(tmp_path: Path) -> None:
    trainer = Trainer(small.model(), small.tokenizer(), small.training_config(tmp_path))
    with pytest.raises(TrainingError, match="train_dataset is None; give Trainer one"):
        trainer.train()
    with pytest.raises(TrainingError, match="eval_dataset is None"):
        trainer.evaluate()


def test_other_processes_than_configured_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"world_size is 4; 1 processes were started\. Start it with torchrun"):
        make(tmp_path, world_size=4).train()
    with pytest.raises(TrainingError, match="must divide the number of processes, 1"):
        make(tmp_path, tensor_parallel_size=2).train()


def test_an_error_of_the_framework_is_a_training_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="cannot be made") as caught:
        make(tmp_path / "file" / "checkpoints").train()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("samples", "batch", "accumulation", "ranks", "steps"),
    [(112, 8, 1, 1, 14), (112, 8, 4, 1, 4), (112, 8, 1, 2, 7), (113, 8, 1, 2, 7), (5, 8, 1, 1, 1), (9, 8, 1, 1, 1)],
)
def test_length_of_an_epoch(samples: int, batch: int, accumulation: int, ranks: int, steps: int) -> None:
    config = TrainingConfig(batch_size=batch, gradient_accumulation_steps=accumulation, num_epochs=3)
    length = run_length(config, samples, ranks)
    assert (length.steps_per_epoch, length.num_steps) == (steps, 3 * steps)


def test_a_warm_up_longer_than_the_run_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        make(tmp_path, warmup_steps=1000, max_steps=2).train()
    assert "warmup_steps is 1000; the run has 2 steps, so learning_rate rises to" in caplog.text


@pytest.mark.parametrize(("most", "steps"), [(0, [2, 4, 6, 8]), (3, [4, 6, 8]), (1, [6, 8])])
def test_the_newest_checkpoints_are_kept(tmp_path: Path, most: int, steps: list[int]) -> None:
    """Two at least, as the last one may be damaged."""
    make(tmp_path, max_checkpoints=most, save_steps=2, max_steps=8, eval_strategy="no").train()
    assert sorted({int(path.name[5:13]) for path in tmp_path.glob("step-*")}) == steps
