"""Provide data that all trials of a search read: prepared once, in memory that their processes share."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch

from uneven.errors import ConfigError, DataError
from uneven.fleet.pure.sections import Section, Stream
from uneven.fleet.stream.feed import MOST_DEATHS, look
from uneven.fleet.stream.preprocess import Source, preprocess
from uneven.fleet.stream.sample_ring import Ring, RingHandle, arrays_of
from uneven.fleet.timeout import TIMEOUT_S
from uneven.runtime.jobs import end_all
from uneven.runtime.jobs.executor import Linked, Place, ProcessLine
from uneven.runtime.states import random_state, seed_all, set_random_state
from uneven.search.pure.core import SearchCore
from uneven.search.pure.sample_cache import SampleCache, slots_for
from uneven.search.search_messages import TrialPost

DATA_BYTES = 512 * 2**20  # for prepared samples, at most a tenth of the free memory

AHEAD = 2  # chunks that are prepared ahead of each reader


@dataclass(frozen=True, slots=True)
class TrialData:
    """The data of a search's trials; see :func:`uneven.search.run`. Raises `ConfigError` for options without data."""

    data: Any = None
    transform: Callable[[Any], Any] | None = None
    validate: Any = None
    validate_transform: Callable[[Any], Any] | None = None
    chunk: int = 128
    data_bytes: int | None = None
    share: bool = True
    preprocessors: int | None = None

    def __post_init__(self) -> None:
        if self.data is None and (self.validate is not None or self.transform is not None):
            raise ConfigError("validate=… or transform=… without data=…: give data=…")

    def kept(self) -> dict[str, Any]:
        return {"data": [len(self.data), self.validates, self.chunk]} if self.data is not None else {}

    def code(self) -> dict[str, Any]:
        """Return the objects whose code must be the same when the search continues."""
        return {one: getattr(self, one) for one in ("data", "transform", "validate", "validate_transform")}

    def shared(self, place: Place, core: SearchCore, tell: Callable[[int, Any], None]) -> "SharedData | None":
        """Start to prepare the data; None if there are none. `tell` sends a message to the process on a device."""
        return SharedData(self, place, core, tell) if self.data is not None else None

    @property
    def validates(self) -> int:
        return len(self.validate) if self.validate is not None else 0


@dataclass(frozen=True, slots=True)
class DataHandle:
    """The description of the data for a trial's process; `ring` is None if each trial prepares its own samples."""

    source: Source
    stream: Stream
    ring: RingHandle | None

    def open(self, line: ProcessLine, post: TrialPost) -> "DataReader":
        return DataReader(self, self.ring.open(line) if self.ring is not None else None, post)


class DataReader:
    """A trial's access to the data. Its samples in epoch e are the same in any process."""

    def __init__(self, handle: DataHandle, ring: Ring | None = None, post: TrialPost | None = None) -> None:
        self.stream = handle.stream
        self.prepared_s = 0.0  # processor time that this process spent on preparing samples
        self._handle = handle
        self._ring = ring
        self._post = post

    def train(self, trial: int, epoch: int, batch_size: int) -> Iterator[list[torch.Tensor]]:
        """Yield the training set of this epoch in batches, a tensor of shape (samples, …) per field, without omissions.

        A batch is read-only and valid until the next one is requested.
        """
        return self._batches(trial, self.stream.sections(epoch)[0], batch_size)

    def validation(self, trial: int, batch_size: int) -> Iterator[list[torch.Tensor]]:
        """Yield the validation set in its own order, a tensor of shape (samples, …) per field.

        Raises `ConfigError` if there is none.
        """
        section = self.stream.sections(0)[1]
        if not section.samples:
            raise ConfigError("trial.validation(): give search.run validate=…")
        return self._batches(trial, section, batch_size)

    def _batches(self, trial: int, section: Section, size: int) -> Iterator[list[torch.Tensor]]:
        if size < 1:
            raise ConfigError(f"batch_size={size}: give at least one sample")
        rest: list[torch.Tensor] = []
        last = section.first + section.chunks - 1
        for number in range(section.first, last + 1):
            fields = self._chunk(trial, number, last)
            have = self.stream.describe(number).size
            at = 0
            if rest:
                at = min(size - len(rest[0]), have)
                rest = [torch.cat((old, new[:at])) for old, new in zip(rest, fields, strict=True)]
                if len(rest[0]) < size and number < last:
                    continue
                yield rest
                rest = []
            while have - at >= size:
                yield [field[at : at + size] for field in fields]
                at += size
            if at < have:
                # A copy, because the slot may be written again once the next chunk is requested.
                rest = [field[at:have].clone() for field in fields]
        if rest:
            yield rest

    def _chunk(self, trial: int, number: int, last: int) -> list[torch.Tensor]:
        if self._ring is None or self._post is None:
            return self._prepared(number)
        self._post.send(("want", trial, number, last))
        _, slot = self._post.take("ready")
        first = slot * self.stream.chunk
        return [tensor[first : first + self.stream.chunk] for tensor in self._ring.tensors]

    def _prepared(self, number: int) -> list[torch.Tensor]:
        """Prepare a chunk in this process, as a preprocessor would."""
        began_s, kept = time.process_time(), random_state()
        chunk, source = self.stream.describe(number), self._handle.source
        seed_all(self.stream.draws(number))
        places = range(chunk.start, chunk.start + chunk.size)
        indices = (
            list(places) if chunk.validates else self.stream.order(chunk.epoch)[places.start : places.stop].tolist()
        )
        rows = [arrays_of(source.sample(index, validates=chunk.validates), "it") for index in indices]
        # The training function's random numbers must not depend on whether samples are shared.
        set_random_state(kept)
        stacked: list[npt.NDArray[Any]] = [np.stack(field) for field in zip(*rows, strict=True)]
        self.prepared_s += time.process_time() - began_s
        return [torch.from_numpy(field) for field in stacked]


