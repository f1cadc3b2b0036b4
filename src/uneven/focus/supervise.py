"""A process for each stream, on the machines that there are.

One that is killed is begun again where it had written last; one whose machine is lost, on another machine. Which takes
which is :func:`~uneven.focus.cameras.place`'s choice, anew whenever a stream ends or a machine goes. A stream that is
live begins at once; of files each core takes one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from uneven.errors import TrainingError
from uneven.focus.cameras import place
from uneven.focus.store import StreamStore
from uneven.focus.taking import Counts, Ingest, IngestOptions
from uneven.focus.video import VideoSource
from uneven.jobs import Ending, How, Kept, Stop, end_all
from uneven.jobs.place import Linked, Place, ProcessLine

_LOOK_S = 0.2
_PROBE_S = 0.5


def take_in(line: ProcessLine, folder: Path, source: VideoSource, options: IngestOptions) -> None:
    """In a process of its own: the stream, to its end."""
    torch.set_num_threads(1)  # a core for each stream
    store = StreamStore(folder)
    try:
        Ingest(store, source, options, lambda counts: line.send(asdict(counts))).run()
    finally:
        store.close()


def probe(line: ProcessLine) -> None:
    """In a process of its own: how often a core of this machine does in a second what a cheap network does."""
    torch.set_num_threads(1)
    layer, crops = torch.nn.Conv2d(3, 32, 3), torch.rand(32, 3, 32, 32)
    with torch.no_grad():
        layer(crops)
        began_s, count = time.perf_counter(), 0
        while time.perf_counter() < began_s + _PROBE_S:
            layer(crops)
            count += 1
    line.send(count / (time.perf_counter() - began_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cameras:
    """What is taken in.

    Attributes:
        failed: streams that are not among these, and why.
        cost: stream → seconds of a core for each second of video; those that nobody has measured are alike.
    """

    sources: Mapping[str, VideoSource]
    folders: Mapping[str, Path]
    options: IngestOptions = field(default_factory=IngestOptions)
    cost: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    def costs(self, names: Mapping[str, Any]) -> dict[str, float]:
        """Those of some streams."""
        known = [self.cost[name] for name in names if name in self.cost]
        usual = sum(known) / len(known) if known else 1.0
        return {name: self.cost.get(name, usual) for name in names}


class _Taken:
    """Streams that are not at their end, and why others could not be taken in."""

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
        """Begin what has a place.

        Raises:
            ConfigError: no machine is left.
        """
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
                self._leave(name)
            elif process.ending.how is How.FAILED:  # an error would come again
                self._told(name, process.ending, False)
            else:
                ended(process)

        cameras = self._cameras
        return self._where.start(
            f"ingest of {name}", take_in, (cameras.folders[name], cameras.sources[name], cameras.options), ended=over,
            heard=lambda process, plain: self._show(name, Counts(**plain)), device=device,
        )  # fmt: skip

    def _told(self, name: str, ending: Ending, again: bool) -> None:
        if not again:
            self._leave(name)
            del self.left[name]
            self.failed[name] = f"taking in {name} {ending.words}"
            self._lost(name, self.failed[name])

    def _leave(self, name: str) -> None:
        self.running.pop(name, None)
        self._at.pop(name, None)


def _speeds(where: Place) -> dict[int, float]:
    """How fast each device is, measured on each machine where there are several; of those lost meanwhile, nothing.

    Raises:
        TrainingError: a machine could not be measured.
    """
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
    cameras: Cameras, where: Place, show: Callable[[str, Counts], None] = lambda name, counts: None,
    lost: Callable[[str, str], None] = lambda name, reason: None,
) -> None:  # fmt: skip
    """Take all streams in. One that fails leaves the others alone.

    Args:
        lost: called at once with the name of each stream that fails, and the reason.

    Raises:
        TrainingError: (after the others' end) streams raised, or were killed again and again; or a machine could not be
            measured. What was written is kept.
        ConfigError: no machine is left.
        KeyboardInterrupt: it was asked to stop.
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
