"""The paper's experiments, one function a row: every public function here but `preset`, `names` and `fitted`
is a preset.

Its name with hyphens is what a person types. Its docstring says what the paper reports and what we measured. "Bits" are
bits/dim and "unrolled" is the FVD averaged over all 16-frame windows; ± is the deviation over 20 trials.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import random
import sys

from framecast.config import (
    DataConfig,
    EvaluationConfig,
    LayerConfig,
    ModelConfig,
    PaperFigures,
    RunConfig,
    TrainingConfig,
    Triple,
)
from framecast.errors import UserError

# The paper's blocks, first four layers; the other four have them in reverse order. Each holds 128 positions.
SLICE_BLOCKS: tuple[Triple, ...] = ((4, 8, 4), (4, 4, 8), (1, 32, 4), (1, 4, 32))
FRAME_BLOCKS: tuple[Triple, ...] = ((1, 8, 16), (1, 16, 8), (1, 2, 64), (1, 64, 2))

LONG_TRAINING = TrainingConfig(steps=1_000_000, parallel="shard")
LONG_WIDE_TRAINING = TrainingConfig(steps=1_000_000, batch_size=256, parallel="shard")

# Ours: far fewer steps, each of which counts for more.
MODERN = TrainingConfig(steps=20_000, recipe="modern", learning_rate=1e-3, precision="bf16")
MODERN_LARGE = dataclasses.replace(MODERN, parallel="shard", recompute=True)


def preset(name: str) -> RunConfig:
    """The experiment of that name."""
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=3, cutoff=0.4) or names()[:3]
        raise UserError(f"there is no preset {name!r}. Did you mean {' or '.join(close)}?")
    run: RunConfig = getattr(sys.modules[__name__], name.replace("-", "_"))()
    return dataclasses.replace(run, name=name)


def names() -> list[str]:
    """Every preset's name, in the order of this file."""
    return [
        name.replace("_", "-")
        for name, value in vars(sys.modules[__name__]).items()
        if inspect.isfunction(value)
        and value.__module__ == __name__
        and name not in ("preset", "names", "fitted")
        and name[0] != "_"
    ]


