"""The health of a run as Prometheus metrics, served to this machine alone.

Text exposition format 0.0.4; names after prometheus.io/docs/practices/naming: one prefix, base units, ratios of 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import isfinite
from threading import BoundedSemaphore, Thread
from typing import Any, NamedTuple

from predictor import __version__
from predictor.watch.health import Health, State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = "127.0.0.1"
PREFIX = "training_run_"
MOST_CONNECTIONS = 16  # open ones; further clients wait
TIMEOUT_S = 10.0  # within which a client asks and takes its answer
GAUGE, COUNTER = "gauge", "counter"
# By metric: field of ``Health``, then of ``Expected``, and what it is.
OF_THE_RUN = {
    "steps_total": ("steps", "Optimizer steps seen."),
    "restarts_total": ("restarts", "Restarts of the process."),
    "last_step": ("last_step", "Number of the last step."),
    "last_event_timestamp_seconds": ("last_at", "Time of the last event in the log."),
    "step_seconds": ("median_s", "Usual step: the recent median."),
    "step_low_seconds": ("low_s", "Low end of the central 90 % of recent steps."),
    "step_high_seconds": ("high_s", "High end of the central 90 % of recent steps."),
    "step_spread_ratio": ("spread", "Robust relative standard deviation of steps."),
    "tokens_per_second": ("tokens_per_second", "Tokens per second of the whole run."),
    "model_flops_utilization_ratio": ("mfu", "Model FLOP/s over the GPUs' peak."),
    "lost_seconds": ("lost_s", "Time above the expected step so far."),
    "lost_to_come_seconds": ("lost_to_come_s", "Time above it to the end."),
    "end_timestamp_seconds": ("end_at", "When the run is to end, or ended."),
}
EXPECTED = {
    "expected_step_seconds": ("seconds", "Predicted step."),
    "expected_step_low_seconds": ("low_s", "Low end of its 90 % interval."),
    "expected_step_high_seconds": ("high_s", "High end of its 90 % interval."),
    "calibrated_step_seconds": ("calibrated_s", "Predicted step, calibrated on the run's first healthy ones."),
}


class Metric(NamedTuple):
    """A metric family: its name without the prefix, and a sample for each set of labels."""

    name: str
    kind: str
    text: str
    samples: Iterable[tuple[Mapping[str, str], float | None]]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _metrics(health: Health) -> Iterator[Metric]:
    """Return what is known of a run."""
    states = [({"state": state.name.lower()}, float(state is health.state)) for state in State]
    yield Metric("state", GAUGE, "1 for the state that the run is in.", states)
    for name, (field, text) in OF_THE_RUN.items():
        kind = COUNTER if name.endswith("_total") else GAUGE
        yield Metric(name, kind, text, [({}, getattr(health, field))])
    yield _parts("part_seconds", "Measured part of a step.", health.parts)
    if health.expected is not None:
        for name, (field, text) in EXPECTED.items():
            yield Metric(name, GAUGE, text, [({}, getattr(health.expected, field))])
        yield _parts("expected_part_seconds", "Predicted part of a step.", health.expected.parts)
    losses: dict[tuple[str, str, str], float] = {}
    for finding in health.findings:
        cause = finding.explanations[0].cause
        key = (cause, finding.change.kind.name.lower(), str(finding.is_expected).lower())
        losses[key] = losses.get(key, 0.0) + finding.change.lost_s
    lost = [({"cause": cause, "kind": kind, "expected": usual}, size) for (cause, kind, usual), size in losses.items()]
    yield Metric("finding_lost_seconds", GAUGE, "Time lost to deviations, by their most probable cause.", lost)


def _parts(name: str, text: str, parts: Mapping[str, float]) -> Metric:
    return Metric(name, GAUGE, text, [({"part": part}, value) for part, value in parts.items()])


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
    server_version, sys_version = f"estimate-train-time/{__version__}", ""
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