class SharedData:
    """The engine's side of the data: the index of the chunks, their memory, and the preprocessors.

    Raises `DataError` if the first sample cannot be read or transformed. Raises `ConfigError` if the data cannot be
    sent to a process or do not fit into the memory.
    """

    def __init__(self, data: TrialData, place: Place, core: SearchCore, tell: Callable[[int, Any], None]) -> None:
        self.cpu_s = 0.0
        self.prepared = self.read = 0  # chunks
        self.failure: DataError | None = None
        self._place = place
        self._source = Source(data.data, data.validate, data.transform, data.validate_transform)
        self._stream = stream = Stream(len(data.data), data.validates, data.chunk, core.terms.seed)
        self._tell = tell
        self._makers: dict[str, Linked] = {}
        self._idle: list[str] = []
        self._deaths: dict[int, int] = {}
        self._started = 0
        self._most = data.preprocessors or place.cores
        # Also without sharing: a first sample that cannot be read raises here, before any trial starts.
        probed = look(place, self._source)
        self._ring: Ring | None = None
        if not data.share:
            return
        if not place.shares_memory:
            raise ConfigError("data: an engine without shared memory does not share data: give share=False")
        room: float | None = data.data_bytes
        if room is None:
            room = min(DATA_BYTES, psutil.virtual_memory().available / 10)
        passes = core.left(0, 0.0) if core.terms.time_attr in ("training_iteration", "epoch") else math.inf
        chunk_bytes = stream.chunk * sum(field.nbytes for field in probed.layout)
        slots = slots_for(room, chunk_bytes, stream.per_pass, len(place.devices), AHEAD, passes)
        self.shelf = SampleCache(slots, stream.per_pass, AHEAD)
        self._ring = Ring(probed.layout, slots=slots, chunk=stream.chunk, writable=True)
        self._hire()

    @property
    def handle(self) -> DataHandle:
        return DataHandle(self._source, self._stream, self._ring.handle(writable=False) if self._ring else None)

    def want(self, device: int, chunk: int, last: int) -> None:
        """Process a request for a chunk. The process gets its slot now or once it is made."""
        self.read += 1
        slot = self.shelf.want(device, chunk, last)
        if slot is not None:
            self._tell(device, ("ready", slot))
        self._hand_out()

    def leave(self, device: int) -> None:
        """Forget the reader of a trial that has left its process."""
        if self._ring is not None:
            self.shelf.leave(device)

    def check_makers(self, timeout_s: float) -> set[int]:
        """Fail if a preprocessor is silent for too long. Return the devices that wait for a chunk."""
        limit_s = timeout_s if math.isfinite(timeout_s) else TIMEOUT_S
        for name, maker in self._makers.items():
            # One that starts has not named a sample yet.
            if name not in self._idle and maker.quiet_s > (limit_s if maker.at else max(limit_s, TIMEOUT_S)):
                self.failure = DataError(
                    f"the preprocessor hangs: {maker.silence}; if a sample takes longer, give a larger timeout_s"
                )
        return self.shelf.waiting() if self._ring is not None else set()

    def close(self) -> None:
        end_all(list(self._makers.values()), within_s=0.5)
        if self._ring is not None:
            self._ring.close()

    def _hire(self) -> None:
        assert self._ring is not None
        self._started += 1
        name = f"preprocessor-{self._started}"
        arguments = self._source, self._stream, self._ring.handle(writable=True)
        self._makers[name] = self._place.start(name, preprocess, arguments, heard=self._heard, ended=self._died)
        self._idle.append(name)

    def _hand_out(self) -> None:
        while self.shelf.wanted() is not None:
            if not self._idle:
                if len(self._makers) >= self._most:
                    return
                self._hire()
            found = self.shelf.assign(self._idle[0])
            if found is None:
                return
            self._makers[self._idle.pop(0)].send((*found, False))

    def _heard(self, maker: Linked, message: tuple[Any, ...]) -> None:
        if message[0] == "failed":
            self.failure = DataError(message[1])
            return
        self.prepared += 1
        self.cpu_s += message[2]
        for device, slot in self.shelf.made(maker.name).items():
            self._tell(device, ("ready", slot))
        self._idle.append(maker.name)
        self._hand_out()

    def _died(self, maker: Linked) -> None:
        del self._makers[maker.name]
        if maker.name in self._idle:
            self._idle.remove(maker.name)
        chunk = self.shelf.lost(maker.name)
        if chunk is not None and self.failure is None:
            self._deaths[chunk] = self._deaths.get(chunk, 0) + 1
            if self._deaths[chunk] >= MOST_DEATHS:
                what = self._stream.describe(chunk)
                self.failure = DataError(
                    f"{MOST_DEATHS} preprocessors died ({maker.ending}) over positions {what.start} to "
                    f"{what.start + what.size - 1} of epoch {what.epoch}: a sample there makes the data set or the "
                    f"transform crash, or memory runs out"
                )
                return
        self._hand_out()
