"""The launcher's view of the store: how each worker ended, which ones still need the store, which were removed."""

from collections.abc import Iterable

from uneven.runtime.jobs import Ending, How
from uneven.runtime.membership_board import (
    CLOSED,
    DEAD,
    MISSED,
    OPEN,
    RELEASED,
    SESSION,
    STARTS_WITHIN_S,
    WORKERS,
    Board,
)

THROUGH, LEFT = ENDS = ("through", "left")  # a worker writes the first when it has finished, the second when it leaves


def settled(board: Board, worker: int, ending: Ending) -> str:
    """Report the end of a worker's process to the members; raise RuntimeError if the store has ended."""
    if ending.how is not How.ENDED or board.look(f"{SESSION}/{worker}") == OPEN:
        # An open session means that Python did not end in order, even with exit code 0.
        board.remove_member(worker, f"it {ending.words}")
        return ""
    # Finished workers are THROUGH, also without training; "" above means dead.
    if not board.any_of(ENDS, worker):
        board.remove_member(worker, "it has ended without training")
    board.write(f"{RELEASED}/{worker}", "")
    return LEFT if board.any_of([LEFT], worker) else THROUGH


def _closed(board: Board, worker: int) -> str:
    """Return the end (``LEFT`` or ``THROUGH``) of a worker that has closed its session, or ""."""
    ends = (end for end in (LEFT, THROUGH) if board.any_of([end], worker))
    return next(ends, "") if board.look(f"{SESSION}/{worker}") == CLOSED else ""


class RemovedWorkers:
    """The workers that the membership has removed and that do not end within ``grace_s``: stopped or hanging ones."""

    def __init__(self, board: Board, grace_s: float) -> None:
        self._board = board
        self._grace_s = grace_s
        self._since_s: dict[int, float] = {}
        self.closed: dict[int, str] = {}  # worker → its end; its script may still run, but needs no store
        self._cut = False  # the store has ended: torch would print its stack at each further request

    def overdue(self, workers: Iterable[int], now_s: float) -> list[int]:
        """Return the running workers whose grace period has ended."""
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
    """The workers of other launchers; one without a heartbeat for ``silence_s`` seconds counts as dead (0: never)."""

    def __init__(self, board: Board, silence_s: float) -> None:
        self._board = board
        self._silence_s = silence_s
        self._beats: dict[int, tuple[int, float]] = {}
        self._closed: set[int] = set()

    def there(self, now_s: float) -> tuple[int, ...]:
        """Return the workers that need the store; end the run if all of them only wait to be admitted."""
        board = self._board
        there = [one for one in range(board.count(WORKERS)) if one not in self._closed and not self._done(one)]
        for one in there:
            # Members watch each other's heartbeats. After the last member has ended, only this process does.
            self._look_after(one, now_s)
        asking = board.asking()
        if board.look("over") is not None:  # a worker that has not asked yet will find nothing to join
            return tuple(one for one in there if one in asking or board.any_of(ENDS, one))
        if there and set(there) <= set(asking):
            board.write("over", "no member is left to admit them")
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
        # Before its first heartbeat a worker still imports torch and builds its session.
        limit_s = self._silence_s if count else max(self._silence_s, STARTS_WITHIN_S)
        if self._silence_s == 0.0 or now_s - self._beats[worker][1] <= limit_s:
            return
        if self._board.look(f"{SESSION}/{worker}") == CLOSED:
            self._closed.add(worker)  # its launcher also ended, before it released the worker
        else:
            self._board.bury_silent(worker, limit_s)
