"""An id fetches a model's config.json from a hub; without one, one line says so. The hub is a server on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.plan.of_model import content_of_model
from predictor.core.schema.inherited_keys import completed
from predictor.formats.hugging_face.hub import read_model
from predictor.formats.hugging_face.reader import read

LLAMA = Path(__file__).resolve().parents[2] / "data" / "readers" / "hugging_face" / "llama3.1-8b.json"
ANSWERS = {
    "/meta-llama/Llama-3.1-8B/resolve/main/config.json": (200, LLAMA.read_bytes()),
    "/meta-llama/Llama-3.1-8B/resolve/v2/config.json": (200, b'{"model_type": "llama", "num_hidden_layers": 2}'),
    "/gpt2/resolve/main/config.json": (200, b'{"model_type": "gpt2"}'),
    "/some/list/resolve/main/config.json": (200, b"[1]"),
    "/some/page/resolve/main/config.json": (200, b"<html>"),
    "/some/gated/resolve/main/config.json": (403, b""),
    "/some/private/resolve/main/config.json": (401, b""),
    "/some/broken/resolve/main/config.json": (500, b""),
}
asked: list[tuple[str, str | None]] = []


class Hub(BaseHTTPRequestHandler):
    """Answers what ``ANSWERS`` has, else that there is no such file."""

    def do_GET(self) -> None:
        asked.append((self.path, self.headers.get("Authorization")))
        status, content = ANSWERS.get(self.path, (404, b""))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", address + "/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    asked.clear()
    yield address
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("hub")
def test_an_id_is_read_as_its_file() -> None:
    assert read_model("hf:meta-llama/Llama-3.1-8B").content == read(LLAMA).content
    assert read_model("hf:gpt2").content["model"]["hidden_size"] == 768
    assert read_model("hf:meta-llama/Llama-3.1-8B@v2").content["model"]["num_layers"] == 2


@pytest.mark.usefixtures("hub")
def test_a_configuration_takes_from_an_id(tmp_path: Path) -> None:
    whole, _ = completed({"from": "hf:gpt2", "model": {"sequence_length": 512}}, tmp_path)
    assert (whole["model"]["num_layers"], whole["model"]["sequence_length"]) == (12, 512)


@pytest.mark.usefixtures("hub")
def test_a_command_takes_an_id_as_its_model() -> None:
    content, _, notes = content_of_model("hf:gpt2")
    assert content["model"]["num_layers"] == 12
    assert any("config.json of gpt2 says no sequence length" in note for note in notes)


def test_a_command_takes_a_configuration_inside_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llava", "text_config": {"model_type": "llama", "num_hidden_layers": 3}}')
    content, _, _ = content_of_model(f"{file}#text_config")
    assert content["model"]["num_layers"] == 3


@pytest.mark.usefixtures("hub")
def test_a_token_is_not_sent_in_the_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    read_model("hf:gpt2")
    assert asked == [("/gpt2/resolve/main/config.json", None)]


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:no/model", "there is no such model, or it has no config.json"),
        ("hf:some/gated", "it is gated; ask for access"),
        ("hf:some/private", "set HF_TOKEN"),
        ("hf:some/broken", "the hub answers 500"),
        ("hf:some/list", "is no config.json"),
        ("hf:some/page", "is no config.json"),
        ("hf:../etc/passwd", "is no model id; expected such as hf:meta-llama/Llama-3.1-8B"),
        ("hf:a/b/c", "is no model id"),
        ("hf:", "is no model id"),
        ("hf:a/b?x=1", "is no model id"),
    ],
)
def test_what_the_hub_refuses_is_one_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_model(name)
    assert message in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_hub_one_line_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(
        ConfigError, match=r"^hf:gpt2 cannot be fetched: .* is not reachable \(.*\); save its config.json"
    ):
        read_model("hf:gpt2")


def test_an_endpoint_that_is_no_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    with pytest.raises(ConfigError, match="HF_ENDPOINT is file:///etc; expected the address of a hub"):
        read_model("hf:gpt2")
