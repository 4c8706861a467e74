"""Measure how fast experiments are made and predicted: ``python -m tests.launch.bench_grids``. Decides no test."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import yaml

from model_training_framework.config import NamingStrategy, ParameterGridSearch
from model_training_framework.prediction import try_predict
from model_training_framework.prediction.question import answer
from tests.launch.examples import COMPLETE, transformer

RUNS = 5
TEN = list(range(1, 11))
GRIDS: dict[str, dict[str, list[Any]]] = {
    "four sections": {
        "model.hidden_size": [8 * n for n in TEN],
        "training.learning_rate": [n * 1e-4 for n in TEN],
        "slurm.nodes": TEN,
        "custom_params.alpha": TEN,
    },
    "10,000 rates": {"training.learning_rate": [n * 1e-7 for n in range(1, 10_001)]},
    "one section": {
        "training.learning_rate": [n * 1e-4 for n in TEN],
        "training.batch_size": TEN,
        "training.max_steps": TEN,
        "training.gradient_accumulation_steps": TEN,
    },
}


def search_of(base: dict[str, Any], parameters: dict[str, list[Any]]) -> ParameterGridSearch:
    search = ParameterGridSearch(base)
    grid = search.create_grid("bench")
    for key, values in parameters.items():
        grid.add_parameter(key, values)
    return search


def median_s(task: Callable[[], object]) -> str:
    """Time a task on this process's CPU clock, which other processes do not move."""
    times = []
    for _ in range(RUNS):
        begin = time.process_time()
        task()
        times.append(time.process_time() - begin)
    return f"{statistics.median(times):.3f} s, {min(times):.3f} to {max(times):.3f}"


def main() -> None:
    for name, parameters in GRIDS.items():
        for strategy in NamingStrategy:
            search = search_of(yaml.safe_load(COMPLETE), parameters)
            search.set_naming_strategy(strategy)
            print(f"{search.get_parameter_count():,} experiments, {name}, {strategy}: {median_s(search.experiments)}")
    search = search_of(transformer(), {"model.num_layers": TEN, "training.learning_rate": TEN, "seed": TEN})
    configs = list(search.generate_experiments())

    def predict_all() -> None:
        answer.cache_clear()
        for config in configs:
            try_predict(config)

    print(f"{len(configs):,} predictions, 10 different questions: {median_s(predict_all)}")


if __name__ == "__main__":
    main()
