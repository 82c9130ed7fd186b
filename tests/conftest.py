"""Shapes in signatures are executed in every test: jaxtyping's names are only imported by type checkers in the package,
so they are put among the builtins here, where beartype looks them up."""

from __future__ import annotations

import builtins
import hashlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jaxtyping
import pytest
import torch

for _name in ("Bool", "Float", "Int", "Num", "Shaped", "UInt8"):
    setattr(builtins, _name, getattr(jaxtyping, _name))
_OPS = ("attention", "blocks", "channels", "precision", "subscale", "windows")  # Triton reads its kernels as they stand
_TENSORS = ("data", "evaluation", "media", "model", *(f"ops.{name}" for name in _OPS), "sampling", "training")
_hook = jaxtyping.install_import_hook([f"framecast.{name}" for name in _TENSORS], "beartype.beartype")

torch.set_num_threads(1)

# The kernels' tests run without a GPU too; Triton looks at this when a kernel is defined.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that: here it is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def as_people_call_it() -> Iterator[None]:
    """Without the shapes' checks, which would answer a mistake before the sentence that a person gets."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real files: $FRAMECAST_TEST_DATA, else ../shared/data; in CI its absence is a failure."""
    root = Path(os.environ.get("FRAMECAST_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not root.is_dir():
        message = f"no real files to test against: set FRAMECAST_TEST_DATA ({root} does not exist)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return root


@pytest.fixture(scope="session")
def make_store() -> Callable[..., Path]:
    """`make_store(folder, clips, dataset="folder")`: a store of the given `Clip`s; returns its folder."""
    from framecast.data.clip import Clip
    from framecast.data.manifest import NAME, Manifest
    from framecast.data.part import Part

    def make(folder: Path, clips: Sequence[Clip], dataset: str = "folder", clips_per_part: int = 512) -> Path:
        folder.mkdir(parents=True)
        given = _Given(clips)
        names = hashlib.sha256("".join(given.items()).encode()).hexdigest()
        manifest = Manifest(dataset, "shards", {}, len(clips), names, clips_per_part, {})
        (folder / NAME).write_bytes(manifest.text())
        for part in range(manifest.num_parts):
            items = given.items()[part * clips_per_part : (part + 1) * clips_per_part]
            Part(folder, part, given, items, manifest.sha256()).make({}, lambda place: None)
        return folder

    return make


class _Given:
    """A source of clips that are already there."""

    items_per_part = 512

    def __init__(self, clips):
        self.clips = clips

    def items(self):
        return [str(place) for place in range(len(self.clips))]

    def read(self, items):
        return (self.clips[int(item)] for item in items)
