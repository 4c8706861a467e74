"""The content of a trace file, piece by piece: plain, compressed (gzip), or the first file of an archive (tar)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import BinaryIO

PIECE_BYTES, FIRST_BYTES = 4 << 20, 64
COMPRESSED_BYTES = 1 << 16
GZIP = b"\x1f\x8b"
UTF8_MARK = b"\xef\xbb\xbf"
# Source: POSIX.1-2017, pax, "ustar Interchange Format".
TAR_BLOCK = 512
TAR_MAGIC, TAR_SIZE, TAR_TYPE = slice(257, 262), slice(124, 136), slice(156, 157)
REGULAR_FILE = (b"0", b"\0")


def pieces(stream: BinaryIO, notes: list[str]) -> Iterator[bytes]:
    """Return the content in pieces; a torn or damaged end of a compressed file is added to the notes."""
    return _first_member(_unpacked(stream, notes))


def first_bytes(stream: BinaryIO) -> bytes:
    """Return how the content begins, without white space."""
    head = b""
    for piece in pieces(stream, []):
        head = (head + piece).lstrip()
        if len(head) >= FIRST_BYTES:
            break
    return head[:FIRST_BYTES]


def _unpacked(stream: BinaryIO, notes: list[str]) -> Iterator[bytes]:
    head = stream.read(COMPRESSED_BYTES)
    if not head.startswith(GZIP):
        yield head.removeprefix(UTF8_MARK)
        while piece := stream.read(PIECE_BYTES):
            yield piece
        return
    unpacker = zlib.decompressobj(wbits=31)
    packed = head
    while packed:
        before = unpacker.copy()
        try:
            yield unpacker.decompress(packed, PIECE_BYTES)
        except zlib.error as error:
            notes.append(f"the compressed file is damaged ({error})")
            yield b"".join(_until_damage(before, packed))
            return
        packed = unpacker.unconsumed_tail
        if unpacker.eof:
            packed = unpacker.unused_data or stream.read(COMPRESSED_BYTES)
            if not packed.startswith(GZIP):  # padding after the last member
                return
            unpacker = zlib.decompressobj(wbits=31)
        packed = packed or stream.read(COMPRESSED_BYTES)
    notes.append("the compressed file is torn")


def _until_damage(unpacker: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    """Return what precedes the damage, which an unpacker that is given more at once withholds."""
    with suppress(zlib.error):
        for at in range(len(packed)):
            yield unpacker.decompress(packed[at : at + 1])


def _first_member(content: Iterator[bytes]) -> Iterator[bytes]:
    """Return the first file of an archive; what is no archive as it is."""
    head = _filled(b"", content, TAR_BLOCK)
    if head[TAR_MAGIC] != b"ustar":
        yield head
        yield from content
        return
    size = 0
    while len(head) >= TAR_BLOCK:
        digits = head[TAR_SIZE].strip(b"\0 ")
        size = int(digits, 8) if digits.isdigit() and max(digits) < ord("8") else 0
        kind, head = head[TAR_TYPE], head[TAR_BLOCK:]
        if kind in REGULAR_FILE:
            break
        blocks = -(-size // TAR_BLOCK) * TAR_BLOCK
        head = _filled(head, content, blocks + TAR_BLOCK)[blocks:]
    for piece in chain([head], content):
        yield piece[:size]
        size -= len(piece[:size])
        if not size:
            return


def _filled(head: bytes, content: Iterator[bytes], count: int) -> bytes:
    """Return at least so many bytes, if there are."""
    while len(head) < count:
        piece = next(content, None)
        if piece is None:
            break
        head += piece
    return head
