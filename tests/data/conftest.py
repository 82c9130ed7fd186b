"""Writers of what the package only reads."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import google_crc32c
import pytest

Values = Sequence[bytes] | Sequence[float] | Sequence[int]


@pytest.fixture(scope="session")
def serialise() -> Callable[..., bytes]:
    """`serialise(features, packed=True)`: a tf.train.Example, numbers packed or one by one."""
    return _example


@pytest.fixture(scope="session")
def write_records() -> Callable[[Path, Sequence[bytes]], Path]:
    """`write_records(path, datas)`: a TFRecord file; returns its path."""

    def write(path: Path, datas: Sequence[bytes]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(_record(data) for data in datas))
        return path

    return write


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _example(features: Mapping[str, Values], packed: bool = True) -> bytes:
    entries = []
    for name, values in features.items():
        if isinstance(values[0], bytes):
            feature = _field(1, b"".join(_field(1, value) for value in values))
        elif isinstance(values[0], float):
            singles = [struct.pack("<f", value) for value in values]
            feature = _field(2, _field(1, b"".join(singles)) if packed else b"".join(b"\x0d" + s for s in singles))
        else:
            singles = [_varint(value % 2**64) for value in values]
            feature = _field(3, _field(1, b"".join(singles)) if packed else b"".join(b"\x08" + s for s in singles))
        entries.append(_field(1, _field(1, name.encode()) + _field(2, feature)))
    return _field(1, b"".join(entries))


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
