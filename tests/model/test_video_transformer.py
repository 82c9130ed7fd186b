"""The whole model: what reaches what, that batches mix slices freely, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from framecast import presets
from framecast.config import LayerConfig
from framecast.errors import UserError
from framecast.model.head import CodeHead
from framecast.model.video_transformer import VideoTransformer, bits_per_dim
from framecast.ops import subscale


def test_a_batch_of_mixed_slices_equals_one_slice_at_a_time(any_model, any_actions, make_video):
    config = any_model.config
    video = make_video(config, 3)
    index = torch.tensor([config.num_slices - 1, 0, config.num_slices // 2])
    together = any_model(video, index, any_actions)
    for row in range(3):
        one = slice(row, row + 1)
        alone = any_model(video[one], index[one], None if any_actions is None else any_actions[one])
        torch.testing.assert_close(together[one], alone, rtol=1e-10, atol=1e-12)


def test_every_part_computes_and_every_parameter_learns(any_model, any_actions, make_video):
    config = any_model.config
    fired: dict[nn.Module, int] = {}
    for module in any_model.modules():
        module.register_forward_hook(lambda module, *_: fired.update({module: fired.get(module, 0) + 1}))
    video = make_video(config, 3)
    index = torch.tensor([config.num_slices - 1, 0, config.num_slices // 2])
    any_model(video, index, any_actions).sum().backward()
    lists = [module for module in any_model.modules() if isinstance(module, nn.ParameterList)]
    for name, module in any_model.named_modules():
        if module not in lists:
            assert fired.get(module) == 1, f"{name or 'the model'} fired {fired.get(module, 0)} times"
    for name, parameter in any_model.named_parameters():
        nothing_visible = config.num_slices == 1 and name == "encoder.convolution.weight"
        one_distance = "attention.bias" in name and parameter.shape[1] == 1  # the softmax does not feel a constant
        assert parameter.grad is not None, name
        assert (parameter.grad != 0).any() or nothing_visible or one_distance, name


def test_log_prob_puts_every_slice_in_its_place(any_model, any_actions, make_video):
    config = any_model.config
    video = make_video(config, 3)
    log_prob = any_model.log_prob(video, any_actions)
    assert log_prob.shape == video.shape[:-1]
    for number in range(config.num_slices):
        index = torch.full((3,), number)
        expected = -any_model(video, index, any_actions).sum(-1)
        found = subscale.take(log_prob, index, config.subscale_factor)
        torch.testing.assert_close(found, expected.to(found.dtype))


def test_longer_videos_are_read_in_chained_windows(make_model, make_video):
    model = make_model(prime_frames=1)
    video = make_video(model.config, 2, frames=9)
    found = model.log_prob(video)
    whole = [model.log_prob(video[:, start : start + 4]) for start in (0, 3, 5)]
    expected = torch.cat([whole[0], whole[1][:, 1:], whole[2][:, 2:]], dim=1)  # the last window is moved back
    torch.testing.assert_close(found, expected)


def test_a_zeroed_output_layer_scores_8_bits(make_model, make_video):
    model = make_model(code_bits=(4, 4))
    assert isinstance(model.head, CodeHead)
    nn.init.zeros_(model.head.output.weight)
    bits = bits_per_dim(model, make_video(model.config, 2))
    assert bits.shape == (2,)
    torch.testing.assert_close(bits, torch.full_like(bits, 8.0))


def test_bits_per_dim_leaves_the_primed_frames_out(make_model, make_video):
    model = make_model()
    video = make_video(model.config, 2)
    nats = -model.log_prob(video)[:, 3:].flatten(1).sum(1)
    expected = nats / math.log(2) / (4 * 4 * 3)
    torch.testing.assert_close(bits_per_dim(model, video.numpy(), prime_frames=3), expected)
    with pytest.raises(UserError, match="prime_frames is 4: of 4 frames, one must be predicted"):
        bits_per_dim(model, video, prime_frames=4)


def test_hidden_pixels_are_never_read(make_model, make_video):
    """Whatever stands in pixels of this slice and of later ones, even a NaN, the encoder says the same."""
    model = make_model()
    config = model.config
    index = torch.arange(config.num_slices)
    features = model.features(make_video(config).expand(config.num_slices, -1, -1, -1, -1))
    rank = torch.arange(config.num_slices).view(2, 2, 2).repeat(2, 2, 2)  # the slice of each pixel
    hidden = rank >= index[:, None, None, None]
    expected = model.encoder(features.masked_fill(hidden[..., None], 0.0), index)
    for noise in (torch.randn_like(features), torch.full_like(features, math.nan)):
        found = model.encoder(torch.where(hidden[..., None], noise, features), index)
        assert torch.equal(found, expected)


def test_shuffled_visible_pixels_change_what_the_encoder_says(make_model, make_video):
    model = make_model()
    index = torch.tensor([model.config.num_slices - 1])
    video = make_video(model.config)
    shuffled = video.flatten(1, 3)[:, torch.randperm(64)].view_as(video)
    z = model.encoder(model.features(video), index)
    assert (z - model.encoder(model.features(shuffled), index)).abs().max() > 1e-3


def test_the_first_slice_decoder_answers_for_the_first_slice_alone(make_model, make_video):
    model = make_model(first_slice_layers=(LayerConfig((2, 2, 2), 2),))
    assert model.first_slice_decoder is not None
    video, index = make_video(model.config, 2), torch.tensor([0, 1])
    before = model(video, index)
    nn.init.zeros_(model.first_slice_decoder.positions.width)
    after = model(video, index)
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    for numbers in ([0, 0], [3, 5]):  # a batch may hold nothing for one of the two decoders: both still have gradients
        model.zero_grad()
        model(video, torch.tensor(numbers)).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_actions_by_frame_and_by_window(make_model):
    """Literally, slice offset a sees the actions of frames a, a + s_t, …; as a window, those that lead up to each."""
    actions = torch.arange(4.0, dtype=torch.float64).view(1, 4, 1) + 1  # the action of frame f is f + 1
    index = torch.tensor([5])  # offset (1, 0, 1): frames 1 and 3
    by_frame = make_model(action_size=1).encoder.actions(actions, index)
    assert by_frame.flatten().tolist() == [2, 4]
    by_window = make_model(action_size=1, actions="window").encoder.actions(actions, index)
    assert by_window.view(2, 2).tolist() == [[0, 1], [2, 3]]  # before frame 1: nothing, frame 0; before 3: frames 1, 2
    single = {"subscale_factor": (4, 1, 1), "context_kernel": (6, 1, 1), "action_size": 1, "actions": "window"}
    layers = (LayerConfig((1, 2, 2)),)
    of_frame = make_model(**single, encoder_layers=layers, decoder_layers=layers).encoder.actions
    assert of_frame(actions, torch.tensor([2])).flatten().tolist() == [0, 1, 2]


def test_actions_are_standardised_by_the_configuration(make_model):
    model = make_model(action_size=2, action_mean=(1.0, 2.0), action_deviation=(2.0, 4.0))
    raw = torch.tensor([1.0, 6.0], dtype=torch.float64).expand(1, 4, 2)
    found = model.encoder.actions(raw, torch.tensor([0]))
    assert found[0, 0, 0, 0].tolist() == [0.0, 1.0]
    assert "encoder.actions.mean" not in model.state_dict()


def test_half_precision_stays_close(make_video):
    torch.manual_seed(0)
    config = presets.preset("moving-mnist-single-frame-base").model
    layers = tuple(LayerConfig(layer.block, 2) for layer in config.decoder_layers[:4])
    sizes = {"embedding_size": 32, "hidden_size": 64, "head_size": 32, "output": "codes"}
    model = VideoTransformer(presets.dataclasses.replace(config, encoder_layers=layers, decoder_layers=layers, **sizes))
    nn.init.normal_(model.head.output.weight, std=0.3)
    video, index = make_video(config), torch.tensor([7])
    exact = model(video, index)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(video, index)
    assert half.dtype == torch.float32
    bits = (half - exact).sum(-1) / math.log(2)
    assert bits.mean().abs() < 2e-2
    assert bits.abs().mean() < 0.1


def test_recomputing_activations_changes_nothing(make_model, make_video):
    gradients = []
    for recompute in (False, True):
        model = make_model()
        if recompute:
            model.checkpoint_activations()
        model(make_video(model.config, 2), torch.tensor([1, 6])).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for kept, recomputed in zip(*gradients, strict=True):
        assert torch.equal(kept, recomputed)


@pytest.mark.usefixtures("as_people_call_it")
@pytest.mark.parametrize(
    ("video", "sentence"),
    [
        (torch.zeros(1, 4, 4, 4, 3), "uint8 values, this one float32"),
        (torch.zeros(1, 4, 4, 5, 3, dtype=torch.uint8), r"\(batch, frames, 4, 4, 3\), not \(1, 4, 4, 5, 3\)"),
        (torch.zeros(4, 4, 4, 3, dtype=torch.uint8), r"not \(4, 4, 4, 3\)"),
        (torch.zeros(1, 4, 4, 4, 1, dtype=torch.uint8), r"takes 3 channel\(s\), the video has 1"),
        (torch.zeros(1, 3, 4, 4, 3, dtype=torch.uint8), "at least 4 frames, this one has 3"),
        (torch.zeros(0, 4, 4, 4, 3, dtype=torch.uint8), "no video in a batch"),
        (torch.full((1, 4, 4, 4, 3), 8, dtype=torch.uint8), r"3 bit\(s\) is at most 7, the video has 8"),
        (np.zeros((1, 4, 4, 4, 3)), "uint8 values, this one float64"),
    ],
)
def test_what_is_no_video_of_this_model_is_refused(make_model, video, sentence):
    for use in (lambda: make_model().log_prob(video), lambda: bits_per_dim(make_model(), video)):
        with pytest.raises(UserError, match=sentence):
            use()


@pytest.mark.usefixtures("as_people_call_it")
def test_actions_that_do_not_fit_are_refused(make_model, make_video):
    model = make_model(action_size=2)
    video = make_video(model.config)
    for actions, sentence in [
        (None, r"needs actions of shape \(batch, frames, 2\): none given"),
        (torch.zeros(1, 4, 3), r"needs actions of shape \(1, 4, 2\), not \(1, 4, 3\)"),
        (torch.zeros(1, 4, 2, dtype=torch.int64), "floating-point numbers, not int64"),
        (torch.full((1, 4, 2), math.inf), "must be finite"),
    ]:
        with pytest.raises(UserError, match=sentence):
            model.log_prob(video, actions)
    with pytest.raises(UserError, match="takes no actions"):
        make_model().log_prob(video, torch.zeros(1, 4, 2))


def test_a_scalar_output_has_no_likelihood(make_model, make_video):
    model = make_model(output="scalar", num_channels=1, code_bits=(8,))
    video = make_video(model.config, 2)
    for use in (lambda: model.log_prob(video), lambda: bits_per_dim(model, video)):
        with pytest.raises(UserError, match="no normalised likelihood"):
            use()
    z = video.double() / 255
    logit = math.log(0.3 / 0.7)
    nn.init.zeros_(model.head.output.weight)
    nn.init.constant_(model.head.output.bias, logit)
    expected = -(z * math.log(0.3) + (1 - z) * math.log(0.7)).squeeze(-1)
    torch.testing.assert_close(model.nats(video), expected)
