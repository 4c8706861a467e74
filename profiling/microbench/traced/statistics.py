"""Norms and largest magnitudes of operators' inputs and their gradients, over a few training steps.

An operator is labelled as in the graph of a traced step: its name and how many of that name ran before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from microbench.traced.settings import TraceSettings
from microbench.traced.training import Training
from predictor.replay.precision.indicator import OperatorStatistics, Statistics, TensorStatistics

# Functions of torch that are one operator of the same name, and whose precision can be chosen.
OPERATORS = frozenset({"linear", "conv1d", "conv2d", "matmul", "bmm", "mm", "baddbmm", "scaled_dot_product_attention"})
WITH_WEIGHT = frozenset({"linear", "conv1d", "conv2d"})
OTHER_NAMES = {"__matmul__": "matmul"}
INPUT, WEIGHT, WEIGHT_GRADIENT, OUTPUT_GRADIENT = "input", "weight", "weight_gradient", "output_gradient"
Numbers = tuple[int, float, float]  # elements, norm, largest magnitude


def numbers_of(tensor: Tensor) -> Numbers:
    """Return the elements of a tensor, its Frobenius norm and its largest magnitude."""
    wide = tensor.detach().float()
    return wide.numel(), float(torch.linalg.vector_norm(wide)), float(wide.abs().max())


class Watch(TorchFunctionMode):  # type: ignore[misc]
    """Keeps numbers of every operator that runs under it, and of its output's gradient."""

    def __init__(self) -> None:
        """Begin with no step seen."""
        super().__init__()
        self.numbers: defaultdict[str, dict[str, list[Numbers]]] = defaultdict(lambda: defaultdict(list))
        self.weights: dict[str, Tensor] = {}
        self._counts: defaultdict[str, int] = defaultdict(int)

    def begin_step(self) -> None:
        """Count the operators from zero again."""
        self._counts.clear()

    def end_step(self) -> None:
        """Take the gradients of the weights."""
        for label, weight in self.weights.items():
            if weight.grad is not None:
                self.numbers[label][WEIGHT_GRADIENT].append(numbers_of(weight.grad))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function of torch and keep the numbers of its tensors."""
        output = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        name = OTHER_NAMES.get(name, name)
        if name in OPERATORS and isinstance(output, Tensor):
            label = f"aten::{name}.{self._counts[name]}"
            self._counts[name] += 1
            self.numbers[label][INPUT].append(numbers_of(args[0]))
            if name in WITH_WEIGHT:
                self.numbers[label][WEIGHT].append(numbers_of(args[1]))
                self.weights[label] = args[1]
            if output.requires_grad:
                output.register_hook(self._keeper(label))
        return output

    def _keeper(self, label: str) -> Callable[[Tensor], None]:
        def keep(gradient: Tensor) -> None:
            self.numbers[label][OUTPUT_GRADIENT].append(numbers_of(gradient))

        return keep


def _mean(samples: list[Numbers]) -> TensorStatistics | None:
    """Return the means over the steps; None where there are none."""
    if not samples:
        return None
    elements, norms, largest = zip(*samples, strict=True)
    return TensorStatistics(numel=elements[0], norm=sum(norms) / len(norms), largest=sum(largest) / len(largest))


def gather(settings: TraceSettings) -> Statistics:
    """Train some steps in fp32 and return the statistics of every operator whose precision can be chosen."""
    training = Training(settings, 0)
    watch = Watch()
    for _ in range(settings.steps):
        watch.begin_step()
        with watch:
            training.step()
        watch.end_step()
    modules = {id(weight): name.removesuffix(".weight") for name, weight in training.model.named_parameters()}
    operators = []
    for label, numbers in watch.numbers.items():
        read = _mean(numbers[INPUT])
        assert read is not None
        weight = watch.weights.get(label)
        operators.append(
            OperatorStatistics(
                label=label,
                module=modules.get(id(weight), "") if weight is not None else "",
                input=read,
                weight=_mean(numbers[WEIGHT]),
                weight_gradient=_mean(numbers[WEIGHT_GRADIENT]),
                output_gradient=_mean(numbers[OUTPUT_GRADIENT]),
            )
        )
    return Statistics(model=settings.model, steps=settings.steps, operators=tuple(operators))
