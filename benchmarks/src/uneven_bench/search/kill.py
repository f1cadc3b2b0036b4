"""``uneven bench search-kill``: searches with a kill at a random moment.

In turn the whole search, the process that trains and one that prepares samples get ``kill -9``. A killed search is
started again with the same command. Then the trials are compared with those of an undisturbed search: the same metrics
to the bit, the same training and rulings, and no report twice. Trainers and preparers log their process ids and epochs
next to the search: targets for the kill, and the epochs trained more than once, those after the last kept state.

As a program, this module is the search that is killed.
"""

import os
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from uneven import search
from uneven.errors import TrainingError
from uneven.search.search_events import EVENTS, read_events
from uneven_bench.fleet.cases import Sample, light
from uneven_bench.harness.killed import begun, strike, until_it_ends
from uneven_bench.harness.show import Progress
from uneven_bench.search import trainings

KINDS = ("search", "worker", "preparer")
PROGRAM = "uneven_bench.search.kill"
TRIALS = 8
SCHEDULER = "asha-promote:max_t=9,reduction_factor=3"


def go(directory: Path) -> None:
    """Run the search."""
    train, validate = trainings.sets("digits", 300)
    side = train[0][0].shape[-1]
    space: dict[str, Any] = {"lr": search.loguniform(1e-4, 1e-1), "width": search.choice(4, 8)}
    space |= {"side": side, "noted_in": str(directory)}
    search.run(
        noted, space, metric="accuracy", trials=TRIALS, scheduler=SCHEDULER, data=train, validate=validate,
        transform=partial(prepared, folder=directory), devices=1, directory=directory, progress=False, max_failures=9,
    )  # fmt: skip


def noted(trial: search.Trial) -> None:
    """Train the network on the search's data, and log each epoch before it."""
    torch.manual_seed(trial.seed)
    model, optimizer = trainings.made(trial.params, int(trial["side"]))  # type: ignore[arg-type]
    for epoch, batches in trial.epochs(model, optimizer, batch_size=trainings.BATCH):
        with Path(str(trial["noted_in"]), "epochs").open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {trial.number} {epoch}\n")
        trainings.learn(model, optimizer, batches)
        trial.report(accuracy=trainings.accuracy(model, trial.validation()))


def prepared(sample: Sample, folder: Path) -> Sample:
    """Return a sample, and log the process that has made it."""
    path = folder / "preparers" / str(os.getpid())
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return light(sample)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Kill twenty times; with ``quick``, three times. Result: ``undisturbed_s``, and ``kills``: for each the ``kind``,
    ``after`` (reports by then), ``hit`` (a process was still there to be killed), ``starts``, ``same``,
    ``reports_twice`` and ``epochs_again``. ``all_same``: the number of identical ones without a repeated report, ``of``
    those with a kill. Raises TrainingError: a search that was not killed failed."""
    draw = random.Random(time.time_ns())
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="uneven-search-") as folder:
        whole = Path(folder) / "whole"
        began_s = time.monotonic()
        until_it_ends(PROGRAM, whole)
        took_s = time.monotonic() - began_s
        wanted = _outcome(whole)
        kills = 3 if quick else 20
        while sum(one["hit"] for one in found) < kills and len(found) < 2 * kills:
            kind = KINDS[len(found) % len(KINDS)]
            progress("search-kill", kind, 0.0)
            directory = Path(folder) / f"killed {len(found)}"
            after = draw.randrange(1, len(wanted))
            hit, starts = _disturbed(directory, kind, after, draw)
            got = _outcome(directory)
            reports = [one[:2] for one in got]
            trained = [line.split()[1:] for line in (directory / "epochs").read_text(encoding="utf-8").splitlines()]
            found.append({
                "kind": kind, "after": after, "hit": hit, "starts": starts, "same": got == wanted,
                "reports_twice": len(reports) - len(set(reports)),
                "epochs_again": len(trained) - len({tuple(one) for one in trained}),
            })  # fmt: skip
    killed = [one for one in found if one["hit"]]
    good = sum(one["same"] and not one["reports_twice"] for one in killed)
    return {"undisturbed_s": took_s, "kills": found, "all_same": good, "of": len(killed)}


def _outcome(directory: Path) -> list[tuple[Any, ...]]:
    """Return every report: trial, t, metric and ruling; in order of trial and t."""
    reports = [event for event in read_events(directory) if event["event"] == "report"]
    return sorted((one["trial"], one["t"], one["metric"], one["move"]) for one in reports)


def _disturbed(directory: Path, kind: str, after: int, draw: random.Random) -> tuple[bool, int]:
    """Kill once after ``after`` reports, and let it end; return whether a process was killed, and the starts."""
    with begun(PROGRAM, directory) as child:
        path = directory / EVENTS
        while child.poll() is None and (not path.exists() or path.read_text().count('"report"') < after):
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.05))
        family = psutil.Process(child.pid).children(recursive=True) if child.poll() is None else []
        hit = _kill(directory, kind, child.pid, {one.pid for one in family}, draw)
        if kind == "search":
            psutil.wait_procs(family, timeout=30)
        said = child.communicate()[1]
        if child.returncode == 0:
            return hit, 1
        if kind != "search":
            raise TrainingError(f"a search of which a {kind} was killed has ended: {said[-500:]}")
    return hit, until_it_ends(PROGRAM, directory, starts=1)


def _kill(directory: Path, kind: str, child: int, family: set[int], draw: random.Random) -> bool:
    """Kill a remaining process of this kind, and return whether there was one."""
    if kind == "search":
        there = [child] if family else []
    elif kind == "worker":
        there = [int(line.split()[0]) for line in (directory / "epochs").read_text(encoding="utf-8").splitlines()[-1:]]
    else:
        there = sorted(int(path.name) for path in (directory / "preparers").iterdir())
    there = [pid for pid in there if pid == child or (pid in family and psutil.pid_exists(pid))]
    return strike(there, draw)


if __name__ == "__main__":
    from uneven_bench.search import kill  # by its module name, under which other processes import the trainable

    kill.go(Path(sys.argv[1]))
