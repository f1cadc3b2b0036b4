"""The replicas that contain the steps of each worker, if not all average together.

A worker that averages with some of the others may fail before all have its steps. These remain in the replicas of the
workers that it has met, and of those that have met these since. When the last of them fails, the steps are lost::

    0, 1 │ 2, 3 meet     1's steps are held by 0 and 1
    0, 2 │ 1, 3 meet     by all: they count, even if any worker fails
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from uneven.policy.samples.order import Portion

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeldStep:
    """A step of one worker on its samples of one part."""

    part: Portion
    worker: int  # whose samples these were
    holders: frozenset[int]  # workers whose replicas contain it


class UnmergedSteps:
    """The steps that only some members hold."""

    def __init__(self) -> None:
        self._steps: list[HeldStep] = []

    def add(self, part: Portion, workers: Iterable[int]) -> None:
        self._steps += [HeldStep(part, one, frozenset((one,))) for one in workers if part.batch(one)]

    def meet(self, groups: Collection[Members]) -> None:
        """Record that each group has averaged: its members hold the same steps. Steps that all hold are removed."""
        everybody = frozenset(one for group in groups for one in group)
        found = []
        for step in self._steps:
            met = step.holders.union(*(group for group in groups if not step.holders.isdisjoint(group)))
            if not met >= everybody:
                found.append(replace(step, holders=met))
        self._steps = found

    def changed(self, members: Members, donors: Mapping[int, int]) -> list[HeldStep]:
        """Continue with other members, and return the steps that no member holds any more. Each newcomer in ``donors``
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
