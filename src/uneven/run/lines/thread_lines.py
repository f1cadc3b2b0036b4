"""Lines among threads of one process: the public double for tests of callbacks, and the lines of a single-process
run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

from torch import Tensor

from uneven.errors import ConfigError, PeerError
from uneven.run.lines.in_process_rendezvous import Hub
from uneven.run.lines.line import Carrier, Lines, Waiting, Work
from uneven.run.lines.traffic import TrafficBook


@contextmanager
def _at_once(what: str) -> Iterator[None]:
    yield


class ThreadLines(Lines):
    """The lines of worker ``rank`` to other threads, for tests; :meth:`of` creates those of all.

    All workers share ``places``; ``waiting`` records waits, and ``book`` counts bytes.
    """

    def __init__(
        self, rank: int, places: "_Places", waiting: Waiting = _at_once, book: TrafficBook | None = None
    ) -> None:
        super().__init__(rank, tuple(range(places.size)), waiting, book)
        self._places = places
        self._turn = 0

    @classmethod
    def of(cls, size: int, timeout_s: float = 30.0) -> "list[ThreadLines]":
        """Return the lines of ``size`` workers, each used by its own thread, which wait at most ``timeout_s`` for
        each other."""
        places = _Places(size, timeout_s)
        return [cls(rank, places) for rank in range(size)]

    @classmethod
    def alone(cls, waiting: Waiting, book: TrafficBook) -> "ThreadLines":
        """Return the lines of a single-process run, with its ``waiting`` and ``book``."""
        return cls(0, _Places(1, 0.0), waiting, book)

    def _texts(self, mine: str) -> Sequence[str]:
        said, self._turn = self._turn, self._turn + 1
        self._places.talk.put(said, self.rank, mine)
        return [str(one) for one in self._places.talk.wait(said)]

    def _carrier(self, members: tuple[int, ...]) -> Carrier:
        return _ThreadCarrier(self.rank, members, self._places.of_line(len(self.opened), len(members)))


class _Place:
    """The rendezvous of one line's members."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.hub = Hub(size, timeout_s)
        self._lock = Lock()
        self._boxes: dict[tuple[int, int], SimpleQueue[Tensor]] = {}

    def box(self, source: int, to: int) -> SimpleQueue[Tensor]:
        with self._lock:
            return self._boxes.setdefault((source, to), SimpleQueue())


class _Places:
    """The rendezvous of all lines of a run."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = size
        self._timeout_s = timeout_s
        self.talk = Hub(size, timeout_s)
        self._lock = Lock()
        self._lines: dict[int, _Place] = {}

    def of_line(self, number: int, size: int) -> _Place:
        with self._lock:
            return self._lines.setdefault(number, _Place(size, self._timeout_s))


class _Later:
    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end

    def wait(self) -> None:
        self._end()


class _ThreadCarrier:
    def __init__(self, rank: int, members: tuple[int, ...], place: _Place) -> None:
        self._rank = rank
        self._members = members
        self._place = place
        self._turn = 0

    def sum(self, tensor: Tensor) -> Work:
        def land(all_of_them: list[Any]) -> None:
            self._check_alike(all_of_them)
            tensor.copy_(sum(all_of_them[1:], all_of_them[0]))

        # A clone, because the owner may reuse its tensor after its own wait, while others still read.
        return self._meet(tensor.clone(), land)

    def broadcast(self, tensor: Tensor, source: int) -> Work:
        place = self._members.index(source)

        def land(those: list[Any]) -> None:
            self._check_alike(those)
            tensor.copy_(those[place])

        return self._meet(tensor.clone(), land)

    def gather(self, tensor: Tensor, into: list[Tensor]) -> Work:
        def land(those: list[Any]) -> None:
            self._check_alike([*those, *into])
            for one, it in zip(into, those, strict=True):
                one.copy_(it)

        return self._meet(tensor.clone(), land)

    def all_to_all(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> Work:
        mine = self._members.index(self._rank)

        def land(those: list[Any]) -> None:
            for one, pieces in zip(incoming, those, strict=True):
                self._check_alike([pieces[mine], one])
                one.copy_(pieces[mine])

        return self._meet([one.clone() for one in outgoing], land)

    def send(self, tensor: Tensor, peer: int) -> Work:
        self._place.box(self._rank, peer).put(tensor.clone())
        return _Later(lambda: None)

    def receive(self, tensor: Tensor, peer: int) -> Work:
        def take() -> None:
            try:
                found = self._place.box(peer, self._rank).get(timeout=self._place.timeout_s)
            except Empty:
                limit_s = self._place.timeout_s
                raise PeerError(f"rank {peer} has sent nothing to rank {self._rank} within {limit_s:g} s") from None
            self._check_alike([found, tensor])
            tensor.copy_(found)

        return _Later(take)

    def close(self) -> None:
        pass

    def _check_alike(self, tensors: list[Tensor]) -> None:
        # Between processes this is not checked, so a test with threads has to find it.
        kinds = {(tuple(one.shape), one.dtype) for one in tensors}
        if len(kinds) > 1:
            differ = sorted(kinds, key=str)
            raise ConfigError(f"rank {self._rank} exchanges tensors that differ in shape or dtype: {differ}")

    def _meet(self, given: object, land: Callable[[list[Any]], object]) -> Work:
        turn, self._turn = self._turn, self._turn + 1
        self._place.hub.put(turn, self._members.index(self._rank), given)
        return _Later(lambda: land(self._place.hub.wait(turn)))
