"""A small HTTP server: JSON in, the JSON of the commands out. The standard library's server, and limits on input."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from typing import Any

import yaml

from predictor import __version__
from predictor.core.base.command_line import progress
from predictor.core.base.errors import ConfigError, MissingKeyError, PublishedError, shortened
from predictor.core.base.json_text import as_json, unique_keys
from predictor.serving.requests import GETS, POSTS


class Deadline(io.RawIOBase):
    """The bytes that a client sends until a moment; one that sends a byte now and then is cut off as well."""

    def __init__(self, connection: socket, seconds: float) -> None:
        """Start the clock."""
        super().__init__()
        self._connection = connection
        self._until = time.monotonic() + seconds

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has arrived.

        Raises:
            TimeoutError: the time is up.
        """
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long to arrive")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def strict_json(data: bytes) -> Any:
    """Return JSON without NaN and infinity, every key given once.

    Raises:
        ValueError: it is something else; the message says what.
    """
    try:
        return json.loads(data, object_pairs_hook=unique_keys, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


LARGEST_BODY = 1_000_000  # bytes
READ_TIMEOUT_S = 10.0  # within which a request must have arrived
SEND_TIMEOUT_S = 60.0  # within which a client must take each part of an answer
MOST_CONNECTIONS = 256  # open ones, of clients that still send among them
BAD_INPUT = (ConfigError, PublishedError, MissingKeyError, yaml.YAMLError)


class RefusedError(Exception):
    """A request that is answered with an error status and one line."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        """Keep status and message."""
        super().__init__(message)
        self.status = status


class Server(ThreadingHTTPServer):
    """A server that answers at most so many questions at once and refuses the others."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, most_at_once: int) -> None:
        """Bind to an address; port 0 takes a free one."""
        self._free = threading.BoundedSemaphore(most_at_once)
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((host, port), Handler)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one of the places for questions.

        Raises:
            RefusedError: all are taken.
        """
        if not self._free.acquire(blocking=False):
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "busy with as many questions as allowed; ask again")
        try:
            yield
        finally:
            self._free.release()

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Answer in a thread of its own; a client beyond the limit waits until another has left."""
        self._connections.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Answer, and free the place of the connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Say nothing of clients that left; anything else is a bug, in one line."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            progress(f"unexpected {type(error).__name__}: {error}")


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    server_version = f"estimate-train-time/{__version__}"
    sys_version = ""
    timeout = SEND_TIMEOUT_S

    def setup(self) -> None:
        """Give the request its time to arrive."""
        super().setup()
        self.rfile = io.BufferedReader(Deadline(self.connection, READ_TIMEOUT_S))

    def do_GET(self) -> None:
        """Answer a list, or what there is to ask."""
        self._reply(self._get)

    def do_HEAD(self) -> None:
        """Answer as to GET, without the body."""
        self._reply(self._get)

    def do_POST(self) -> None:
        """Answer a question."""
        self._reply(self._post)

    def _get(self) -> dict[str, Any]:
        if self.path == "/":
            return {"version": __version__, "get": sorted(GETS), "post": sorted(POSTS)}
        if self.path in POSTS:
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"{self.path} takes POST with a JSON body")
        if self.path not in GETS:
            raise self._unknown()
        return GETS[self.path]()

    def _post(self) -> dict[str, Any]:
        if self.path not in POSTS:
            raise self._unknown()
        body = self._body()
        with self.server.place():
            return POSTS[self.path](body)

    def _unknown(self) -> RefusedError:
        known = ", ".join([*sorted(GETS), *sorted(POSTS)])
        return RefusedError(HTTPStatus.NOT_FOUND, f"there is no {self.path[:100]}; known: {known}")

    def _body(self) -> dict[str, Any]:
        """Return the body.

        A page of another site cannot send ``application/json`` without asking first, which is never allowed here.
        """
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send Content-Type: application/json")
        length = self._length()
        try:
            data = self.rfile.read(length)
        except TimeoutError:
            raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, f"send the body within {READ_TIMEOUT_S:g} s") from None
        if len(data) < length:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"Content-Length is {length} and the body has {len(data)} bytes")
        try:
            content = strict_json(data)
        except ValueError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
        return content

    def _length(self) -> int:
        """Return the body's length, said once and in no other way."""
        said = self.headers.get_all("Content-Length", [])
        if len(said) != 1 or not said[0].isascii() or not said[0].isdigit() or "Transfer-Encoding" in self.headers:
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "send one Content-Length, and no Transfer-Encoding")
        if len(said[0]) > 9 or int(said[0]) > LARGEST_BODY:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body may have {LARGEST_BODY:,} bytes")
        return int(said[0])

    def _reply(self, question: Any) -> None:
        """Send an answer, or its error in one line."""
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        content: dict[str, Any] = {"error": "unexpected: a bug, which the server's log names"}
        try:
            status, content = HTTPStatus.OK, question()
        except RefusedError as refusal:
            status, content = refusal.status, {"error": str(refusal)}
        except BAD_INPUT as error:
            status, content = HTTPStatus.BAD_REQUEST, {"error": shortened(str(error))}
        finally:
            self._send(status, content)

    def _send(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        data = f"{as_json(content)}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if status is HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", "1")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is none, or of another method, as all errors: in JSON."""
        self.close_connection = True
        status = HTTPStatus(code)
        self._send(status, {"error": shortened(message or status.phrase)})

    def log_message(self, message: str, *args: object) -> None:
        """Write one line of log on stderr."""
        progress(f"{self.client_address[0]} {message % args}")
