"""Define the interface of searchers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

from uneven.errors import ConfigError
from uneven.policy.core.registry import Registry
from uneven.search.pure.space import Domain, Params, Plain, Space


class NoneNow(Enum):
    """The reason for no suggestion."""

    LATER = "later"
    """Ask again when a trial has ended."""
    NEVER = "never"
    """All have been tried."""


class Searcher(ABC):
    """The base of searchers: suggests settings and learns from their scores.

    It takes random numbers from the seed: the same calls lead to the same suggestions. A killed search is restored by
    repeating the calls.
    """

    def begin(self, space: Space, seed: int) -> None:  # noqa: B027  # most need it not
        """Start a search; called once, first.

        Raises:
            ConfigError: it cannot search this space.
        """

    @abstractmethod
    def suggest(self, trial: int) -> Params | NoneNow:
        """Return settings for a new trial: a value for each name of the space."""

    def tell(self, trial: int, score: float | None) -> None:  # noqa: B027  # most need it not
        """Record that a trial has ended with this score, higher is better; None if it failed."""

    def enqueue(self, params: Params) -> None:  # noqa: B027  # most need it not
        """Announce settings that will replace one of the first suggestions; called before them."""

    def learn(self, params: Params, score: float) -> None:
        """Record a result of an earlier search, within the space; called before the first suggestion.

        Raises:
            ConfigError: it does not learn from results.
        """
        raise ConfigError(
            'warm_start: this searcher learns nothing of results: take one that does, such as searcher="optuna:tpe"'
        )

    def define(self, trial: int, name: str, domain: Domain) -> Plain:
        """Return a value for a setting that a training function asks for while it runs.

        Raises:
            ConfigError: it cannot suggest a setting that the space does not name.
        """
        raise ConfigError(
            f"trial.suggest: this searcher knows the space alone, which has no {name!r}: add it there, or take "
            f'searcher="random"'
        )


searchers: Registry[Searcher] = Registry("searcher", Searcher)  # type: ignore[type-abstract]
"""Name → searcher."""
