"""Two nodes of a Ray cluster ingest one stream each; one of the nodes is lost before its stream has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from colours import sprites
from ray_world import connected, nodes

from uneven.focus import Frame, ingest_stream
from uneven.focus import supervise as supervising
from uneven.focus.ingest_stream import Counts, Ingest
from uneven.focus.supervise import Cameras, supervise
from uneven.runtime.jobs.ray import Cluster
from uneven_bench.focus import kills

SECONDS, WRITTEN, WAITS_AT = 900, 400, 600


@dataclass(frozen=True)
class Slow:
    """Says where it is read, and waits at one frame until a machine is lost; every chunk is written at once."""

    folder: Path
    name: str
    waits: bool = True
    live: bool = False

    def length_s(self) -> float:
        return SECONDS

    def frames(self, per_s: float, first: int = 0) -> Iterator[Frame]:
        ingest_stream._WRITE_EVERY_S = 0.0
        if self.waits:
            (self.folder / f"{self.name}.node").write_text(ray.get_runtime_context().get_node_id())
        for frame in sprites(SECONDS, seed=ord(self.name)).frames(per_s, first):
            while self.waits and frame.number == WAITS_AT and not (self.folder / "lost").exists():
                time.sleep(0.05)
            yield frame


def play(there: Any, folder: Path) -> dict[str, Any]:
    """Lose the second node when the stream on it has written some frames."""
    names, moved = ("a", "b"), []
    measured = supervising._speeds
    # On a busy machine one node may seem twice as fast; both streams would then run on it, and none on the other.
    supervising._speeds = lambda where: dict.fromkeys(measured(where), 1.0)
    for name in names:
        kills._empty(folder / "index" / name).close()
        with closing(kills._empty(folder / "whole" / name)) as store:
            Ingest(store, Slow(folder, name, waits=False)).run()
    second = nodes(there, 2)[1]
    with connected(there):

        def show(name: str, counts: Counts) -> None:
            node = (folder / f"{name}.node").read_text()
            if not moved and node == second.node_id and counts.next_frame > WRITTEN:
                moved.append(name)
                there.remove_node(second, allow_graceful=False)
                (folder / "lost").touch()

        sources = {name: Slow(folder, name) for name in names}
        with closing(Cluster("auto")) as where:
            where.enter(folder / "index")
            supervise(Cameras(sources=sources, folders={one: folder / "index" / one for one in names}), where, show)
            while not (lost := len(where.gone())):  # its actor's death may be known before the node's
                time.sleep(0.05)
    same = [kills._rows(folder / "index" / one) == kills._rows(folder / "whole" / one) for one in names]
    return {"moved": moved, "same": same, "lost": lost}
