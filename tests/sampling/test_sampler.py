"""The fast samplers draw what the reference draws, pixel for pixel, with the model's probabilities."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from framecast.config import LayerConfig
from framecast.errors import UserError
from framecast.model.head import ScalarHead
from framecast.model.video_transformer import VideoTransformer
from framecast.sampling import decoder_step, reference, sampler
from framecast.sampling.choose import Chooser, Where, draw, greedy
from framecast.sampling.sampler import Drawing, sample


def all_three(
    model: VideoTransformer, prime: Tensor, known: Tensor, num_frames: int, actions: Tensor | None, seed: int = 3
) -> list[Tensor]:
    """What the reference, the cached raster and the cached waves draw."""
    samples = torch.arange(len(prime)) + 5
    video = prime.new_zeros(len(prime), num_frames, *prime.shape[2:])
    video[:, : prime.shape[1]] = prime
    given = known.new_zeros(video.shape[:-1])
    given[:, : prime.shape[1]] = known
    videos = [reference.sample(model, video, given, draw(0.9), seed, samples, actions)]
    for raster in (True, False):
        drawing = Drawing(model, prime, num_frames, draw(0.9), seed, actions, samples, known, raster=raster)
        for _ in drawing:
            pass
        videos.append(drawing.video)
    return videos


def all_known(prime: Tensor) -> Tensor:
    return torch.ones(prime.shape[:-1], dtype=torch.bool)


@pytest.mark.parametrize("num_given", [0, 1])
def test_reference_raster_and_waves_draw_the_same(any_model, tiny, num_given):
    prime = tiny.video(any_model)[:, :num_given]
    num_frames = any_model.config.video_shape[0]
    right, raster, waves = all_three(any_model, prime, all_known(prime), num_frames, tiny.actions(any_model))
    assert torch.equal(raster, right)
    assert torch.equal(waves, right)
    assert torch.equal(right[:, :num_given], prime)
    assert right[:, num_given:].unique().numel() > 1


@st.composite
def changes(draw) -> dict:
    extent = tuple(draw(st.integers(1, 3)) for _ in range(3))
    factor = tuple(draw(st.integers(1, 2)) for _ in range(3))
    factor = (2, *factor[1:]) if extent[0] == 1 else factor
    subscaled = factor != (1, 1, 1)
    kernel = tuple(draw(st.integers(2 if size > 1 else 1, 4)) for size in factor)

    def layers() -> tuple[LayerConfig, ...]:
        return tuple(
            LayerConfig(
                tuple(draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0])) for size in extent),
                num_heads=draw(st.integers(1, 2)),
                dilated=draw(st.booleans()),
            )
            for _ in range(draw(st.integers(1, 3)))
        )

    output = draw(st.sampled_from(["codes", "codes", "scalar"]))
    return {
        "video_shape": tuple(size * by for size, by in zip(extent, factor, strict=True)),
        "subscale_factor": factor,
        "context_kernel": kernel if subscaled else (1, 1, 1),
        "masked_kernel": tuple(draw(st.sampled_from([1, 3, 5])) for _ in range(3)),
        "encoder_layers": layers(),
        "decoder_layers": layers(),
        "first_slice_layers": layers() if draw(st.booleans()) else (),
        "num_channels": 1 if output == "scalar" else draw(st.sampled_from([1, 3])),
        "code_bits": draw(st.sampled_from([(1,), (2, 1), (1, 1, 1)])),
        "output": output,
        "inputs": draw(st.sampled_from(["onehot", "continuous"])),
        "gate": draw(st.booleans()),
        "action_size": draw(st.sampled_from([0, 2])),
        "actions": draw(st.sampled_from(["frame", "window"])),
        "prime_frames": draw(st.integers(0, 1)) if extent[0] * factor[0] > 1 else 0,
    }


@settings(max_examples=25, deadline=None, derandomize=True)
@given(changes(), st.integers(0, 2**32), st.data())
def test_random_models_masks_and_lengths(tiny, changes, seed, data):
    model = tiny.model(seed % 1000, **changes)
    length = model.config.video_shape[0]
    num_frames = data.draw(st.integers(length, length + 1))
    prime = tiny.video(model, num_frames=data.draw(st.integers(0, length)))
    generator = torch.Generator().manual_seed(seed)
    known = torch.rand(prime.shape[:-1], generator=generator) < data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    if data.draw(st.booleans()):
        known = known[:1].expand_as(known)  # alike in all samples: those positions are given
    right, raster, waves = all_three(model, prime, known, num_frames, tiny.actions(model, 2, num_frames), seed)
    assert torch.equal(raster, right)
    assert torch.equal(waves, right)
    assert torch.equal(right[:, : prime.shape[1]][known], prime[known])


LONGER = {
    "spatiotemporal": {},
    "first_slice": {"first_slice_layers": (LayerConfig((2, 1, 2), 1),)},
    "spatial": {"video_shape": (2, 4, 4), "subscale_factor": (1, 2, 2)},
    "single_frame": {
        "video_shape": (3, 2, 2),
        "subscale_factor": (3, 1, 1),
        "context_kernel": (4, 1, 1),
        "encoder_layers": (LayerConfig((1, 2, 1), 1),),
        "decoder_layers": (LayerConfig((1, 1, 2), 1),),
    },
}


@pytest.mark.parametrize("variant", LONGER)
def test_longer_videos_are_drawn_in_the_windows_of_log_prob(tiny, variant):
    model = tiny.model(**LONGER[variant])
    num_frames = model.config.video_shape[0] + 2
    prime = tiny.video(model)[:, :1]
    right, raster, waves = all_three(model, prime, all_known(prime), num_frames, None)
    assert torch.equal(raster, right)
    assert torch.equal(waves, right)


def test_a_sample_is_the_same_alone_and_in_a_batch_of_64(tiny):
    model = tiny.model()
    prime = tiny.video(model, 64)[:, :1]
    together = sample(model, prime, seed=11)
    for row in (0, 17, 63):
        assert torch.equal(sample(model, prime[row : row + 1], seed=11, samples=torch.tensor([row]))[0], together[row])
    again = sample(model, prime.flip(0), seed=11, samples=torch.arange(64).flip(0))
    assert torch.equal(again.flip(0), together)
    assert not torch.equal(sample(model, prime, seed=12), together)


def test_unknown_pixels_are_never_looked_at(any_model, tiny):
    prime = tiny.video(any_model)
    known = torch.rand(prime.shape[:-1], generator=torch.Generator().manual_seed(2)) < 0.3
    acts = tiny.actions(any_model)
    drawn = sample(any_model, prime, seed=1, known=known, actions=acts)
    noisy = torch.where(known[..., None], prime, tiny.video(any_model, seed=9))
    assert torch.equal(sample(any_model, noisy, seed=1, known=known, actions=acts), drawn)
    assert torch.equal(drawn[known], prime[known])


def test_one_mask_stands_for_all(tiny):
    model = tiny.model()
    prime = tiny.video(model)
    known = torch.rand(prime.shape[1:-1], generator=torch.Generator().manual_seed(2)) < 0.5
    one = sample(model, prime, known=known[None].numpy())
    assert torch.equal(one, sample(model, prime, known=known.expand(2, -1, -1, -1)))


class Recorded:
    """A chooser that draws, and keeps what each choice had for a probability."""

    def __init__(self, chooser: Chooser, num_pixels: int) -> None:
        self.chooser = chooser
        self.log_prob = torch.zeros(2, num_pixels, dtype=torch.float64)

    def __call__(self, logits: Tensor, where: Where) -> Tensor:
        codes = self.chooser(logits, where)
        chosen = torch.log_softmax(logits.double(), -1).gather(-1, codes[..., None])[..., 0]
        self.log_prob[:, where.pixels] += chosen.T
        return codes


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-11), ("float32", 1e-4), ("bf16", 0.2)])
def test_logits_are_those_of_log_prob(any_model, tiny, precision, tolerance):
    if isinstance(any_model.head, ScalarHead):
        return
    model = any_model if precision == "float64" else any_model.float()
    num_frames = model.config.video_shape[0] + 1
    prime, acts = tiny.video(model)[:, :1], tiny.actions(model, 2, num_frames)
    recorded = Recorded(draw(0.9), num_frames * math.prod(model.config.video_shape[1:]))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        video = sample(model, prime, num_frames, choose=recorded, actions=acts)
        expected = model.log_prob(video, acts)
    found = recorded.log_prob.view(expected.shape)
    torch.testing.assert_close(found[:, 1:], expected[:, 1:], atol=tolerance, rtol=0)


def enumerable(tiny) -> VideoTransformer:
    """2 × 2 × 2 black-and-white pixels: every one of the 256 videos has a probability that can be computed."""
    layers = (LayerConfig((1, 2, 1), 2), LayerConfig((2, 1, 1), 1))
    return tiny.model(
        video_shape=(2, 2, 2), subscale_factor=(1, 1, 2), encoder_layers=layers, decoder_layers=layers, code_bits=(1,)
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_frequencies_are_the_model_s_probabilities(tiny, temperature):
    model, num_samples, num_batches = enumerable(tiny), 20_000, 4
    videos = torch.tensor(list(itertools.product((0, 1), repeat=8)), dtype=torch.uint8).view(256, 2, 2, 2, 1)
    # At a temperature, each pixel's probability p becomes p^(1/T) / (p^(1/T) + (1 − p)^(1/T)).
    log_p = model.log_prob(videos)
    logit = (log_p - torch.log1p(-torch.exp(log_p))) / temperature
    expected = torch.nn.functional.logsigmoid(logit).sum((1, 2, 3)).exp() * num_samples
    assert expected.sum() == pytest.approx(num_samples)
    nothing = torch.zeros(1, 0, 2, 2, 1, dtype=torch.uint8)
    ids = torch.arange(num_samples).chunk(num_batches)
    drawn = torch.cat([sample(model, nothing, temperature=temperature, seed=4, samples=some) for some in ids])
    counts = torch.bincount((drawn.flatten(1) * 2 ** torch.arange(7, -1, -1)).sum(1), minlength=256).double()
    # Rare videos together, so that each class is expected ten times at least.
    rare = expected < 10
    expected = torch.cat([expected[~rare], expected[rare].sum(0, keepdim=True)])
    counts = torch.cat([counts[~rare], counts[rare].sum(0, keepdim=True)])
    classes = len(expected)
    assert classes > 30
    chi_squared = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_squared < classes - 1 + 3.1 * math.sqrt(2 * (classes - 1))  # one in a thousand; the seed is fixed


def test_scalar_models_predict_and_refuse_what_belongs_to_drawing(tiny):
    model = tiny.model(output="scalar", code_bits=(4, 4))
    prime = tiny.video(model)[:, :1]
    assert torch.equal(sample(model, prime, seed=1), sample(model, prime, seed=2))
    for name, value in {"temperature": 0.9, "top_k": 2, "top_p": 0.5}.items():
        with pytest.raises(UserError, match=rf"a model with a scalar output .* draws nothing: \['{name}'\]"):
            sample(model, prime, **{name: value})


def test_temperature_zero_is_greedy_and_other_choosers_fit_in(tiny):
    model = tiny.model()
    prime = tiny.video(model)[:, :1]
    assert torch.equal(sample(model, prime, temperature=0.0), sample(model, prime, choose=greedy))
    with pytest.raises(UserError, match="temperature belongs to drawing, and choose= takes its place"):
        sample(model, prime, temperature=0.5, choose=greedy)


def test_one_prime_with_many_actions_is_encoded_once_while_they_agree(tiny, monkeypatch):
    model = tiny.model(action_size=2)
    prime = tiny.video(model, 1)[:, :1]
    acts = tiny.actions(model, 5)
    acts[:, ::2] = acts[:1, ::2]  # alike in the frames of the first slices
    rows = []
    forward = model.encoder.forward
    monkeypatch.setattr(model.encoder, "forward", lambda *given: (rows.append(len(given[0])), forward(*given))[1])
    drawn = sample(model, prime, actions=acts)
    assert rows[0] == 1
    assert sum(rows[-2:]) == 5
    assert len({tuple(video.flatten().tolist()) for video in drawn}) == 5
    for row in range(5):
        alone = sample(model, prime, actions=acts[row : row + 1], samples=torch.tensor([row]))
        assert torch.equal(alone[0], drawn[row])


def single_frame(tiny, **changes) -> VideoTransformer:
    layers = (LayerConfig((1, 2, 2), 1),)
    fixed = {"video_shape": (4, 2, 2), "subscale_factor": (4, 1, 1), "context_kernel": (6, 1, 1)}
    return tiny.model(**fixed, encoder_layers=layers, decoder_layers=layers, **changes)


@pytest.mark.parametrize(("kind", "ahead"), [("frame", 1), ("window", 0)])
def test_a_single_frame_model_takes_its_actions_as_they_come(tiny, kind, ahead):
    model = single_frame(tiny, action_size=2, actions=kind)
    prime, acts = tiny.video(model)[:, :2], tiny.actions(model, 2, 6)
    taken = 0

    def arriving():
        nonlocal taken
        for t in range(6):
            taken += 1
            yield acts[:, t]

    whole = sample(model, prime, 6, actions=acts)
    numbers = []
    for number, frame in sampler.frames(model, prime, 6, actions=arriving()):
        numbers.append(number)
        assert torch.equal(frame, whole[:, number])
        assert taken <= number + ahead
    assert numbers == list(range(6))


def test_where_the_actions_end_the_video_ends(tiny):
    model = single_frame(tiny, action_size=2)
    acts = tiny.actions(model, 2, 6)
    handed_out = sampler.frames(model, tiny.video(model)[:, :1], 6, actions=iter(acts.unbind(1)[:3]))
    assert [number for number, _ in handed_out] == [0, 1, 2]


def test_spatiotemporal_models_need_all_actions_at_the_start(tiny):
    model = tiny.model(action_size=2)
    with pytest.raises(UserError, match="draws 2 frames together, so it needs all actions at the start"):
        sampler.frames(model, tiny.video(model)[:, :1], actions=iter([torch.zeros(2, 2)]))


def test_an_action_that_does_not_fit_is_refused(tiny):
    model = single_frame(tiny, action_size=2)
    for wrong in (torch.zeros(2, 3), torch.full((2, 2), math.nan)):
        with pytest.raises(UserError, match=r"action 0 must be finite numbers of shape \(2, 2\)"):
            list(sampler.frames(model, tiny.video(model)[:, :0], actions=iter([wrong])))


def test_frames_are_handed_out_as_soon_as_they_are_complete(tiny):
    model = tiny.model()
    prime = tiny.video(model)[:, :1]
    whole = sample(model, prime)
    handed_out = dict(sampler.frames(model, prime))
    assert list(handed_out) == [0, 2, 1, 3]  # those of one offset in time together
    assert all(torch.equal(frame, whole[:, number]) for number, frame in handed_out.items())


def test_progress_counts_every_wave_and_stops_where_it_is_told(tiny):
    model = tiny.model()
    prime = tiny.video(model)[:, :1]
    whole = sample(model, prime)
    states = []
    sample(model, prime, progress=states.append)
    steps = [(state.slice, state.wave) for state in states]
    assert steps == sorted(steps)
    assert len(steps) == sum(state.num_waves for state in states if state.wave == 1)
    assert states[-1].slice == states[-1].num_slices - 1 == 7
    assert states[-1].seconds_left == 0
    assert states[0].seconds_left > 0
    assert [state.seconds for state in states] == sorted(state.seconds for state in states)

    stopped = sample(model, prime, progress=lambda state: (state.slice, state.wave) == (4, 2))
    half = stopped[:, ::2]
    assert torch.equal(half, whole[:, ::2])  # the slices of the first offset in time are done
    done = stopped[:, 1::2, ::2, ::2].flatten(1)
    right = whole[:, 1::2, ::2, ::2].flatten(1)
    assert ((done == right) | (done == 0)).all()
    assert (done != 0).any() or (right[:, :2] == 0).all()
    assert not stopped[:, 1::2, 1::2].any()


def test_wide_waves_of_given_pixels_are_cut(tiny, monkeypatch):
    model = tiny.model()
    prime = tiny.video(model)[:, :3]
    whole = sample(model, prime)
    decoder_step.schedule.cache_clear()
    monkeypatch.setattr(decoder_step, "MAX_WIDTH", 3)
    cut = sample(model, prime)
    decoder_step.schedule.cache_clear()
    assert torch.equal(cut, whole)


def test_a_video_that_is_all_given_comes_back(tiny):
    model = tiny.model()
    prime = tiny.video(model)
    assert torch.equal(sample(model, prime), prime)


def test_what_does_not_fit_is_refused(tiny):
    model = tiny.model()
    prime = tiny.video(model)
    cases = [
        ({"prime": prime[0]}, r"prime must have the shape \(batch, frames, H, W, C\), this one has \(4, 4, 4, 1\)"),
        ({"prime": prime, "num_frames": 3}, "prime has 4 frames, the whole video only 3"),
        ({"prime": prime[:, :1], "num_frames": 3}, "at least 4 frames, this one has 3"),
        ({"prime": prime, "samples": np.arange(3)}, "prime has 2 entries where there are 3 videos: give 1 or 3"),
        ({"prime": prime, "samples": np.zeros(2)}, "samples must be a list of whole numbers"),
        ({"prime": prime, "known": np.zeros((2, 4, 4, 3), bool)}, r"bool of shape \(2, 4, 4, 4\), not bool of shape"),
        ({"prime": prime, "known": np.zeros((2, 4, 4, 4))}, "it must be bool of shape .* not float64"),
        ({"prime": prime, "actions": np.zeros((2, 4, 2))}, "this model takes no actions"),
        ({"prime": prime.numpy().astype(np.float32)}, "a video holds uint8 values, this one float32"),
    ]
    for arguments, sentence in cases:
        arguments = {name: value.numpy() if isinstance(value, Tensor) else value for name, value in arguments.items()}
        with pytest.raises(UserError, match=sentence):
            sample(model, **arguments)
