"""Animated pictures (GIF, WebP) and folders of pictures, as Pillow reads them: upright, in RGB, on black."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from framecast.data.containers import check_length
from framecast.data.frames import MAX_PIXELS, Frame
from framecast.errors import UserError

if TYPE_CHECKING:
    from jaxtyping import UInt8

ANIMATED = frozenset({".gif", ".webp"})
STILL = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"})

_UNTIMED = 100
"""Milliseconds that viewers show a frame that asks for none."""


def read_animated(path: Path) -> Iterator[Frame]:
    from PIL import ImageSequence

    milliseconds = 0
    with _plain_errors():
        check_length(path)
        with _opened(path) as image:
            for picture in ImageSequence.Iterator(image):
                pixels = _rgb(picture)  # at once, since the next frame takes the place of this one
                yield Frame(milliseconds / 1000, partial(np.asarray, pixels))
                milliseconds += picture.info.get("duration") or _UNTIMED


def read_sequence(folder: Path) -> Iterator[Frame]:
    """The pictures in a folder, in the order of the numbers in their names."""
    for path in sorted(filter(is_still, folder.iterdir()), key=lambda path: by_number(path.name)):
        yield from read_still(path)


def read_still(path: Path) -> Iterator[Frame]:
    yield Frame(None, partial(_pixels, path))


def is_still(path: Path) -> bool:
    return path.suffix.lower() in STILL and not path.name.startswith(".")


def by_number(name: str) -> tuple[tuple[int, str], ...]:
    """Orders names as people do: frame9 before frame10."""
    return tuple((int(digits or -1), letters) for digits, letters in re.findall(r"([0-9]+)|([^0-9]+)", name))


def _pixels(path: Path) -> UInt8[np.ndarray, "H W C"]:
    from PIL import ImageOps

    try:
        with _plain_errors(), _opened(path) as image:
            return _rgb(ImageOps.exif_transpose(image))
    except UserError as error:
        raise UserError(f"{path.name}: {error}") from error


def _opened(path: Path) -> Any:
    from PIL import Image

    image = Image.open(path)
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise UserError(f"its frames are said to be {image.height}×{image.width}, more than {MAX_PIXELS} pixels")
    return image


def _rgb(image: Any) -> UInt8[np.ndarray, "H W C"]:
    from PIL import Image

    if image.mode.startswith(("I", "F")):
        raise UserError(f"its pixels are of kind {image.mode!r}, not of 8 bits a channel")
    if image.has_transparency_data:
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        image = Image.alpha_composite(black, image.convert("RGBA"))
    return np.asarray(image.convert("RGB"))


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What Pillow raises on damaged files, which depends on the format and on where the damage is."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except FileNotFoundError as error:
        raise UserError("it does not exist") from error
    except UnidentifiedImageError as error:
        raise UserError("it is no picture that can be decoded") from error
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, struct.error, zlib.error) as error:
        raise UserError(f"it cannot be decoded: {error}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(f"its frames are too large: {error}") from error
