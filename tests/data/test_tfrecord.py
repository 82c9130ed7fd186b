"""TFRecords: what is written is read, what is damaged is found, what is hostile is refused."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framecast.data.tfrecord import MAX_FEATURES, MAX_RECORD, Example, parse_example, read_examples, records
from framecast.errors import UserError

DATAS = [b"one record", b"", bytes(range(40)), b"the last"]


@pytest.fixture
def path(tmp_path, write_records) -> Path:
    return write_records(tmp_path / "small.tfrecord", DATAS)


def read_all(path: Path) -> tuple[list[bytes], list[UserError]]:
    """The undamaged records in order, and every complaint."""
    datas, errors = [], []
    try:
        for record in records(path):
            try:
                datas.append(record.read())
            except UserError as error:
                errors.append(error)
    except UserError as error:
        errors.append(error)
    return datas, errors


@settings(max_examples=50, deadline=None)
@given(datas=st.lists(st.binary(max_size=300), min_size=1, max_size=6))
def test_reads_what_was_written(tmp_path_factory, write_records, datas):
    path = write_records(tmp_path_factory.mktemp("records") / "any.tfrecord", datas)
    assert read_all(path) == (datas, [])


def test_every_flipped_bit_is_found(path):
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        datas, errors = read_all(path)
        assert len(errors) == 1, bit
        assert str(path) in str(errors[0])
        assert "at byte" in str(errors[0])
        rest = iter(DATAS)
        assert all(data in rest for data in datas), "what is returned is whole and in order"


def test_every_cut_is_found(path):
    whole = path.read_bytes()
    ends = [sum(16 + len(data) for data in DATAS[: n + 1]) for n in range(len(DATAS))]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        datas, errors = read_all(path)
        if length in ends:  # between two records, which the format itself cannot tell from a shorter file
            assert (datas, errors) == (DATAS[: ends.index(length) + 1], [])
        else:
            assert len(errors) == 1, length
            assert "cut short" in str(errors[0]) or "empty" in str(errors[0])
            assert datas == DATAS[: len(datas)]


def test_a_damaged_record_costs_only_itself(path):
    whole = bytearray(path.read_bytes())
    whole[14] ^= 1
    path.write_bytes(whole)
    datas, errors = read_all(path)
    assert datas == DATAS[1:]
    assert "the data of the record at byte 0 is damaged" in str(errors[0])


def test_a_claim_beyond_the_file_is_refused_before_memory_is_taken(tmp_path, write_records):
    masked = write_records(tmp_path / "any", [b"x"])  # only to have a valid header to borrow the form of
    for claim in (2**63, MAX_RECORD + 1, 1000):
        length = struct.pack("<Q", claim)
        checked = write_records(tmp_path / "length", [length]).read_bytes()[20:24]  # the checksum of those eight bytes
        masked.write_bytes(length + checked + b"short")
        with pytest.raises(UserError, match=r"claims \d+ bytes, more than|cut short at byte 17"):
            next(records(masked))


def test_a_file_that_shrinks_while_it_is_read(tmp_path, write_records):
    path = write_records(tmp_path / "large.tfrecord", [bytes(100_000)])  # more than a file buffers
    every = records(path)
    record = next(every)
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(UserError, match="became shorter"):
        record.read()


def test_an_unreadable_file_is_one_error(tmp_path):
    (error,) = read_examples(tmp_path / "missing.tfrecord")
    assert isinstance(error, UserError)
    assert "cannot be read" in str(error)


names = st.text(max_size=12)
features = st.dictionaries(
    names,
    st.one_of(
        st.lists(st.binary(max_size=200), min_size=1, max_size=1),
        st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9),
    ),
    max_size=8,
)


@settings(max_examples=200, deadline=None)
@given(features=features, packed=st.booleans())
def test_an_example_gives_back_its_features(serialise, features, packed):
    example = parse_example(serialise(features, packed))
    assert list(example.spans) == list(features)
    for name, values in features.items():
        assert name in example
        if isinstance(values[0], bytes):
            assert example.one_bytes(name) == values[0]
        elif isinstance(values[0], float):
            assert example.floats(name, len(values)).tolist() == values
        else:
            assert example.integers(name, len(values)).tolist() == values


VALID = {"frame": [bytes(50)], "action": [0.5, -2.0, 3.0], "step": [3, -1, 2**40], "other": [b"x"]}


def poke(data: bytes) -> None:
    """Everything that can be asked of a message: answers or UserError, nothing else."""
    try:
        example = parse_example(data)
    except UserError:
        return
    for name in [*example.spans, "frame", "action", "step"]:
        for ask in (
            lambda name: example.one_bytes(name),
            lambda name: example.floats(name, 3),
            lambda name: example.integers(name, 3),
        ):
            try:
                ask(name)
            except UserError:
                continue


@settings(max_examples=500, deadline=None)
@given(data=st.binary(max_size=80))
def test_any_bytes_are_parsed_or_refused(data):
    poke(data)


def test_any_damage_to_a_message_is_parsed_or_refused(serialise):
    """Past the checksums, which only guard against accidents."""
    chance = random.Random(0)
    for packed in (True, False):
        whole = serialise(VALID, packed)
        for cut in range(len(whole)):
            poke(whole[:cut])
        for _ in range(3000):
            damaged = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 0x0A, 0x12, 0x7F, 0x80, 0xFF))
            poke(bytes(damaged))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "the end at byte 0 where 0x0a is expected"),
        (b"\x0a\x05\x0a", "claims 5 bytes of 1"),
        (b"\x0a" + b"\xff" * 12, "no number of at most 64 bits at byte 1"),
        (b"\x0a\x00more", "goes on after its features, at byte 2"),
        (b"\x12\x00", "0x12 at byte 0 where 0x0a is expected"),
    ],
)
def test_a_malformed_message_is_named(data, complaint):
    with pytest.raises(UserError, match=complaint):
        parse_example(data)


def test_what_is_asked_for_must_be_there(serialise):
    example = parse_example(serialise(VALID | {"two": [b"x", b"y"]}))
    with pytest.raises(UserError, match="there is no feature 'reward'"):
        example.floats("reward", 1)
    with pytest.raises(UserError, match="'frame' is no list of floats"):
        example.floats("frame", 1)
    with pytest.raises(UserError, match="'action' holds more than 2 floats"):
        example.floats("action", 2)
    with pytest.raises(UserError, match="'action' holds fewer than 4 floats"):
        example.floats("action", 4)
    with pytest.raises(UserError, match="'step' holds fewer than 4 integers"):
        example.integers("step", 4)
    with pytest.raises(UserError, match="'two' holds more than the one value expected"):
        example.one_bytes("two")


def test_a_name_twice_and_too_many_names_are_refused(serialise):
    once = serialise({"a": [1.0]})[2:]
    twice = b"\x0a" + bytes([2 * len(once)]) + 2 * once
    with pytest.raises(UserError, match="holds feature 'a' twice"):
        parse_example(twice)
    many = serialise({str(n): [0] for n in range(MAX_FEATURES + 1)})
    with pytest.raises(UserError, match=f"more than {MAX_FEATURES} features"):
        parse_example(many)


def test_real_files_are_read(test_data):
    paths = [*test_data.glob("bair/**/*.tfrecords"), *test_data.glob("google_push/**/*.tfrecord-*")]
    assert len(paths) == 4
    for path in paths:
        (example,) = read_examples(path)
        assert isinstance(example, Example)
        assert len(example.spans) == (120 if "bair" in path.parts else 24)
