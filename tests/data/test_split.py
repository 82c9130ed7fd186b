from __future__ import annotations

import unicodedata
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from framecast.data.split import split_of


def test_eight_one_one() -> None:
    counts = Counter(split_of(f"walking/{number:05d}.mp4") for number in range(10_000))
    assert set(counts) == {"train", "val", "test"}
    assert abs(counts["val"] - 1000) < 120  # four standard deviations
    assert abs(counts["test"] - 1000) < 120


@given(st.text())
def test_any_name_has_one_split(name: str) -> None:
    assert split_of(name) in {"train", "val", "test"}
    assert split_of(unicodedata.normalize("NFD", name)) == split_of(unicodedata.normalize("NFC", name))


def test_names_that_are_no_unicode() -> None:
    assert split_of(b"caf\xe9.mp4".decode("utf-8", "surrogateescape")) in {"train", "val", "test"}


def test_splits_that_stores_already_have() -> None:
    """Another hash would move clips of existing stores from training to testing."""
    numbers = {split: [n for n in range(34) if split_of(f"clip{n}.mp4") == split] for split in ("val", "test")}
    assert numbers == {"val": [24, 29, 33], "test": [8, 18, 19]}
