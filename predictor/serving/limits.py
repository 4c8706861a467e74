"""Limits on what a client sends: how long it may take, and what JSON it may be."""

from __future__ import annotations

import io
import json
import time
from socket import socket
from typing import Any

from predictor.core.base.json_text import unique_keys


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
