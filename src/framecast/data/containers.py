"""Is a video file as long as it says it is, and is what it says possible? Decoders show what there is of a file that
was cut short and say nothing, and take the memory that an index asks for before they see that nothing is behind it.

Most containers write down their own length; the walks below read those few bytes, and the index of an MP4:

- MP4, MOV, 3GP: the sizes of the outermost boxes, and how many frames the index counts
- AVI, WebP: the sizes of the RIFF chunks
- Matroska, WebM: the size of the segment, or those of its parts where it was recorded live and left open
- FLV: the sizes of the tags, each of which the next one repeats
- GIF: the blocks, to the trailer that ends them
- MPEG-TS: whole packets of 188 bytes; a stream that stops between two packets cannot be told from a whole one
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from framecast.errors import UserError


def check_length(path: Path) -> None:
    """UserError where a video file cannot be whole; nothing where it is, or where its container does not say."""
    with path.open("rb") as file:
        actual = os.fstat(file.fileno()).st_size
        if actual == 0:
            raise UserError("it is empty")
        head = file.read(12)
        if head[4:8] in _FIRST_BOXES:
            claimed = _end_of_boxes(file, actual)
        elif head[:4] == b"RIFF":
            claimed = _end_of_riff(file, actual)
        elif head[:4] == b"\x1a\x45\xdf\xa3":
            claimed = _end_of_elements(file, actual)
        elif head[:3] == b"FLV":
            claimed = _end_of_tags(file, actual)
        elif head[:4] == b"GIF8":
            claimed = _end_of_blocks(file, actual)
        elif head[:1] == b"G" and path.suffix.lower() in (".ts", ".mts"):
            claimed = -(-actual // _TS_PACKET) * _TS_PACKET
        else:
            return
    if claimed > actual:
        raise UserError(f"it is cut short: it has {actual} bytes where its container asks for {claimed} or more")


_FIRST_BOXES = {b"ftyp", b"styp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot"}
_INNER_BOXES = {b"moov", b"trak", b"mdia", b"minf", b"stbl"}
_TS_PACKET = 188
_MAX_FRAMES_PER_BYTE = 8  # a frame has many bytes, but the oldest sound codecs count six samples in one


def _end_of_boxes(file: BinaryIO, actual: int) -> int:
    at = 0
    while at + 8 <= actual:
        kind, start, end = _box(file, at)
        if end is None or not kind.isalnum():  # the last box may run to the end of the file, padding may follow it
            return at
        if kind == b"moov" and end <= actual:
            _check_index(file, start, end, actual)
        at = end
    return at


def _box(file: BinaryIO, at: int) -> tuple[bytes, int, int | None]:
    """The kind of the box at `at`, and where its content begins and ends; no end where it says none that can be."""
    file.seek(at)
    head = file.read(16)
    size, kind = struct.unpack_from(">I4s", head)
    start = at + 8
    if size == 1 and len(head) == 16:
        size, start = int.from_bytes(head[8:], "big"), at + 16
    return kind, start, at + size if at + size >= start else None


def _check_index(file: BinaryIO, start: int, stop: int, actual: int) -> None:
    """FFmpeg takes memory for as many frames as the tables of the index count, whatever the file's size."""
    at = start
    while at + 8 <= stop:
        kind, start, end = _box(file, at)
        if end is None or end > stop:
            return  # FFmpeg makes of it what it can
        if kind in _INNER_BOXES:
            _check_index(file, start, end, actual)
        elif kind in (b"stsz", b"stts", b"ctts"):
            file.seek(start)
            table = file.read(end - start)
            if kind == b"stsz":  # version and flags, one size for all, frames
                count = int.from_bytes(table[8:12], "big")
            else:  # version and flags, entries, (frames, time) each
                count = int(np.frombuffer(table[8 : len(table) // 8 * 8], ">u4")[::2].astype(np.uint64).sum())
            if count > _MAX_FRAMES_PER_BYTE * actual:
                raise UserError(f"it is damaged: its index counts {count} frames in {actual} bytes")
        at = end


def _end_of_riff(file: BinaryIO, actual: int) -> int:
    """An AVI of more than a gigabyte is several RIFF chunks in a row."""
    at = 0
    while at + 8 <= actual:
        file.seek(at)
        kind, size = struct.unpack("<4sI", file.read(8))
        if kind != b"RIFF":
            break
        at += 8 + size  # to an even byte, but some writers leave the last one out
        at += size % 2 if at < actual else 0
    return at


def _end_of_elements(file: BinaryIO, actual: int) -> int:
    """Elements that say their length are passed over, those left open are walked through."""
    at = 0
    while at < actual:
        file.seek(at)
        head = file.read(12)
        identifier_bytes = _vint_bytes(head[0])
        size_bytes = _vint_bytes(head[identifier_bytes]) if identifier_bytes < len(head) else 9
        if identifier_bytes > 4:  # no element: padding after the segment
            return at
        if size_bytes > 8:
            return actual + 1
        size = int.from_bytes(head[identifier_bytes : identifier_bytes + size_bytes], "big")
        size &= (1 << 7 * size_bytes) - 1
        at += identifier_bytes + size_bytes
        if size != (1 << 7 * size_bytes) - 1:
            at += size
    return at


def _vint_bytes(first: int) -> int:
    """How many bytes a number of EBML has is told by the zeros that its first byte begins with."""
    return 9 - first.bit_length()


def _end_of_tags(file: BinaryIO, actual: int) -> int:
    file.seek(5)
    at = int.from_bytes(file.read(4), "big") + 4
    while at + 11 <= actual:
        file.seek(at)
        size = 11 + int.from_bytes(file.read(4)[1:], "big")
        file.seek(at + size)
        repeated = file.read(4)
        at += size + 4
        if len(repeated) == 4 and int.from_bytes(repeated, "big") != size:
            raise UserError(f"it is damaged: the tag that ends at byte {at} does not repeat its own size")
    return at if at >= actual else at + 11


def _end_of_blocks(file: BinaryIO, actual: int) -> int:
    """After the screen and its colours: images (","), extensions ("!"), the trailer (";")."""
    file.seek(10)
    at = 13 + _colours(file.read(1))
    while at < actual:
        file.seek(at)
        head = file.read(10)
        if head[:1] == b";":
            return at + 1
        if head[:1] == b",":
            at += 10 + _colours(head[9:]) + 1
        elif head[:1] == b"!":
            at += 2
        else:
            raise UserError(f"it is damaged: no block of a GIF begins at byte {at}")
        size = 1
        while size and at < actual:
            file.seek(at)
            size = file.read(1)[0]
            at += 1 + size
    return at + 1


def _colours(flags: bytes) -> int:
    """The bytes of a colour table, if these flags announce one."""
    return 3 << (flags[0] & 7) + 1 if flags and flags[0] & 0x80 else 0
