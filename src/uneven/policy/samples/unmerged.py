"""Which replicas hold what was learnt from a worker's samples, where not all meet at once.

A worker that averages with some of the others only may be lost before all have what it learnt. Its steps live on in the
replicas of those that it has met, and of those that these have met since. When the last of them is lost, so are the
steps::

    0, 1 │ 2, 3 meet     1's steps are held by 0 and 1
    0, 2 │ 1, 3 meet     by all: they count, whoever is lost
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from uneven.policy.samples.order import Portion

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeldStep:
    """What one worker learnt from its samples of one part.

    Attributes:
        worker: whose samples these were.
        holders: workers in whose replicas it is.
    """

    part: Portion
    worker: int
    holders: frozenset[int]


class UnmergedSteps:
    """Steps that some members hold and others do not."""

    def __init__(self) -> None:
        self._steps: list[HeldStep] = []

    def add(self, part: Portion, workers: Iterable[int]) -> None:
        """These have taken a step of their own on their samples of a part."""
        self._steps += [HeldStep(part, one, frozenset((one,))) for one in workers if part.batch(one)]

    def meet(self, groups: Collection[Members]) -> None:
        """Each group has averaged: what one of it holds, all of it hold. What all hold is no question any more."""
        everybody = frozenset(one for group in groups for one in group)
        found = []
        for step in self._steps:
            met = step.holders.union(*(group for group in groups if not step.holders.isdisjoint(group)))
            if not met >= everybody:
                found.append(replace(step, holders=met))
        self._steps = found

    def changed(self, members: Members, came: Collection[int]) -> list[HeldStep]:
        """Others take part; who came has the replica of the first of those that were there.

        Returns:
            Steps that nobody holds any more.
        """
        donor = next((one for one in members if one not in came), None)
        steps = []
        for step in self._steps:
            more = came if donor in step.holders else ()
            steps.append(replace(step, holders=step.holders.intersection(members).union(more)))
        self._steps = [step for step in steps if step.holders and not step.holders.issuperset(members)]
        return [step for step in steps if not step.holders]

    def samples(self, worker: int) -> float:
        """Samples of the steps that this worker holds, each shared out among all that hold it."""
        there = (step for step in self._steps if worker in step.holders)
        return sum(step.part.batch(step.worker) / len(step.holders) for step in there)

    def clear(self) -> None:
        """All hold everything; or another epoch begins."""
        self._steps.clear()

    def state(self) -> list[Any]:
        """For a newcomer. Plain data."""
        return [(asdict(step.part), step.worker, sorted(step.holders)) for step in self._steps]

    def take_up(self, state: Iterable[Any]) -> None:
        """Inverse of :meth:`state`."""
        self._steps = [HeldStep(Portion(**part), one, frozenset(holders)) for part, one, holders in state]
