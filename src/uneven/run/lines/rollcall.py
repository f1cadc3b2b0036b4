"""Who is missing? Asked only after an exchange has failed.

When a worker dies, only those notice at once who were just exchanging with it; the others wait for them in
turn, and a process that is blocked in an exchange cannot answer. So every process keeps a thread asleep on a
key of the store that the ranks met at, which costs nothing while all goes well. Whoever fails sets the keys
of all; each thread then says what its process is doing. One that has ended or was stopped says nothing.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

from torch.distributed import distributed_c10d as c10d

from uneven.errors import PeerError
from uneven.patience import within
from uneven.run.lines.meeting import MeetingPlace

_GRACE_S = 6.0
"""How long one waits for signs of life: a worker with a tenth of a core has answered by then, also one whose
connection to the store took five seconds, as happens where names are looked up in vain."""

_ON_ITS_WAY_S = 2.0
"""How long a process that was called may take to come to the exchange before it counts as elsewhere: those who notice
first ask at once, when one that is merely slower may still be in the step before."""

_ASLEEP = timedelta(days=20)
"""The longest wait that the store's clock can hold; a thread that gives up then is missed by nobody but us."""

_ELSEWHERE = "elsewhere"
_CALL, _LEAVE = "call", "leave"


class RollCall:
    """One worker's line to the roll call.

    Args:
        meeting_place: the key-value store that the ranks met at; asleep while all goes well.
        meeting: what begins the keys of this meeting there.
        timeout_s: the time-out of the exchanges, for the message.

    Attributes:
        place: the exchange in which this worker waits now, as one reads it in a message; "" outside of all.
    """

    def __init__(self, meeting_place: MeetingPlace, meeting: str, rank: int, size: int, timeout_s: float) -> None:
        self.place = ""
        self._verdict: dict[int, str] | None = None
        # Tells apart the sessions of one process group.
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
        """Inside, this worker waits for others in ``what``.

        A worker that has failed still counts as one that waits there, for those who ask after it.

        Args:
            place: the same on all who wait for each other, where ``what`` is not.

        Raises:
            PeerError: the exchange failed; it says who is missing.
        """
        self.place = place or what
        try:
            yield
        except PeerError:
            raise
        except RuntimeError as error:
            raise self.failure(what, error) from error
        self.place = ""

    def failure(self, what: str, error: BaseException) -> PeerError:
        """The error to raise in place of ``error``, naming the missing ranks."""
        short = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        states = self._verdict or self._ask(what) or self._verdict
        if states is None:
            return PeerError(
                f"{what} failed on rank {self._rank}, and the store that the ranks met at does not answer: the process "
                f"that keeps it (the launcher, or rank 0 without one) has ended or hangs ({short})"
            )
        silent = [rank for rank in range(self._size) if rank not in states]
        absent = [rank for rank, state in sorted(states.items()) if state == _ELSEWHERE]
        if silent:
            return PeerError(
                f"{what}: {_ranks(silent)} did not take part and gives no sign of life within {_GRACE_S:g} s. Look "
                f"there for the error, for a process that was stopped, or for a machine too busy to answer (noticed by "
                f"rank {self._rank}: {short})"
            )
        if absent:
            return PeerError(
                f"{what}: {_ranks(absent)} did not take part within {self._timeout_s:g} s, but is alive: it hangs "
                f"elsewhere, left the loop that the others are in, or is only slow and needs a larger timeout_s "
                f"(noticed by rank {self._rank}: {short})"
            )
        if len(set(states.values())) > 1:
            return PeerError(
                f"{what}: the ranks wait for each other in different exchanges ({_places(states)}): all ranks must run "
                f"the same loop. Look for a break, continue or return that only some ranks reach, or for pieces of a "
                f"batch (x.split(n)), whose number differs by rank (noticed by rank {self._rank}: {short})"
            )
        return PeerError(
            f"{what} failed on rank {self._rank} although all {self._size} ranks are alive and wait in it: the "
            f"connection between some of them broke, or timeout_s = {self._timeout_s:g} is too short ({short})"
        )

    def close(self, everybody: bool = False) -> None:
        """Wake this rank's thread for good.

        Args:
            everybody: the run has ended well and the store may end with this process; nobody needs to ask.
        """
        if self._lost:  # a thread still waits for the store and keeps the connection
            return
        with contextlib.suppress(RuntimeError):  # the store may have ended before
            for rank in range(self._size) if everybody else (self._rank,):
                self._store.set(f"call/{rank}", _LEAVE)
        self._thread.join(1.0)

    def _answer(self) -> None:
        # The store may have ended: nobody needs an answer then. Connected here, for that may take torch seconds.
        with contextlib.suppress(RuntimeError), self._meeting_place.aside() as connection:
            store = c10d.PrefixStore(self._prefix, connection)
            store.wait([f"call/{self._rank}"], _ASLEEP)
            if store.get(f"call/{self._rank}") == _LEAVE.encode():
                return
            store.set(f"answer/{self._rank}", self._comes() or _ELSEWHERE)
            # Who was the first to ask may end, and the store with it, before this rank comes to ask.
            store.wait(["verdict"], timedelta(seconds=2 * _GRACE_S))
            self._verdict = {int(rank): state for rank, state in json.loads(store.get("verdict")).items()}

    def _comes(self) -> str:
        """The exchange in which this worker waits, or does so before long."""
        deadline = time.monotonic() + _ON_ITS_WAY_S
        while not self.place and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.place

    def _ask(self, what: str) -> dict[int, str] | None:
        """What each rank that answers is doing; None if the store does not answer.

        The store is asked from a thread, for one that was stopped would let us wait for ever.
        """
        states: dict[int, str] = {}
        try:
            within(_GRACE_S + 1.0, lambda: self._collect(what, states))
        except (RuntimeError, TimeoutError) as error:  # what was learnt before the store ended still holds
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
