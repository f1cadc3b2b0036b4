"""Looks after the other members, and after the door."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from uneven.run.membership.connections import Lifelines
from uneven.runtime.membership_board import NEWS, STARTS_WITHIN_S, WORKERS, Board


class Watch:
    """Beats for this worker, looks after the others' beats, and notices who wants to join. A thread of its own.

    A process that was stopped or cut off is noticed by nobody else. One that has died is known to its launcher at once;
    where the launcher has died with it, the end of a connection says so (:class:`.lifelines.Lifelines`).

    Args:
        board: with a connection that nobody else uses.
        interface: address of this machine for the others; None is the loopback.
        silence_s: how long a member may be silent before it counts as gone; 0 is for ever.

    Attributes:
        asked: whether a worker stands at the door.
        lost: why the store does not answer any more; None while it does.
        listener: told, in the thread, of members that are gone and why, when it is news; None where nobody listens.
        news, dead: as of then: a number that changes with it, and who.
    """

    def __init__(
        self, board: Board, worker: int, members: tuple[int, ...], silence_s: float, interface: str | None = None
    ) -> None:
        self.members = members
        self.asked = False
        self.lost: RuntimeError | None = None
        self.listener: Callable[[dict[int, str]], None] | None = None
        self.news = 0
        self.dead: dict[int, str] = {}
        self._board = board
        self._worker = worker
        self._silence_s = silence_s
        self._lifelines = Lifelines(interface)
        self._board.write(f"lifeline/{worker}", self._lifelines.address)
        self._listens: dict[int, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uneven-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._over.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        beats: dict[int, tuple[int, float]] = {}
        every_s = max(_LOOK_EVERY_S, self._silence_s / _BEATS) if self._silence_s > 0.0 else 1.0
        ended: dict[int, float] = {}
        next_s = look_s = 0.0
        try:
            while not self._over.is_set():
                for one in self._lifelines.gone(_LOOK_EVERY_S):
                    ended[one] = time.monotonic()
                self.asked = bool(self._board.asking())
                now_s = time.monotonic()
                self._bury(ended, now_s)
                listener = self.listener  # which the thread that trains takes away at the end
                if listener is not None and (news := self._board.count(NEWS)) != self.news:
                    self.dead = self._board.dead(self.members)
                    listener(self.dead)
                    self.news = news
                if now_s < next_s:
                    continue
                # One that was stopped itself has not heard the others meanwhile.
                slept = now_s > next_s + self._silence_s / 2.0 and next_s > 0.0
                next_s = now_s + every_s
                self._board.count(f"beats/{self._worker}", 1)
                self._lifelines.follow(self._addresses())
                if self._silence_s > 0.0 and (slept or now_s >= look_s):
                    look_s = now_s + every_s * max(1, len(self.members) // _OFTEN)
                    self._look_after(beats, now_s, slept)
        except RuntimeError as error:
            self.lost = error
        finally:
            self._lifelines.close()

    def _addresses(self) -> dict[int, str]:
        """Where the next members listen, as far as they have said so."""
        members = self.members
        place = members.index(self._worker) if self._worker in members else 0
        others = [one for one in (*members[place:], *members[:place]) if one != self._worker][:_FOLLOWED]
        for one in (one for one in others if one not in self._listens):
            if (text := self._board.look(f"lifeline/{one}")) is not None:
                self._listens[one] = text
        return {one: self._listens[one] for one in others if one in self._listens}

    def _bury(self, ended: dict[int, float], now_s: float) -> None:
        """Those whose processes have ended, if nobody has said why, and they have not said that they go."""
        for one in [one for one, at_s in ended.items() if now_s - at_s > _SAID_WITHIN_S]:
            del ended[one]
            if not self._board.any_of(("through", "left"), one):
                self._board.remove_member(one, "its process has ended, and its launcher with it")

    def _look_after(self, beats: dict[int, tuple[int, float]], now_s: float, slept: bool) -> None:
        for one in self.members:
            if one == self._worker:
                continue
            count = self._board.count(f"beats/{one}")
            limit_s = self._silence_s if count else max(self._silence_s, STARTS_WITHIN_S)
            awaited = count == 0 and one >= self._board.count(WORKERS)  # no launcher has started it yet
            if slept or awaited or one not in beats or beats[one][0] != count:
                beats[one] = count, now_s
            elif now_s - beats[one][1] > limit_s:
                del beats[one]
                self._board.bury_silent(one, limit_s)


_BEATS = 40
"""In the time that a member may be silent."""

_OFTEN = 8
"""Members up to whom each is looked after at every beat; among more, as often that the store has not more to do."""

_FOLLOWED = 4
"""Other members, the next ones by place, whose processes a worker looks after: as many may die at once."""

_SAID_WITHIN_S = 0.15
"""How long a launcher may take to say how a worker of its own has ended."""

_LOOK_EVERY_S = 0.05
