"""The division of asynchronous workers' steps into pieces as large as the global batch.

The k-th steps of such workers are unrelated. So each step counts by its end: a piece is full when all workers together
have processed another global batch of samples::

    rank 0  ──┤──┤──┤──┤──┤──┤──┤
    rank 1  ─────┤─────┤─────┤───
    rank 2  ───────────┤─────────
    piece       0   │   1    │ 2       the last one may be smaller
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from uneven.policy.core.records import StepRecord

_LATE_S = 10.0  # bound, in seconds, of a record's delay plus the difference of hosts' clocks; our choice


class StepsPiece(NamedTuple):
    """The steps of a piece in the order of their ends."""

    number: int  # number of full global batches before it
    steps: list[StepRecord]
    whole: int  # samples of a global batch
    ended_at_s: float  # Unix time
    duration_s: float  # since the end of the previous piece; for the first after a start, since its first step began


@dataclass(slots=True)
class Pieces:
    """The steps so far, added rank by rank; a piece is complete as soon as no earlier step can follow."""

    each: bool = False  # every step is a separate piece
    _waiting: list[StepRecord] = field(default_factory=list)
    _newest_s: dict[int, float] = field(default_factory=dict)  # rank → end of its newest step
    _open: list[StepRecord] = field(default_factory=list)
    _samples: int = 0  # in the open piece
    _wanted: int = 0  # for it to be full
    _number: int = 0
    _end_s: float = -math.inf  # of the newest piece

    def add(self, step: StepRecord) -> None:
        """Add a step; those of one rank come in order."""
        self._waiting.append(step)
        self._newest_s[step.rank] = step.ended_at_s

    def drop(self, after_s: float, before_s: float) -> bool:
        """Remove the steps that ended in this interval; return False if some are in pieces already taken."""
        self._waiting, self._open = (
            [one for one in steps if not after_s < one.ended_at_s < before_s] for steps in (self._waiting, self._open)
        )
        self._samples = sum(one.batch for one in self._open)
        return self._end_s <= after_s

    def take(self, expected: Iterable[int], starts_s: Sequence[float], *, final: bool = False) -> list[StepsPiece]:
        """Return the full pieces, with ``final`` also the rest; more steps will come from the ``expected`` ranks."""
        until_s = math.inf
        if not final:
            newest_s = max(self._newest_s.values(), default=-math.inf)
            known_s = min((self._newest_s.get(rank, -math.inf) for rank in expected), default=math.inf)
            # A rank without a step for this long (paused, idle) must not delay the pieces of the others.
            until_s = max(known_s, newest_s - _LATE_S)
        ready = sorted(
            (one for one in self._waiting if one.ended_at_s <= until_s),
            key=lambda one: (one.ended_at_s, one.rank, one.iteration),
        )
        self._waiting = [one for one in self._waiting if one.ended_at_s > until_s]
        found: list[StepsPiece] = []
        for step in ready:
            # A piece ends where the run was restarted.
            if self._open and any(self._open[-1].ended_at_s < start_s <= step.ended_at_s for start_s in starts_s):
                found.append(self._close(starts_s))
            whole = max(1, step.global_batch)
            self._wanted = self._wanted or whole
            self._open.append(step)
            self._samples += step.batch
            full = self._samples >= self._wanted and step.ended_at_s > self._end_s
            if full or self.each:
                found.append(self._close(starts_s))
        if final and self._open:
            found.append(self._close(starts_s))
        return found

    def _close(self, starts_s: Sequence[float]) -> StepsPiece:
        steps, number = self._open, self._number
        whole = max(1, steps[-1].global_batch)
        ended_at_s = max(steps[-1].ended_at_s, self._end_s)
        anew = self._end_s == -math.inf or any(self._end_s < start_s <= ended_at_s for start_s in starts_s)
        since_s = min(map(began_at_s, steps)) if anew else self._end_s
        over = self._samples - self._wanted
        # A step may be larger than a global batch; the excess counts towards the next pieces.
        passed = 1 + max(0, over) // whole
        self._number += passed
        self._wanted = whole - over % whole if over >= 0 else whole
        self._open, self._samples, self._end_s = [], 0, ended_at_s
        return StepsPiece(number, steps, whole, ended_at_s, ended_at_s - since_s)


def began_at_s(step: StepRecord) -> float:
    return step.ended_at_s - step.data_s - step.compute_s - step.exchange_s


@dataclass(slots=True)
class Places:
    """A map from a rank's step to its piece; a rank's steps ascend within each life of the run."""

    # (rank, life) → its newest step in each of its pieces, and their numbers
    _newest: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _pieces: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def add(self, whose: tuple[int, int], newest: int, piece: int) -> None:
        self._newest.setdefault(whose, []).append(newest)
        self._pieces.setdefault(whose, []).append(piece)

    def of(self, whose: tuple[int, int], step: int) -> int | None:
        """Return the number of the step's piece; None if it is not complete."""
        place = bisect_left(self._newest.get(whose, []), step)
        pieces = self._pieces.get(whose, [])
        return pieces[place] if place < len(pieces) else None
