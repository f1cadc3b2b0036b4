"""Samples that are requeued within their epoch after their worker has failed.

When members change, parts of the epoch that were drawn before keep their division. The samples of a failed worker are
missing, and gradients are weighted by the remaining ones. Its samples are drawn again, before fresh ones, from the
first part on that no worker had drawn at the change. Every worker computes the same from the same changes::

    drawn, 4 members      │ iteration 7: exchanged without 2 │ iteration 8: 2 is missing │ border │ 3 members
                          │ rank 0 │ r1 │ -2- │ rank 3       │ rank 0 │ r1 │ -2- │ r3    │ 2's of 7 and 8 first │ …
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from uneven.policy.samples.leases import merged
from uneven.policy.samples.order import Cursor, Portion


@dataclass(frozen=True, slots=True)
class HeldStep:
    """A step of one worker on its samples of one part."""

    part: Portion
    worker: int  # whose samples these were
    holders: frozenset[int]  # workers whose replicas contain it


class UnmergedSteps:
    """The steps that only some members hold, because not all average together.

    A worker that averages with some of the others may fail before all have its steps. These remain in the replicas of
    the workers that it has met, and of those that have met these since. When the last of them fails, the steps are
    lost::

        0, 1 │ 2, 3 meet     1's steps are held by 0 and 1
        0, 2 │ 1, 3 meet     by all: they count, even if any worker fails
    """

    def __init__(self) -> None:
        self._steps: list[HeldStep] = []

    def add(self, part: Portion, workers: Iterable[int]) -> None:
        self._steps += [HeldStep(part, one, frozenset((one,))) for one in workers if part.batch(one)]

    def meet(self, groups: "Collection[Members]") -> None:
        """Record that each group has averaged: its members hold the same steps. Steps that all hold are removed."""
        everybody = frozenset(one for group in groups for one in group)
        found = []
        for step in self._steps:
            met = step.holders.union(*(group for group in groups if not step.holders.isdisjoint(group)))
            if not met >= everybody:
                found.append(replace(step, holders=met))
        self._steps = found

    def changed(self, members: "Members", donors: Mapping[int, int]) -> list[HeldStep]:
        """Continue with other members, and return the steps that no member has now. Each newcomer in ``donors``
        receives the replica of its donor."""
        steps = []
        for step in self._steps:
            more = [one for one, donor in donors.items() if donor in step.holders]
            steps.append(replace(step, holders=step.holders.intersection(members).difference(donors).union(more)))
        self._steps = [step for step in steps if step.holders and not step.holders.issuperset(members)]
        return [step for step in steps if not step.holders]

    def samples(self, worker: int) -> float:
        """Return the samples of the steps that this worker holds, each step divided by its number of holders."""
        there = (step for step in self._steps if worker in step.holders)
        return sum(step.part.batch(step.worker) / len(step.holders) for step in there)

    def clear(self) -> None:
        """Forget all steps: all members hold them, or another epoch starts."""
        self._steps.clear()

    def state(self) -> list[Any]:
        return [(asdict(step.part), step.worker, sorted(step.holders)) for step in self._steps]

    def take_up(self, state: Iterable[Any]) -> None:
        self._steps = [HeldStep(Portion(**part), one, frozenset(holders)) for part, one, holders in state]


Run = tuple[int, int]  # positions from the first up to, not including, the second

Members = tuple[int, ...]


class RequeuedSamples:
    """The members that divide each part of an epoch, and the requeued positions."""

    def __init__(self, members: Members) -> None:
        self._eras: list[tuple[int, Members]] = [(0, members)]
        self._open: dict[int, Portion] = {}  # drawn, and not exchanged yet
        self._last: Portion | None = None  # the newest exchanged part, because a script may take several steps on it
        self._missing: dict[int, set[int]] = {}  # iteration → members whose samples of it are already requeued
        self._waiting: list[tuple[int, Run]] = []  # requeued runs, with the iteration from which on they can come
        self._held = UnmergedSteps()  # exchanged, but not among all
        self._epoch = self.newest = -1  # `newest`: the last iteration that was drawn
        self._pass = -1  # the iteration with which it began
        self._joins = False

    def members(self, iteration: int) -> Members:
        return next(members for first, members in reversed(self._eras) if first <= iteration or first == 0)

    def part(self, iteration: int) -> Portion | None:
        """Return the part drawn for an iteration, until the next one has been exchanged; otherwise None."""
        if self._last is not None and self._last.iteration == iteration:
            return self._last
        return self._open.get(iteration)

    def counted(self, part: Portion) -> int:
        """Return the samples of the newest exchanged part whose gradients were in the exchange."""
        return part.size - sum(map(part.batch, self._missing.get(part.iteration, ())))

    def start(self, cursor: Cursor) -> None:
        """Start a pass. In another epoch than before, forget the requeued samples of the old one."""
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
        return sum(last - first for since, (first, last) in self._waiting if since <= iteration)

    def known(self) -> int:
        """Return how many samples were requeued before this pass, which continues with them after the fresh ones."""
        # A worker may reach the end of a pass before it learns of a loss that others noticed in the middle of it.
        # Samples lost then come in another pass, on all workers.
        return self.waiting(self._pass)

    def take(self, iteration: int, most: int) -> tuple[Run, ...]:
        """Return up to ``most`` requeued samples for an iteration, the same on every worker."""
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
        """Record a part; requeue its samples of workers that have already failed."""
        self._open[part.iteration] = part
        self.newest = part.iteration
        border, now = self._eras[-1]
        if part.iteration < border:
            self._give_up(part, set(part.members or ()) - set(now), border)

    def adopt(self, part: Portion) -> None:
        """Record, on a newcomer, a part that the others drew before; its missing samples are already requeued."""
        self._open[part.iteration] = part
        self.newest = part.iteration
        self._missing[part.iteration] = set(part.members or ()) - set(self._eras[-1][1])

    def exchanged(self, iteration: int, members: Collection[int], groups: Collection[Members] = ()) -> None:
        """Count the members' samples of all parts up to an iteration as used, and requeue those of other workers.

        Args:
            groups: of members that summed among themselves only; empty if all did together. Their samples count as used
                as long as a member holds the resulting steps.
        """
        for part in [part for part in self._open.values() if part.iteration <= iteration]:
            self._last = self._open.pop(part.iteration)
            self._give_up(part, set(part.members or ()) - set(members), self._eras[-1][0])
            if groups:
                self._held.add(part, sorted(set(members) - self._missing[part.iteration]))
        self._held.meet(groups) if groups else self._held.clear()
        for earlier in [one for one in self._missing if one < iteration]:
            del self._missing[earlier]

    def changed(self, border: int, members: Members, exchanging: int, donors: Mapping[int, int] | None = None) -> int:
        """Divide iterations from ``border`` on among other members, and return the border."""
        before = self._eras[-1][1]
        gone = set(before) - set(members)
        self._eras = [era for era in self._eras if era[0] < border or era[0] == 0] + [(border, members)]
        for part in self._open.values():
            # `exchanged` decides about the exchange under way, which knows whose gradients are in it.
            if part.iteration > exchanging:
                self._give_up(part, gone, border)
        for step in self._held.changed(members, donors or {}):
            self._waiting += [(border, run) for run in runs(step.part.span(step.worker))]
        return border

    def spoken_for(self, worker: int, iteration: int) -> float:
        """Return a worker's samples up to an iteration that are not in every replica, divided by the replicas that
        hold them."""
        own = sum(part.batch(worker) for part in self._open.values() if part.iteration <= iteration)
        return own + self._held.samples(worker)

    def _give_up(self, part: Portion, gone: Iterable[int], border: int) -> None:
        already = self._missing.setdefault(part.iteration, set())
        for worker in sorted(set(gone) - already):
            if part.batch(worker):
                self._waiting += [(border, run) for run in runs(part.span(worker))]
            already.add(worker)

    def state(self) -> dict[str, Any]:
        return {
            "eras": self._eras,
            "epoch": self._epoch,
            "pass": self._pass,
            "waiting": self._waiting,
            "held": self._held.state(),
        }

    def take_up(self, state: dict[str, Any]) -> None:
        self._eras = [(first, tuple(members)) for first, members in state["eras"]]
        self._epoch, self._pass = state["epoch"], state["pass"]
        self._joins = True  # it continues a pass that has started
        self._waiting = [(since, (run[0], run[1])) for since, run in state["waiting"]]
        self._held.take_up(state["held"])

    def left(self, cursor: Cursor, unused: Iterable[Portion] = ()) -> list[list[int]]:
        """Return the runs of positions before the cursor that a resumed run must repeat; ``unused`` have had no
        step."""
        again = [run for _, run in self._waiting]
        again += [run for part in unused if part.iteration >= cursor.iteration for run in part.again]
        # Runs overlap if the worker of an unused part was lost: samples that had come again in it wait once more.
        return [[*run] for run in merged((first, min(last, cursor.start)) for first, last in again)]

    def resume(self, cursor: Cursor, left: Iterable[Sequence[int]]) -> None:
        self._epoch = cursor.epoch
        self._open.clear()
        self._missing.clear()
        self._held.clear()
        self._waiting = [(0, (run[0], run[1])) for run in left]


def runs(positions: Sequence[int]) -> list[Run]:
    found: list[Run] = []
    for one in positions:
        if found and found[-1][1] == one:
            found[-1] = found[-1][0], one + 1
        else:
            found.append((one, one + 1))
    return found
