"""The members of a run as one of them knows them, and the change from one generation to the next.

For generation n the store has ``generation/n``, written once by the first member that had all it needed, and
``said/n/W``, the statement of member W at the end of n. So all members agree on the next generation, and one that fails
during the change does not stop the others.
"""

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from uneven.errors import PeerError
from uneven.policy.core.membership import (
    Generation,
    Members,
    Statement,
    first_generation,
    generation_of,
    replaced,
    statement_of,
    successor,
    told,
)
from uneven.run.lines.abortable_group import AbortableGroup, GroupAborted
from uneven.run.membership.failure_detector import FailureDetector
from uneven.runtime.membership_board import CLOSED, NEWS, OPEN, SESSION, SITE, Board

_LOOK_EVERY_S = 0.002


class LeftOut(PeerError):
    """The others have continued without this worker."""


class _StoreOfRun:
    """A connection to the store that raises PeerError if the store has ended, wherever a member uses it."""

    def __init__(self, store: Any, worker: int) -> None:
        self._store = store
        self._worker = worker

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(_reached, self._worker, getattr(self._store, name))


def _reached(worker: int, call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except RuntimeError as error:
        raise _unreachable(worker, error) from error


def _unreachable(worker: int, error: BaseException) -> PeerError:
    short = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return PeerError(
        f"worker {worker} cannot reach the store of the run: its process ended, or the connection is cut ({short})"
    )


class Membership:
    """One worker's place among changing members. A method raises PeerError if the store has ended."""

    def __init__(
        self,
        worker: int,  # number of this worker; it never changes
        founders: int,  # number of workers that start the run; this is one of them, or joins later
        bounds: tuple[int, int],  # least and greatest number of members
        connect: Callable[[], Any],  # makes another connection to the store
        *,
        silence_s: float,  # see `FailureDetector`
        timeout_s: float,  # how long to wait for a worker that is alive
        interface: str | None = None,  # address of this machine for the others; None is the loopback
        site: str = "",
    ) -> None:
        self.worker = worker
        self.founders = founders
        self.bounds = bounds
        self.timeout_s = timeout_s
        self.generation: Generation = first_generation(founders)  # the newest with this worker
        self.history: dict[int, Members] = {0: self.generation.members}
        self.board = Board(_StoreOfRun(connect(), worker))
        self.board.write(f"{SESSION}/{worker}", OPEN)
        self.board.write(f"{SITE}/{worker}", site)
        self._connect = connect
        self._interface = interface
        self._groups_store = connect()
        self._news = 0  # the store's counter of changes when it was last read
        self._lost = False
        self.watch = FailureDetector(Board(connect()), worker, self.generation.members, silence_s, interface)

    @property
    def joins_later(self) -> bool:
        return self.worker >= self.founders

    @property
    def members(self) -> Members:
        return self.generation.members

    @property
    def place(self) -> int:
        """This worker's position among them; its own number before it is a member."""
        return self.generation.place(self.worker) if self.worker in self.generation.members else self.worker

    def donors(self, new: Generation) -> dict[int, int]:
        """Return the member that gives each newcomer the state of the run: of its site, if there is one. Raises
        PeerError if no member has it."""
        # One that had not yet marked its state as complete when this generation was written may have it now.
        came = sorted(one for one in map(int, new.came) if self.board.look(f"in/{one}") is None)
        old = [one for one in new.members if one not in came]
        if came and not old:
            raise PeerError(f"no worker is left that has the state of the run: {told(new)}")
        site = {one: self.board.look(f"{SITE}/{one}") for one in new.members if came}
        return {one: next((it for it in old if site[it] == site[one]), old[0]) for one in came}

    def lost(self) -> bool:
        """Return whether a member of this generation has failed or given it up; cheap enough to poll."""
        news = self.board.count(NEWS)
        # One counter instead of a read for each member, at every poll.
        if news != self._news:
            self._news = news
            generation = self.generation
            n, members = generation.number, generation.members
            lost = bool(self.board.dead(members)) or any(
                self.board.look(f"said/{n}/{one}") is not None for one in members if one != self.worker
            )
            if generation is not self.generation:
                return lost  # of that one: another thread has entered the next one since
            self._lost = lost
        return self._lost

    @property
    def somebody_asks(self) -> bool:
        """True if a worker asks to join and there is room."""
        if self.watch.lost is not None:  # a single member waits for no other, and would not notice
            raise _unreachable(self.worker, self.watch.lost)
        return self.watch.asked and len(self.members) < self.bounds[1]

    def agree(self, said: Statement) -> Generation:
        """End this generation and return the next one, without members that have failed.

        Raises LeftOut if the others counted this worker as failed. Raises PeerError if a member that is alive sends no
        statement in time, or too few members are left.
        """
        new = self._agreed(self.generation, said)
        if self.worker not in new.members:
            if said.leaving:
                return new
            raise self._left_out(new.why.get(str(self.worker), ""))
        self.enter(new)
        self._check_enough(new)
        return new

    def follow(self, *, leaving: bool = False, closing: bool = False) -> list[Generation]:  # `closing`: no newcomers
        """Return the generations since this one, without waiting; for members that make no common exchanges. Raises
        as :meth:`agree`."""
        found: list[Generation] = []
        while (new := self._next(leaving, closing)) is not None:
            if self.worker not in new.members:
                if leaving:
                    break
                raise self._left_out(new.why.get(str(self.worker), ""))
            self.enter(new)
            found.append(new)
            if not closing and not leaving:
                self._check_enough(new)
        return found

    def _next(self, leaving: bool, closing: bool) -> Generation | None:
        old, board = self.generation, self.board
        key = f"generation/{old.number + 1}"
        if (text := board.look(key)) is None:
            lacking = tuple(one for one in map(int, old.came) if board.look(f"in/{one}") is None)
            made = replaced(
                old,
                board.dead(old.members),
                {} if closing else board.asking(),
                self.bounds[1],
                leaving=(self.worker,) if leaving else (),
                lacking=lacking,
            )
            if made is None:
                return None
            text = board.write_once(key, made.text())
            board.count(NEWS, 1)
        return self._admitted(generation_of(text))

    def _admitted(self, new: Generation) -> Generation:
        if new.came:
            self.board.asking()
            self.board.admit(map(int, new.came), new.number)
        return new

    def connected(self) -> Any:
        return _reached(self.worker, self._connect)

    def _left_out(self, why: str) -> LeftOut:
        return LeftOut(
            f"worker {self.worker} was removed, and the others have continued without it ({why}): it was stopped, "
            f"or cut off from them; start a new one with `uneven run --join`"
        )

    def _check_enough(self, new: Generation) -> None:
        if len(new.members) < self.bounds[0]:
            raise PeerError(
                f"{len(new.members)} workers are left, and the run needs {self.bounds[0]} (--elastic "
                f"{self.bounds[0]}:{self.bounds[1]}): {told(new)}"
            )

    def enter(self, new: Generation) -> None:
        self.generation = new  # a newcomer enters a second time, with the state that it received
        self.history[new.number] = new.members
        self.watch.members = new.members
        # −1 forces a check at the next poll: a new member may already have failed.
        self._news, self._lost = -1, False

    def circle(
        self,
        purpose: str,
        those: Members | None = None,  # its members, in order of their places; all if None
        of: str = "",  # a unique name for a group with a narrower purpose; "" is for this generation
        lost: Callable[[], bool] | None = None,  # returns whether one of those has failed; None checks all members
        *,
        aside: bool = False,  # on a separate connection, because another thread may form a group at the same time
    ) -> AbortableGroup:
        """Form the process group of this generation for one purpose; all of its members call it at the same time.

        Raises GroupAborted if a member has failed, and PeerError if one that is alive did not come in time.
        """
        new = self.generation
        name, those = f"circle/{of or new.number}/{purpose}", new.members if those is None else those
        self.board.write(f"{name}/{self.worker}", "")
        try:
            return AbortableGroup(
                self.connected() if aside else self._groups_store,
                name,
                those.index(self.worker),
                len(those),
                interface=self._interface,
                lost=lost or self.lost,
                timeout_s=self.timeout_s,
            )
        except GroupAborted:
            # The abandoned attempt still waits for the failed member and blocks its connection.
            if not aside:
                self._groups_store = self.connected()
            raise
        except TimeoutError as error:
            absent = [one for one in those if self.board.look(f"{name}/{one}") is None]
            self.board.miss(absent, "the group of the members")
            who = (
                f"worker {', '.join(map(str, absent))} did not come, but seems alive"
                if absent
                else f"all of {those} came"
            )
            raise PeerError(f"worker {self.worker}: {error}; {who}") from None

    def waits(self, exchange: int) -> None:
        """Report to the others that this worker waits in an exchange."""
        self.board.write(f"waits/{self.generation.number}/{exchange}/{self.worker}", "")

    def missing(self, what: str, exchange: int) -> PeerError:
        """Return the error for an exchange that timed out without a known failure; it names the missing members."""
        n = self.generation.number
        try:
            self.waits(exchange)
            time.sleep(_GRACE_S)  # others that have just come write their key within this time
            absent = [one for one in self.members if self.board.look(f"waits/{n}/{exchange}/{one}") is None]
            self.board.miss(absent, what)
        except PeerError as error:
            return error
        if absent:
            who = ", ".join(map(str, absent))
            return PeerError(
                f"{what}: worker {who} did not take part within {self.timeout_s:g} s, but is alive: it hangs "
                "elsewhere, left the loop, or is slow and needs a larger timeout_s"
            )
        return PeerError(
            f"{what} failed on worker {self.worker} although all of {self.members} are alive and wait in it: the "
            f"connection between some of them broke, or timeout_s = {self.timeout_s:g} is too short"
        )

    def ask(self, introduction: dict[str, Any], waiting: Callable[[float], None]) -> Generation:
        """Ask to join, call ``waiting`` once a second with the seconds so far, and return the generation that
        includes this worker."""
        key = self.board.ask(self.worker, introduction)
        began_s = said_s = time.monotonic()
        newest = self.generation
        while (text := self.board.look(key)) is None:
            if self.board.look("over") is not None:
                raise PeerError(f"worker {self.worker} came too late: the run has ended")
            time.sleep(_LOOK_EVERY_S)
            now_s = time.monotonic()
            if now_s - said_s > 1.0:
                said_s = now_s
                waiting(now_s - began_s)
                if gone := self.board.dead((self.worker,)):  # no member looks at its request
                    raise self._left_out(gone[self.worker])
                while (later := self.board.look(f"generation/{newest.number + 1}")) is not None:
                    newest = generation_of(later)
                if {*newest.members} - {self.worker} <= {*self.board.dead(newest.members)}:
                    raise PeerError(f"worker {self.worker} came too late: every member that could admit it is gone")
        generation = generation_of(self.board.store.get(f"generation/{text}").decode())
        self.enter(generation)
        return generation

    def part_company(self, serve: Callable[[], object]) -> None:
        """Wait until all members have reached their end, because one may still need this one's tensors.

        ``serve`` is called when a member has given up the generation, or has left it without the others' statements.
        Raises PeerError if a member does not come in time.
        """
        self.board.write(f"through/{self.worker}", "")
        until_s = time.monotonic() + self.timeout_s
        while True:
            open_ = [one for one in self.members if self.board.look(f"through/{one}") is None]
            if not open_ or set(open_) <= set(self.board.dead(open_)):
                self.board.write("over", "")
                return
            if self.lost() or self.board.look(f"generation/{self.generation.number + 1}") is not None:
                serve()
                until_s = time.monotonic() + self.timeout_s
            if time.monotonic() > until_s:
                who = ", ".join(map(str, open_))
                self.board.miss(open_, "the end")
                raise PeerError(f"worker {who} did not end within {self.timeout_s:g} s")
            time.sleep(_LOOK_EVERY_S)

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store has ended: no process reads the key
            self.board.write(f"{SESSION}/{self.worker}", CLOSED)
        self.watch.close()

    def _agreed(self, old: Generation, said: Statement) -> Generation:
        n, board = old.number, self.board
        board.write(f"said/{n}/{self.worker}", said.text())
        board.count(NEWS, 1)
        until_s = time.monotonic() + self.timeout_s
        key = f"generation/{n + 1}"
        while (text := board.look(key) or self._decided(old, key, until_s)) is None:
            time.sleep(_LOOK_EVERY_S)
        return self._admitted(generation_of(text))

    def _decided(self, old: Generation, key: str, until_s: float) -> str | None:
        """Return the next generation, or None while a statement is missing."""
        n, board = old.number, self.board
        gone = board.dead(old.members)
        statements = {
            one: statement_of(text)
            for one in old.members
            if one not in gone and (text := board.look(f"said/{n}/{one}")) is not None
        }
        if len(statements) + len(gone) == len(old.members):
            # Members may have different news, so the first successor that is written wins.
            return board.write_once(key, successor(old, statements, gone, board.asking(), self.bounds[1]).text())
        if time.monotonic() > until_s:
            silent = [one for one in old.members if one not in gone and one not in statements]
            board.miss(silent, "the next generation")
            raise PeerError(
                f"worker {', '.join(map(str, silent))} did not report its position within {self.timeout_s:g} s "
                "after a change of members, but is alive: it hangs, or left the loop"
            )
        return None


_GRACE_S = 2.0
