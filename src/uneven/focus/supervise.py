"""The processes that ingest streams, one for each stream, on the available machines.

A killed process is restarted and continues from its last write; if its machine is lost, on another machine.
:func:`~uneven.focus.pure.cameras.place` assigns machines again whenever a stream ends or a machine is lost. Live
streams start immediately; each core ingests one file at a time.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven.errors import TrainingError
from uneven.focus.index import StreamStore
from uneven.focus.ingest_stream import Counts, Ingest, IngestOptions
from uneven.focus.pure.cameras import place
from uneven.focus.query import VideoIndex
from uneven.focus.video import VideoSource
from uneven.policy.core.printable import printable
from uneven.runtime.jobs import Ending, How, Kept, Stop, end_all
from uneven.runtime.jobs.executor import Linked, Place, ProcessLine

_HEADS = ("stream", "of the video", "frames", "objects/s", "clusters", "backlog", "dropped", "× real time", "work", "")


def table(index: VideoIndex) -> Table:
    """Return a row for each stream; *work* is the cheap network's, relative to the truth network on all objects."""
    shown = Table(box=SIMPLE_HEAD, padding=0)  # ten headings must fit in 80 columns
    for name in _HEADS:
        left, word = name in ("stream", ""), max(map(len, name.split(" ")))
        shown.add_column(name, justify="left" if left else "right", overflow="fold", min_width=word)
    for name, store in index.streams.items():
        counts, _ = store.progress()
        if not counts:
            shown.add_row(printable(name), *[""] * (len(_HEADS) - 2), "begins")
            continue
        wall_s = max(counts["wall_s"], 1e-9)
        setting = list(store.networks().values())[-1]
        share = setting["ingest"] * counts["looked"] / max(1, counts["objects"])
        cells = (
            f"{counts['time_s']:.0f} s",
            f"{counts['frames']}",
            f"{counts['objects'] / wall_s:.0f}",
            *(f"{counts[key]}" for key in ("clusters", "backlog", "dropped")),
            f"{counts['time_s'] / wall_s:.0f}",
            f"{share:.2%}",
            "done" if counts["done"] else "",
        )
        shown.add_row(printable(name), *cells)
    return shown


def over(index: VideoIndex) -> bool:
    """Return whether every stream has ended."""
    return all(store.progress()[0].get("done", False) for store in index.streams.values())


_LOOK_S = 0.2
_PROBE_S = 0.5


def take_in(line: ProcessLine, folder: Path, source: VideoSource, options: IngestOptions) -> None:
    """Ingest a stream to its end, in a separate process."""
    torch.set_num_threads(1)  # each stream has one core
    with closing(StreamStore(folder)) as store:
        Ingest(store, source, options, lambda counts: line.send(asdict(counts))).run()


