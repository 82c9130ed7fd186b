"""TFRecord files and the tf.train.Example messages they hold, read without TensorFlow.

A record is its length (8 bytes, little endian), that length's checksum (4), the data, and the data's checksum (4); the
checksums are CRC-32C, rotated and shifted by a constant. Both are checked, so any flipped bit and any cut through a
record is found. The format counts no records: a file cut exactly between two of them reads as a shorter file, and
whoever knows how many there should be has to compare.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float32, Int64

MAX_RECORD = 1 << 28
"""Bytes; a hundred times the longest trajectory known. What claims more is refused before memory is taken."""
MAX_FEATURES = 1 << 16

_HEADER = 12
_FOOTER = 4


@dataclass(frozen=True, eq=False)
class Record:
    """One record of an open file: where its data lies. Good until the next one is asked for or the file is closed."""

    file: BinaryIO
    path: Path
    offset: int
    """Of the record in its file."""
    length: int
    """Of its data."""

    def read(self) -> bytes:
        """The data, its checksum found right."""
        self.file.seek(self.offset + _HEADER)
        data = self.file.read(self.length)
        footer = self.file.read(_FOOTER)
        if len(data) < self.length or len(footer) < _FOOTER:
            raise UserError(f"{self.path}: the file became shorter while its record at byte {self.offset} was read")
        _check(data, footer, f"{self.path}: the data of the record at byte {self.offset}")
        return data


def records(path: Path) -> Iterator[Record]:
    """Every record of a file, in order; none is read before its `read` is called, so a damaged one can be passed over.

    Where the damage hides the place of the next record (a cut, a broken length) the rest cannot be found: UserError.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise UserError(f"{path} is empty: it holds no record")
        offset = 0
        while offset < size:
            file.seek(offset)
            header = file.read(_HEADER)
            if len(header) < _HEADER:
                raise UserError(f"{path}: cut short at byte {size}, within the header of the record at byte {offset}")
            _check(header[:8], header[8:], f"{path}: the length of the record at byte {offset}")
            (length,) = struct.unpack("<Q", header[:8])
            if length > MAX_RECORD:
                raise UserError(f"{path}: the record at byte {offset} claims {length} bytes, more than {MAX_RECORD}")
            end = offset + _HEADER + length + _FOOTER
            if end > size:
                raise UserError(
                    f"{path}: cut short at byte {size}, within the record at byte {offset}, which ends at byte {end}"
                )
            yield Record(file, path, offset, length)
            offset = end


