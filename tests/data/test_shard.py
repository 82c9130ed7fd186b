from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from framecast.data import shard as shards
from framecast.data.clip import Clip, Skipped
from framecast.data.shard import ENTRY, HEADER_BYTES, Record, Shard, ShardWriter, check, file_name, skipped_row
from framecast.errors import UserError

HEADER = struct.Struct("<16s4I4Q32s32s32x")
Alter = Callable[[dict[str, int], np.ndarray, dict[str, bytes]], None]


def a_clip(number: int = 0, **fields: object) -> Clip:
    noise = np.random.default_rng(number)
    given = {
        "video": noise.integers(0, 256, (2, 3, 5, 1), np.uint8),
        "name": f"clip {number}",
        "split": "val",
        "actions": noise.normal(size=(2, 3)).astype(np.float32),
        "extras": {"seen": np.array([True, False])},
    }
    return Clip(**given | fields)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A shard of two clips and one that was skipped."""
    path = tmp_path / file_name(3, 0, 1)
    with path.open("w+b", buffering=0) as file:
        writer = ShardWriter(file)
        for number in range(2):
            writer.add(Record(a_clip(number)))
        writer.skip(skipped_row(Skipped("broken.mp4", "it is empty")))
        size = writer.num_bytes
        writer.finish(bytes(32), 3, 0, 1)
    assert size - 1 <= path.stat().st_size <= size  # a list of one has no comma
    return path


def findings(path: Path) -> list[str]:
    """What is found wrong with a shard, when it is opened and when every byte is read."""
    try:
        return list(Shard(path).damage())
    except UserError as error:
        return [str(error)]


def test_every_flipped_bit_is_found(path: Path) -> None:
    whole = path.read_bytes()
    assert findings(path) == []
    for place in range(len(whole)):
        for bit in range(8) if place < HEADER_BYTES else [place % 8]:
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            assert findings(path), f"bit {bit} of byte {place}"


def test_every_truncation_and_addition_is_found(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert findings(path), f"cut to {length} bytes"
    path.write_bytes(whole + b"\0")
    assert findings(path)


def test_frames_are_mapped_and_cannot_be_written(path: Path) -> None:
    shard = Shard(path)
    frames = shard.frames(1, 1, 2)
    assert np.shares_memory(frames, shard.mapped)
    with pytest.raises(ValueError, match="read-only"):
        frames[0] = 0
    for start, stop in ((-1, 1), (1, 3), (2, 1)):
        with pytest.raises(UserError, match=f"frames {start} to {stop} were asked of a clip of 2 frames"):
            shard.frames(1, start, stop)


def test_an_open_shard_holds_no_descriptor(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    shard = Shard(path)
    assert shard.frames(0).sum() > 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_shard_that_disappears_is_no_crash(path: Path) -> None:
    shard = Shard(path)
    path.unlink()
    with pytest.raises(UserError, match="was removed or cut short since the store was opened"):
        shard.frames(0)


def test_nothing_outside_the_folder_is_read(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(UserError, match="is a symbolic link: a store does not point outside its folder"):
        Shard(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="is no regular file"):
        Shard(path)


def altered(path: Path, alter: Alter) -> None:
    """Write the shard again as somebody would who means harm: other claims, right checksums."""
    whole = path.read_bytes()
    magic, *counts, manifest, _ = HEADER.unpack(whole[: HEADER.size])
    names = ("version", "part", "number", "num_shards", "num_clips", "index_offset", "text_bytes", "skipped_bytes")
    claims = dict(zip(names, counts, strict=True))
    start = claims["index_offset"]
    middle = start + claims["num_clips"] * ENTRY.itemsize
    entries = np.frombuffer(whole[start:middle], ENTRY).copy()
    end = middle + claims["text_bytes"]
    texts = {"texts": whole[middle:end], "skipped": whole[end:]}
    alter(claims, entries, texts)
    index = entries.tobytes() + texts["texts"] + texts["skipped"]
    header = HEADER.pack(magic, *claims.values(), manifest, hashlib.sha256(index).digest())
    path.write_bytes(header + hashlib.sha256(header).digest() + whole[HEADER_BYTES:start] + index)


def claim(**values: int) -> Alter:
    return lambda claims, entries, texts: claims.update(values)


def entry(field: str, value: object, place: int = 0) -> Alter:
    def alter(claims: dict[str, int], entries: np.ndarray, texts: dict[str, bytes]) -> None:
        entries[field][place] = value

    return alter


def text(old: str, new: str, which: str = "texts") -> Alter:
    """Replaces some text by another of the same length."""
    assert len(old) == len(new)

    def alter(claims: dict[str, int], entries: np.ndarray, texts: dict[str, bytes]) -> None:
        assert old.encode() in texts[which]
        texts[which] = texts[which].replace(old.encode(), new.encode())

    return alter


@pytest.mark.parametrize(
    ("alter", "sentence"),
    [
        (claim(version=2), "has format 2, this framecast reads format 1"),
        (claim(part=4), "it was written as 000004-0-of-1.shard"),
        (claim(num_clips=2**32 - 1), "its header speaks of"),
        (claim(index_offset=2**63), "its header speaks of"),
        (claim(index_offset=0), "its header speaks of"),
        (claim(text_bytes=2**64 - 1), "its header speaks of"),
        (entry("offset", 0), "its records do not follow each other"),
        (entry("offset", 2**64 - 64), "its records do not follow each other"),
        (entry("num_bytes", 2**64 - 1), "its records do not follow each other"),
        (entry("shape", (2**32 - 1, 65536, 65536, 3)), "a clip has more pixels than bytes"),
        (entry("shape", (1, 65537, 1, 1)), "a clip has an impossible shape"),
        (entry("shape", (1, 1, 1, 2)), "a clip has an impossible shape"),
        (entry("shape", (0, 1, 1, 1)), "a clip has an impossible shape"),
        (entry("action_size", 2**32 - 1), "a clip has more actions than bytes"),
        (entry("action_size", 30), "a clip has more actions than bytes"),
        (entry("text_offset", 2**64 - 1), "the text of a clip lies outside the index"),
        (entry("text_bytes", 2**32 - 1), "the text of a clip lies outside the index"),
        (entry("split", 3), "a clip is of no known split"),
        (text('"it is empty"', '"it","is","p"', "skipped"), "its list of what was skipped is no list"),
        (entry("action_size", 2), "its index does not describe the actions of clip 0"),
        (text('"label":""', '"lebal":""'), "what its index says of clip 0 is not understood"),
        (text('"clip 0"', '["lip 0"'), "what its index says of clip 0 is not understood"),
        (text('"|b1",[2]', '"|O8",[2]'), "what its index says of an array of clip 0 is not understood"),
        (text('"|b1",[2]', '"|b1",[3]'), "what its index says of an array of clip 0 is not understood"),
        (text('"extras/seen"', '"../../seens"'), "what its index says of an array of clip 0 is not understood"),
    ],
)
def test_claims_are_held_against_the_file(path: Path, alter: Alter, sentence: str) -> None:
    altered(path, lambda claims, entries, texts: None)
    assert findings(path) == []
    altered(path, alter)
    assert any(sentence in each for each in findings(path)), findings(path)


def test_a_file_larger_than_any_shard_is_not_read(path: Path) -> None:
    os.truncate(path, shards.MAX_SHARD_BYTES + 1)
    with pytest.raises(UserError, match="more than the 1073741824 of the largest shard"):
        Shard(path)


def test_nothing_unusual_is_lost(tmp_path: Path) -> None:
    """Names that are no Unicode, big-endian numbers, videos that lie strangely in memory, every kind of array."""
    clip = a_clip(
        video=np.zeros((5, 2, 3, 4), np.uint8)[::2, :, ::-1, :1],
        name=b"caf\xe9 \xff.mp4".decode("utf-8", "surrogateescape"),
        label="Ünï\n\0 😀",
        actions=np.arange(6, dtype=">f4").reshape(3, 2),
        extras={"a": np.zeros((3, 0), np.int16), "b": np.arange(3, dtype=">i8"), "c": np.zeros((3, 2, 2), np.float16)},
    )
    check(clip)
    path = tmp_path / file_name(0, 0, 1)
    with path.open("w+b", buffering=0) as file:
        writer = ShardWriter(file)
        writer.add(Record(clip))
        writer.finish(bytes(32), 0, 0, 1)
    found = Shard(path).clip(0)
    assert (found.name, found.label) == (clip.name, clip.label)
    np.testing.assert_array_equal(found.video, clip.video)
    np.testing.assert_array_equal(found.actions, clip.actions)
    for name, array in clip.extras.items():
        np.testing.assert_array_equal(found.extras[name], array)
        assert found.extras[name].shape == array.shape


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"video": np.zeros((1, 2, 2, 2), np.uint8)}, r"uint8 \(1, 2, 2, 2\), not uint8"),
        ({"video": np.zeros((0, 2, 2, 3), np.uint8)}, "not uint8"),
        ({"video": np.zeros((2, 70000, 1, 1), np.uint8)}, "a side is at most 65536"),
        ({"split": "training"}, "is of split 'training'; there are train, val, test"),
        ({"actions": np.zeros((2, 3))}, "actions of clip 'clip 0' is float64"),
        ({"actions": np.zeros((2, 0), np.float32)}, "not float32"),
        ({"actions": np.zeros((3, 3), np.float32)}, "has 3 rows for 2 frames"),
        ({"extras": {"names": np.array(["a", "b"], object)}}, "not kept in stores"),
    ],
)
@pytest.mark.usefixtures("as_people_call_it")
def test_what_is_no_clip_is_refused(fields: dict[str, object], sentence: str) -> None:
    check(a_clip())
    with pytest.raises(UserError, match=sentence):
        check(a_clip(**fields))


def test_texts_are_plain_json(path: Path) -> None:
    """What the document promises to those who read a shard without us."""
    index = path.read_bytes()
    assert json.dumps(["broken.mp4", "it is empty"], separators=(",", ":")).encode() in index
