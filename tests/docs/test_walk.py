"""What the documents name exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
ROOT = DOCS.parent

NAMES = sorted(set(re.findall(r"`(framecast(?:\.\w+)+)`", (DOCS / "walk.md").read_text())))
FILES = sorted(set(re.findall(r"`((?:tests|framecast|docs|benchmarks)/[\w/.]*)`", (DOCS / "paper.md").read_text())))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_walks_can_be_imported(name):
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return
    raise AssertionError(name)


@pytest.mark.parametrize("name", FILES)
def test_every_file_that_the_paper_s_map_names_is_there(name):
    place = ROOT / "src" / name if name.startswith("framecast") else ROOT / name
    assert place.exists()


def test_there_is_something_to_test():
    assert len(NAMES) > 25
    assert len(FILES) > 15
