"""``serve``: the JSON of the commands over HTTP, and what a request may not do."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from predictor import compare, predict, search
from predictor.__main__ import main
from predictor.serving.server import LARGEST_BODY, Server
from tests.unit.examples import full_form, short_form, write


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
        ({"configuration": full_form(), "changes": {"system": "/tmp"}}, "is no key"),
        ({"configuration": full_form(), "changes": {"model": "/tmp"}}, "is no key"),
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


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"configuration": {"a": NaN}}', "NaN is no number of JSON"),
        (b'{"model": "gpt2", "model": "gpt2"}', "model is given twice"),
        (b"[" * 100_000, "nested too deep"),
        (
            json.dumps({"configuration": full_form(), "changes": {"num_layers": "[" * 60_000}}).encode(),
            "--set num_layers",
        ),
        (json.dumps({"configuration": full_form(), "system": "x" * 9000}).encode(), "(9,003 characters)"),
    ],
)
def test_json_that_would_end_the_process_or_say_two_things(server: Server, body: bytes, said: str) -> None:
    status, content = sent(server, "POST", "/predict", body)
    assert status == 400
    assert said in content["error"]
    assert len(content["error"]) < 2000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"framework": 3}, "--framework is 3"),
        ({"changes": [3]}, "changes have 3"),
        ({"pareto": "yes"}, "--pareto is 'yes'"),
        ({"tensor_parallel_across_nodes": 1}, "--tensor-parallel-across-nodes is 1"),
    ],
)
def test_options_of_another_kind_are_refused(server: Server, options: dict[str, Any], said: str) -> None:
    question = {"model": "llama3-8b", "gpus": 8, "system": "H100", "options": {"global_batch_size": 8, **options}}
    status, content = sent(server, "POST", "/search", question)
    assert status == 400
    assert said in content["error"]


def test_one_request_compares_a_limited_number(server: Server) -> None:
    body = {"configurations": [full_form()] * 6, "systems": ["Vista"] * 2}
    status, content = sent(server, "POST", "/compare", body)
    assert (status, content["error"]) == (400, "18 predictions are asked for; one request compares up to 16")


def raw(server: Server, request: bytes) -> tuple[str, bytes]:
    """Return the status line and the body of the answer to what is sent."""
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=30) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0].decode(), body


def test_the_answer_is_what_the_command_prints(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(full_form(), tmp_path / "c.yml")
    assert main(["predict", str(path), "--json"]) == 0
    body = json.dumps({"configuration": full_form()}).encode()
    head = f"POST /predict HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    status, content = raw(server, head.encode() + body)
    assert status.endswith("200 OK")
    assert content.decode() == capsys.readouterr().out


@pytest.mark.parametrize(
    ("request_line", "status"),
    [("HEAD /systems HTTP/1.1", "200"), ("DELETE /systems HTTP/1.1", "501"), ("GET / HTTP/9.9.9", "400")],
)
def test_other_methods_and_no_requests_are_answered_in_json(server: Server, request_line: str, status: str) -> None:
    line, body = raw(server, f"{request_line}\r\n\r\n".encode())
    if request_line.startswith("HEAD"):
        assert (line.split()[1], body) == (status, b"")
        return
    assert status in line or not line.startswith("HTTP")
    assert "error" in json.loads(body or line)


@pytest.mark.parametrize(
    "headers",
    ["Content-Length: 2\r\nContent-Length: 3", "Content-Length: 2\r\nTransfer-Encoding: chunked", "Content-Length: -1"],
)
def test_a_body_has_one_length(server: Server, headers: str) -> None:
    request = f"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\n{headers}\r\n\r\n{{}}"
    assert "411" in raw(server, request.encode())[0]


def test_a_client_that_sends_byte_by_byte_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor.serving.server.READ_TIMEOUT_S", 0.5)
    head = b"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=30) as connection:
        connection.sendall(head)
        connection.settimeout(0.1)
        answer, began = b"", time.monotonic()
        while not answer and time.monotonic() - began < 20:
            with suppress(TimeoutError):
                connection.sendall(b" ")
                answer = connection.recv(65536)
    assert b" 408 " in answer
