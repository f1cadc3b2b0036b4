"""From a store that is gone to the next one in the row, where members agree by majority that they go on with it.

:mod:`uneven.core.succession` has the rule. A member votes at one store after the other: it leaves one only when that is
gone, too, or when it has closed it for all by writing that nobody will go on with it. So a vote never counts at two
stores that are both in use. Whoever sees that enough votes are there writes the generation down; all others follow it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from uneven.board import ABANDONED, DEAD, REIGN, VOTE, WORKERS, Board, Carried
from uneven.core.membership import Generation, Members, generation_of
from uneven.core.succession import Vote, elected, vote_of
from uneven.errors import PeerError
from uneven.stores import Store, WayToStore, address_of, reach, reached

_Answer = TypeVar("_Answer")

_REACHED_WITHIN_S = 3.0
_LOOK_EVERY_S = 0.01
_TRIES = 3
"""Connections to one store, which answers, before an error is taken for one."""


class Succession:
    """The way to the store of one process; its threads share it.

    Args:
        worker: this one, for messages and votes.
        first: host and port of the store that the run begins with.
        silence_s: how much later others may find out that a store is gone; 0 is never.
        timeout_s: how long one waits for a store, and for what is not written there yet.

    Attributes:
        carried: what this worker writes to the next store as well, and how many there have been.
        over: nobody needs the store any more, so that one which is gone stays gone.
        vote: what this worker says; None while it is no member.
        adopt: told of the generation that goes on at a new store.
    """

    def __init__(self, worker: int, first: tuple[str, int], silence_s: float, timeout_s: float) -> None:
        self.lock = threading.RLock()
        self.carried = Carried()
        self.over = False
        self.vote: Callable[[], Vote | None] = _nobody
        self.adopt: Callable[[Generation], None] = _ignore
        self._worker = worker
        self._address = first
        self._silence_s = silence_s
        self._timeout_s = timeout_s
        self._failed: PeerError | None = None

    @property
    def moves(self) -> int:
        """From one store to another so far."""
        return self.carried.moves

    @property
    def address(self) -> str:
        """The address of the present store, for messages."""
        return "{}:{}".format(*self._address)

    def connect(self) -> tuple[Any, int]:
        """A connection to the present store, as it is, and how many moves it comes after.

        Raises:
            RuntimeError, PeerError: there is none.
        """
        for _ in range(_TRIES):
            moves = self.moves
            try:
                return reach(*self._address, self._timeout_s, self._silence_s), moves
            except RuntimeError as error:
                self.after(moves, error)
        return reach(*self._address, self._timeout_s, self._silence_s), self.moves

    def board(self) -> Board:
        """A connection for one thread, which moves on to the next store when this one is gone."""
        return Board(FollowedStore(self), self.carried)

    def after(self, moves: int, error: RuntimeError) -> None:
        """A connection that was made after so many moves has failed: see that there is a store.

        Raises:
            PeerError: too few members have come to any other store.
            RuntimeError: ``error``, where there is none.
        """
        with self.lock:
            if self.over or self._failed is not None:
                raise self._failed or error
            if self.moves != moves or self._answers():
                return
            vote = self.vote()
            row = () if vote is None else generation_of(vote.generation).row
            if vote is None or not row:
                raise error
            for address in row:
                goes_on = self._at(address, vote)
                if goes_on is not None:
                    self._follow(goes_on, address_of(address))
                    return
            self._failed = PeerError(
                f"worker {self._worker}: the store of the run is gone, and no more than half of the last members, "
                f"{generation_of(vote.generation).members}, have come to another one ({', '.join(row)}): they may go "
                f"on elsewhere, so this worker ends"
            )
            raise self._failed

    def _follow(self, goes_on: Generation, address: tuple[str, int]) -> None:
        try:
            self.adopt(goes_on)
        except PeerError as error:
            self._failed = error
            raise
        self._address = address
        self.carried.moves += 1

    def _answers(self) -> bool:
        """Whether only a connection is gone."""
        store = reached(self._address, _REACHED_WITHIN_S)
        try:
            return store is not None and store.check([WORKERS])
        except RuntimeError:
            return False

    def _at(self, address: str, vote: Vote) -> Generation | None:
        """The generation that goes on there; None if none does."""
        store = reached(address_of(address), _REACHED_WITHIN_S)
        if store is None:
            return None
        board = Board(store)
        until_s = time.monotonic() + (self._silence_s or _REACHED_WITHIN_S) + _REACHED_WITHIN_S
        try:
            said = ""
            while (text := board.look(REIGN)) is None:
                vote = self.vote() or vote  # it may have come to know that all have entered its generation
                if vote.text() != said:
                    board.write(f"{VOTE}/{self._worker}", said := vote.text())
                if (found := elected(_votes(board, generation_of(vote.generation).members), address)) is not None:
                    _begin(board, *found)
                elif time.monotonic() > until_s:
                    board.write_once(REIGN, ABANDONED)
                else:
                    time.sleep(_LOOK_EVERY_S)
            if text == ABANDONED:
                return None
            for key, kept in self.carried.kept.items():
                board.write_once(key, kept)
            return generation_of(text)
        except RuntimeError:
            return None  # it is gone, too


class FollowedStore(WayToStore):
    """A connection of one thread, which moves on when its store is gone."""

    def __init__(self, succession: Succession) -> None:
        self._succession = succession
        self._store, self._moves = succession.connect()

    def get(self, key: str) -> bytes:
        """What is written there.

        Raises:
            KeyError: it was, but not in the store that has taken the place of that one.
        """
        moves = self._moves
        value = self.call(lambda store: store.get(key) if moves == self._moves else b"")
        if moves != self._moves:
            raise KeyError(key)
        return value

    def call(self, ask: Callable[[Store], _Answer]) -> _Answer:
        """See :class:`uneven.stores.WayToStore`."""
        tries = 0
        while True:
            if self._moves != self._succession.moves:
                self._store, self._moves = self._succession.connect()
            try:
                return ask(self._store)
            except RuntimeError as error:
                tries += 1
                if tries > _TRIES:
                    raise
                self._succession.after(self._moves, error)
                self._store, self._moves = self._succession.connect()


def _begin(board: Board, goes_on: Generation, workers: int) -> None:
    """Write down what goes on there. Others may do the same at that moment."""
    for one in {*range(workers)} - {*goes_on.members}:
        board.write_once(f"{DEAD}/{one}", "it was no member when the run's store was lost")
    board.write_once(WORKERS, str(workers))
    board.offered(goes_on.row)
    board.write_once(f"generation/{goes_on.reign - 1}/{goes_on.number}", goes_on.text())
    board.write_once(REIGN, goes_on.text())


def _votes(board: Board, those: Members) -> dict[int, Vote]:
    """What these have said there, and the members of any newer generation that one of them names."""
    looked: set[int] = set()
    found: dict[int, Vote] = {}
    wanted = {*those}
    while missing := wanted - looked:
        for one in missing:
            looked.add(one)
            if (text := board.look(f"{VOTE}/{one}")) is not None:
                found[one] = vote_of(text)
                wanted |= {*generation_of(found[one].generation).members}
    return found


def _nobody() -> None:
    return None


def _ignore(generation: Generation) -> None:
    pass
