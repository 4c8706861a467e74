"""The health of a run as Prometheus metrics, served to this machine alone.

Text exposition format 0.0.4; names after prometheus.io/docs/practices/naming: one prefix, base units, ratios of 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import isfinite
from threading import BoundedSemaphore, Thread
from typing import Any, NamedTuple

from predictor.watch.health import Health, State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = "127.0.0.1"
PREFIX = "training_run_"
MOST_CONNECTIONS = 16  # open ones; further clients wait
TIMEOUT_S = 10.0  # within which a client asks and takes its answer
GAUGE, COUNTER = "gauge", "counter"


class Metric(NamedTuple):
    """A metric family: its name without the prefix, and a sample for each set of labels."""

    name: str
    kind: str
    text: str
    samples: Iterable[tuple[dict[str, str], float | None]]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _metrics(health: Health) -> Iterator[Metric]:
    """Return what is known of a run."""

    def one(value: float | None) -> list[tuple[dict[str, str], float | None]]:
        return [({}, value)]

    expected = health.expected
    yield Metric("state", GAUGE, "1 for the state that the run is in.", [
        ({"state": state.name.lower()}, float(state is health.state)) for state in State
    ])  # fmt: skip
    yield Metric("steps_total", COUNTER, "Optimizer steps seen.", one(health.steps))
    yield Metric("restarts_total", COUNTER, "Restarts of the process.", one(health.restarts))
    yield Metric("last_step", GAUGE, "Number of the last step.", one(health.last_step))
    yield Metric("last_event_timestamp_seconds", GAUGE, "Time of the last event in the log.", one(health.last_at))
    yield Metric("step_seconds", GAUGE, "Usual step: the recent median.", one(health.median_s))
    yield Metric("step_low_seconds", GAUGE, "Low end of the central 90 % of recent steps.", one(health.low_s))
    yield Metric("step_high_seconds", GAUGE, "High end of the central 90 % of recent steps.", one(health.high_s))
    yield Metric("step_spread_ratio", GAUGE, "Robust relative standard deviation of steps.", one(health.spread))
    yield Metric("tokens_per_second", GAUGE, "Tokens per second of the whole run.", one(health.tokens_per_second))
    yield Metric("model_flops_utilization_ratio", GAUGE, "Model FLOP/s over the GPUs' peak.", one(health.mfu))
    yield Metric("lost_seconds", GAUGE, "Time above the expected step so far.", one(health.lost_s))
    yield Metric("lost_to_come_seconds", GAUGE, "Time above it to the end.", one(health.lost_to_come_s))
    yield Metric("end_timestamp_seconds", GAUGE, "When the run is to end, or ended.", one(health.end_at))
    yield Metric("part_seconds", GAUGE, "Measured part of a step.", [
        ({"part": part}, value) for part, value in health.parts.items()
    ])  # fmt: skip
    if expected is not None:
        yield Metric("expected_step_seconds", GAUGE, "Predicted step.", one(expected.seconds))
        yield Metric("expected_step_low_seconds", GAUGE, "Low end of its 90 % interval.", one(expected.low_s))
        yield Metric("expected_step_high_seconds", GAUGE, "High end of its 90 % interval.", one(expected.high_s))
        calibrated = expected.calibrated_s
        yield Metric("calibrated_step_seconds", GAUGE, "Predicted step, calibrated on healthy ones.", one(calibrated))
        yield Metric("expected_part_seconds", GAUGE, "Predicted part of a step.", [
            ({"part": part}, value) for part, value in expected.parts.items()
        ])  # fmt: skip
    losses: dict[tuple[str, str, str], float] = {}
    for finding in health.findings:
        cause = finding.explanations[0].cause
        key = (cause, finding.change.kind.name.lower(), str(finding.is_expected).lower())
        losses[key] = losses.get(key, 0.0) + finding.change.lost_s
    yield Metric("finding_lost_seconds", GAUGE, "Time lost to deviations, by their most probable cause.", [
        ({"cause": cause, "kind": kind, "expected": usual}, lost) for (cause, kind, usual), lost in losses.items()
    ])  # fmt: skip


def exposition(health: Health) -> str:
    """Return the metrics in Prometheus' text format; what is not known has no sample."""
    lines: list[str] = []
    for metric in _metrics(health):
        name = PREFIX + metric.name
        samples = [(labels, value) for labels, value in metric.samples if value is not None and isfinite(value)]
        if samples:
            lines += [f"# HELP {name} {metric.text}", f"# TYPE {name} {metric.kind}"]
        for labels, value in samples:
            listed = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"{name}{f'{{{listed}}}' if listed else ''} {float(value)!r}")
    return "\n".join([*lines, ""])


class _Server(ThreadingHTTPServer):
    """A server whose handlers ask for the metrics; a client beyond the limit waits."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int, metrics: Callable[[], str]) -> None:
        self.metrics = metrics
        self._free = BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((LOOPBACK, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, once one is free."""
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and free the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that left."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Server
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        """Answer with the metrics, at /metrics or /."""
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(HTTPStatus.NOT_FOUND, "the metrics are at /metrics")
            return
        body = self.server.metrics().encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, message: str, *args: object) -> None:
        """Say nothing: the terminal is for the run."""


@contextmanager
def served(port: int, metrics: Callable[[], str]) -> Iterator[int]:
    """Serve metrics to this machine; yield the port, a free one for 0, and stop at the end.

    Raises:
        OSError: the port is taken, or not ours to take.
    """
    with _Server(port, metrics) as server:
        thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
