"""Does a process that goes on for long keep its size? `python tests/reliability/long_run.py OUT COMMAND…` starts a
command, looks at it and its children every few seconds, and draws memory and open files over time.

It writes OUT.csv as it goes, at the end OUT.svg, and prints one JSON object: the slopes after the first fifth of the
time, which is for warming up, by least squares.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

EVERY = 2.0  # seconds
WARM_UP = 0.2  # of the time


def main() -> None:
    out, *command = sys.argv[1:]
    start, rows = time.monotonic(), []
    with subprocess.Popen(command) as process, Path(f"{out}.csv").open("w", buffering=1) as file:
        file.write("seconds,mebibytes,files,threads\n")
        while process.poll() is None:
            if seen := look(process.pid):
                rows.append((time.monotonic() - start, *seen))
                file.write(",".join(f"{value:.1f}" for value in rows[-1]) + "\n")
            time.sleep(EVERY)
    table = np.array(rows)
    Path(f"{out}.svg").write_text(drawing(table))
    print(json.dumps({"exit": process.returncode, **summary(table)}))


def look(pid: int) -> tuple[float, int, int] | None:
    """Resident MiB, open files and threads of a process and all that came of it; None when it is on its way out."""
    try:
        processes = [pid, *children(pid)]
        pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in processes)
        files = sum(len(list(Path(f"/proc/{each}/fd").iterdir())) for each in processes)
        threads = sum(len(list(Path(f"/proc/{each}/task").iterdir())) for each in processes)
    except (OSError, IndexError):
        return None
    return pages * 4096 / 2**20, files, threads


def children(pid: int) -> list[int]:
    found = [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]
    return found + [each for child in found for each in children(child)]


def summary(table: np.ndarray) -> dict[str, float | int]:
    seconds, mebibytes, files, threads = table[int(WARM_UP * len(table)) :].T
    slope = np.polynomial.polynomial.polyfit(seconds / 3600, np.array([mebibytes, files]).T, 1)[1]
    return {
        "minutes": round(float(table[-1, 0] / 60), 1),
        "mebibytes_most_in_first_half": round(float(mebibytes[: len(mebibytes) // 2].max())),
        "mebibytes_most_in_second_half": round(float(mebibytes[len(mebibytes) // 2 :].max())),
        "mebibytes_an_hour": round(float(slope[0]), 1),
        "files_first": int(files[0]),
        "files_last": int(files[-1]),
        "files_most": int(files.max()),
        "files_an_hour": round(float(slope[1]), 2),
        "threads_most": int(threads.max()),
    }


WIDTH, HEIGHT, LEFT, GAP = 720, 150, 60, 40


def drawing(table: np.ndarray) -> str:
    """Two panels over the same minutes, each from zero."""
    minutes = table[:, 0] / 60
    panels = [("MiB resident", table[:, 1], "#1b6ca8"), ("open files", table[:, 2], "#b3541e")]
    body = [panel(place, *each, minutes) for place, each in enumerate(panels)]
    height = len(panels) * (HEIGHT + GAP) + 20
    style = "font: 12px sans-serif; background: white"
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}">\n{"".join(body)}</svg>\n'


def panel(place: int, name: str, values: np.ndarray, colour: str, minutes: np.ndarray) -> str:
    top, right = 20 + place * (HEIGHT + GAP), WIDTH - 20
    most, last = float(values.max()) * 1.1, float(minutes[-1])
    x = LEFT + (right - LEFT) * minutes / last
    y = top + HEIGHT * (1 - values / most)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    lines = [f'<path d="M{LEFT} {top}V{top + HEIGHT}H{right}" fill="none" stroke="#888"/>']
    lines += [f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>']
    lines += [f'<text x="{LEFT}" y="{top - 6}">{name}</text>']
    lines += [f'<text x="{LEFT - 6}" y="{top + HEIGHT}" text-anchor="end">0</text>']
    lines += [f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{most:.0f}</text>']
    lines += [f'<text x="{right}" y="{top + HEIGHT + 16}" text-anchor="end">{last:.0f} minutes</text>']
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
