"""``serve``: the JSON of the commands over HTTP, and what a request may not do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from predictor import compare, predict, search
from predictor.serving.server import LARGEST_BODY, Server
from tests.unit.examples import full_form, short_form


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server on a free port of this machine's loopback."""
    with Server("127.0.0.1", 0, most_at_once=2) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(timeout=10)


def sent(
    server: Server, method: str, path: str, body: object = None, kind: str = "application/json"
) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    try:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": kind} if data is not None else {})
        response = connection.getresponse()
        content = json.loads(response.read())
    finally:
        connection.close()
    assert isinstance(content, dict)
    return response.status, content


def as_sent(content: dict[str, Any]) -> Any:
    return json.loads(json.dumps(content))


def test_a_prediction_is_that_of_the_command(server: Server) -> None:
    status, content = sent(server, "POST", "/predict", {"configuration": full_form()})
    assert (status, content) == (200, as_sent(predict(full_form()).to_dict()))


def test_changes_and_another_system_apply(server: Server) -> None:
    changes = {"memory_gib": 40, "training.num_micro_batches": 2}
    body = {"configuration": full_form(), "system": "vista", "changes": changes}
    expected = predict(full_form(), system="Vista", hardware=changes).to_dict()
    assert sent(server, "POST", "/predict", body) == (200, as_sent(expected))


def test_a_preset_needs_no_configuration(server: Server) -> None:
    changes = {"gpus": 8, "global_batch_size": 8, "micro_batch_size": 1, "tensor_parallel_size": 2}
    status, content = sent(server, "POST", "/predict", {"model": "llama3-8b", "system": "H100", "changes": changes})
    assert status == 200
    assert content["step"]["time_us"] > 0


def test_search_and_compare_are_those_of_the_commands(server: Server) -> None:
    question = {"model": "llama3-8b", "gpus": 8, "system": "H100", "options": {"global_batch_size": 16}, "top": 2}
    expected = search("llama3-8b", 8, system="H100", global_batch_size=16, top=2).to_dict()
    assert sent(server, "POST", "/search", question) == (200, as_sent(expected))
    both = {"configurations": [full_form()], "systems": ["Vista"]}
    assert sent(server, "POST", "/compare", both) == (
        200,
        as_sent(compare([full_form()], systems="Vista").to_dict()),
    )


def test_lists_and_what_there_is(server: Server) -> None:
    assert "H100" in sent(server, "GET", "/systems")[1]["systems"]
    assert sent(server, "GET", "/presets")[1]["presets"]["llama3-8b"] == 8_030_261_248
    assert sent(server, "GET", "/")[1]["post"] == ["/compare", "/predict", "/search"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"configuration": {**full_form(), "from": "/etc/passwd"}}, "from names files"),
        ({"configuration": {**full_form(), "system": "/tmp"}}, "expected a published system"),
        ({"configuration": {**full_form(), "system": "../regressors/H100"}}, "expected a published system"),
        ({"configuration": short_form()}, "send the full form"),
        ({"configuration": {"experiment_name": "x"}}, "send the full form"),
        ({"configuration": full_form(), "system": "/etc"}, "expected a published system"),
        ({"model": "/etc/passwd", "system": "H100"}, "expected the name of a preset"),
        ({"model": "llama3-8b", "configuration": full_form()}, "not both"),
        ({"configuration": full_form(), "changes": {"system": "/tmp"}}, "expected KEY=VALUE"),
        ({"configuration": full_form(), "changes": {"model": "/tmp"}}, "expected KEY=VALUE"),
        ({"configurations": full_form()}, "configurations is not a known key"),
        ({"configuration": {"model": {"a": [[[[[[[[[[[[[1]]]]]]]]]]]]]}}}, "nested deeper"),
    ],
)
def test_no_request_reads_a_file_of_the_server(server: Server, body: dict[str, Any], said: str) -> None:
    status, content = sent(server, "POST", "/predict", body)
    assert status == 400
    assert said in content["error"]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"model": "llama3-8b", "gpus": 10**9, "system": "H100"}, "gpus"),
        ({"model": "llama3-8b", "gpus": 8, "system": "H100", "top": 1000}, "top"),
        ({"model": "/etc/passwd", "gpus": 8, "system": "H100"}, "preset"),
        ({"model": "llama3-8b", "gpus": 8, "system": "H100", "options": {"write": "x"}}, "options.write"),
    ],
)
def test_a_search_has_limits(server: Server, question: dict[str, Any], said: str) -> None:
    status, content = sent(server, "POST", "/search", question)
    assert status == 400
    assert said in content["error"]


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status"),
    [
        ("POST", "/predict", b"{", "application/json", 400),
        ("POST", "/predict", b"[1]", "application/json", 400),
        ("POST", "/predict", b"[" * 100_000, "application/json", 400),
        ("POST", "/predict", b"{}", "text/plain", 415),
        ("POST", "/predict", b" " * (LARGEST_BODY + 1), "application/json", 413),
        ("POST", "/absent", b"{}", "application/json", 404),
        ("GET", "/predict", None, "", 405),
        ("GET", "/../../etc/passwd", None, "", 404),
    ],
)
def test_what_is_no_question_is_refused(
    server: Server, method: str, path: str, body: bytes | None, kind: str, status: int
) -> None:
    try:
        got, content = sent(server, method, path, body, kind)
    except (ConnectionResetError, BrokenPipeError):
        assert status == 413  # closed while the body was still being sent
        return
    assert got == status
    assert content["error"]


def test_questions_beyond_the_places_are_asked_to_come_again(server: Server) -> None:
    with server.place(), server.place():
        status, content = sent(server, "POST", "/predict", {"configuration": full_form()})
    assert status == 503
    assert "ask again" in content["error"]
    assert sent(server, "POST", "/predict", {"configuration": full_form()})[0] == 200
