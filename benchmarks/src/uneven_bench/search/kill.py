"""``uneven bench search-kill``: searches in which something is killed at a random moment.

In turn the whole search and one of its processes (a trial's or a preprocessor, whichever chance hits) get ``kill -9``.
The same command is then given again until it ends well, and its trials are compared with those of an undisturbed
search: the same settings, metrics to the bit, training and ends, and no report twice.

Started as a program, this module is the search in which something is killed.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven import search
from uneven.errors import TrainingError
from uneven.search.events import EVENTS, read_events
from uneven_bench.fleet.cases import light
from uneven_bench.search import trainings

KINDS = ("search", "process")
MOST_STARTS = 5
TRIALS = 8
SCHEDULER = "asha-promote:max_t=9,reduction_factor=3"

Progress = Callable[[str, str, float], None]


def go(directory: Path) -> None:
    """The search."""
    train, validate = trainings.sets("digits", 300)
    space = {"lr": search.log(1e-4, 1e-1), "width": search.choice(4, 8), "side": train[0][0].shape[-1]}
    search.run(
        trainings.pictures, space, metric="accuracy", trials=TRIALS, scheduler=SCHEDULER,
        data=train, validate=validate, transform=light, devices=1, directory=directory, progress=False, max_failures=9,
    )  # fmt: skip


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Kill, twenty times; with ``quick``, four times.

    Returns:
        ``undisturbed_s``, and ``kills``: for each the ``kind``, ``after`` (reports that were there), ``starts``,
        ``same`` and ``reports_twice``. ``all_same``: how many of them were the same, none trained twice.

    Raises:
        TrainingError: a search that was not killed failed.
    """
    draw = random.Random(time.time_ns())
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="uneven-search-") as folder:
        whole = Path(folder) / "whole"
        began_s = time.monotonic()
        _until_it_ends(whole)
        took_s = time.monotonic() - began_s
        wanted = _outcome(whole)
        for number in range(4 if quick else 20):
            kind = KINDS[number % len(KINDS)]
            progress("search-kill", kind, 0.0)
            directory = Path(folder) / f"killed {number}"
            after = draw.randrange(1, len(wanted))
            found.append({"kind": kind, "after": after, "starts": _disturbed(directory, kind, after, draw)})
            got = _outcome(directory)
            reports = [(event["trial"], event["t"]) for event in read_events(directory) if event["event"] == "report"]
            found[-1] |= {"same": got == wanted, "reports_twice": len(reports) - len(set(reports))}
    good = sum(one["same"] and not one["reports_twice"] for one in found)
    return {"undisturbed_s": took_s, "kills": found, "all_same": good, "of": len(found)}


def _outcome(directory: Path) -> list[tuple[Any, ...]]:
    """Every report: which trial, at which t, the metric and what was ruled; in order of trial and t."""
    events = read_events(directory)
    return sorted(
        (event["trial"], event["t"], event["metric"], event["move"]) for event in events if event["event"] == "report"
    )


def _start(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "uneven_bench.search.kill", str(directory)], stderr=subprocess.PIPE)


def _until_it_ends(directory: Path) -> int:
    for start in range(1, MOST_STARTS + 1):
        with _start(directory) as child:
            said = child.communicate()[1]
        if child.returncode == 0:
            return start
    raise TrainingError(f"the search has not come to its end: {said.decode()[-500:]}")


def _disturbed(directory: Path, kind: str, after: int, draw: random.Random) -> int:
    """Kill once so many reports are there, and let it end; how often it was started."""
    with _start(directory) as child:
        path = directory / EVENTS
        while child.poll() is None and (not path.exists() or path.read_text().count('"report"') < after):
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.05))
        if child.poll() is None and kind == "search":
            family = psutil.Process(child.pid).children(recursive=True)
            child.send_signal(signal.SIGKILL)
            psutil.wait_procs(family, timeout=30)
        elif child.poll() is None:
            family = [one for one in psutil.Process(child.pid).children(recursive=True) if one.ppid() != child.pid]
            if family:
                draw.choice(family).send_signal(signal.SIGKILL)
        said = child.communicate()[1]
        if child.returncode == 0:
            return 1
        if kind == "process":
            raise TrainingError(f"a search of which a process was killed has ended: {said.decode()[-500:]}")
    return 1 + _until_it_ends(directory)


def tables(found: dict[str, Any]) -> list[Table]:
    """What was measured, for a terminal."""
    title = f"{found['all_same']} of {found['of']} searches ended as the undisturbed one, none trained twice"
    table = Table("killed", "after reports", "starts", "the same", "reports twice", title=title, box=SIMPLE_HEAD)
    for one in found["kills"]:
        table.add_row(one["kind"], str(one["after"]), str(one["starts"]), str(one["same"]), str(one["reports_twice"]))
    return [table]


if __name__ == "__main__":
    go(Path(sys.argv[1]))
