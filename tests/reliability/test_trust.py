"""What comes from elsewhere can do nothing but be what it says: it is never unpickled, leads nowhere else, and takes no
memory by claiming to be large.

Hostile pickles: tests/training/test_checkpoint.py, tests/evaluation/test_i3d.py. Altered downloads: tests/data/
test_assets.py. Enormous claims: test_tfrecord.py, test_shard.py, test_arrays.py, test_pictures.py, test_decoder.py and
test_containers.py in tests/data; tests/model/test_checkpoint.py.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import framecast
from framecast.data.manifest import NAME, Manifest, read_manifest
from framecast.data.store import Store
from framecast.data.video_file import read_clip
from framecast.errors import UserError
from framecast.model.video_transformer import VideoTransformer
from framecast.presets import preset
from framecast.training import checkpoint as checkpoints

SOURCE = Path(framecast.__file__).parent


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Every call in the package: its file, its words, itself."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield str(path.relative_to(SOURCE)), ast.unparse(node.func), node


def test_nothing_unpickles_or_evaluates():
    """One file knows pickles, and only as arrays: its unpickler finds three names. Pipes between a command and the
    processes that it started itself are the only others, inside multiprocessing."""
    forbidden = {"pickle.load", "pickle.loads", "torch.load", "eval", "exec", "marshal.loads", "shelve.open"}
    found = {(file, words) for file, words, _ in calls() if words in forbidden or words.startswith("yaml.")}
    assert not found
    unpicklers = {file for file, words, _ in calls() if words.endswith("ArraysOnly") or words == "pickle.Unpickler"}
    assert unpicklers == {"evaluation/i3d.py"}
    for file, words, call in calls():
        allowed = [
            k.value.value for k in call.keywords if k.arg == "allow_pickle" and isinstance(k.value, ast.Constant)
        ]
        assert not any(allowed), f"{file} lets {words} unpickle"
        shells = [k for k in call.keywords if k.arg == "shell" and getattr(k.value, "value", True)]
        assert not shells, f"{file} lets {words} use a shell"


@pytest.fixture
def folders(targets, make_store, tmp_path, digits) -> dict[str, tuple[Path, Callable[[], object]]]:
    """A folder of each kind, and how it is read."""
    from framecast.config import TrainingConfig
    from framecast.training.distributed import Job
    from framecast.training.optimizer import make

    store = make_store(tmp_path / "store", [targets.small_clip(0)])
    drawn = Path(shutil.copytree(digits, tmp_path / "drawn"))
    model = targets.small_model()
    model.save(tmp_path / "model")
    writer = checkpoints.Writer(tmp_path / "run" / "checkpoints", Job(torch.device("cpu")), keep=1)
    writer.save(7, model, make(model, TrainingConfig()), 1.5)
    writer.close()
    saved = tmp_path / "run" / "checkpoints" / "00000007"
    return {
        "store": (store, lambda: list(Store(store).damage())),
        "drawn store": (drawn, lambda: Store(drawn)),
        "model": (tmp_path / "model", lambda: VideoTransformer.load(tmp_path / "model")),
        "checkpoint": (saved, lambda: [checkpoints.check(each) for each in checkpoints.everything(saved.parent)]),
    }


@pytest.mark.parametrize("kind", ["store", "drawn store", "model", "checkpoint"])
def test_no_file_of_a_folder_may_lie_elsewhere(folders, kind, tmp_path, figures):
    """Each file in turn is moved out of the folder and linked from where it was; the content is the same."""
    folder, read = folders[kind]
    read()
    files = [path for path in sorted(folder.iterdir()) if path.suffix != ".lock"]
    for path in files:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(UserError, match=path.name):
            read()
        path.unlink()
        (tmp_path / "elsewhere").rename(path)
    read()
    figures(files=len(files))


@pytest.mark.parametrize("name", ["../elsewhere", "/etc/hostname", "inner/weights", "..", "a\0b"])
def test_no_name_leads_out_of_a_checkpoint(folders, name):
    folder, read = folders["checkpoint"]
    seal = folder / checkpoints.SEAL
    body = json.loads(seal.read_text())
    body.pop("checksum")
    body["files"][name] = "0" * 64
    seal.write_bytes(checkpoints._text({**body, "checksum": checkpoints._checksum(body)}))
    with pytest.raises(UserError, match=r"names files outside its folder|lacks"):
        read()


@pytest.mark.parametrize(
    "claims", [{"num_frames": 10**9}, {"size": [10**6, 10**6]}, {"num_digits": 10**7}, {"clips": 10**30}]
)
def test_a_drawn_store_that_claims_to_be_enormous(digits, tmp_path, claims, peak):
    store = Path(shutil.copytree(digits, tmp_path / "store"))
    manifest = read_manifest(store)
    claimed = Manifest(**{**vars(manifest), "source": {**manifest.source, **claims}})
    (store / NAME).write_bytes(claimed.text())
    with pytest.raises(UserError, match="possible"):
        Store(store)
    assert peak() < 50


LISTS = {
    "concat": "ffconcat version 1.0\nfile '{}'\n",
    "concat beside": "ffconcat version 1.0\nfile 'beside.mp4'\n",
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:1.0,\n{}\n#EXT-X-ENDLIST\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
    '<Representation id="1" bandwidth="1" mimeType="video/mp4"><BaseURL>{}</BaseURL></Representation>'
    "</AdaptationSet></Period></MPD>",
    "session": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
    "a=rtpmap:96 H264/90000\n",
}


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts", ".avi"])
def test_a_video_that_is_a_list_of_others(targets, tmp_path, kind, suffix):
    """FFmpeg would read what such a file names, here or in the network."""
    mp4 = targets.video_seeds()[0]
    for name in ("elsewhere.mp4", "in/beside.mp4"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(mp4[1:])
    assert len(read_clip(tmp_path / "elsewhere.mp4", (16, 16))) == 3
    for address in (tmp_path / "elsewhere.mp4", "http://127.0.0.1:9/elsewhere.mp4", "beside.mp4"):
        path = tmp_path / "in" / f"a{suffix}"
        path.write_text(LISTS[kind].format(address))
        with pytest.raises(UserError, match="no video that is known"):
            read_clip(path, (16, 16))


def test_the_page_writes_text_and_never_markup():
    """What the server tells, names among it, reaches the page as text; its policy runs no script but its own files."""
    static = SOURCE / "server" / "static"
    for script in static.glob("*.js"):
        text = script.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, (script.name, word)
    page = (static / "index.html").read_text()
    assert "<script>" not in page
    assert not re.search(r"\son\w+=", page), "handlers in markup, which the policy forbids"


class Tags(HTMLParser):
    """Every tag of a page, and its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, [name for name, _ in attributes]))


def test_the_report_escapes_every_name(framecast, digits, tmp_path):
    """Models, runs and stores are named by people, and their reports are opened in a browser."""
    hostile = "<img src=x onerror=alert(1)>\"'&<svg onload=alert(2)>"
    model = VideoTransformer(preset("tiny").model)
    model.save(tmp_path / hostile)
    store = Path(shutil.copytree(digits, tmp_path / f"{hostile} store"))
    words = ["--data", store, "--out", tmp_path / "out", "--num-videos", 2, "--metrics", "bits"]
    process = framecast("evaluate", tmp_path / hostile, *words)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    text = (tmp_path / "out" / "report.html").read_text()
    assert "&lt;img src=x onerror" in text
    tags = Tags(text).found
    assert not [tag for tag, attributes in tags if any(name.startswith("on") for name in attributes)]
    assert "alert" not in " ".join(tag for tag, _ in tags)
