"""Prometheus metrics: the text format, and a server that is this machine's alone and ends with the command."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from http.client import HTTPConnection

import pytest

from predictor.watch.health import Health
from predictor.watch.prometheus import CONTENT_TYPE, exposition, served
from tests.unit.watched_examples import HEALTHY, SLOW_RANK, SLOWER, WAITING

SAMPLE = re.compile(r'([a-z_]+)(\{[a-z_]+="(?:[^"\\\n]|\\.)*"(?:,[a-z_]+="(?:[^"\\\n]|\\.)*")*\})? (\S+)')
UNITS = ("_seconds", "_ratio", "_total", "_per_second", "_state", "_last_step")


@pytest.mark.parametrize("health", [SLOWER, HEALTHY, WAITING])
def test_every_line_is_of_the_text_format(health: Health) -> None:
    text = exposition(health)
    assert text.endswith("\n")
    typed: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split()
            assert name not in typed
            typed[name] = kind
        elif not line.startswith("# HELP "):
            found = SAMPLE.fullmatch(line)
            assert found, line
            assert found[1] in typed
            float(found[3])
    assert all(name.startswith("training_run_") and name.endswith(UNITS) for name in typed)
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in typed.items())


def test_what_is_not_known_has_no_sample() -> None:
    text = exposition(WAITING)
    assert "step_seconds" not in text
    assert 'training_run_state{state="waiting"} 1.0' in text
    assert "tokens_per_second" not in exposition(replace(SLOWER, tokens_per_second=float("nan")))


def test_labels_are_escaped() -> None:
    cause = replace(SLOW_RANK.explanations[0], cause='a"b\\c\nd')
    text = exposition(replace(SLOWER, findings=(replace(SLOW_RANK, explanations=(cause,)),)))
    assert r'cause="a\"b\\c\nd"' in text


def test_the_server_answers_this_machine_and_ends() -> None:
    with served(0, lambda: exposition(SLOWER)) as port:
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Content-Type")) == (200, CONTENT_TYPE)
        assert b"training_run_step_seconds 2.0" in answer.read()
        connection.request("GET", "/etc/passwd")
        assert connection.getresponse().status == 404
        connection.close()
        with pytest.raises(OSError, match="in use"), served(port, str):
            pass
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=1):
        pass