def probe(line: ProcessLine) -> None:
    """Measure in a separate process how often per second a core of this machine computes a typical convolution."""
    torch.set_num_threads(1)
    layer, crops = torch.nn.Conv2d(3, 32, 3), torch.rand(32, 3, 32, 32)
    with torch.no_grad():
        layer(crops)  # the first call allocates and selects kernels
        began_s, count = time.perf_counter(), 0
        while time.perf_counter() < began_s + _PROBE_S:
            layer(crops)
            count += 1
    line.send(count / (time.perf_counter() - began_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cameras:
    """The streams to ingest, and those that have ``failed`` before with the reasons."""

    sources: Mapping[str, VideoSource]
    folders: Mapping[str, Path]
    options: IngestOptions = field(default_factory=IngestOptions)
    cost: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)  # streams that have failed before, and the reasons

    def costs(self, names: Mapping[str, Any]) -> dict[str, float]:
        known = [self.cost[name] for name in names if name in self.cost]
        usual = sum(known) / len(known) if known else 1.0
        return {name: self.cost.get(name, usual) for name in names}


class _Taken:
    """The unfinished streams, and the reasons of the failed ones."""

    def __init__(
        self, cameras: Cameras, where: Place, show: Callable[[str, Counts], None], lost: Callable[[str, str], None]
    ) -> None:
        self._cameras = cameras
        self._where = where
        self._show = show
        self._lost = lost
        self._speed = _speeds(where)
        self.left = dict(cameras.sources)
        self.running: dict[str, Kept[Any]] = {}
        self.failed = dict(cameras.failed)
        self._at: dict[str, str] = {}

    def deal(self) -> None:
        """Start the streams that have a place; raise ConfigError if no machine is left."""
        gone = self._where.gone()
        speed = {str(device): one for device, one in self._speed.items() if device not in gone}
        placed = place(self._cameras.costs(self.left), speed, self._at)
        for name, device in placed.machine.items():
            free = self.left[name].live or device not in self._at.values()
            if name not in self.running and free:
                self._at[name] = device
                self.running[name] = Kept(partial(self._start, name, int(device)), told=partial(self._told, name))

    def _start(self, name: str, device: int, ended: Callable[[Any], None]) -> Linked:
        def over(process: Any) -> None:
            if process.ending.how is How.ENDED:
                self._leave(name)
                del self.left[name]
            elif process.ending.how is How.LOST or device in self._where.gone():
                self._leave(name)  # `deal` restarts it on another machine
            elif process.ending.how is How.FAILED:  # the error would recur
                self._told(name, process.ending, False)
            else:
                ended(process)  # killed: `Kept` restarts it, unless that happens too often

        cameras = self._cameras
        return self._where.start(
            f"ingest of {name}",
            take_in,
            (cameras.folders[name], cameras.sources[name], cameras.options),
            ended=over,
            heard=lambda process, plain: self._show(name, Counts(**plain)),
            device=device,
        )

    def _told(self, name: str, ending: Ending, again: bool) -> None:
        if not again:
            self._leave(name)
            del self.left[name]
            self.failed[name] = f"the ingest of {name} {ending.words}"
            self._lost(name, self.failed[name])

    def _leave(self, name: str) -> None:
        self.running.pop(name, None)
        self._at.pop(name, None)


def _speeds(where: Place) -> dict[int, float]:
    """Return the measured speed of each device; 1 with one machine. Lost machines are left out."""
    devices = list(range(len(where.devices)))
    nodes = where.nodes(devices)
    if len(nodes) < 2:
        return dict.fromkeys(devices, 1.0)
    told: dict[int, float] = {}

    def asked(node: list[int]) -> Linked:
        def heard(process: Any, rate: float) -> None:
            told.update(dict.fromkeys(node, rate))

        return where.start("probe", probe, (), device=node[0], heard=heard, ended=lambda process: None)

    probes = [asked(node) for node in nodes]
    while not all(one.ending for one in probes):
        where.wait(_LOOK_S)
    gone = where.gone()
    for (first, *_), one in zip(nodes, probes, strict=True):
        if first not in told and first not in gone and one.ending is not None and one.ending.how is not How.LOST:
            raise TrainingError(f"the speed of a machine could not be measured: its probe {one.ending.words}")
    return told


def supervise(
    cameras: Cameras,
    where: Place,
    show: Callable[[str, Counts], None] = lambda name, counts: None,
    lost: Callable[[str, str], None] = lambda name, reason: None,
) -> None:
    """Ingest all streams. If one fails, the others continue, and ``lost`` is called with its name and the reason.

    Raises TrainingError at the end for streams that failed or were killed repeatedly, or for an unmeasured machine,
    ConfigError if no machine is left, and KeyboardInterrupt on a signal. Writes are kept.
    """
    with Stop() as stop:
        taken = _Taken(cameras, where, show, lost)
        try:
            while taken.left:
                taken.deal()
                where.wait(_LOOK_S)
                if stop.requests:
                    raise KeyboardInterrupt
        finally:
            end_all([kept.process for kept in taken.running.values()])
        if taken.failed:
            raise TrainingError("; ".join(taken.failed.values()))
