"""What a launcher reads in the store: whose end counts as what, who still needs the store, who has been given up."""

from __future__ import annotations

from collections.abc import Iterable

from uneven.board import CLOSED, DEAD, MISSED, OPEN, RELEASED, SESSION, STARTS_WITHIN_S, WORKERS, Board
from uneven.jobs import Ending, How

THROUGH, LEFT = ENDS = ("through", "left")
"""What a worker writes when it has come to its end, and when it has left."""


def settled(board: Board, worker: int, ending: Ending) -> str:
    """Let the members know of a worker whose process has ended.

    Returns:
        ``LEFT``, or ``THROUGH`` where it has come to its end, with or without training; else "", and it counts as dead.

    Raises:
        RuntimeError: the store has ended.
    """
    if ending.how is not How.ENDED or board.look(f"{SESSION}/{worker}") == OPEN:
        board.bury(worker, f"it {ending.words}")
        return ""
    if not board.any_of(ENDS, worker):
        board.bury(worker, "it has ended without training")
    board.write(f"{RELEASED}/{worker}", "")
    return LEFT if board.any_of([LEFT], worker) else THROUGH


def _closed(board: Board, worker: int) -> str:
    """How a worker has come to its end whose session is closed, as :func:`settled` has it; "" while it has not."""
    ends = (end for end in (LEFT, THROUGH) if board.any_of([end], worker))
    return next(ends, "") if board.look(f"{SESSION}/{worker}") == CLOSED else ""


class GivenUp:
    """Workers that the others have given up, and that do not end by themselves: stopped ones, and such as hang.

    Args:
        grace_s: how long one may take to find that out and end.

    Attributes:
        closed: worker → how it ended; its script may still run after its session, and needs no store.
    """

    def __init__(self, board: Board, grace_s: float) -> None:
        self._board, self._grace_s = board, grace_s
        self._since_s: dict[int, float] = {}
        self.closed: dict[int, str] = {}
        self._cut = False  # whether the store has ended: torch would print its stack at each request

    def overdue(self, workers: Iterable[int], now_s: float) -> list[int]:
        """Those of these, which all run, that have had their time."""
        those = [one for one in workers if one in self._since_s or self._is(one)]
        self._since_s = {one: self._since_s.get(one, now_s) for one in those}
        return [one for one in those if now_s - self._since_s[one] > self._grace_s]

    def _is(self, worker: int) -> bool:
        if worker in self.closed or self._cut:
            return worker not in self.closed
        try:
            if end := _closed(self._board, worker):
                self.closed[worker] = end
                self._board.write(f"{RELEASED}/{worker}", "")
            return not end and self._board.any_of((DEAD, MISSED), worker)
        except RuntimeError:  # the store has ended, and with it the run
            self._cut = True
            return True


class Others:
    """Workers of other launchers, which still need the store.

    Args:
        silence_s: how long one may give no sign of life before it counts as gone; 0 is for ever. While a member is
            there it sees to that; when the last of them is gone, nobody else does.
    """

    def __init__(self, board: Board, silence_s: float) -> None:
        self._board = board
        self._silence_s = silence_s
        self._beats: dict[int, tuple[int, float]] = {}
        self._closed: set[int] = set()

    def there(self, now_s: float) -> tuple[int, ...]:
        """Workers that need the store. Where all of them only wait for somebody to let them in, the run is over."""
        board = self._board
        there = [one for one in range(board.count(WORKERS)) if one not in self._closed and not self._done(one)]
        for one in there:
            self._look_after(one, now_s)
        asking = board.asking()
        if board.look("over") is not None:  # who has not asked yet will see that there is nothing to join
            return tuple(one for one in there if one in asking or board.any_of(ENDS, one))
        if there and set(there) <= set(asking):
            board.write("over", "nobody is left who could let them in")
        return tuple(there)

    def _done(self, worker: int) -> bool:
        if self._board.any_of((RELEASED, DEAD), worker):
            self._closed.add(worker)
        return worker in self._closed

    def _look_after(self, worker: int, now_s: float) -> None:
        count = self._board.count(f"beats/{worker}")
        if worker not in self._beats or self._beats[worker][0] != count:
            self._beats[worker] = count, now_s
            return
        limit_s = self._silence_s if count else max(self._silence_s, STARTS_WITHIN_S)
        if self._silence_s == 0.0 or now_s - self._beats[worker][1] <= limit_s:
            return
        if self._board.look(f"{SESSION}/{worker}") == CLOSED:
            self._closed.add(worker)  # its launcher has ended, too, before it could release the worker
        else:
            self._board.bury_silent(worker, limit_s)
