"""Looks after the other members, and after the door."""

from __future__ import annotations

import threading
import time

from uneven.board import Board


class Watch:
    """Beats for this worker, looks after the others' beats, and notices who wants to join. A thread of its own.

    A process that was stopped or cut off is noticed by nobody else; one that has died is known to its launcher, and to
    its neighbours in an exchange, long before.

    Args:
        board: with a connection that nobody else uses.
        silence_s: how long a member may be silent before it counts as gone; 0 is for ever.

    Attributes:
        asked: whether a worker stands at the door.
        lost: the store does not answer any more.
    """

    def __init__(self, board: Board, worker: int, members: tuple[int, ...], silence_s: float) -> None:
        self.members = members
        self.asked = self.lost = False
        self._board = board
        self._worker = worker
        self._silence_s = silence_s
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
        next_s = look_s = 0.0
        try:
            while not self._over.wait(_LOOK_EVERY_S):
                self.asked = bool(self._board.asking())
                now_s = time.monotonic()
                if now_s < next_s:
                    continue
                # One that was stopped itself has not heard the others meanwhile.
                slept = now_s > next_s + self._silence_s / 2.0 and next_s > 0.0
                next_s = now_s + every_s
                self._board.count(f"beats/{self._worker}", 1)
                if self._silence_s > 0.0 and (slept or now_s >= look_s):
                    look_s = now_s + every_s * max(1, len(self.members) // _OFTEN)
                    self._look_after(beats, now_s, slept)
        except RuntimeError:
            self.lost = True

    def _look_after(self, beats: dict[int, tuple[int, float]], now_s: float, slept: bool) -> None:
        for one in self.members:
            if one == self._worker:
                continue
            count = self._board.count(f"beats/{one}")
            if slept or one not in beats or beats[one][0] != count:
                beats[one] = count, now_s
            elif now_s - beats[one][1] > self._silence_s:
                del beats[one]
                self._board.bury(one, f"it gave no sign of life for {self._silence_s:g} s")


_BEATS = 40
"""In the time that a member may be silent."""

_OFTEN = 8
"""Members up to whom each is looked after at every beat; among more, as often that the store has not more to do."""

_LOOK_EVERY_S = 0.05
