"""Train a language model as a configuration file says.

    python scripts/train.py --config configs/stdlib_small.yaml --output_dir output

Killed, preempted or out of time, the same command goes on where it stopped. On several devices, start it with torchrun.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from checkout import run, say


def parser() -> argparse.ArgumentParser:
    """Return the script's arguments."""
    parser = argparse.ArgumentParser(description="Train a language model.")
    parser.add_argument("--config", required=True, help="YAML or JSON file with sections model, training and data")
    parser.add_argument(
        "--output_dir", default="./output", help="folder of the model; a relative checkpoint_dir is in it"
    )
    parser.add_argument("--resume_from_checkpoint", help="checkpoint, or folder of them, to go on from")
    parser.add_argument(
        "--force_retrain_tokenizer", action="store_true", help="train the tokenizer of output_dir again"
    )
    parser.add_argument("--log_level", default="info", help="debug, info, warning, error or critical")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Train, and write the model to the output folder."""
    arguments = parser().parse_args(argv)
    from llm_trainer.config import read_config
    from llm_trainer.models import TransformerLM
    from llm_trainer.training import Trainer
    from llm_trainer.training.datasets import prepare_tokenizer
    from llm_trainer.training.utils import set_seed, setup_logging

    setup_logging(arguments.log_level)
    configs = read_config(arguments.config)
    output = Path(arguments.output_dir)
    tokenizer = prepare_tokenizer(configs.data, output, is_forced=arguments.force_retrain_tokenizer)
    model_config = replace(configs.model, vocab_size=tokenizer.vocab_size)
    training_config = replace(configs.training, checkpoint_dir=str(output / configs.training.checkpoint_dir))
    set_seed(training_config.seed)
    trainer = Trainer(TransformerLM(model_config), tokenizer, training_config)
    if arguments.resume_from_checkpoint is not None:
        trainer._load_checkpoint(arguments.resume_from_checkpoint)
    metrics = trainer.train_from_config(model_config, configs.data)
    trainer.save_model(output)
    if trainer.is_first_rank:
        say("  ".join([*(f"{name} {value:.4f}" for name, value in metrics.items()), f"model {output}"]))


if __name__ == "__main__":
    sys.exit(run(main))
