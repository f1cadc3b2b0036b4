"""A shared evaluation in an elastic run: the others repeat the counts of a worker that is lost in it.

Every worker takes its batches from a counter in the store and records them there. When the counter has reached its end,
all workers sum their totals. They know whose totals are in the sum, and so which samples no worker has counted: these
are dispatched in another round, until none are left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from uneven.errors import PeerError
from uneven.policy.core.membership import Members
from uneven.policy.samples.requeued import Run, runs
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.loops.evaluate import EvaluatedTotals, Found, Kinds, TakenPositions

Batches = Callable[[Iterable[list[int]]], Iterable[Any]]

_LOOK_EVERY_S = 0.002


class MendedEvaluation:
    """One worker's part in one evaluation; all workers start it at the same exchange.

    Args:
        part: estimated part of all work that this worker does: 0 … 1.
        add_up: replaces a vector by its sum over the members; returns the members whose vectors are in it.
    """

    def __init__(
        self, rounds: ElasticCommunicator, length: int, most: int, part: float, add_up: Callable[[Tensor], Members]
    ) -> None:
        self._membership = rounds.membership
        self._key = f"evaluate/{rounds.exchanges}"
        self._left: list[Run] = [(0, length)]
        self._most = most
        self._part = part
        self._add_up = add_up
        self._round = 0

    def over_all(self, batches: Batches, fn: Callable[[Any], Found]) -> Any:
        """Return all workers' totals in the form that ``fn`` returns; ``batches`` turns positions into batches.
        Raises :class:`PeerError` if too few workers are left, or one that is alive does not come in time."""
        whole = EvaluatedTotals()
        while self._left:
            self._round += 1
            whole.add_all(self._one_round(batches, fn))
        return whole.as_given()

    def _one_round(self, batches: Batches, fn: Callable[[Any], Found]) -> EvaluatedTotals:
        board, key = self._membership.board, f"{self._key}/{self._round}"
        length = sum(last - first for first, last in self._left)
        taken: list[int] = []

        def positions() -> Iterator[list[int]]:
            for own in TakenPositions(lambda n: board.count(key, n) - n, length, self._most, self._part):
                taken.extend(own)
                yield positions_in(self._left, own)

        totals = EvaluatedTotals()
        for batch in batches(positions()):
            totals.add(fn(batch))
        if totals.sums:
            board.write_once(f"{key}/kinds", totals.describe())
        board.write(f"{key}/{self._membership.worker}", json.dumps(runs(taken)))
        kinds = self._kinds(key)
        # Batches are recorded before the sum, so all workers in the sum have a record that the others can read.
        flat = totals.flat(kinds)
        contributors = self._add_up(flat)
        counted = [run for one in contributors for run in json.loads(board.look(f"{key}/{one}") or "[]")]
        self._left = without(self._left, counted)
        return EvaluatedTotals.of(flat, kinds)

    def _kinds(self, key: str) -> Kinds:
        """Return the totals' kinds when a worker has written them; none if no remaining worker has any."""
        board, timeout_s = self._membership.board, self._membership.timeout_s
        until_s = time.monotonic() + timeout_s
        while True:
            open_ = [one for one in self._membership.members if board.look(f"{key}/{one}") is None]
            open_ = sorted({*open_} - {*board.dead(open_)})
            kinds = board.look(f"{key}/kinds")  # read last: a worker that has ended by now wrote its own before that
            if kinds is not None or not open_:
                found: Kinds = json.loads(kinds or "{}")
                return found
            if time.monotonic() > until_s:
                board.miss(open_, "the evaluation")
                raise PeerError(
                    f"session.evaluate: worker {', '.join(map(str, open_))} did not come to the end of it within "
                    f"{timeout_s:g} s; one that is only slow needs a larger timeout_s"
                )
            time.sleep(_LOOK_EVERY_S)


def positions_in(left: list[Run], places: Sequence[int]) -> list[int]:
    """Return the positions at these places in the concatenated runs of ``left``."""
    found, before, wanted = [], 0, list(places)
    for first, last in left:
        while wanted and wanted[0] < before + last - first:
            found.append(first + wanted.pop(0) - before)
        before += last - first
    return found


def without(left: list[Run], counted: Iterable[Sequence[int]]) -> list[Run]:
    """Return the rest of ``left`` without these runs of its places."""
    length = sum(last - first for first, last in left)
    gaps, place = [], 0
    for first, last in sorted(map(tuple, counted)):
        if first > place:
            gaps.append((place, first))
        place = max(place, last)
    if place < length:
        gaps.append((place, length))
    return [run for first, last in gaps for run in runs(positions_in(left, range(first, last)))]
