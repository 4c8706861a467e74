"""``serve``: the JSON of the commands over HTTP."""

from __future__ import annotations

import argparse
import signal
from types import FrameType

from predictor.commands.parser import Commands, add_command
from predictor.core.base.command_line import progress
from predictor.core.base.errors import ConfigError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
MOST_AT_ONCE = 64


def add(commands: Commands) -> None:
    """Define the arguments."""
    command = add_command(commands, "serve", "answer predictions over HTTP", answer)
    command.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    command.add_argument("--port", type=int, default=8000, metavar="N", help="port (8000); 0: a free one")
    command.add_argument("--at-once", type=int, default=4, metavar="N", help="questions answered at once (4)")


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def answer(arguments: argparse.Namespace) -> str:
    """Serve until a signal ends it."""
    from predictor.serving.server import Server

    if not 0 <= arguments.port <= 65535:
        raise ConfigError(f"--port is {arguments.port}; expected 0 to 65535")
    if not arguments.host.strip():
        raise ConfigError("--host is empty; 127.0.0.1 is this machine alone, 0.0.0.0 every address that it has")
    if not 1 <= arguments.at_once <= MOST_AT_ONCE:
        raise ConfigError(f"--at-once is {arguments.at_once}; expected 1 to {MOST_AT_ONCE}")
    try:
        server = Server(arguments.host, arguments.port, arguments.at_once)
    except OSError as error:
        raise ConfigError(f"--host {arguments.host} --port {arguments.port}: {error.strerror or error}") from None
    with server:
        host, port = server.server_address[:2]
        progress(f"listening on http://{arguments.host}:{port}")
        if arguments.host not in LOOPBACK:
            progress(f"{host!s}: whoever reaches it may ask; there is no authentication")
        signal.signal(signal.SIGTERM, _stop)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return "stopped"
    return "stopped"