def fitted(
    run: RunConfig,
    num_frames: int,
    frame_shape: Triple,
    action_mean: tuple[float, ...] = (),
    action_deviation: tuple[float, ...] = (),
) -> RunConfig:
    """A preset of one's own data (`own-…`) for clips of at least `num_frames` frames of (height, width, channels)."""
    model, (height, width, num_channels) = run.model, frame_shape
    s_t, s_h, s_w = model.subscale_factor
    length = min(num_frames, model.video_shape[0])
    if model.slice_shape[0] == 1:  # every frame a slice
        s_t = length
    else:
        length -= length % model.slice_shape[0]
        s_t = length // model.slice_shape[0] if s_t > 1 else 1
    if length < 2:
        raise UserError(
            f"clips of {num_frames} frames are too short for {run.name}: its slices have {model.slice_shape[0]}. "
            f"Take own-single-frame-small, or longer clips."
        )
    extent = (length // s_t, max(height // s_h, 1), max(width // s_w, 1))
    model = dataclasses.replace(
        model,
        video_shape=(length, height, width),
        subscale_factor=(s_t, s_h, s_w),
        context_kernel=model.kernel if model.slice_shape[0] == 1 else (s_t, s_h, s_w),
        encoder_layers=_tiled(model.encoder_layers, extent),
        decoder_layers=_tiled(model.decoder_layers, extent),
        num_channels=num_channels,
        actions="window",
        action_size=len(action_mean),
        action_mean=action_mean,
        action_deviation=action_deviation,
    )
    evaluation = EvaluationConfig(num_frames_likelihood=length, num_frames_samples=num_frames)
    return dataclasses.replace(run, model=model, evaluation=evaluation)


# BAIR Robot Pushing: bits over 15 frames given 1, FVD of 16 frames given 1, at temperature 0.9 (Table 1, left).


def bair_single_frame_base() -> RunConfig:
    """Paper: 1.49 bits, FVD 104±4, unrolled 99±2 (153±7 at temperature 1.0); 300K steps of 64 slices.
    Ours: untrained."""
    figures = PaperFigures(1.49, fvd=(104, 4), fvd_unrolled=(99, 2), fvd_unrolled_at_temperature_1=(153, 7))
    return _bair(_single_frame(), paper=figures)


def bair_spatial_base() -> RunConfig:
    """Paper: 1.57 bits, FVD 111±4, unrolled 108±1 (134±4 at temperature 1.0); 300K steps of 64 slices.
    Ours: untrained."""
    figures = PaperFigures(1.57, fvd=(111, 4), fvd_unrolled=(108, 1), fvd_unrolled_at_temperature_1=(134, 4))
    return _bair(_spatial(), paper=figures)


def bair_spatiotemporal_base() -> RunConfig:
    """Paper: 1.53 bits, FVD 106±3, unrolled 106±2 (122±4 at temperature 1.0); 300K steps of 64 slices.
    Ours: untrained."""
    figures = PaperFigures(1.53, fvd=(106, 3), fvd_unrolled=(106, 2), fvd_unrolled_at_temperature_1=(122, 4))
    return _bair(_spatiotemporal(), paper=figures)


def bair_spatiotemporal_large() -> RunConfig:
    """Paper: 1.35 bits, FVD 94±2, unrolled 96±2; 1M steps of 64 slices. Ours: untrained."""
    figures = PaperFigures(1.35, fvd=(94, 2), fvd_unrolled=(96, 2))
    return _bair(_large(_spatiotemporal()), LONG_TRAINING, figures)


# Kinetics-600: bits over 15 frames given 1, FVD given 5, at temperature 0.9 (Table 1, right).


def kinetics_single_frame_base() -> RunConfig:
    """Paper: 1.40 bits, FVD 243±6, unrolled 413±11; 300K steps of 64 slices. Ours: untrained."""
    return _kinetics(_single_frame(), paper=PaperFigures(1.40, fvd=(243, 6), fvd_unrolled=(413, 11)))


def kinetics_spatial_base() -> RunConfig:
    """Paper: 1.47 bits, FVD 263±6, unrolled 450±15; 300K steps of 64 slices. Ours: untrained."""
    model = _with_first_slice_decoder(_spatial())
    return _kinetics(model, paper=PaperFigures(1.47, fvd=(263, 6), fvd_unrolled=(450, 15)))


def kinetics_spatiotemporal_base() -> RunConfig:
    """Paper: 1.49 bits, FVD 195±7, unrolled 375±11; 300K steps of 64 slices. Ours: untrained."""
    model = _with_first_slice_decoder(_spatiotemporal())
    return _kinetics(model, paper=PaperFigures(1.49, fvd=(195, 7), fvd_unrolled=(375, 11)))


def kinetics_single_frame_large() -> RunConfig:
    """Paper: 1.14 bits, FVD 207±8, unrolled 353±13; 1M steps of 256 slices. Ours: untrained."""
    figures = PaperFigures(1.14, fvd=(207, 8), fvd_unrolled=(353, 13))
    return _kinetics(_large(_single_frame()), LONG_WIDE_TRAINING, figures)


def kinetics_spatiotemporal_large() -> RunConfig:
    """Paper: 1.19 bits, FVD 170±5, unrolled 316±12; 1M steps of 256 slices on 128 TPU v3. Ours: untrained."""
    model = _with_first_slice_decoder(_large(_spatiotemporal()))
    figures = PaperFigures(1.19, fvd=(170, 5), fvd_unrolled=(316, 12))
    return _kinetics(model, LONG_WIDE_TRAINING, figures)


# Moving MNIST: nats per frame of frames 10–19 given 0–9, by the "deterministic" loss; its floor in the paper is 85.1.


def moving_mnist_single_frame_base() -> RunConfig:
    """Paper: 86.2 nats/frame; 300K steps of 64 slices. Ours: untrained."""
    return _moving_mnist(_single_frame(20), prime_frames=10, paper=PaperFigures(nats_per_frame=86.2))


def moving_mnist_spatial_base() -> RunConfig:
    """Paper: 91.8 nats/frame; 300K steps of 64 slices. Ours: untrained."""
    return _moving_mnist(_spatial(), prime_frames=1, paper=PaperFigures(nats_per_frame=91.8))


def moving_mnist_spatiotemporal_base() -> RunConfig:
    """Paper: 90.0 nats/frame; 300K steps of 64 slices. Ours: untrained."""
    return _moving_mnist(_spatiotemporal(20), prime_frames=10, paper=PaperFigures(nats_per_frame=90.0))


# Robotic Pushing: bits given 2 frames and every frame's action.


def robotic_pushing_spatiotemporal_large() -> RunConfig:
    """Paper: 0.51 bits on seen objects, 0.47 on novel ones; 1M steps of 64 slices. Ours: untrained."""
    model = dataclasses.replace(_large(_spatiotemporal(20)), prime_frames=2, action_size=5)
    return RunConfig(
        model=model,
        data=DataConfig("robotic-pushing", clip_frames=20),
        training=LONG_TRAINING,
        evaluation=EvaluationConfig(2, 2, num_frames_likelihood=20, num_frames_samples=20),
        paper=PaperFigures(bits_per_dim=0.51, bits_per_dim_novel_objects=0.47),
    )


# The ablation (Table 3): bits on 256 BAIR validation videos given 1 frame, 300K steps of 64 slices. The rows with 8
# layers, 8 heads and hidden size 512 are the spatiotemporal base model three times.


def bair_ablation_layers_4() -> RunConfig:
    """Paper: 1.63 bits with 4 layers. Ours: untrained."""
    return _ablation(1.63, num_layers=4)


def bair_ablation_layers_8() -> RunConfig:
    """Paper: 1.55 bits with 8 layers. Ours: untrained."""
    return _ablation(1.55, num_layers=8)


def bair_ablation_layers_16() -> RunConfig:
    """Paper: 1.48 bits with 16 layers. Ours: untrained."""
    return _ablation(1.48, num_layers=16)


def bair_ablation_layers_24() -> RunConfig:
    """Paper: 1.45 bits with 24 layers. Ours: untrained."""
    return _ablation(1.45, num_layers=24)


def bair_ablation_heads_4() -> RunConfig:
    """Paper: 1.59 bits with 4 heads of 128. Ours: untrained."""
    return _ablation(1.59, num_heads=4)


def bair_ablation_heads_8() -> RunConfig:
    """Paper: 1.55 bits with 8 heads of 128. Ours: untrained."""
    return _ablation(1.55, num_heads=8)


def bair_ablation_heads_16() -> RunConfig:
    """Paper: 1.51 bits with 16 heads of 128. Ours: untrained."""
    return _ablation(1.51, num_heads=16)


def bair_ablation_heads_24() -> RunConfig:
    """Paper: 1.47 bits with 24 heads of 128. Ours: untrained."""
    return _ablation(1.47, num_heads=24)


def bair_ablation_hidden_256() -> RunConfig:
    """Paper: 1.65 bits with hidden size 256. Ours: untrained."""
    return _ablation(1.65, hidden_size=256)


def bair_ablation_hidden_512() -> RunConfig:
    """Paper: 1.55 bits with hidden size 512. Ours: untrained."""
    return _ablation(1.55, hidden_size=512)


def bair_ablation_hidden_1024() -> RunConfig:
    """Paper: 1.47 bits with hidden size 1024. Ours: untrained."""
    return _ablation(1.47, hidden_size=1024)


def bair_ablation_hidden_2048() -> RunConfig:
    """Paper: 1.40 bits with hidden size 2048 and 8 heads in every layer (it is not *large*). Ours: untrained."""
    return _ablation(1.40, hidden_size=2048)


# What the paper reports in words, as variants of the spatiotemporal base model on BAIR.


def bair_finding_shuffled_blocks() -> RunConfig:
    """Paper: the order of the blocks does not matter, all within 0.01 bits. Ours: untrained."""
    order = random.Random(0).sample(range(8), 8)
    return _finding(
        encoder_layers=tuple(_pattern(SLICE_BLOCKS)[i] for i in order),
        decoder_layers=tuple(_pattern(SLICE_BLOCKS)[i] for i in order),
    )


def bair_finding_line_blocks() -> RunConfig:
    """Paper: blocks along a single time, row or column axis are substantially worse. Ours: untrained."""
    lines = _pattern(((4, 1, 1), (1, 32, 1), (1, 1, 32), (1, 32, 1)))
    return _finding(encoder_layers=lines, decoder_layers=lines)


def bair_finding_masked_kernel_5() -> RunConfig:
    """Paper: a larger masked convolution covers local dependencies that the blocks miss. Ours: untrained."""
    return _finding(masked_kernel=(5, 5, 5))


def bair_finding_dilated() -> RunConfig:
    """Paper: dilated attention is a remedy for blind spots; here one layer, of 128 positions spread over the slice.
    Ours: untrained."""
    first, second, third, _, *rest = _pattern(SLICE_BLOCKS)
    layers = (first, second, third, LayerConfig((1, 4, 8), dilated=True), *rest)
    return _finding(encoder_layers=layers, decoder_layers=layers)


def bair_finding_gate() -> RunConfig:
    """Paper: the attention matrix times 1 − I has no effect. Ours: untrained."""
    return _finding(gate=True)


def bair_finding_continuous_inputs() -> RunConfig:
    """Paper: continuous instead of one-hot inputs are worse. Ours: untrained."""
    return _finding(inputs="continuous")


def bair_finding_whole_codes() -> RunConfig:
    """Paper: splitting channels into coarse and fine codes helps slightly; here 8-bit codes. Ours: untrained."""
    return _finding(code_bits=(8,))


def bair_finding_first_frame_scored() -> RunConfig:
    """Paper: masking the loss of the first frame is a minor improvement; here it is not masked. Ours: untrained."""
    return _finding(prime_frames=0)


def bair_finding_adam() -> RunConfig:
    """Paper: RMSProp with momentum converges significantly faster than Adam. Ours: untrained."""
    return dataclasses.replace(_bair(_spatiotemporal()), training=TrainingConfig(recipe="adam"))


# Ours.


def tiny() -> RunConfig:
    """For tests: a model of 64×64 grey video that learns a little on one core, several steps a second."""
    layers = (LayerConfig((4, 4, 4), 2), LayerConfig((1, 8, 8), 2))
    model = ModelConfig(
        video_shape=(20, 64, 64),
        subscale_factor=(5, 4, 4),
        encoder_layers=layers,
        decoder_layers=layers,
        num_channels=1,
        embedding_size=16,
        hidden_size=32,
        head_size=16,
        prime_frames=10,
    )
    return RunConfig(
        model=model,
        data=DataConfig("moving-mnist"),
        training=TrainingConfig(steps=200, batch_size=4, recipe="modern", learning_rate=2e-3, checkpoint_every=20),
        evaluation=EvaluationConfig(10, 10, num_frames_likelihood=20, num_frames_samples=20),
    )


def moving_mnist_single_frame_nano() -> RunConfig:
    """For a CPU: falls below the baselines in some minutes on one core.
    Ours: 0.394 bits on 16 test clips after 1,100 steps (docs/LOG.md)."""
    return _moving_mnist_of_ours(hidden_size=128, num_layers=2, steps=2_000, batch_size=4)


def moving_mnist_single_frame_mini() -> RunConfig:
    """For some hours of a CPU: stripes as long as the frame, through which a digit's motion reaches wherever it goes
    next, and kernels that see the strokes around a pixel. Ours: 0.269 bits on 16 test clips (docs/LOG.md)."""
    run = _moving_mnist_of_ours(hidden_size=128, num_layers=2, steps=6_500, batch_size=4)
    model = dataclasses.replace(
        run.model,
        encoder_layers=tuple(LayerConfig(block, 4) for block in ((1, 64, 4), (1, 4, 64), (1, 8, 16))),
        decoder_layers=tuple(LayerConfig(block, 4) for block in ((1, 4, 64), (1, 16, 8))),
        context_kernel=(6, 3, 3),
        masked_kernel=(1, 5, 5),
    )
    return dataclasses.replace(run, model=model)


def moving_mnist_single_frame_small() -> RunConfig:
    """For some minutes of a GPU, or a night of a CPU. Ours: untrained."""
    return _moving_mnist_of_ours(hidden_size=256, num_layers=4, steps=10_000, batch_size=32)


def robot_bin_spatiotemporal_small() -> RunConfig:
    """For an hour of a GPU. Ours: untrained."""
    return _small(_spatiotemporal(), "robot-bin")


def robot_bin_spatial_small() -> RunConfig:
    """For an hour of a GPU. Ours: untrained."""
    return _small(_spatial(), "robot-bin")


def robot_bin_single_frame_small() -> RunConfig:
    """For an hour of a GPU. Ours: untrained."""
    return _small(_single_frame(), "robot-bin")


# A person's own data: frame size, channels, length and actions are taken from the store (`fitted`).


def own_spatiotemporal_small() -> RunConfig:
    """Your own videos, the small model of ours."""
    return _small(_spatiotemporal(), "own")


def own_spatial_small() -> RunConfig:
    """Your own videos, the small model of ours, four frames at a time."""
    return _small(_spatial(), "own")


def own_single_frame_small() -> RunConfig:
    """Your own videos, the small model of ours, frame by frame."""
    return _small(_single_frame(), "own")


def own_spatiotemporal_base() -> RunConfig:
    """Your own videos, the paper's base model."""
    return RunConfig(_spatiotemporal(), DataConfig("own"), MODERN)


def own_spatial_base() -> RunConfig:
    """Your own videos, the paper's base model, four frames at a time."""
    return RunConfig(_spatial(), DataConfig("own"), MODERN)


def own_single_frame_base() -> RunConfig:
    """Your own videos, the paper's base model, frame by frame."""
    return RunConfig(_single_frame(), DataConfig("own"), MODERN)


def own_spatiotemporal_large() -> RunConfig:
    """Your own videos, the paper's large model."""
    return RunConfig(_large(_spatiotemporal()), DataConfig("own"), MODERN_LARGE)


def own_spatial_large() -> RunConfig:
    """Your own videos, the paper's large model, four frames at a time."""
    return RunConfig(_large(_spatial()), DataConfig("own"), MODERN_LARGE)


def own_single_frame_large() -> RunConfig:
    """Your own videos, the paper's large model, frame by frame."""
    return RunConfig(_large(_single_frame()), DataConfig("own"), MODERN_LARGE)


def _spatiotemporal(num_frames: int = 16) -> ModelConfig:
    """Slices of 4×32×32, each every s-th pixel along all three axes."""
    layers = _pattern(SLICE_BLOCKS)
    return ModelConfig((num_frames, 64, 64), (num_frames // 4, 2, 2), layers, layers)


def _spatial() -> ModelConfig:
    """Slices of 4×32×32 out of 4 frames."""
    layers = _pattern(SLICE_BLOCKS)
    return ModelConfig((4, 64, 64), (1, 2, 2), layers, layers)


def _single_frame(num_frames: int = 16) -> ModelConfig:
    """Every frame a slice, given the three before it: half of a kernel of 6 lies on frames still hidden."""
    layers = _pattern(FRAME_BLOCKS)
    return ModelConfig((num_frames, 64, 64), (num_frames, 1, 1), layers, layers, context_kernel=(6, 1, 1))


def _pattern(blocks: tuple[Triple, ...], num_layers: int = 8, num_heads: int = 8) -> tuple[LayerConfig, ...]:
    """The blocks, then the same in reverse order; cut or repeated to the number of layers."""
    pattern = blocks + blocks[::-1]
    return tuple(LayerConfig(pattern[i % len(pattern)], num_heads) for i in range(num_layers))


def _with_first_slice_decoder(model: ModelConfig) -> ModelConfig:
    """A decoder of twice as many layers for slice (0, 0, 0): the block pattern twice, the heads of its last half those
    of the decoder's last half."""
    layers = model.decoder_layers
    heads = [layers[0].num_heads] * len(layers) + [layers[-1].num_heads] * len(layers)
    blocks = [layer.block for layer in layers * 2]
    return dataclasses.replace(model, first_slice_layers=tuple(map(LayerConfig, blocks, heads)))


def _large(model: ModelConfig) -> ModelConfig:
    """Hidden size 2048, and 16 heads in the last four layers of encoder and decoder."""

    def widened(layers: tuple[LayerConfig, ...]) -> tuple[LayerConfig, ...]:
        return layers[:-4] + tuple(dataclasses.replace(layer, num_heads=16) for layer in layers[-4:])

    return dataclasses.replace(
        model,
        hidden_size=2048,
        encoder_layers=widened(model.encoder_layers),
        decoder_layers=widened(model.decoder_layers),
    )


def _small(model: ModelConfig, dataset: str) -> RunConfig:
    """Hidden size 256, four layers of four heads: what an hour of a GPU teaches more than the base model."""
    return RunConfig(_narrow(model, hidden_size=256, num_layers=4), DataConfig(dataset), MODERN)


def _narrow(model: ModelConfig, hidden_size: int, num_layers: int) -> ModelConfig:
    """The first layers of the pattern, with four heads."""
    layers = tuple(dataclasses.replace(layer, num_heads=4) for layer in model.encoder_layers[:num_layers])
    return dataclasses.replace(
        model,
        encoder_layers=layers,
        decoder_layers=layers,
        embedding_size=hidden_size // 4,
        hidden_size=hidden_size,
        head_size=hidden_size // 4,
    )


def _moving_mnist_of_ours(hidden_size: int, num_layers: int, steps: int, batch_size: int) -> RunConfig:
    """With codes rather than the paper's scalar, so that there is a likelihood; every frame with three before it is
    learned from."""
    model = _narrow(_single_frame(20), hidden_size, num_layers)
    return RunConfig(
        model=dataclasses.replace(model, num_channels=1, prime_frames=3),
        data=DataConfig("moving-mnist"),
        training=dataclasses.replace(MODERN, steps=steps, batch_size=batch_size, checkpoint_every=steps // 10),
        evaluation=EvaluationConfig(10, 10, num_frames_likelihood=20, num_frames_samples=20),
    )


def _tiled(layers: tuple[LayerConfig, ...], extent: Triple) -> tuple[LayerConfig, ...]:
    """The layers with each side of a block the longest that divides the slice and is no longer than it was."""

    def side(axis: int, layer: LayerConfig) -> int:
        return max(size for size in range(1, min(extent[axis], layer.block[axis]) + 1) if extent[axis] % size == 0)

    return tuple(dataclasses.replace(each, block=(side(0, each), side(1, each), side(2, each))) for each in layers)


def _bair(model: ModelConfig, training: TrainingConfig | None = None, paper: PaperFigures | None = None) -> RunConfig:
    return RunConfig(model, DataConfig("bair"), training or TrainingConfig(), paper=paper or PaperFigures())


def _kinetics(
    model: ModelConfig, training: TrainingConfig | None = None, paper: PaperFigures | None = None
) -> RunConfig:
    return RunConfig(
        model=model,
        data=DataConfig("kinetics600"),
        training=training or TrainingConfig(),
        evaluation=EvaluationConfig(prime_frames_samples=5),
        paper=paper or PaperFigures(),
    )


def _moving_mnist(model: ModelConfig, prime_frames: int, paper: PaperFigures) -> RunConfig:
    return RunConfig(
        model=dataclasses.replace(model, num_channels=1, output="scalar", prime_frames=prime_frames),
        data=DataConfig("moving-mnist"),
        evaluation=EvaluationConfig(10, 10, num_frames_likelihood=20, num_frames_samples=20),
        paper=paper,
    )


def _ablation(bits: float, num_layers: int = 8, num_heads: int = 8, hidden_size: int = 512) -> RunConfig:
    layers = _pattern(SLICE_BLOCKS, num_layers, num_heads)
    model = dataclasses.replace(
        _spatiotemporal(), encoder_layers=layers, decoder_layers=layers, hidden_size=hidden_size
    )
    return _bair(model, paper=PaperFigures(bits))


def _finding(**changes: object) -> RunConfig:
    return _bair(dataclasses.replace(_spatiotemporal(), **changes))  # type: ignore[arg-type]
