"""The command line, `framecast VERB …`: finds the verb's function in `commands/` and gives it what was typed.

Only the verb that is asked for is loaded, so that help is quick. Exit status: 0 done, 2 what the person gave is wrong
(one sentence, no traceback), 1 a fault of ours, 130 and 143 stopped by Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence

from framecast.errors import UserError

VERBS = {
    "demo": "train, measure and sample a small model in some minutes, and leave a report",
    "evaluate": "score models: bits/dim, FVD, PSNR, SSIM, and a report beside the paper's numbers",
    "info": "what a preset or a model is, and what it costs",
    "prepare": "turn real videos into a store to train on",
    "sample": "continue a video, and write it beside the truth",
    "serve": "open a page on which a model continues clips while you watch",
    "train": "train a preset's model on a store; repeated, go on where it was left",
    "verify": "read every byte of a store, a run or a model, and find what is damaged",
}


def main() -> None:
    """What the `framecast` command runs. SIGTERM unwinds it as Ctrl-C does: workers end, unfinished files go."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Carry out one command; returns its exit status."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    verb, *options = words
    if verb not in VERBS:
        close = difflib.get_close_matches(verb, VERBS, n=1, cutoff=0.4)
        hint = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(VERBS)}."
        print(f"framecast: there is no command {verb!r}. {hint}", file=sys.stderr)
        return 2
    import tyro

    module = importlib.import_module(f"framecast.commands.{verb}")
    try:
        tyro.cli(
            getattr(module, verb),
            prog=f"framecast {verb}",
            args=options,
            config=(tyro.conf.FlagCreatePairsOff,),
            registry=getattr(module, "REGISTRY", None),  # types of its own that are read from one word
        )
        sys.stdout.flush()
    except UserError as error:
        print(f"framecast {verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who reads our words has had enough of them, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(f"framecast {verb}: {error.strerror}{where}: make room and repeat the command.", file=sys.stderr)
        return 2
    return 0


def overview() -> str:
    """What `framecast --help` prints."""
    verbs = "\n".join(f"  {verb:<9} {purpose}" for verb, purpose in VERBS.items())
    return f"""usage: framecast VERB [options]

Autoregressive video models with exact likelihoods.

{verbs}

`framecast VERB --help` tells a verb's options."""
