"""Kills of processes at ingest and in queries, and the check that nothing is lost."""

import contextlib
import multiprocessing
import os
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from uneven.errors import TrainingError
from uneven.focus import Frame, LadderRung, Sprites, Truth, load_index
from uneven.focus.index import StreamStore
from uneven.focus.ingest_stream import Ingest
from uneven.focus.networks import Candidate
from uneven.focus.supervise import Cameras, supervise
from uneven.runtime.jobs.engines import Local
from uneven_bench.focus.speed import untrained

_COLOURS = np.array([[220, 30, 30], [30, 200, 30], [30, 30, 220], [250, 250, 250]])
_SIDE = 16
_BATCH = 1
_STREAM = Sprites(
    pictures=_COLOURS[:, None, None].repeat(16, 1).repeat(16, 2).astype(np.uint8),
    labels=np.arange(4),
    seconds=3000,
    size=(96, 128),
    scale=1,
    name="stream",
)


class Colours(torch.nn.Module):
    """A stand-in for the truth network: the colour, one of four, in the middle of a crop."""

    classes = ("red", "green", "blue", "white")

    def __init__(self, dies_after: int = -1) -> None:
        super().__init__()
        self._calls_left = dies_after
        self.colours = torch.tensor(_COLOURS / 255, dtype=torch.float32)

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        """[n, 3, side, side] → [n, 4]; kill this process after ``dies_after`` answers."""
        if self._calls_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._calls_left -= 1
        return -torch.cdist(crops[:, :, 5:-5, 5:-5].mean((2, 3)), self.colours)


@dataclass(frozen=True, slots=True)
class _Deadly:
    """A source that kills its reader, once at each of some frames."""

    marks: Path
    at: tuple[int, ...]
    name: str = "stream"
    live: bool = False

    def length_s(self) -> float:
        return _STREAM.length_s()

    def frames(self, per_s: float, first: int = 0) -> Iterator[Frame]:
        for frame in _STREAM.frames(per_s, first):
            mark = self.marks / f"{frame.number}"
            if frame.number in self.at and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield frame


def kills(each: int) -> dict[str, Any]:
    """Kill ``each`` times during ingest and ``each`` times during queries. Result: ``ingest_kills``, ``query_kills``:
    counts; ``same_index``, ``same_hits``: equality with undisturbed ones; ``calls_again``: centroids judged more than
    once, at most one for each kill."""
    with tempfile.TemporaryDirectory(prefix="uneven-bench-focus-") as name:
        folder = Path(name)
        with contextlib.closing(_empty(folder / "whole" / "stream")) as store:
            Ingest(store, _STREAM).run()
        _empty(folder / "killed" / "stream").close()
        marks = folder / "marks"
        marks.mkdir()
        at = tuple(int(one) for one in np.linspace(300, _STREAM.seconds - 300, each))
        deadly = Cameras(sources={"stream": _Deadly(marks, at)}, folders={"stream": folder / "killed" / "stream"})
        while len(list(marks.iterdir())) < each or not _done(folder / "killed"):
            with contextlib.suppress(TrainingError), contextlib.closing(Local()) as here:
                supervise(deadly, here)  # supervise stops after repeated kills
        same = _rows(folder / "whole" / "stream") == _rows(folder / "killed" / "stream")
        query_kills, judged = _killed_queries(folder / "killed", each)
        hits = {label: list(load_index(folder / "killed").query(label)) for label in Colours.classes}
        truth = Truth(Colours(), side=_SIDE, batch=_BATCH)
        whole = {label: list(load_index(folder / "whole", truth).query(label)) for label in Colours.classes}
        alike = all(sorted(hits[one], key=repr) == sorted(whole[one], key=repr) for one in whole)
        return {
            "ingest_kills": len(list(marks.iterdir())),
            "query_kills": query_kills,
            "same_index": same,
            "same_hits": alike,
            "calls_again": judged - truth.calls,
        }


def _killed_queries(folder: Path, each: int) -> tuple[int, int]:
    """Ask in processes that are killed in their second or third batch, then in an undisturbed one; count the calls."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["uneven_bench.focus.kills"])
    count, calls = 0, 0
    for turn in range(each + 1):
        after = 1 + turn % 2 if turn < each else -1
        process = context.Process(target=_ask, args=(folder, after))
        process.start()
        process.join()
        count += process.exitcode == -signal.SIGKILL
        calls += _BATCH if process.exitcode == -signal.SIGKILL else 0  # the calls whose answers were lost
    return count, calls + sum(store.judgements() for store in load_index(folder).streams.values())


def _ask(folder: Path, dies_after: int) -> None:
    torch.set_num_threads(1)
    index = load_index(folder, Truth(Colours(dies_after), side=_SIDE, batch=_BATCH))
    for label in Colours.classes:
        list(index.query(label))


def _empty(folder: Path) -> StreamStore:
    truth = Truth(Colours(), side=_SIDE)
    setting, weights = untrained(Candidate(LadderRung(6, 16), (0, 1), 4), threshold=0.02, k=3)
    return StreamStore.create(folder, setting, weights, name="stream", side=_SIDE, classes=list(truth.classes),
                              truth=truth.identity, starts=None)  # fmt: skip


def _done(folder: Path) -> bool:
    return bool(load_index(folder).streams["stream"].progress()[0].get("done"))


def _rows(folder: Path) -> list[Any]:
    with contextlib.closing(sqlite3.connect(folder / "index.db")) as db:
        found: list[Any] = [
            db.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall() for table in ("objects", "entries")
        ]
        clusters = db.execute("SELECT id, network, sealed FROM clusters ORDER BY id").fetchall()
    return [*found, clusters, (folder / "crops.bin").read_bytes()[: len(clusters) * _SIDE**2 * 3]]
