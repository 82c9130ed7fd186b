"""Files cut anywhere are known by their containers; whole ones pass; impossible indices are refused unread."""

from __future__ import annotations

import random
import struct
from collections import deque

import pytest

from framecast.data.containers import check_length
from framecast.data.video_file import read_frames
from framecast.errors import UserError

KINDS = [
    "androidx+media/sample.avi",
    "androidx+media/sample.flv",
    "androidx+media/sample_h264.ts",
    "androidx+media/sample_fragmented.mp4",
    "androidx+media/bbb_176x144_128kbps_15fps_h263.3gp",
    "dmlc+decord/video_90.mov",
    "Zulko+moviepy/bitmap.mp4",
    "androidx+media/bear-vp9-odd-dimensions.webm",
    "intel-iot-devkit+sample-videos/eat.mkv",
    "imageio+imageio-binaries/newtonscradle.gif",
]


@pytest.mark.parametrize("name", KINDS)
def test_a_file_cut_anywhere_is_known(test_data, tmp_path, name):
    whole = (test_data / "videos" / name).read_bytes()
    path = tmp_path / name.rpartition("/")[2]
    path.write_bytes(whole)
    check_length(path)
    for length in [*random.Random(0).sample(range(1, len(whole)), 60), len(whole) - 1]:
        if name.endswith(".ts") and length % 188 == 0:
            continue  # may have ended there
        path.write_bytes(whole[:length])
        with pytest.raises(UserError):
            deque(read_frames(path), maxlen=0)


def test_an_empty_file(tmp_path):
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(UserError, match="it is empty"):
        check_length(tmp_path / "empty.mp4")


def test_what_says_nothing_of_its_length_passes(tmp_path):
    for content in (b"x", b"\0" * 100, b"G" * 100):
        (tmp_path / "a.mpg").write_bytes(content)
        check_length(tmp_path / "a.mpg")


def element(identifier: bytes, size: int | None, content: bytes = b"") -> bytes:
    """An EBML element; without a size, it is left open."""
    return identifier + (b"\x01" + b"\xff" * 7 if size is None else bytes([0x40 | size >> 8, size & 255])) + content


def test_a_live_recording_is_walked_through(tmp_path):
    path = tmp_path / "live.mkv"
    head = element(b"\x1a\x45\xdf\xa3", 4, b"abcd") + element(b"\x18\x53\x80\x67", None)
    clusters = element(b"\x1f\x43\xb6\x75", None) + element(b"\xa3", 300, b"\x55" * 300)
    path.write_bytes(head + clusters + clusters)
    check_length(path)
    path.write_bytes(head + clusters + clusters[:-1])
    with pytest.raises(UserError, match="cut short"):
        check_length(path)
    path.write_bytes(head + clusters + clusters[:9])
    with pytest.raises(UserError, match="cut short"):
        check_length(path)
    path.write_bytes(head + clusters + bytes(5))  # padding
    check_length(path)


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


@pytest.mark.parametrize(
    "table",
    [
        box(b"stsz", struct.pack(">III", 0, 1, 2**31)),
        box(b"stts", struct.pack(">IIIIII", 0, 2, 2**30, 1, 2**30, 1)),
        box(b"ctts", struct.pack(">IIII", 0, 1, 2**31, 1)),
    ],
)
def test_an_index_of_more_frames_than_there_can_be(tmp_path, table):
    path = tmp_path / "a.mp4"
    inner = table
    for kind in (b"stbl", b"minf", b"mdia", b"trak", b"moov"):
        inner = box(kind, inner)
    path.write_bytes(box(b"ftyp", b"isom") + inner)
    with pytest.raises(UserError, match=r"its index counts 2147483648 frames in \d+ bytes"):
        check_length(path)


def test_a_tag_of_flash_video_that_contradicts_itself(test_data, tmp_path):
    path = tmp_path / "a.flv"
    whole = bytearray((test_data / "videos/androidx+media/sample.flv").read_bytes())
    first = 13 + 11 + int.from_bytes(whole[14:17], "big")
    whole[first + 3] ^= 1
    path.write_bytes(whole)
    with pytest.raises(UserError, match=f"the tag that ends at byte {first + 4} does not repeat its own size"):
        check_length(path)


def test_a_gif_whose_blocks_do_not_join(test_data, tmp_path):
    path = tmp_path / "a.gif"
    whole = bytearray((test_data / "videos/imageio+imageio-binaries/newtonscradle.gif").read_bytes())
    whole[13 + 768] = 0
    path.write_bytes(whole)
    with pytest.raises(UserError, match="no block of a GIF begins at byte 782"):
        check_length(path)
