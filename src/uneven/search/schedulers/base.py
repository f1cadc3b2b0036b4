"""Which trials go on: the interface of schedulers. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from uneven.errors import ConfigError
from uneven.registry import Registry
from uneven.search.rulings import Progress, Ruling
from uneven.search.space import Params, Space


class Scheduler(ABC):
    """Decides at each report what becomes of a trial, and which of those that wait is next.

    It sees no clock, no process and no checkpoint: the same calls lead to the same answers, and random numbers come
    from the seed. What it has to remember it remembers by itself; a search that was killed plays the same calls again.

    Attributes:
        ahead: how many trials it wants to know before they are started; infinite asks for all.
        max_t: after so much training a trial is done; None if that is not its matter.
        own_params: it changes settings itself, so that a searcher which learns would learn nothing true.
    """

    ahead: float = 1
    max_t: float | None = None
    own_params: ClassVar[bool] = False

    def begin(self, space: Space, seed: int) -> None:  # noqa: B027  # most need it not
        """A search begins; called once, before anything else."""

    def added(self, trial: int, params: Params) -> None:  # noqa: B027  # most need it not
        """A trial waits to be started, for the first time or because a person has resumed it."""

    def started(self, trial: int) -> None:  # noqa: B027  # most need it not
        """A trial was started or resumed."""

    def saved(self, trial: int, t: float) -> None:  # noqa: B027  # most need it not
        """A checkpoint was kept because a ruling asked for it."""

    @abstractmethod
    def on_result(self, progress: Progress) -> Ruling:
        """What becomes of a trial that has reported."""

    def gone(self, trial: int) -> Mapping[int, Ruling]:
        """A trial has ended, and not because a ruling said so; what that means for those that are paused."""
        return {}

    def choose(self, pending: Collection[int], paused: Collection[int]) -> int | None:
        """Who is started or resumed next, None if nobody is. Asking twice gives the same answer.

        Args:
            pending: trials that have never run, or must run again; in order.
            paused: in the order in which they were paused.
        """
        return next(iter([*pending, *paused]), None)


schedulers: Registry[Scheduler] = Registry("scheduler", Scheduler)  # type: ignore[type-abstract]
"""Name → what it stands for."""


def checked_rungs(max_t: float, grace_period: float, reduction_factor: float) -> None:
    """Refuse rungs that cannot be.

    Raises:
        ConfigError: see the messages.
    """
    if not grace_period > 0:
        raise ConfigError(f"grace_period={grace_period}: a trial must train at least a little, give more than 0")
    if not max_t >= grace_period:
        raise ConfigError(
            f"max_t={max_t} is below grace_period={grace_period}: no trial could be judged before it ends; raise max_t"
        )
    if not reduction_factor > 1:
        raise ConfigError(f"reduction_factor={reduction_factor}: of each rung one in so many goes on, give more than 1")
