"""Which workers take part in a run, as one of them knows it, and how to get from one generation to the next.

The store holds, for generation n, ``generation/n`` (written once, by whichever member was first to know all that is
needed) and ``said/n/W``, what member W said when n ended. So all members come to the same next generation, and one that
dies in the midst of it leaves the others able to.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
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
from uneven.run.membership.failure_detector import Watch
from uneven.runtime.membership_board import CLOSED, NEWS, OPEN, SESSION, Board

_LOOK_EVERY_S = 0.002


class LeftOut(PeerError):
    """The others have gone on without this worker."""


class Membership:
    """One worker's place among those that come and go.

    Args:
        worker: this one, for life.
        founders: workers that the run begins with; this is one of them, or joins later.
        bounds: least and greatest number of members.
        connect: makes one more connection to the store.
        silence_s: see :class:`~uneven.run.membership.failure_detector.Watch`.
        timeout_s: how long to wait for a worker that is alive.
        interface: address of this machine for the others; None is the loopback.

    Attributes:
        generation: the newest that this worker takes part in.
    """

    def __init__(
        self, worker: int, founders: int, bounds: tuple[int, int], connect: Callable[[], Any], *, silence_s: float,
        timeout_s: float, interface: str | None = None,
    ) -> None:  # fmt: skip
        self.worker = worker
        self.founders = founders
        self.bounds = bounds
        self.timeout_s = timeout_s
        self.generation: Generation = first_generation(founders)
        self.history: dict[int, Members] = {0: self.generation.members}
        self.board = Board(connect())
        self.board.write(f"{SESSION}/{worker}", OPEN)
        self._connect, self._interface = connect, interface
        self._groups_store = connect()
        self._news = 0  # as last looked at
        self._lost = False
        self.watch = Watch(Board(connect()), worker, self.generation.members, silence_s, interface)

    @property
    def joins_later(self) -> bool:
        """Whether the run began without this worker."""
        return self.worker >= self.founders

    @property
    def members(self) -> Members:
        """Those that take part, ascending."""
        return self.generation.members

    @property
    def place(self) -> int:
        """This worker's position among them; its own number before it is one of them."""
        return self.generation.place(self.worker) if self.worker in self.generation.members else self.worker

    # ---------------------------------------------------------------- what has happened
    def lost(self) -> bool:
        """Whether a member of this generation is gone, or has given it up; cheap, to be asked while one waits.

        Raises:
            PeerError: the store has ended.
        """
        try:
            news = self.board.count(NEWS)
            if news != self._news:
                self._news = news
                n, members = self.generation.number, self.generation.members
                self._lost = bool(self.board.dead(members)) or any(
                    self.board.look(f"said/{n}/{one}") is not None for one in members if one != self.worker
                )
        except RuntimeError as error:
            raise self._ended(error) from error
        return self._lost

    @property
    def somebody_asks(self) -> bool:
        """Whether a worker stands at the door, and there is room.

        Raises:
            PeerError: the store has ended.
        """
        if self.watch.lost is not None:  # a worker that is alone waits for no other, and would not notice
            raise self._ended(self.watch.lost)
        return self.watch.asked and len(self.members) < self.bounds[1]

    # ---------------------------------------------------------------- from one generation to the next
    def agree(self, said: Statement) -> Generation:
        """End this generation; the next one, which may be without members that are gone.

        Raises:
            LeftOut: the others took this worker for gone.
            PeerError: a member that is alive says nothing within the time-out; the store has ended; too few are left.
        """
        old = self.generation
        try:
            new = self._agreed(old, said)
        except RuntimeError as error:
            raise self._ended(error) from error
        if said.leaving:
            return new
        if self.worker not in new.members:
            raise self._left_out(new)
        self.enter(new)
        self._check_enough(new)
        return new

    def follow(self, *, leaving: bool = False, closing: bool = False) -> list[Generation]:
        """Where members owe each other nothing: the generations since this one. Waits for nobody.

        Args:
            leaving: this worker takes no part in the next one.
            closing: nobody is let in any more.

        Raises:
            LeftOut: the others took this worker for gone.
            PeerError: too few are left; the store has ended.
        """
        found: list[Generation] = []
        try:
            while (new := self._next(leaving, closing)) is not None:
                if self.worker not in new.members:
                    if leaving and str(self.worker) not in self.board.dead((self.worker,)):
                        break
                    raise self._left_out(new)
                self.enter(new)
                found.append(new)
                if not closing and not leaving:
                    self._check_enough(new)
        except RuntimeError as error:
            raise self._ended(error) from error
        return found

    def _next(self, leaving: bool, closing: bool) -> Generation | None:
        old, board = self.generation, self.board
        key = f"generation/{old.number + 1}"
        if (text := board.look(key)) is None:
            lacking = tuple(one for one in map(int, old.came) if board.look(f"in/{one}") is None)
            made = replaced(
                old, board.dead(old.members), {} if closing else board.asking(), self.bounds[1],
                leaving=(self.worker,) if leaving else (), lacking=lacking,
            )  # fmt: skip
            if made is None:
                return None
            text = board.write_once(key, made.text())
            board.count(NEWS, 1)
        return self._admitted(generation_of(text))

    def _admitted(self, new: Generation) -> Generation:
        """This generation, once those that it lets in know of it."""
        if new.came:
            self.board.asking()
            self.board.admit(map(int, new.came), new.number)
        return new

    def connected(self) -> Any:
        """Make one more connection to the store.

        Raises:
            PeerError: the store has ended.
        """
        try:
            return self._connect()
        except RuntimeError as error:
            raise self._ended(error) from error

    def _left_out(self, new: Generation) -> LeftOut:
        why = new.why.get(str(self.worker), "")
        return LeftOut(
            f"worker {self.worker} was left out, and the others have gone on without it ({why}): it was stopped, "
            f"or cut off from them; start a new one with `uneven run --join`"
        )

    def _check_enough(self, new: Generation) -> None:
        if len(new.members) < self.bounds[0]:
            raise PeerError(
                f"{len(new.members)} workers are left, and the run needs {self.bounds[0]} (--elastic "
                f"{self.bounds[0]}:{self.bounds[1]}): {told(new)}"
            )

    def enter(self, new: Generation) -> None:
        """This worker takes part in it."""
        self.generation = new  # a newcomer enters again with the state that it has been given
        self.history[new.number] = new.members
        self.watch.members = new.members
        self._news, self._lost = -1, False

    def circle(
        self, purpose: str, those: Members | None = None, of: str = "", lost: Callable[[], bool] | None = None, *,
        aside: bool = False,
    ) -> AbortableGroup:  # fmt: skip
        """The process group of this generation for one purpose; all members call it at the same time.

        Args:
            those: the members that are in it, in order of their places; all if None.
            of: what it is for, another one each time; "" is for this generation.
            lost: whether one of those is gone; None where it matters whether any member is.
            aside: on a connection of its own, as another thread may make a group at the same time.

        Raises:
            Broken: a member was gone.
            PeerError: one that is alive did not come in time.
        """
        new = self.generation
        name, those = f"circle/{of or new.number}/{purpose}", new.members if those is None else those
        try:
            return AbortableGroup(
                self.connected() if aside else self._groups_store, name, those.index(self.worker), len(those),
                interface=self._interface, lost=lost or self.lost, timeout_s=self.timeout_s,
            )  # fmt: skip
        except GroupAborted:
            # What was to make the group waits for the one that is gone, and keeps the connection as long as it does.
            if not aside:
                self._groups_store = self.connected()
            raise
        except TimeoutError as error:
            raise PeerError(f"worker {self.worker}: {error}; all of {new.members} are alive as far as known") from None

    def missing(self, what: str, exchange: int) -> PeerError:
        """The error where an exchange has not ended in time though nobody is known to be gone: who is not in it?"""
        n = self.generation.number
        try:
            self.board.write(f"waits/{n}/{exchange}/{self.worker}", what)
            time.sleep(_GRACE_S)
            absent = [one for one in self.members if self.board.look(f"waits/{n}/{exchange}/{one}") is None]
            self.board.miss(absent, what)
        except RuntimeError as error:
            return self._ended(error)
        if absent:
            who = ", ".join(map(str, absent))
            return PeerError(
                f"{what}: worker {who} did not take part within {self.timeout_s:g} s, but is alive: it hangs "
                f"elsewhere, left the loop that the others are in, or is only slow and needs a larger timeout_s"
            )
        return PeerError(
            f"{what} failed on worker {self.worker} although all of {self.members} are alive and wait in it: the "
            f"connection between some of them broke, or timeout_s = {self.timeout_s:g} is too short"
        )

    # ---------------------------------------------------------------- the door
    def ask(self, introduction: dict[str, Any], waiting: Callable[[float], None]) -> Generation:
        """Ask to be a member, and wait until the others let this worker in.

        Args:
            introduction: what they need to know of it, plain data.
            waiting: called every second or so with how long it has waited, in seconds.

        Raises:
            PeerError: the run has ended, or its store has.
        """
        try:
            key = self.board.ask(self.worker, introduction)
            began_s = said_s = time.monotonic()
            while (text := self.board.look(key)) is None:
                if self.board.look("over") is not None:
                    raise PeerError(f"worker {self.worker} came too late: the run has ended")
                time.sleep(_LOOK_EVERY_S)
                now_s = time.monotonic()
                if now_s - said_s > 1.0:
                    said_s = now_s
                    waiting(now_s - began_s)
            generation = generation_of(self.board.store.get(f"generation/{text}").decode())
        except RuntimeError as error:
            if isinstance(error, PeerError):
                raise
            raise self._ended(error) from error
        self.enter(generation)
        return generation

    # ---------------------------------------------------------------- the end
    def part_company(self, serve: Callable[[], None]) -> None:
        """This worker has come to its end: wait until all members have, as one may still need what this one has.

        Args:
            serve: called when a member has given the generation up; it takes part in what follows from that.

        Raises:
            PeerError: somebody does not come to its end within the time-out.
        """
        self.board.write(f"through/{self.worker}", "")
        until_s = time.monotonic() + self.timeout_s
        while True:
            open_ = [one for one in self.members if self.board.look(f"through/{one}") is None]
            if not open_ or set(open_) <= set(self.board.dead(open_)):
                self.board.write("over", "")
                return
            if self.lost():
                serve()
                until_s = time.monotonic() + self.timeout_s
            if time.monotonic() > until_s:
                who = ", ".join(map(str, open_))
                self.board.miss(open_, "the end")
                raise PeerError(f"worker {who} did not come to its end within {self.timeout_s:g} s")
            time.sleep(_LOOK_EVERY_S)

    def close(self) -> None:
        """Stop looking after the others."""
        with contextlib.suppress(RuntimeError):  # the store has ended, and nobody reads it any more
            self.board.write(f"{SESSION}/{self.worker}", CLOSED)
        self.watch.close()

    # ----------------------------------------------------------------
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
        """The next generation, if all have said what it needs."""
        n, board = old.number, self.board
        gone = board.dead(old.members)
        statements = {
            one: statement_of(text)
            for one in old.members
            if one not in gone and (text := board.look(f"said/{n}/{one}")) is not None
        }
        if len(statements) + len(gone) == len(old.members):
            return board.write_once(key, successor(old, statements, gone, board.asking(), self.bounds[1]).text())
        if time.monotonic() > until_s:
            silent = [one for one in old.members if one not in gone and one not in statements]
            board.miss(silent, "the next generation")
            raise PeerError(
                f"worker {', '.join(map(str, silent))} did not say where it is within {self.timeout_s:g} s after "
                f"members had changed, but is alive: it hangs, or left the loop that the others are in"
            )
        return None

    def _ended(self, error: BaseException) -> PeerError:
        if isinstance(error, PeerError):
            return error
        short = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        return PeerError(
            f"worker {self.worker} cannot reach the store of the run: the process that keeps it has ended, or the "
            f"connection to it is cut ({short})"
        )


_GRACE_S = 2.0
