"""A process for each stream; one that is killed is begun again where it had written last."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from uneven.errors import TrainingError
from uneven.focus.store import StreamStore
from uneven.focus.taking import Counts, Ingest, IngestOptions
from uneven.focus.video import VideoSource
from uneven.jobs import Ending, How, Kept, Stop, end_all
from uneven.jobs.local import Local
from uneven.jobs.place import Linked, Place, ProcessLine


def take_in(line: ProcessLine, folder: Path, source: VideoSource, options: IngestOptions) -> None:
    """In a process of its own: the stream, to its end."""
    torch.set_num_threads(1)  # a core for each stream
    store = StreamStore(folder)
    try:
        Ingest(store, source, options, lambda counts: line.send(counts.plain())).run()
    finally:
        store.close()


class _Streams:
    """Those that wait, those that are being taken in, and those that could not be."""

    def __init__(
        self, place: Place, sources: Mapping[str, VideoSource], folders: Mapping[str, Path], options: IngestOptions,
        show: Callable[[str, Counts], None],
    ) -> None:  # fmt: skip
        self._place = place
        self._sources = sources
        self._folders = folders
        self._options = options
        self._show = show
        self.waiting = list(sources)
        self.running: dict[str, Kept[Any]] = {}
        self.failed: list[tuple[str, Ending]] = []

    def fill(self) -> None:
        """Begin as many as there are cores."""
        while self.waiting and len(self.running) < max(1, self._place.cores):
            name = self.waiting.pop(0)
            self.running[name] = Kept(partial(self._start, name), told=partial(self._told, name))

    def _start(self, name: str, ended: Callable[[Any], None]) -> Linked:
        def over(process: Any) -> None:
            if process.ending.how is How.ENDED:
                del self.running[name]
            elif process.ending.how is How.FAILED:  # an error would come again
                self._told(name, process.ending, False)
            else:
                ended(process)

        return self._place.start(
            f"ingest of {name}", take_in, (self._folders[name], self._sources[name], self._options), ended=over,
            heard=lambda process, plain: self._show(name, Counts(**plain)),
        )  # fmt: skip

    def _told(self, name: str, ending: Ending, again: bool) -> None:
        if not again:
            self.running.pop(name, None)
            self.failed.append((name, ending))


def supervise(
    sources: Mapping[str, VideoSource], folders: Mapping[str, Path], options: IngestOptions,
    show: Callable[[str, Counts], None],
) -> None:  # fmt: skip
    """Take all streams in.

    Raises:
        TrainingError: one raised, or was killed again and again; what was written is kept.
        KeyboardInterrupt: it was asked to stop.
    """
    with contextlib.closing(Local()) as place, Stop(lambda number: place.wake()) as stop:
        streams = _Streams(place, sources, folders, options, show)
        try:
            while streams.waiting or streams.running:
                streams.fill()
                place.wait(0.5)
                if stop.requests:
                    raise KeyboardInterrupt
                if streams.failed:
                    name, ending = streams.failed[0]
                    raise TrainingError(f"taking in {name} {ending.words}")
        finally:
            end_all([kept.process for kept in streams.running.values()])
