"""Workers as threads of one process: the public test double, and the transport of a single-process run."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch.distributed import distributed_c10d as c10d

from uneven.errors import PeerError
from uneven.run.lines.transport import Rows


class MeetingPlace:
    """A store, and connections for waits, each of which blocks a connection."""

    def __init__(self, store: c10d.Store) -> None:
        # Connections are reused. Both ends of a new one look up the other's name for a log, and the store's only thread
        # blocks during that. If name resolution fails, all ranks stop for five seconds (torch 2.9 to 2.13).
        self.store = store
        self._free: list[c10d.Store] = []

    @contextlib.contextmanager
    def aside(self) -> Iterator[c10d.Store]:
        """Yield a connection for one user, reused later if no error occurs; raises :class:`RuntimeError` if the
        store has ended."""
        try:
            store = self._free.pop()
        except IndexError:
            store = self.store.clone()  # type: ignore[attr-defined] # not in torch's stubs
        yield store
        self._free.append(store)


@dataclass
class Hub:
    """The rendezvous of the threads, ``size`` workers that wait at most ``timeout_s`` for each other."""

    size: int
    timeout_s: float = 30.0
    _rounds: dict[int, dict[int, object]] = field(default_factory=dict)
    _left: dict[int, int] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def endpoint(self, rank: int) -> "ThreadTransport":
        """Return the transport of ``rank``, for one thread."""
        return ThreadTransport(self, rank)

    def put(self, turn: int, rank: int, value: object) -> None:
        """Store a value for the round ``turn``."""
        with self._changed:
            self._rounds.setdefault(turn, {})[rank] = value
            self._left[turn] = self.size
            self._changed.notify_all()

    def wait(self, turn: int) -> list[object]:
        """Return all workers' values of the round ``turn``, by rank; raise :class:`PeerError` if one is missing in
        time."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._rounds[turn]) == self.size, self.timeout_s):
                missing = sorted(set(range(self.size)) - set(self._rounds[turn]))
                raise PeerError(f"no report from rank {', '.join(map(str, missing))} within {self.timeout_s:g} s")
            values = [self._rounds[turn][rank] for rank in range(self.size)]
            self._left[turn] -= 1  # each worker reads a round once; the last one deletes it
            if not self._left[turn]:
                del self._rounds[turn], self._left[turn]
            return values


@dataclass
class _Turn:
    hub: Hub
    turn: int

    def result(self) -> Rows:
        return np.array(self.hub.wait(self.turn), np.float64)


class ThreadTransport:
    """Implements :class:`uneven.run.lines.transport.Transport` between threads."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self.rank = rank
        self.size = hub.size
        self._hub = hub
        self._turn = 0

    def gather(self, row: Sequence[float]) -> _Turn:
        return self._start(tuple(float(value) for value in row))

    def gather_text(self, text: str) -> tuple[str, ...]:
        return tuple(self._hub.wait(self._start(text).turn))  # type: ignore[arg-type]

    def close(self) -> None: ...

    def _start(self, value: object) -> _Turn:
        turn, self._turn = self._turn, self._turn + 1
        self._hub.put(turn, self.rank, value)
        return _Turn(self._hub, turn)
