"""A mark of a loader's data by which a resumed run tells other data, without fetching a sample.

It is of what the data set holds: arrays, numbers, texts and lists of them, of large ones some elements, evenly spread,
so that it costs milliseconds. Of a path the last part alone counts, as data may lie elsewhere at the next start. Of
what is read from files when a sample is fetched, the number of samples is all that is seen.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

WHOLE_BYTES = 1 << 24  # up to which an array is looked at whole
ELEMENTS = 4096  # of a larger one
ITEMS = 256  # of a list, and rows of a larger array
DEPTH = 5


def data_mark(loader: Any) -> str:
    """Return kind, length and checksum of a loader's data.

    >>> data_mark([torch.zeros(2), torch.ones(2)])
    'list of 2, CRC-32 8cfbba42'
    """
    data = getattr(loader, "dataset", loader)
    crc = 0
    for part in _parts(data, DEPTH):
        crc = zlib.crc32(part, crc)
    try:
        size = f" of {len(data)}"
    except TypeError:
        size = ""
    return f"{type(data).__name__}{size}, CRC-32 {crc:08x}"


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    """Yield what a value is made of, as bytes."""
    yield type(value).__name__.encode()
    if not depth:
        return
    own = getattr(value, "_fingerprint", None)  # of Hugging Face's datasets: of data and transformations
    if isinstance(own, str):
        yield own.encode()
    elif isinstance(value, torch.Tensor):
        if value.layout is torch.strided and value.device.type != "meta":
            yield from _elements(value.detach(), value.shape)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield from _elements(value, value.shape)
    elif isinstance(value, bool | int | float | complex):
        yield repr(value).encode()
    elif isinstance(value, str | bytes):
        yield _last_part(value)[:ELEMENTS]
    elif isinstance(value, list | tuple | np.ndarray):
        for item in [len(value), *(value[place] for place in _spread(len(value), ITEMS))]:
            yield from _parts(item, depth - 1)
    elif isinstance(value, dict):
        items = list(value.items())
        yield from _parts([items[place] for place in _spread(len(items), ITEMS)], depth)
    else:
        yield from _attributes(value, depth)


def _attributes(value: Any, depth: int) -> Iterator[bytes]:
    """Yield the attributes of a data set, or of a data class in one, but for its texts and private numbers."""
    if is_dataclass(value):
        held = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        is_data = isinstance(value, Dataset) or depth == DEPTH
        held = getattr(value, "__dict__", {}) if is_data else {}
    for name, item in sorted(held.items()):
        is_state = name.startswith("_") and isinstance(item, bool | int | float)
        if not is_state and not isinstance(item, str | bytes):
            yield name.encode()
            yield from _parts(item, depth - 1)


def _elements(array: Any, shape: Any) -> Iterator[bytes]:
    """Yield an array's type, shape and some of its elements."""
    yield f"{array.dtype} {tuple(shape)}".encode()
    some = array.reshape(-1) if array.nbytes <= WHOLE_BYTES else array[_spread(shape[0], ITEMS)].reshape(-1)
    if array.nbytes > WHOLE_BYTES:
        some = some[_spread(len(some), ELEMENTS)]
    if isinstance(some, torch.Tensor):
        some = some.cpu().resolve_conj().view(torch.uint8).numpy()
    yield some.tobytes()


def _spread(count: int, most: int) -> list[int]:
    """Return evenly spread places, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [place * (count - 1) // (most - 1) for place in range(most)]


def _last_part(text: str | bytes) -> bytes:
    return (text.encode(errors="replace") if isinstance(text, str) else text).rpartition(b"/")[2]
