"""The long form of fuzzing, guided by what the inputs reach: `python tests/reliability/fuzz.py TARGET RUNS [--keep]`.

libFuzzer, through atheris, watches the time and the memory of every input. It begins with the corpus that is kept here,
`corpus/TARGET.zip`; with --keep, what reaches something new is kept there too. An input that fails is written to
`crash-…` in the working directory: once it is mended, add it to the corpus as `regression-…`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MAX_SECONDS = 10  # of one input
MAX_MIB = 1500  # of the process, PyTorch included

CORPUS = Path(__file__).with_name("corpus")


def read_corpus(name: str) -> dict[str, bytes]:
    """The inputs that are kept of a target."""
    path = CORPUS / f"{name}.zip"
    if not path.exists():
        return {}
    with zipfile.ZipFile(path) as archive:
        return {each: archive.read(each) for each in archive.namelist()}


def write_corpus(name: str, inputs: dict[str, bytes]) -> None:
    """Always the same bytes for the same inputs."""
    CORPUS.mkdir(exist_ok=True)
    with zipfile.ZipFile(CORPUS / f"{name}.zip", "w") as archive:
        for each in sorted(inputs):
            about = zipfile.ZipInfo(each)
            about.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(about, inputs[each])


def main() -> None:
    name, runs, *options = sys.argv[1:]
    if "--keep" in options:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, __file__, name, runs, folder], check=True)
            write_corpus(name, {path.name[:24]: path.read_bytes() for path in Path(folder).iterdir()})
        return
    import atheris

    sys.path.insert(0, str(Path(__file__).parent))
    with (
        atheris.instrument_imports(include=["framecast", "targets"]),
        contextlib.redirect_stderr(open(os.devnull, "w")),
    ):
        from targets import TARGETS

    target = TARGETS[name]
    folder = next(option for option in options if not option.startswith("-"))
    for each, data in [*read_corpus(name).items(), *((f"seed-{n}", d) for n, d in enumerate(target.seeds()))]:
        Path(folder, each).write_bytes(data)
    limits = [
        f"-timeout={MAX_SECONDS}",
        f"-rss_limit_mb={MAX_MIB}",
        "-print_final_stats=1",
        "-max_len=8192",
        "-len_control=0",
    ]
    atheris.Setup([sys.argv[0], f"-runs={runs}", *limits, *options], lambda data: target(data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
