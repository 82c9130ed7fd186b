"""`framecast train`: from a preset and a store to a trained model; repeated, it goes on where it was left."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from framecast.config import RunConfig
    from framecast.data.store import Store
    from framecast.model.video_transformer import VideoTransformer
    from framecast.training.distributed import Job
    from framecast.training.loop import Illustrate

MANY = 1_000_000  # clips; a store of more is drawn, all alike


def train(
    preset: Annotated[str, tyro.conf.Positional],
    /,
    *,
    data: Path,
    out: Path | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    batch_size: int | None = None,
    micro_batch: int | None = None,
    recipe: Literal["paper", "adam", "modern"] | None = None,
    learning_rate: float | None = None,
    init: str | None = None,
    precision: Literal["fp32", "bf16"] | None = None,
    device: str | None = None,
    parallel: Literal["replicate", "shard"] | None = None,
    recompute: bool | None = None,
    checkpoint_every: int | None = None,
    sample_every: int | None = None,
    seed: int | None = None,
    dry_run: bool = False,
) -> None:
    """Train a preset's model on a store. The same command again resumes from the last checkpoint; Ctrl-C and SIGTERM
    save and leave. Under torchrun it trains on many devices and machines.

    Args:
        preset: what to train; `framecast info` lists the presets. An own-… preset takes the store's sizes.
        data: the store, as `framecast prepare` made it.
        out: the folder of the run.
        steps: the step to end with, instead of the preset's.
        minutes: save and leave after so many minutes.
        batch_size: slices of a step, over all devices.
        micro_batch: slices that a device works on at a time, where not all of its share fit.
        recipe: the paper's RMSProp, the Adam it compares, or Muon and Adam with warm-up, decay and averaged weights.
        learning_rate: instead of the recipe's own.
        init: a run, a model's folder or the name of a model that ships, whose weights to begin with.
        precision: of the products; the weights themselves are always kept in fp32.
        device: cpu, cuda or cuda:N; a GPU where there is one.
        parallel: whether every device holds all weights, or a share of them (FSDP).
        recompute: compute activations again in the backward pass, instead of keeping them.
        checkpoint_every: save each time after so many steps.
        sample_every: sample a clip each time after so many steps, for TensorBoard.
        seed: of the first weights and of the order of the data.
        dry_run: print what the run would be and need, measure a few steps, and leave.
    """
    from framecast import device as devices
    from framecast.data.store import Store
    from framecast.errors import UserError
    from framecast.presets import preset as preset_named
    from framecast.training import distributed, loop

    devices.keep_freed_memory()
    store = Store(data)
    changes = {
        "steps": steps,
        "batch_size": batch_size,
        "micro_batch": micro_batch,
        "recipe": recipe,
        "learning_rate": learning_rate,
        "precision": precision,
        "parallel": parallel,
        "recompute": recompute,
        "checkpoint_every": checkpoint_every,
        "seed": seed,
    }
    run = _changed(_fitted(preset_named(preset), store), changes)
    with distributed.job(device) as job:
        if dry_run:
            if job.leads:
                _print_plan(run, job)
            return
        if out is None:
            raise UserError("where is the run to be? Name its folder with --out.")
        outcome = loop.train(
            run,
            store,
            out,
            job=job,
            init=init,
            minutes=minutes,
            illustrate=_illustrate(run, store),
            illustrate_every=sample_every,
        )
    if outcome.stopped_by is not None:
        print(f"stopped by {signal.Signals(outcome.stopped_by).name}, saved at step {outcome.step}", flush=True)
        sys.exit(128 + outcome.stopped_by)


def _fitted(run: RunConfig, store: Store) -> RunConfig:
    """The preset with what only the store knows: how its actions are to be standardised, and for a preset of one's own
    data all of its sizes."""
    from framecast.errors import UserError
    from framecast.presets import fitted

    own = run.data.dataset == "own"
    statistics = store.action_statistics() if (own and store.action_size) or run.model.action_size else ((), ())
    if not own:
        mean, deviation = statistics
        model = dataclasses.replace(run.model, action_mean=mean, action_deviation=deviation)
        return dataclasses.replace(run, model=model)
    clips = store.indices_or_range("train")
    if not len(clips):
        raise UserError(f"{store.path} has no clips of the split 'train'.")
    shortest = int(store.shapes[clips, 0].min()) if len(clips) < MANY else int(store.shapes[clips[0], 0])
    return fitted(run, shortest, store.frame_shape, *statistics)


def _changed(run: RunConfig, changes: dict[str, Any]) -> RunConfig:
    """The preset as the person wants it; another recipe brings its own rate."""
    from framecast.training.optimizer import LEARNING_RATES

    changes = {name: value for name, value in changes.items() if value is not None}
    if changes.get("recipe", run.training.recipe) != run.training.recipe:
        changes = {"learning_rate": LEARNING_RATES[changes["recipe"]], **changes}
    return dataclasses.replace(run, training=dataclasses.replace(run.training, **changes))


def _print_plan(run: RunConfig, job: Job) -> None:
    from framecast.config import to_json
    from framecast.device import memory
    from framecast.training import loop, plan, progress

    training = dataclasses.replace(run.training, micro_batch=loop.micro_batch(run, job.device))
    run = dataclasses.replace(run, training=training)
    print(json.dumps(to_json(run), indent=1))
    fits = plan.plan(run, job.world_size).memory < memory(job.device)
    seconds = plan.step_seconds(run, job) if fits else None
    print(progress.table(plan.described(run, job.device, job.world_size, seconds)))


def _illustrate(run: RunConfig, store: Store) -> Illustrate:
    """The first clip that training does not see, continued, as an animated picture."""

    def illustrate(model: VideoTransformer) -> tuple[bytes, int, int]:
        from framecast import media
        from framecast.sampling.sampler import sample

        clips = next(c for split in ("val", "test", "train") if len(c := store.indices_or_range(split)))
        length, prime_frames = run.model.video_shape[0], run.evaluation.prime_frames_samples
        clip = store.clip(int(clips[0]))
        actions = None if clip.actions is None or not run.model.action_size else clip.actions[None, :length]
        video = sample(model, clip.video[None, :prime_frames], num_frames=length, actions=actions)[0].numpy()
        return media.encode(video, "gif"), *video.shape[1:3]

    return illustrate
