from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framecast.data.resize import Resizer, centred_box, lanczos_weights, resize
from framecast.errors import UserError

sides = st.integers(1, 40)
fits = st.sampled_from(["crop", "stretch"])


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("name", ["k600_R6llTwEh07w_f0", "ucf_g23_f10", "pancake_f100"])
@pytest.mark.parametrize(("kind", "fit"), [("full", "stretch"), ("crop", "crop")])
def test_equals_tensorflow(test_data: Path, name: str, kind: str, fit: str) -> None:
    reference = np.load(test_data / "reference_values/lanczos3_antialias_tf.npz")
    expected = np.clip(np.rint(reference[f"{kind}_{name}"]), 0, 255)
    ours = resize(reference[f"in_{name}"][None], (64, 64), fit)[0].astype(int)
    assert np.abs(ours - expected).max() <= 1
    assert (ours != expected).mean() <= 0.001


def test_the_reference_without_antialiasing_is_something_else(test_data: Path) -> None:
    reference = np.load(test_data / "reference_values/lanczos3_antialias_tf.npz")
    other = np.clip(np.rint(reference["cropnoaa_ucf_g23_f10"]), 0, 255)
    assert (resize(reference["in_ucf_g23_f10"][None], (64, 64))[0] != other).mean() > 0.1


@given(sides, sides, sides, sides, st.integers(0, 255), fits)
def test_a_constant_frame_stays_constant(
    height: int, width: int, rows: int, columns: int, level: int, fit: str
) -> None:
    frames = np.full((2, height, width, 3), level, np.uint8)
    small = resize(frames, (rows, columns), fit)
    assert small.shape == (2, rows, columns, 3)
    assert (small == level).all()


@given(sides, sides, st.sampled_from([1, 3]), fits)
def test_the_own_size_changes_nothing(height: int, width: int, channels: int, fit: str) -> None:
    frames = noise(2, height, width, channels)
    assert (resize(frames, (height, width), fit) == frames).all()


@given(sides, sides, sides, sides, fits)
def test_mirrored_frames_give_mirrored_results(height: int, width: int, rows: int, columns: int, fit: str) -> None:
    frames = noise(1, height, width, 3)
    box = centred_box((height, width), (rows, columns))
    if fit == "crop" and ((height - box[0].stop + box[0].start) % 2 or (width - box[1].stop + box[1].start) % 2):
        return  # a box that cannot be centred exactly is half a pixel off, to another side when mirrored
    mirrored = resize(frames[:, ::-1, ::-1], (rows, columns), fit)[:, ::-1, ::-1].astype(int)
    assert np.abs(mirrored - resize(frames, (rows, columns), fit)).max() <= 1  # a sum in another order


def test_a_frame_does_not_depend_on_its_neighbours() -> None:
    frames = noise(5, 33, 47, 3)
    alone = np.concatenate([resize(frame[None], (16, 12)) for frame in frames])
    assert (resize(frames, (16, 12)) == alone).all()


def test_channels_are_resized_alike() -> None:
    frames = noise(2, 37, 50, 3)
    each = [resize(frames[..., [channel]], (16, 16)) for channel in range(3)]
    assert (np.concatenate(each, axis=-1) == resize(frames, (16, 16))).all()


@given(sides, sides)
def test_weights_sum_to_one_and_read_a_window(num_inputs: int, num_outputs: int) -> None:
    weights = lanczos_weights(num_inputs, num_outputs)
    assert np.allclose(weights.sum(axis=1), 1)
    assert (weights != 0).sum(axis=1).max() <= 2 * 3 * max(1, num_inputs / num_outputs) + 1


@pytest.mark.parametrize(
    ("frame", "size", "expected"),
    [
        ((256, 340), (64, 64), (slice(0, 256), slice(42, 298))),
        ((340, 256), (64, 64), (slice(42, 298), slice(0, 256))),
        ((480, 640), (32, 64), (slice(80, 400), slice(0, 640))),
        ((3, 1000), (64, 1), (slice(0, 3), slice(499, 500))),
        ((64, 64), (64, 64), (slice(0, 64), slice(0, 64))),
    ],
)
def test_the_centred_box(frame: tuple[int, int], size: tuple[int, int], expected: tuple[slice, slice]) -> None:
    assert centred_box(frame, size) == expected


def test_what_lies_outside_the_crop_is_not_read() -> None:
    frames = noise(1, 40, 60, 3)
    altered = frames.copy()
    altered[:, :, :10], altered[:, :, 50:] = 0, 255
    assert (resize(frames, (8, 8)) == resize(altered, (8, 8))).all()
    assert (resize(frames, (8, 8), "stretch") != resize(altered, (8, 8), "stretch")).any()


def test_frames_may_be_padded_views() -> None:
    padded = noise(1, 20, 40, 3)
    assert (resize(padded[:, :, :30], (8, 8)) == resize(padded[:, :, :30].copy(), (8, 8))).all()


def test_a_resizer_keeps_nothing_of_the_frame_before() -> None:
    first, second = noise(2, 20, 30, 3)
    resizer = Resizer((20, 30, 3), (8, 8), "crop")
    kept = resizer(first)
    before = kept.copy()
    assert (resizer(second) == resize(second[None], (8, 8))[0]).all()
    assert (kept == before).all()


def test_no_pixels() -> None:
    with pytest.raises(UserError, match="frames of 0×5 cannot be resized to 4×4"):
        resize(np.empty((1, 0, 5, 3), np.uint8), (4, 4))
    with pytest.raises(UserError, match="cannot be resized to 0×4"):
        resize(np.empty((1, 5, 5, 3), np.uint8), (0, 4))
