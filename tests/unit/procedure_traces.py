"""Write traces as PyTorch's profiler writes them on a CPU: a small perceptron, trained for some steps on some ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOKENS, HIDDEN = 8, 64
MAIN_THREAD, BACKWARD_THREAD, TRAFFIC_THREAD = 100, 101, 102
DTYPES = {"fp32": "float", "bf16": "c10::BFloat16", "fp16": "c10::Half"}
STEP_GAP_US = 5.0


@dataclass
class Perceptron:
    """What was trained, and how long its operators take in µs."""

    layers: int = 3
    dtype: str = "fp32"
    linear_us: float = 100.0
    other_us: float = 10.0
    steps: int = 2
    rank: int = 0
    world_size: int = 1
    annotation: str | None = None
    backward: str = "AddmmBackward0"
    events: list[dict[str, Any]] = field(default_factory=list)
    now: float = 1000.0
    sequence: int = 0

    def write(self, path: Path) -> None:
        """Write the trace."""
        for number in range(self.steps):
            self._step(number)
        facts: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
        if self.world_size > 1:
            facts["distributedInfo"] = {"backend": "gloo", "rank": self.rank, "world_size": self.world_size}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**facts, "traceEvents": self.events}))

    def _event(self, name: str, category: str, start: float, dur: float, thread: int, **args: Any) -> None:
        entry = {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": thread, "ts": start, "dur": dur}
        self.events.append({**entry, "args": {"External id": len(self.events) + 1, **args}})

    def _step(self, number: int) -> None:
        begin = self.now
        self.now += STEP_GAP_US
        shapes = [[TOKENS, HIDDEN], [HIDDEN, HIDDEN], [HIDDEN]]
        backward: list[tuple[str, int, float, list[Any]]] = []
        for _ in range(self.layers):
            backward.append((self.backward, self._linear(shapes), 2 * self.linear_us, shapes))
            gelu = self._simple("aten::gelu", [[TOKENS, HIDDEN]])
            backward.append(("GeluBackward0", gelu, self.other_us, [[TOKENS, HIDDEN]]))
        loss = self._simple("aten::mse_loss", [[TOKENS, HIDDEN], [TOKENS, HIDDEN]])
        backward.append(("MseLossBackward0", loss, self.other_us, [[]]))
        self._backward(backward[::-1])
        self._optimizer()
        self._event(f"ProfilerStep#{number + 3}", "user_annotation", begin, self.now - begin, MAIN_THREAD)
        self.now += STEP_GAP_US

    def _linear(self, shapes: list[Any]) -> int:
        self.sequence += 1
        start, us = self.now, self.linear_us
        given = [DTYPES[self.dtype]] * len(shapes)
        if self.annotation is not None:
            self._event(self.annotation, "user_annotation", start, us + 4, MAIN_THREAD)
            start += 1
        tensors = {"Input Dims": shapes, "Input type": given, "Sequence number": self.sequence, "Fwd thread id": 0}
        self._event("aten::linear", "cpu_op", start, us + 2, MAIN_THREAD, **tensors)
        inner = {**tensors, "Input Dims": [shapes[2], shapes[0], [HIDDEN, HIDDEN]]}
        self._event("aten::addmm", "cpu_op", start + 1, us, MAIN_THREAD, **inner)
        self.now += us + STEP_GAP_US
        return self.sequence

    def _simple(self, name: str, shapes: list[Any]) -> int:
        self.sequence += 1
        given = [DTYPES[self.dtype]] * len(shapes)
        self._event(
            name, "cpu_op", self.now, self.other_us, MAIN_THREAD,
            **{"Input Dims": shapes, "Input type": given, "Sequence number": self.sequence, "Fwd thread id": 0},
        )  # fmt: skip
        self.now += self.other_us + 1
        return self.sequence

    def _backward(self, nodes: list[tuple[str, int, float, list[Any]]]) -> None:
        self.now += 20
        for name, sequence, us, shapes in nodes:
            tied = {"Sequence number": sequence, "Fwd thread id": 1, "Input Dims": [shapes[0]], "Input type": ["float"]}
            engine = f"autograd::engine::evaluate_function: {name}"
            self._event(engine, "cpu_op", self.now, us + 4, BACKWARD_THREAD, **tied)
            self._event(name, "cpu_op", self.now + 1, us + 2, BACKWARD_THREAD, **tied)
            if "inear" in name or "Addmm" in name:
                for half, start in enumerate((self.now + 2, self.now + 2 + us / 2)):
                    first = [TOKENS, HIDDEN] if half == 0 else [HIDDEN, TOKENS]
                    self._event(
                        "aten::mm", "cpu_op", start, us / 2, BACKWARD_THREAD,
                        **{"Input Dims": [first, shapes[1]], "Input type": [DTYPES[self.dtype]] * 2},
                    )  # fmt: skip
            self.now += us + 6
        if self.world_size > 1:
            size = {"Input Dims": [[self.layers * HIDDEN * HIDDEN]], "Input type": ["float"]}
            self._event("gloo:all_reduce", "cpu_op", self.now, 50.0, TRAFFIC_THREAD, **size)
            self.now += 52

    def _optimizer(self) -> None:
        self.now += 10
        self._event("Optimizer.step#SGD.step", "user_annotation", self.now, 40.0, MAIN_THREAD)
        self._event(
            "aten::_foreach_add_", "cpu_op", self.now + 2, 36.0, MAIN_THREAD,
            **{"Input Dims": [], "Input type": []},
        )  # fmt: skip
        self.now += 45
