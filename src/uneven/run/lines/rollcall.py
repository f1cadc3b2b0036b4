"""The roll call: which ranks are missing? Used only after an exchange has failed.

When a worker dies, only the workers that were exchanging with it notice immediately. The others wait for those in turn,
and a process that is blocked in an exchange cannot answer. So every process has a thread that waits for a key of the
store, at no cost while all goes well. A worker that fails sets the keys of all ranks, and each thread then reports the
state of its process. One that has ended or was stopped does not answer.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

from torch.distributed import distributed_c10d as c10d

from uneven.errors import PeerError
from uneven.run.lines.in_process_rendezvous import MeetingPlace
from uneven.runtime.timeout_call import within

# Time to answer: enough for a worker with a tenth of a core, and for one whose connection to the store took five
# seconds, as happens if name resolution fails.
_GRACE_S = 6.0

# Time in which a process that was called may still reach the exchange: the first workers to notice ask immediately,
# when a slower one may be in the step before.
_ON_ITS_WAY_S = 2.0

# The longest wait that the store's clock can hold. If a thread gives up after it, only error messages suffer.
_ASLEEP = timedelta(days=20)

_ELSEWHERE = "elsewhere"
_CALL, _LEAVE = "call", "leave"


class RollCall:
    """One worker's part in the roll call.

    Args:
        meeting: prefix of this meeting's keys in the store.
        timeout_s: the time-out of the exchanges; the message names it.

    Attributes:
        place: the exchange in which this worker waits now; "" outside of all.
    """

    def __init__(self, meeting_place: MeetingPlace, meeting: str, rank: int, size: int, timeout_s: float) -> None:
        self.place = ""
        self._verdict: dict[int, str] | None = None
        # The count separates the sessions of one process group.
        count = meeting_place.store.add(f"{meeting}/roll-calls/{rank}", 1)
        self._prefix = f"{meeting}/roll-call/{count}"
        self._store = c10d.PrefixStore(self._prefix, meeting_place.store)
        self._meeting_place = meeting_place
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s
        self._lost = False
        self._thread = threading.Thread(target=self._answer, name="uneven-roll-call", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def waiting(self, what: str, place: str = "") -> Iterator[None]:
        """Note that this worker waits for others in ``what``; raise :class:`PeerError` with the missing ranks if it
        fails.

        ``place`` is the name to report, the same on all workers that wait for each other, if ``what`` is not.
        """
        self.place = place or what
        try:
            yield
        except PeerError:
            raise
        except RuntimeError as error:
            raise self.failure(what, error) from error
        self.place = ""  # not after a failure: this worker still counts as waiting there when others ask

    def failure(self, what: str, error: BaseException) -> PeerError:
        """Return the error to raise instead of ``error``, with the missing ranks."""
        short = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        states = self._verdict or self._ask(what) or self._verdict
        if states is None:
            return PeerError(
                f"{what} failed on rank {self._rank}, and the store of the run does not answer: its process (the "
                f"launcher, or rank 0 without one) has ended or hangs ({short})"
            )
        silent = [rank for rank in range(self._size) if rank not in states]
        absent = [rank for rank, state in sorted(states.items()) if state == _ELSEWHERE]
        if silent:
            return PeerError(
                f"{what}: {_ranks(silent)} did not take part and sent no heartbeat within {_GRACE_S:g} s. Look "
                f"there for an error, a stopped process or an overloaded machine (noticed by rank {self._rank}: "
                f"{short})"
            )
        if absent:
            return PeerError(
                f"{what}: {_ranks(absent)} did not take part within {self._timeout_s:g} s, but is alive: it hangs "
                f"elsewhere, left the loop, or is slow and needs a larger timeout_s (noticed by rank {self._rank}: "
                f"{short})"
            )
        if len(set(states.values())) > 1:
            return PeerError(
                f"{what}: the ranks wait for each other in different exchanges ({_places(states)}): all ranks must "
                "run the same loop. Look for a break, continue or return that only some ranks reach, for pieces of "
                "a batch (x.split(n)), whose number differs by rank, or for a connection that broke during an "
                f"exchange (noticed by rank {self._rank}: {short})"
            )
        return PeerError(
            f"{what} failed on rank {self._rank} although all {self._size} ranks are alive and wait in it: the "
            f"connection between some of them broke, or timeout_s = {self._timeout_s:g} is too short ({short})"
        )

    def close(self, everybody: bool = False) -> None:
        """End this rank's thread; with ``everybody`` those of all ranks, as the run has ended and the store may end
        next."""
        if self._lost:  # a thread still waits for the store and blocks the connection
            return
        with contextlib.suppress(RuntimeError):  # the store may have ended before
            for rank in range(self._size) if everybody else (self._rank,):
                self._store.set(f"call/{rank}", _LEAVE)
        self._thread.join(1.0)

    def _answer(self) -> None:
        # If the store has ended, no worker needs an answer. Connect in this thread, because that may take seconds.
        with contextlib.suppress(RuntimeError), self._meeting_place.aside() as connection:
            store = c10d.PrefixStore(self._prefix, connection)
            store.wait([f"call/{self._rank}"], _ASLEEP)
            if store.get(f"call/{self._rank}") == _LEAVE.encode():
                return
            store.set(f"answer/{self._rank}", self._comes() or _ELSEWHERE)
            # The first worker to ask may end, and the store with it, before this rank asks, so keep the verdict.
            store.wait(["verdict"], timedelta(seconds=2 * _GRACE_S))
            self._verdict = {int(rank): state for rank, state in json.loads(store.get("verdict")).items()}

    def _comes(self) -> str:
        """Return the exchange in which this worker waits, now or soon."""
        deadline = time.monotonic() + _ON_ITS_WAY_S
        while not self.place and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.place

    def _ask(self, what: str) -> dict[int, str] | None:
        """Return the state of each rank that answers; None if the store does not."""
        states: dict[int, str] = {}
        try:  # in a thread with a limit, because a stopped store would block forever
            within(_GRACE_S + 1.0, lambda: self._collect(what, states))
        except (RuntimeError, TimeoutError) as error:  # answers received before the store ended are still valid
            self._lost = isinstance(error, TimeoutError)
            return states or None
        return states

    def _collect(self, what: str, states: dict[int, str]) -> None:
        store = self._store
        store.set(f"answer/{self._rank}", self.place or what)
        for rank in range(self._size):
            store.set(f"call/{rank}", _CALL)
        deadline = time.monotonic() + _GRACE_S
        while len(states) < self._size and time.monotonic() < deadline:
            for rank in range(self._size):
                if rank not in states and store.check([f"answer/{rank}"]):
                    states[rank] = store.get(f"answer/{rank}").decode()
            time.sleep(0.05)
        store.set("verdict", json.dumps(states))


def _places(states: dict[int, str]) -> str:
    where: dict[str, list[int]] = {}
    for rank, place in sorted(states.items()):
        where.setdefault(place, []).append(rank)
    return "; ".join(f"{_ranks(ranks)}: {place}" for place, ranks in where.items())


def _ranks(ranks: list[int]) -> str:
    return f"rank {', '.join(map(str, ranks))}"
