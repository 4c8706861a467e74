"""Train a small model with another framework's Trainer and its HealthCallback: FRAMEWORK FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

SAMPLES, LENGTH, STEPS = 24, 16, 12


def hugging_face(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from model_training_framework.health.hugging_face import HealthCallback

    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2))
    tokens = torch.randint(64, (SAMPLES * 2, LENGTH))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        use_cpu=True, eval_strategy="steps", eval_steps=6, save_steps=6, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=data, eval_dataset=data[:4], callbacks=[HealthCallback()]).train()


def lightning(folder: Path) -> None:
    from pytorch_lightning import LightningModule, Trainer
    from pytorch_lightning.callbacks import ModelCheckpoint

    from model_training_framework.health.lightning import HealthCallback

    class Model(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Embedding(64, 64)

        def training_step(self, batch: Any, _: int) -> Any:
            scores = self.layer(batch["input_ids"])
            return nn.functional.cross_entropy(scores.flatten(0, 1), batch["input_ids"].flatten())

        def validation_step(self, batch: Any, number: int) -> Any:
            return self.training_step(batch, number)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    rows = [{"input_ids": row} for row in torch.randint(64, (SAMPLES * 2, LENGTH))]
    data = torch.utils.data.DataLoader(rows, 2)
    trainer = Trainer(
        max_steps=STEPS, accumulate_grad_batches=2, accelerator="cpu", logger=False, default_root_dir=folder,
        callbacks=[HealthCallback(), ModelCheckpoint(folder, every_n_train_steps=6)], val_check_interval=12,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), data, data)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"hugging_face": hugging_face, "lightning": lightning}[sys.argv[1]](Path(sys.argv[2]))
