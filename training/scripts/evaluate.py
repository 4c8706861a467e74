"""Evaluate a trained model on the texts that a configuration file names.

python scripts/evaluate.py --model_path output --dataset_config configs/eval_config.json --output_path results.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from checkout import run, say


def parser() -> argparse.ArgumentParser:
    """Return the script's arguments."""
    parser = argparse.ArgumentParser(description="Evaluate a trained model.")
    parser.add_argument("--model_path", required=True, help="folder that training wrote")
    parser.add_argument("--dataset_config", required=True, help="YAML or JSON file with the fields of DataConfig")
    parser.add_argument("--output_path", help="JSON file of the results; default: they are printed alone")
    parser.add_argument("--max_batches", type=int, help="batches at most; default: all")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Print the metrics as JSON, and write them to a file."""
    arguments = parser().parse_args(argv)
    from llm_trainer.exceptions import DataError, ModelConfigurationError
    from llm_trainer.training import Trainer
    from llm_trainer.training.datasets import evaluation_samples, read_data_config

    if arguments.max_batches is not None and arguments.max_batches < 1:
        raise ModelConfigurationError(f"--max_batches is {arguments.max_batches}; it must be at least 1")
    data_config = read_data_config(Path(arguments.dataset_config))
    trainer = Trainer.from_pretrained(arguments.model_path)
    trainer.eval_dataset = evaluation_samples(data_config, trainer.tokenizer, trainer.model.config.max_seq_len)
    results = trainer.evaluate(max_batches=arguments.max_batches)
    text = json.dumps({"model_path": arguments.model_path, **results}, indent=2)
    if arguments.output_path is not None:
        path = Path(arguments.output_path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise DataError(f"--output_path {path} cannot be written: {error.strerror}") from error
    say(text)


if __name__ == "__main__":
    sys.exit(run(main))
