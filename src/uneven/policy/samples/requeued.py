"""Samples that come again in their epoch, as the worker that had them is gone.

When members change, parts of the epoch that were drawn before keep their cut: what a worker that is gone had in them is
missing, and their gradients are weighted by what is there. Its samples are drawn again, before fresh ones, from the
first part on that nobody had drawn when the members changed. Every worker works out the same from the same changes::

    drawn, 4 members      │ iteration 7: exchanged without 2 │ iteration 8: 2 is missing │ border │ 3 members
                          │ rank 0 │ r1 │ -2- │ rank 3       │ rank 0 │ r1 │ -2- │ r3    │ 2's of 7 and 8 first │ …
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from uneven.policy.samples.order import Cursor, Portion
from uneven.policy.samples.unmerged import UnmergedSteps

Run = tuple[int, int]
"""Positions from the first up to, not including, the second."""

Members = tuple[int, ...]


class RequeuedSamples:
    """Whose samples each part of an epoch is split among, and which positions come again.

    Args:
        members: workers that the run begins with.

    Attributes:
        newest: the last iteration that was drawn; −1 before the first.
    """

    def __init__(self, members: Members) -> None:
        self._eras: list[tuple[int, Members]] = [(0, members)]
        self._open: dict[int, Portion] = {}  # drawn, and not exchanged yet
        self._last: Portion | None = None  # the newest that was, as a script may take several steps on it
        self._missing: dict[int, set[int]] = {}  # iteration → members whose samples of it come again already
        self._waiting: list[tuple[int, Run]] = []  # from which iteration on, and what
        self._held = UnmergedSteps()  # exchanged, but not among all
        self._epoch = self.newest = -1
        self._pass = -1  # the iteration with which it began
        self._joins = False

    def members(self, iteration: int) -> Members:
        """Those among whom the samples of an iteration are split."""
        return next(members for first, members in reversed(self._eras) if first <= iteration or first == 0)

    def part(self, iteration: int) -> Portion | None:
        """What was drawn for it, as long as it or the next one has not been exchanged."""
        if self._last is not None and self._last.iteration == iteration:
            return self._last
        return self._open.get(iteration)

    def counted(self, part: Portion) -> int:
        """Samples of the newest part that was exchanged whose gradients were in it; the others come again."""
        return part.size - sum(map(part.batch, self._missing.get(part.iteration, ())))

    # ---------------------------------------------------------------- drawing
    def start(self, cursor: Cursor) -> None:
        """A pass begins. In another epoch than before, nothing comes again of that one."""
        if not self._joins:
            self._pass = cursor.iteration
        self._joins = False
        if cursor.epoch != self._epoch:
            self._epoch = cursor.epoch
            self._waiting.clear()
            self._open.clear()
            self._missing.clear()
            self._held.clear()
        for later in [one for one in self._open if one >= cursor.iteration]:  # drawn, and never handed out
            del self._open[later]
            self._missing.pop(later, None)

    def waiting(self, iteration: int) -> int:
        """Samples that may come again in it."""
        return sum(last - first for since, (first, last) in self._waiting if since <= iteration)

    def goes_on(self) -> bool:
        """Whether a pass whose fresh samples are used up goes on: with what waited when it began, and no more.

        A worker may come to the end of a pass before it hears of a loss that others have seen in the midst of it. What
        was lost then comes in another pass, on all of them.
        """
        return any(since <= self._pass for since, _ in self._waiting)

    def take(self, iteration: int, most: int) -> tuple[Run, ...]:
        """Up to ``most`` samples that come again in it, the same on every worker."""
        due = sorted((run, since) for since, run in self._waiting if since <= iteration)
        left = [(since, run) for since, run in self._waiting if since > iteration]
        taken, room = [], most
        for (first, last), since in due:
            cut = min(last, first + room)
            if first < cut:
                taken.append((first, cut))
                room -= cut - first
            if cut < last:
                left.append((since, (cut, last)))
        self._waiting = left
        return tuple(taken)

    def drawn(self, part: Portion) -> None:
        """A part has been drawn; its samples of workers that are gone already come again."""
        self._open[part.iteration] = part
        self.newest = part.iteration
        border, now = self._eras[-1]
        if part.iteration < border:
            self._give_up(part, set(part.members or ()) - set(now), border)

    def adopt(self, part: Portion) -> None:
        """The others have drawn a part before this worker joined; what is missing in it comes again already."""
        self._open[part.iteration] = part
        self.newest = part.iteration
        self._missing[part.iteration] = set(part.members or ()) - set(self._eras[-1][1])

    # ---------------------------------------------------------------- exchanges and changes
    def exchanged(self, iteration: int, members: Collection[int], groups: Collection[Members] = ()) -> None:
        """What was made of the parts up to an iteration has been added up over these members: their samples of all
        parts that were not settled before count as used, and those of the others come again.

        Args:
            groups: of members, each of which has added up among itself only; none where all have met. Their samples
                count as used for as long as somebody holds what was made of them.
        """
        for part in [part for part in self._open.values() if part.iteration <= iteration]:
            self._last = self._open.pop(part.iteration)
            self._give_up(part, set(part.members or ()) - set(members), self._eras[-1][0])
            if groups:
                self._held.add(part, sorted(set(members) - self._missing[part.iteration]))
        self._held.meet(groups) if groups else self._held.clear()
        for earlier in [one for one in self._missing if one < iteration]:
            del self._missing[earlier]

    def changed(self, border: int, members: Members, exchanging: int) -> None:
        """Others take part.

        Args:
            border: the first iteration that is split among them.
            exchanging: the iteration in whose exchange that comes to light. Whose gradients are in that one
                :meth:`exchanged` says.
        """
        before = self._eras[-1][1]
        gone = set(before) - set(members)
        self._eras = [era for era in self._eras if era[0] < border or era[0] == 0] + [(border, members)]
        for part in self._open.values():
            if part.iteration > exchanging:
                self._give_up(part, gone, border)
        for step in self._held.changed(members, sorted(set(members) - set(before))):
            self._waiting += [(border, run) for run in runs(step.part.span(step.worker))]

    def spoken_for(self, worker: int, iteration: int) -> float:
        """Samples up to an iteration that a worker's replica holds and not everybody's does, shared out among those
        that hold them."""
        own = sum(part.batch(worker) for part in self._open.values() if part.iteration <= iteration)
        return own + self._held.samples(worker)

    def _give_up(self, part: Portion, gone: Iterable[int], border: int) -> None:
        already = self._missing.setdefault(part.iteration, set())
        for worker in sorted(set(gone) - already):
            if part.batch(worker):
                self._waiting += [(border, run) for run in runs(part.span(worker))]
            already.add(worker)

    # ---------------------------------------------------------------- for newcomers and checkpoints
    def state(self) -> dict[str, Any]:
        """For a newcomer: who takes part from when on, and what comes again from when on. Plain data."""
        border, members = self._eras[-1]
        return {
            "border": border, "members": members, "epoch": self._epoch, "pass": self._pass, "waiting": self._waiting,
            "held": self._held.state(),
        }  # fmt: skip

    def take_up(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state`, on the newcomer."""
        self._eras = [(0, ()), (state["border"], tuple(state["members"]))]
        self._epoch, self._pass = state["epoch"], state["pass"]
        self._joins = True  # it goes on with a pass that has begun
        self._waiting = [(since, (run[0], run[1])) for since, run in state["waiting"]]
        self._held.take_up(state["held"])

    def left(self, cursor: Cursor, unused: Iterable[Portion] = ()) -> list[list[int]]:
        """Positions before the cursor that still have to come again: runs, for a checkpoint.

        Args:
            unused: parts that no step of an optimizer has taken in, drawn or in the user's hands.
        """
        again = [run for _, run in self._waiting]
        again += [run for part in unused if part.iteration >= cursor.iteration for run in part.again]
        return sorted([first, min(last, cursor.start)] for first, last in set(again) if first < cursor.start)

    def resume(self, cursor: Cursor, left: Iterable[Sequence[int]]) -> None:
        """Inverse of :meth:`left`."""
        self._epoch = cursor.epoch
        self._open.clear()
        self._missing.clear()
        self._held.clear()
        self._waiting = [(0, (run[0], run[1])) for run in left]


def runs(positions: Sequence[int]) -> list[Run]:
    """As runs of neighbours."""
    found: list[Run] = []
    for one in positions:
        if found and found[-1][1] == one:
            found[-1] = found[-1][0], one + 1
        else:
            found.append((one, one + 1))
    return found
