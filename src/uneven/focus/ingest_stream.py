"""The ingest of a stream: decode, find objects, run the cheap network, cluster, write.

Decoding, detection and the network have a thread each, with a bounded queue to the next; clustering and writing run in
the caller's thread. A file waits for the slowest stage. Frames of a live stream that find a full queue are dropped and
counted.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import islice, pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from uneven.focus.background_subtraction import Detector, Moving
from uneven.focus.index import OTHER, PLACES, Gathered, StreamStore, StreamWriter
from uneven.focus.networks import run
from uneven.focus.objects import Objects, found, unchanged
from uneven.focus.pure.clusters import Clusters
from uneven.focus.tune import restored
from uneven.focus.video import VideoSource

T = TypeVar("T")


@dataclass(slots=True)
class StageCounts:
    """The statistics of a stage."""

    made_s: float = 0.0  # processor seconds of its thread
    dropped: int = 0  # results dropped because the queue was full
    backlog: int = 0  # results in the queue


_END = object()


class Ahead(Generic[T]):
    """An iterator that computes its items in a thread, up to ``room`` items ahead.

    Exceptions of ``made`` are raised in the consumer. With ``drops``, the newest item is dropped if the queue is full.
    """

    def __init__(self, made: Iterable[T], stage: StageCounts, room: int, drops: bool = False) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(room)
        self._stage = stage
        self._drops = drops
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._made = self._pool.submit(self._run, iter(made))

    def __iter__(self) -> Iterator[T]:
        try:
            while True:
                one = self._queue.get()
                self._stage.backlog = self._queue.qsize()
                if one is _END:
                    self._made.result()  # raises the source's exception, if there was one
                    return
                yield one
        finally:
            self._stopped.set()
            self._pool.shutdown(wait=False)  # the thread may be in a blocking read; it sees `stopped` after that

    def _run(self, made: Iterator[T]) -> None:
        try:
            while not self._stopped.is_set():
                one = next(made, None)
                self._stage.made_s = time.thread_time()
                if one is None:
                    break
                self._give(one)
        finally:
            while not self._stopped.is_set() and not self._put(_END):
                pass

    def _give(self, one: T) -> None:
        if self._drops and self._queue.full():
            self._stage.dropped += 1
            return
        while not self._stopped.is_set() and not self._put(one):
            pass

    def _put(self, one: Any) -> bool:
        try:
            self._queue.put(one, timeout=0.2)  # with a timeout, so that the caller can check `stopped`
        except queue.Full:
            return False
        self._stage.backlog = self._queue.qsize()
        return True


STAGES = ("decode", "find", "look", "cluster")

# Frames processed together. A write follows a whole chunk, so after a kill the same frames are together again, and the
# network gives bit-identical results.
_CHUNK = 64

_ROOM = 64
_WRITE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """The options of an ingest.

    Attributes:
        per_s: frames to process per second of video (the paper's: 1).
        detector: finds the objects; by default moving ones before a fixed camera.
        same: an object whose pixels differ by at most this, of 255, from the frame before joins its cluster without the
            network; None runs it on every object.
        most_active: maximum number of clusters that may grow.
    """

    per_s: float = 1.0
    detector: Detector | None = None
    same: float | None = None
    most_active: int = 100


@dataclass(slots=True)
class Counts:
    """The progress of an ingest, as stored in the index."""

    frames: int = 0
    objects: int = 0
    looked: int = 0
    clusters: int = 0
    dropped: int = 0
    backlog: int = 0
    next_frame: int = 0
    time_s: float = 0.0
    at_s: float = 0.0  # Unix time of the last write; a resumed live stream skips the time since then
    # Processor time of each stage; decoding, which uses FFmpeg's threads, is the process's remaining time.
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    wall_s: float = 0.0
    done: bool = False


@dataclass(frozen=True, slots=True)
class _Looked:
    """The objects of a chunk of frames with the network's outputs, which are zero in rows that repeat another one."""

    objects: Objects
    repeats: npt.NDArray[np.int64]  # for each object, the row with outputs that it repeats, or -1
    confidence: npt.NDArray[np.float32]
    feature: npt.NDArray[np.float32]


class Ingest:
    """The ingest of one stream into one index with its newest network; ``tell`` is called after each write.

    Raises ConfigError if another process ingests it, DataError if the video or the index fails; earlier writes are
    kept.
    """

    def __init__(
        self,
        store: StreamStore,
        source: VideoSource,
        options: IngestOptions = IngestOptions(),
        tell: Callable[[Counts], None] = lambda counts: None,
    ) -> None:
        self._store = store
        self._source = source
        self._options = options
        self._tell = tell
        networks = store.networks()
        self._network = max(networks)
        self._setting = networks[self._network]
        self._candidate, self._model = restored(self._setting, store.weights(self._network))
        self._detector = options.detector or Moving()
        self._stages = {name: StageCounts() for name in STAGES[:3]}
        self._began_cpu_s = time.process_time(), time.thread_time()
        self.counts = Counts()
        self._clusters = self._new_clusters()
        self._restore()
        self._before_s = self.counts.seconds

    def run(self) -> Counts:
        """Ingest to the end of the stream; return the counts."""
        with closing(StreamWriter(self._store)) as writer:
            self._take_in(writer)
        return self.counts

    def _take_in(self, writer: StreamWriter) -> None:
        began_s, before_s = time.perf_counter(), self.counts.wall_s
        written_s, batch = began_s, Gathered([], [], [])
        background: npt.NDArray[np.float32] | None = None
        for chunk in self._chunks():
            self._cluster(chunk, batch)
            background = chunk.objects.background
            now_s = time.perf_counter()
            self.counts.wall_s = before_s + now_s - began_s
            if now_s - written_s >= _WRITE_EVERY_S:
                self._write(writer, batch, background)
                written_s, batch = now_s, Gathered([], [], [])
        self.counts.done = True
        self._write(writer, batch, background)

    def _chunks(self) -> Iterator[_Looked]:
        per_s, first = self._options.per_s, self.counts.next_frame
        if self._source.live and self.counts.at_s:
            first += max(0, round((time.time() - self.counts.at_s) * per_s))
        frames = Ahead(self._source.frames(per_s, first), self._stages["decode"], _ROOM, drops=self._source.live)
        size = 1 if self._source.live else _CHUNK
        objects = Ahead(
            _chunked(found(frames, self._detector, self._store.side), size), self._stages["find"], max(2, _ROOM // size)
        )
        looked = Ahead(self._look(objects), self._stages["look"], 4)
        return iter(looked)

    def _look(self, chunks: Iterable[list[Objects]]) -> Iterator[_Looked]:
        for chunk in chunks:
            repeats = np.full(sum(map(len, chunk)), -1)
            if self._options.same is not None:
                repeats = _repeats(chunk, self._options.same)
            whole = Objects.join(chunk, self._store.side)
            fresh = np.flatnonzero(repeats < 0)
            confidence, feature = run(self._model, whole.crops[fresh])
            yield _Looked(whole, repeats, _spread(confidence, fresh, len(whole)), _spread(feature, fresh, len(whole)))

    def _cluster(self, chunk: _Looked, batch: Gathered) -> None:
        objects, counts = chunk.objects, self.counts
        cluster = np.full(len(objects), -1)
        place = _places(objects.frame)
        for at in range(len(objects)):
            again = chunk.repeats[at]
            if again >= 0 and self._clusters.join(int(cluster[again])):
                cluster[at] = cluster[again]
            else:
                # A sealed cluster takes no members, so this object is clustered by the features of the repeated one.
                row = at if again < 0 else int(again)
                cluster[at] = self._add(chunk, row, at, batch)
            batch.members.append(
                (int(cluster[at]), int(objects.frame[at]), int(place[at]), float(objects.time_s[at]), objects.boxes[at])
            )
        counts.objects += len(objects)
        counts.looked += int((chunk.repeats < 0).sum())
        counts.frames += objects.frames
        counts.next_frame, counts.time_s = objects.last[0] + 1, objects.last[1]
        counts.clusters = self._clusters.next

    def _add(self, chunk: _Looked, row: int, at: int, batch: Gathered) -> int:
        grown = self._clusters.add(chunk.feature[row : row + 1])
        cluster = int(grown.cluster[0])
        if grown.began[0]:
            order = np.argsort(-chunk.confidence[row], kind="stable")
            order = order[: max(PLACES, self._setting["k"])]
            entries = [(self._label(int(one)), float(chunk.confidence[row, one])) for one in order]
            batch.begun.append((cluster, self._network, chunk.objects.crops[at], entries, chunk.feature[row]))
        batch.sealed += grown.sealed
        return cluster

    def _label(self, output: int) -> int:
        named = self._candidate.named
        return named[output] if output < len(named) else OTHER

    def _write(self, writer: StreamWriter, batch: Gathered, background: npt.NDArray[np.float32] | None) -> None:
        whole_s, cluster_s = time.process_time() - self._began_cpu_s[0], time.thread_time() - self._began_cpu_s[1]
        find_s, look_s = self._stages["find"].made_s, self._stages["look"].made_s
        spent_s = (max(0.0, whole_s - find_s - look_s - cluster_s), find_s, look_s, cluster_s)
        self.counts.seconds = {name: self._before_s[name] + now_s for name, now_s in zip(STAGES, spent_s, strict=True)}
        self.counts.at_s = time.time()
        self.counts.dropped += self._stages["decode"].dropped
        self._stages["decode"].dropped = 0
        self.counts.backlog = sum(stage.backlog for stage in self._stages.values())
        state: dict[str, npt.NDArray[np.generic]] = {
            f"clusters.{key}": value for key, value in self._clusters.state().items()
        }
        state["network"] = np.array(self._network)
        if background is not None:
            state["background"] = background
        writer.write(batch, asdict(self.counts), state)
        self._tell(self.counts)

    def _restore(self) -> None:
        counts, state = self._store.progress()
        for name, value in counts.items():
            setattr(self.counts, name, value)
        self.counts.done = False
        if not state:
            return
        if int(state["network"]) == self._network:  # another network's features are not comparable
            self._clusters.load({key.removeprefix("clusters."): value for key, value in state.items() if "." in key})
        if isinstance(self._detector, Moving) and "background" in state:
            self._detector.load(state["background"].astype(np.float32))

    def _new_clusters(self) -> Clusters:
        return Clusters(
            self._setting["threshold"], self._model.head.in_features, self._options.most_active, self._store.clusters()
        )


def _chunked(objects: Iterator[Objects], size: int) -> Iterator[list[Objects]]:
    # Most frames are empty, and passing one through a queue costs more than processing it.
    while chunk := list(islice(objects, size)):
        yield chunk


def _repeats(chunk: list[Objects], most: float) -> npt.NDArray[np.int64]:
    """Return for each object of a chunk the first of the run of unchanged objects that it continues, or -1."""
    result: list[npt.NDArray[np.int64]] = [np.full(len(chunk[0]), -1)]
    rows = np.arange(len(chunk[0]))  # for objects of the frame before: the row in the chunk that has outputs
    begin = len(chunk[0])
    for before, now in pairwise(chunk):
        same = unchanged(now, before, most)
        origin = np.where(same >= 0, rows[same] if len(rows) else -1, -1)
        result.append(origin)
        rows = np.where(origin >= 0, origin, begin + np.arange(len(now)))
        begin += len(now)
    return np.concatenate(result)


def _places(frame: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    first = np.searchsorted(frame, frame)
    return np.arange(len(frame)) - first


def _spread(rows: npt.NDArray[np.float32], at: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.float32]:
    """Return ``count`` rows that are zero except for ``rows`` at ``at``."""
    result = np.zeros((count, rows.shape[1]), np.float32)
    result[at] = rows[: len(at)]
    return result
