"""Define the interface of schedulers."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from uneven.errors import ConfigError
from uneven.policy.core.registry import Registry
from uneven.search.pure.decisions import GO_ON, Progress, Ruling
from uneven.search.pure.space import Params, Space


class Scheduler(ABC):
    """The base of schedulers: decides at each report how a trial continues, and which waiting trial is next.

    It sees no clock, process or checkpoint, and takes random numbers from the seed: the same calls lead to the same
    decisions. A killed search is restored by repeating the calls, so a scheduler does not save its state.

    Attributes:
        ahead: number of trials to suggest before they start; infinite for all.
        max_t: training after which a trial is done; None without a limit.
        own_params: it changes settings itself, so a searcher that learns would get wrong results.
    """

    ahead: float = 1
    max_t: float | None = None
    own_params: ClassVar[bool] = False

    def begin(self, space: Space, seed: int) -> None:  # noqa: B027  # most need it not
        """Start a search in ``space`` with ``seed``; called once, first."""

    def added(self, trial: int, params: Params) -> None:  # noqa: B027  # most need it not
        """Add ``trial`` with ``params``, which waits for its first start or was resumed by the user."""

    def started(self, trial: int) -> None:  # noqa: B027  # most need it not
        """Record that a trial was started or resumed."""

    def saved(self, trial: int, t: float) -> None:  # noqa: B027  # most need it not
        """Record that the checkpoint of ``trial`` after training ``t``, requested by a decision, was saved."""

    @abstractmethod
    def on_result(self, progress: Progress) -> Ruling:
        """Return the decision on a trial after its report ``progress``."""

    def gone(self, trial: int) -> Mapping[int, Ruling]:
        """Record that a trial has ended without a decision of the scheduler. Return decisions on paused trials."""
        return {}

    def choose(self, pending: Collection[int], paused: Collection[int]) -> int | None:
        """Return the trial to start or resume next, None for none. Repeated calls give the same answer.

        Args:
            pending: trials that have never run, or must run again; in order.
            paused: in the order in which they were paused.
        """
        return next(iter([*pending, *paused]), None)


schedulers: Registry[Scheduler] = Registry("scheduler", Scheduler)  # type: ignore[type-abstract]
"""Name → scheduler."""


def checked_rungs(max_t: float, grace_period: float, reduction_factor: float) -> None:
    """Raise `ConfigError` if the rungs are impossible."""
    if not grace_period > 0:
        raise ConfigError(f"grace_period={grace_period}: give more than 0")
    if not max_t >= grace_period:
        raise ConfigError(f"max_t={max_t} is below grace_period={grace_period}: raise max_t, or lower grace_period")
    if not reduction_factor > 1:
        raise ConfigError(f"reduction_factor={reduction_factor}: give more than 1")


class Fifo(Scheduler):
    """The scheduler that trains every trial to its end, in the order of suggestion."""

    def on_result(self, progress: Progress) -> Ruling:
        return GO_ON
