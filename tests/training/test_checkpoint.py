"""Checkpoints: what goes in comes out, whole or not at all, and nothing in them is ever run."""

from __future__ import annotations

import json
import pickle

import pytest
import torch

from framecast.errors import UserError
from framecast.model.video_transformer import VideoTransformer
from framecast.training import checkpoint
from framecast.training import optimizer as optimizers
from framecast.training import step as steps
from framecast.training.distributed import Job

from .small import MODEL, noise, small

ALONE = Job(torch.device("cpu"))


def trained(recipe="modern", num_steps=2, seed=0):
    torch.manual_seed(seed)
    model = VideoTransformer(MODEL)
    optimizer = optimizers.make(model, small(recipe=recipe).training)
    for number in range(num_steps):
        steps.step(model, optimizer, noise(MODEL, [4, 5], seed=number))
    return model, optimizer


def copied(model, optimizer):
    return {name: tensor.clone() for name, tensor in checkpoint.tensors(model, optimizer).items()}


def write(folder, *scores, keep=3, recipe="modern"):
    """A run's folder with a checkpoint a score, at steps 1, 2, …"""
    model, optimizer = trained(recipe)
    writer = checkpoint.Writer(folder / "checkpoints", ALONE, keep)
    for number, score in enumerate(scores, start=1):
        writer.save(number, model, optimizer, score)
    writer.close()
    return model, optimizer


@pytest.mark.parametrize("recipe", ["paper", "adam", "modern"])
def test_round_trip(tmp_path, recipe):
    """The continuation of what was loaded is that of what was saved, to the last bit."""
    model, optimizer = write(tmp_path, 1.5, recipe=recipe)
    (saved,) = checkpoint.everything(tmp_path / "checkpoints")
    assert (saved.step, saved.score) == (1, 1.5)
    other = trained(recipe, num_steps=0, seed=1)
    checkpoint.load(saved, *other, ALONE)
    expected = copied(model, optimizer)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in copied(*other).items())
    assert other[1].num_steps == 1
    other[1].num_steps = optimizer.num_steps
    batch = noise(MODEL, [6, 7])
    assert steps.step(model, optimizer, batch) == steps.step(*other, batch)
    expected = copied(model, optimizer)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in copied(*other).items())


def test_what_is_written_is_what_was_when_it_was_asked_for(tmp_path):
    """Training goes on while a checkpoint is written."""
    model, optimizer = trained()
    expected = copied(model, optimizer)
    writer = checkpoint.Writer(tmp_path / "checkpoints", ALONE, 3)
    writer.save(2, model, optimizer)
    for number in range(3):
        steps.step(model, optimizer, noise(MODEL, [4, 5], seed=number))
    writer.close()
    checkpoint.load(checkpoint.everything(tmp_path / "checkpoints")[0], model, optimizer, ALONE)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in copied(model, optimizer).items())


def test_the_last_and_the_best_are_kept(tmp_path):
    write(tmp_path, 3.0, 1.0, 2.0, 2.5, 1.0, 4.0, keep=2)
    assert [each.step for each in checkpoint.everything(tmp_path / "checkpoints")] == [2, 5, 6]
    write(tmp_path / "blind", None, None, None, keep=2)
    assert [each.step for each in checkpoint.everything(tmp_path / "blind" / "checkpoints")] == [2, 3]


@pytest.mark.parametrize("recipe", ["paper", "modern"])
def test_the_model_is_that_of_the_best_checkpoint(tmp_path, recipe):
    """And its weights are averaged, where the recipe does."""
    model, optimizer = trained(recipe)
    writer = checkpoint.Writer(tmp_path / "checkpoints", ALONE, 3)
    writer.save(1, model, optimizer, 1.0)
    with optimizer.averaged():
        expected = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert (recipe == "paper") == torch.equal(expected["head.output.weight"], model.state_dict()["head.output.weight"])
    steps.step(model, optimizer, noise(MODEL, [4, 5]))
    writer.save(2, model, optimizer, 2.0)
    writer.close()
    found = VideoTransformer.load(tmp_path / "model").state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in found.items())


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a file of a checkpoint was unpickled",))


@pytest.mark.parametrize("name", [".metadata", "0.distcp", "model.pt", "shard-00001-model-00001-of-00001.safetensors"])
def test_a_hostile_pickle_is_never_opened(tmp_path, name):
    """Not even where the seal vouches for it: its author can write that too."""
    write(tmp_path, 1.0)
    (saved,) = checkpoint.everything(tmp_path / "checkpoints")
    (saved.folder / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match=r"was not written with it|is damaged"):
        checkpoint.load(saved, *trained(), ALONE)
    files = {file.name: checkpoint._sha256(file) for file in saved.folder.iterdir() if file.name != checkpoint.SEAL}
    forged = checkpoint.Saved(saved.folder, saved.step, saved.score, files)
    if name.endswith(".safetensors"):
        with pytest.raises(Exception, match=r"(?i)header|safetensors"):
            checkpoint.load(forged, *trained(), ALONE)
    else:
        checkpoint.load(forged, *trained(), ALONE)


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_damage_is_found(tmp_path):
    write(tmp_path, 1.0)
    (saved,) = checkpoint.everything(tmp_path / "checkpoints")
    flip(next(saved.folder.glob("*.safetensors")))
    with pytest.raises(UserError, match=r"is damaged: its SHA-256 is .* remove this folder to go on"):
        checkpoint.load(saved, *trained(), ALONE)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"step": 7}, "it is not what was written"),
        ({"files": {}}, "it is not what was written"),
        ({"format": "framecast checkpoint 9"}, "it is not what was written"),
        (None, "has no checkpoint.json"),
    ],
)
def test_a_seal_that_was_changed(tmp_path, change, sentence):
    write(tmp_path, 1.0)
    seal = tmp_path / "checkpoints" / "00000001" / checkpoint.SEAL
    if change is None:
        seal.unlink()
    else:
        seal.write_text(json.dumps({**json.loads(seal.read_text()), **change}))
    with pytest.raises(UserError, match=sentence):
        checkpoint.everything(tmp_path / "checkpoints")


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    write(tmp_path, 1.0, recipe="paper")
    (saved,) = checkpoint.everything(tmp_path / "checkpoints")
    with pytest.raises(UserError, match=r"lacks the tensor optimizer/average/.* of another model or recipe"):
        checkpoint.load(saved, *trained("modern"), ALONE)


def test_what_a_kill_left_is_removed_and_never_read(tmp_path):
    write(tmp_path, 1.0)
    (tmp_path / "checkpoints" / ".00000002").mkdir()
    (tmp_path / "checkpoints" / ".00000002" / "shard").write_text("half")
    (tmp_path / ".model.abc").mkdir()
    assert [each.step for each in checkpoint.everything(tmp_path / "checkpoints")] == [1]
    checkpoint.remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir()) == ["00000001", "checkpoints", "model"]
