"""Run the engine's side of the shared stream: preprocessors fill a ring, readers empty it, a ledger keeps count."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uneven.errors import DataError
from uneven.fleet.pure.ledger import Ledger
from uneven.fleet.pure.sections import Stream
from uneven.fleet.pure.size import preprocessors_needed
from uneven.fleet.stream.preprocess import Source, preprocess, probe
from uneven.fleet.stream.sample_ring import Layout
from uneven.fleet.stream.sample_store import store_in
from uneven.fleet.timeout import TIMEOUT_S, hangs
from uneven.runtime.jobs import How, end_all
from uneven.runtime.jobs.executor import Linked, Place

MOST_DEATHS = 3  # preprocessors that may die over one chunk; then its data is the cause

_LOOK_S = 0.25

_SMOOTH = 0.1  # weight of the newest chunk in a preprocessor's speed


_UNSTARTED = (
    "the process for the first sample ended ({}), see its output above: let it import data set and transform, and "
    'train only under if __name__ == "__main__":'
)


@dataclass(frozen=True, slots=True)
class Probed:
    """The first sample."""

    layout: Layout  # of every sample
    sample: list[Any]  # its fields, as arrays


def look(
    place: Place, source: Source, timeout_s: float = TIMEOUT_S, watch: Callable[[Linked], None] = lambda _: None
) -> Probed:
    """Prepare the first sample in a separate process within `timeout_s` seconds. `watch` is called with that process.

    Raises `DataError` if it cannot be read or transformed, if it hangs, or if the two sets do not agree. Raises
    `ConfigError` if data set or transform cannot be pickled.
    """
    for _ in range(MOST_DEATHS):
        word, *more = _looked(place, source, timeout_s, watch)
        if word == "layout":
            return Probed(*more)
        if word == "failed":
            raise DataError(more[0])
        # A killed process is tried again (out of memory, for instance); one that ended itself would do so again.
        if more[0].how is not How.KILLED:
            break
    raise DataError(_UNSTARTED.format(more[0]))


def _looked(place: Place, source: Source, timeout_s: float, watch: Callable[[Linked], None]) -> tuple[Any, ...]:
    """Make one attempt: return "layout" and its values, "failed" and the reason, or "died" and the process's end."""
    heard: list[Any] = []
    child = place.start(
        "preprocessor",
        probe,
        (source,),
        heard=lambda _, message: heard.append(message),
        ended=lambda one: heard.append(("died", one.ending)),
    )
    try:
        while not heard:
            place.wait(_LOOK_S)
            watch(child)
            if child.quiet_s > timeout_s and not heard:
                why = hangs(timeout_s, child.at)
                heard.append(("failed", f"the preprocessor of the first sample: {why}"))
                child.kill(hung=why)
    finally:
        child.end()
    return tuple(heard[0])


