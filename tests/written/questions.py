"""Sixty questions to a search, and layouts that answer them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

from predictor.layout_search.answer import configuration_of
from predictor.layout_search.lines import plans
from predictor.layout_search.question import SearchQuestion, search_problem

MODELS = (
    *("llama3-8b", "llama3.1-405b", "gpt3-175b", "mistral-7b", "nemotron-4-15b", "nemotron-h-8b"),
    *("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3", "kimi-k2", "gpt-oss-20b"),
)
# GPUs, samples of a step, precision.
RUNS = ((8, 32, "bf16"), (16, 128, "bf16"), (64, 256, "bf16"), (96, 384, "bf16"), (256, 1024, "bf16"))
COUNT = len(MODELS) * len(RUNS)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and a layout that a search may return.

    Attributes:
        name: model and GPUs.
        configuration: complete, for ``predict``.
        num_gpus: of the run.
    """

    name: str
    configuration: dict[str, Any]
    num_gpus: int


@cache
def layouts(framework: str, models: tuple[str, ...] = MODELS, each: int = 1) -> tuple[Asked, ...]:
    """Return layouts drawn at random, so many for each question; the same ones every time."""
    found = []
    for model in models:
        for gpus, samples, precision in RUNS:
            question = SearchQuestion(
                model, gpus, system="H100", global_batch_size=samples, framework=framework, precision=precision
            )
            problem = search_problem(question)
            space = replace(problem.space, offloads=True)
            every, random = list(plans(space)), Random(f"{model} {gpus}")
            for number in range(each):
                content = configuration_of(space, random.choice(every), problem.content)
                found.append(Asked(f"{model} on {gpus}, {number}", content, gpus))
    return tuple(found)