def _check(data: bytes, stored: bytes, what: str) -> None:
    import google_crc32c

    crc: int = google_crc32c.value(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    (expected,) = struct.unpack("<I", stored)
    if masked != expected:
        raise UserError(f"{what} is damaged: its checksum is {masked:#010x}, the file says {expected:#010x}")


# The tags of tf.train.Example's fields: field number × 8 + wire type, of which 2 is "so many bytes follow".
_FEATURES = 0x0A  # Example.features
_ENTRY = 0x0A  # Features.feature, a map: one entry a feature
_NAME, _FEATURE = 0x0A, 0x12  # of a map's entry
_BYTES, _FLOATS, _INTEGERS = 0x0A, 0x12, 0x1A  # Feature.bytes_list, float_list, int64_list
_VALUE, _ONE_FLOAT, _ONE_INTEGER = 0x0A, 0x0D, 0x08  # of a list: bytes or packed numbers; a single number
_KINDS = {_BYTES: "bytes", _FLOATS: "floats", _INTEGERS: "integers"}


@dataclass(frozen=True, eq=False)
class Example:
    """A tf.train.Example: named lists of bytes, floats or integers, each decoded when it is asked for.

    Whoever asks says how many values there must be, so what a hostile message can unfold to is bounded by the caller.
    """

    data: bytes
    spans: dict[str, tuple[int, int]]
    """Where each feature's message lies in `data`."""

    def __contains__(self, name: str) -> bool:
        return name in self.spans

    def one_bytes(self, name: str) -> memoryview:
        """The only value of a list of bytes."""
        at, end = self._list(name, _BYTES)
        start, stop = _field(self.data, at, end, _VALUE)
        if stop != end:
            raise UserError(f"feature {name!r} holds more than the one value expected")
        return memoryview(self.data)[start:stop]

    def floats(self, name: str, count: int) -> Float32[np.ndarray, "count"]:
        at, end = self._list(name, _FLOATS)
        pieces: list[bytes] = []
        missing = 4 * count
        while at < end and missing >= 0:
            if self.data[at] == _ONE_FLOAT:
                start, at = at + 1, at + 5
            else:
                start, at = _field(self.data, at, end, _VALUE)
            if at > end or at == start:
                raise UserError(f"feature {name!r} is no well-formed list of floats")
            pieces.append(self.data[start:at])
            missing -= at - start
        if missing:
            raise UserError(f"feature {name!r} holds {'fewer' if missing > 0 else 'more'} than {count} floats")
        return np.frombuffer(b"".join(pieces), "<f4")

    def integers(self, name: str, count: int) -> Int64[np.ndarray, "count"]:
        at, end = self._list(name, _INTEGERS)
        values: list[int] = []
        while at < end and len(values) <= count:
            if self.data[at] == _ONE_INTEGER:
                value, at = _varint(self.data, at + 1, end)
                values.append(value)
                continue
            at, stop = _field(self.data, at, end, _VALUE)
            if at == stop:
                raise UserError(f"feature {name!r} is no well-formed list of integers")
            while at < stop and len(values) <= count:
                value, at = _varint(self.data, at, stop)
                values.append(value)
        if len(values) != count:
            raise UserError(
                f"feature {name!r} holds {'fewer' if len(values) < count else 'more'} than {count} integers"
            )
        return np.array(values, np.uint64).view(np.int64)

    def _list(self, name: str, kind: int) -> tuple[int, int]:
        """Where the message lies that is this feature's list, which must be of this kind."""
        if name not in self.spans:
            raise UserError(f"there is no feature {name!r}")
        start, end = self.spans[name]
        if start == end or self.data[start] != kind:
            raise UserError(f"feature {name!r} is no list of {_KINDS[kind]}")
        start, stop = _field(self.data, start, end, kind)
        if stop != end:
            raise UserError(f"feature {name!r} is more than one list")
        return start, stop


def read_examples(path: Path) -> Iterator[Example | UserError]:
    """What each record holds, or what is wrong with it; a last error may stand for all that cannot be found."""
    try:
        for record in records(path):
            try:
                yield parse_example(record.read())
            except UserError as error:
                yield error
    except UserError as error:
        yield error
    except OSError as error:
        yield UserError(f"{path} cannot be read: {error.strerror}")


def parse_example(data: bytes) -> Example:
    """The features of one serialised tf.train.Example; UserError for anything that is not exactly one.

    Stricter than protobuf asks, but not than its writers write: fields in order, none unknown, no name twice.
    """
    spans: dict[str, tuple[int, int]] = {}
    at, end = _field(data, 0, len(data), _FEATURES)
    if end != len(data):
        raise UserError(f"this is no tf.train.Example: it goes on after its features, at byte {end}")
    while at < end:
        entry, at = _field(data, at, end, _ENTRY)
        start, stop = _field(data, entry, at, _NAME)
        span = _field(data, stop, at, _FEATURE)
        try:
            name = data[start:stop].decode()
        except UnicodeDecodeError as error:
            raise UserError(f"this is no tf.train.Example: the name at byte {start} is not UTF-8") from error
        if name in spans or span[1] != at:
            raise UserError(f"this is no tf.train.Example: it holds feature {name[:80]!r} twice")
        if len(spans) == MAX_FEATURES:
            raise UserError(f"this tf.train.Example has more than {MAX_FEATURES} features")
        spans[name] = span
    return Example(data, spans)


def _field(data: bytes, at: int, end: int, tag: int) -> tuple[int, int]:
    """Where the content lies of the field that begins at `at`, of a message that ends at `end`."""
    if at >= end or data[at] != tag:
        found = f"{data[at]:#04x}" if at < end else "the end"
        raise UserError(f"this is no tf.train.Example: {found} at byte {at} where {tag:#04x} is expected")
    length, start = _varint(data, at + 1, end)
    if start + length > end:
        raise UserError(f"this is no tf.train.Example: the field at byte {at} claims {length} bytes of {end - start}")
    return start, start + length


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number that begins at `at`, seven bits a byte, lowest first, and where the next thing begins."""
    if at < end and data[at] < 0x80:  # most are this short
        return data[at], at + 1
    value = 0
    for place in range(10):
        if at + place >= end:
            break
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value < 1 << 64:
                return value, at + place + 1
            break
    raise UserError(f"this is no tf.train.Example: no number of at most 64 bits at byte {at}")