class Feed:
    """The ring, the preprocessors that fill it, and the readers that wait for it.

    Args:
        tell: called with a reader's name and a message for it.
        start: the chunk at which the first reader starts.
        timeout_s: longest silence of a preprocessor over its chunk.
    """

    def __init__(
        self,
        place: Place,
        source: Source,
        stream: Stream,
        layout: Layout,
        *,
        slots: int,
        most: int,
        tell: Callable[[str, Any], None],
        start: int = 0,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.ledger = Ledger(slots=slots, floor=start)
        self.stream = stream
        self.ring = store_in(place, layout, slots=slots, chunk=stream.chunk)
        self.wanted = 1  # preprocessors that get work; the others are idle
        self.cpu_s = 0.0  # processor time of the preprocessors
        self.samples = 0  # number of samples made
        self.deaths = 0  # preprocessors that died
        self._place = place
        self._source = source
        self._most = most
        self._tell = tell
        self._makers: dict[str, Linked] = {}
        self._idle: list[str] = []
        self._waiting: dict[str, tuple[int, int]] = {}
        self._missed: dict[str, int] = {}
        self._died_over: dict[int, int] = {}
        self._hung_over: set[int] = set()
        self._timeout_s = timeout_s
        self._started = 0
        self._each_per_s = math.nan
        self._need_per_s = 0.0
        self._failure: str | None = None
        self._hire()

    def wait(self, timeout_s: float) -> None:
        """Process messages for up to `timeout_s` seconds. Raises `DataError` if a sample cannot be prepared."""
        self._place.wait(timeout_s)
        for maker in self.busy:
            if maker.quiet_s > self._timeout_s:
                self._maker_hangs(maker)
        if self._failure is not None:
            raise DataError(self._failure)

    def join(self, reader: str) -> int:
        """Add a reader at the floor and return its first chunk."""
        return self.ledger.join(reader)

    def leave(self, reader: str) -> None:
        """Remove a reader."""
        self._waiting.pop(reader, None)
        self._missed.pop(reader, None)
        self.ledger.leave(reader)
        self._hand_out()

    def want(self, reader: str, chunk: int, known: int) -> None:
        """Answer the reader once every chunk below ``chunk`` exists; it has references to those below ``known``."""
        self._waiting[reader] = chunk, known
        self._answer()

    def waits(self, reader: str) -> bool:
        """Return whether a reader waits for samples."""
        return reader in self._waiting or reader in self._missed

    def missing(self, reader: str, chunk: int, reference: Any) -> None:
        """Make a chunk again that a reader cannot find; the samples are the same."""
        if self.ring.lost(chunk, reference):
            self.ledger.again(chunk)
        self._missed[reader] = chunk
        self._hand_out()
        self._answer()

    def read(self, reader: str, upto: int) -> None:
        """Release all chunks below ``upto`` for this reader."""
        self.ledger.read(reader, upto)
        self._hand_out()

    def allow(self, end: int, floor: int) -> None:
        """Make chunks below ``end``; newcomers start at ``floor`` from now on."""
        self.ledger.raise_floor(floor)
        self.ledger.allow(end)
        self._hand_out()

    def needs(self, per_s: float) -> None:
        """Set the samples/s that the stream needs, and start as many preprocessors as that takes."""
        self._need_per_s = per_s
        self._resize()
        self._hand_out()

    @property
    def processes(self) -> tuple[int, ...]:
        return tuple(maker.pid for maker in self._makers.values())

    @property
    def busy(self) -> tuple[Linked, ...]:
        """The preprocessors that have a chunk to make."""
        return tuple(maker for name, maker in self._makers.items() if name not in self._idle)

    def close(self) -> None:
        """End the preprocessors and release the memory."""
        end_all(list(self._makers.values()))
        self.ring.close()

    def _resize(self) -> None:
        self.wanted = preprocessors_needed(self._need_per_s, self._each_per_s, most=self._most)
        while len(self._makers) < self.wanted:
            self._hire()

    def _hire(self) -> None:
        self._started += 1
        name = f"preprocessor-{self._started}"
        arguments = (self._source, self.stream, self.ring.handle(writable=True))
        self._makers[name] = self._place.start(name, preprocess, arguments, heard=self._heard, ended=self._maker_died)
        self._idle.append(name)

    def _heard(self, maker: Linked, message: tuple[Any, ...]) -> None:
        if message[0] == "failed":
            self._failure = message[1]
            return
        _, number, seconds, reference = message
        self.ring.keep(number, reference)
        self.ledger.made(maker.name)
        size = self.stream.describe(number).size
        self.cpu_s += seconds
        self.samples += size
        now = size / max(seconds, 1e-9)
        known = self._each_per_s
        # Processor time, not wall time: it does not depend on how busy the cores are.
        self._each_per_s = now if math.isnan(known) else known + _SMOOTH * (now - known)
        self._idle.append(maker.name)
        self._resize()
        self._hand_out()
        self._answer()

    def _maker_hangs(self, maker: Linked) -> None:
        """Kill a preprocessor that hangs and let another one make its chunk."""
        chunk = self.ledger.making(maker.name)
        why = hangs(self._timeout_s, maker.at)
        maker.kill(hung=why)
        if chunk in self._hung_over:
            self._failure = f"the second preprocessor that was given these samples: {why}"
        elif chunk is not None:
            # The next preprocessor reports the start of every sample of this chunk, so that a second hang names the
            # sample.
            self._hung_over.add(chunk)
        self._maker_died(maker)

    def _maker_died(self, maker: Linked) -> None:
        del self._makers[maker.name]
        if self._failure is not None:
            return
        self.deaths += 1
        if maker.name in self._idle:
            self._idle.remove(maker.name)
        chunk = self.ledger.lost(maker.name)
        if chunk is not None:
            self._died_over[chunk] = self._died_over.get(chunk, 0) + 1
            if self._died_over[chunk] >= MOST_DEATHS:
                what = self.stream.describe(chunk)
                kind = "validation" if what.validates else "training"
                self._failure = (
                    f"{MOST_DEATHS} preprocessors died ({maker.ending}) over positions {what.start} to "
                    f"{what.start + what.size - 1} of the {kind} set's order in epoch {what.epoch}: a sample there "
                    f"makes the data set or the transform crash, or memory runs out"
                )
                return
        self._hire()
        self._hand_out()

    def _hand_out(self) -> None:
        self.ring.drop(self.ledger.tail)
        while self._idle and len(self._makers) - len(self._idle) < self.wanted:
            chunk = self.ledger.assign(self._idle[0])
            if chunk is None:
                return
            # A chunk number is sent twice: as the chunk and as its slot in the ring.
            self._makers[self._idle.pop(0)].send((chunk, chunk, chunk in self._hung_over))

    def _answer(self) -> None:
        ready = self.ledger.ready
        for reader, (chunk, known) in list(self._waiting.items()):
            if chunk <= ready:
                del self._waiting[reader]
                # References that the reader has, or has passed, are not sent again.
                self._tell(reader, ("ready", ready, self.ring.found(max(known, self.ledger.readers[reader]), ready)))
        for reader, chunk in list(self._missed.items()):
            if not self.ledger.missing(chunk):
                del self._missed[reader]
                self._tell(reader, ("ready", ready, self.ring.found(chunk, chunk + 1)))
