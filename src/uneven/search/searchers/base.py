"""Which settings are tried next: the interface of searchers. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

from uneven.errors import ConfigError
from uneven.registry import Registry
from uneven.search.space import Domain, Params, Plain, Space


class NoneNow(Enum):
    """There are no settings to try."""

    LATER = "later"
    """Ask again when a trial has ended."""
    NEVER = "never"
    """All have been tried."""


class Searcher(ABC):
    """Suggests settings and is told what came of them.

    The same calls lead to the same suggestions; random numbers come from the seed. A search that was killed plays the
    same calls again.
    """

    def begin(self, space: Space, seed: int) -> None:  # noqa: B027  # most need it not
        """A search begins; called once, before anything else.

        Raises:
            ConfigError: a space that it cannot search.
        """

    @abstractmethod
    def suggest(self, trial: int) -> Params | NoneNow:
        """Settings for a new trial: a value for each name of the space."""

    def tell(self, trial: int, score: float | None) -> None:  # noqa: B027  # most need it not
        """A trial has ended with this score, the higher the better; None if it failed."""

    def enqueue(self, params: Params) -> None:  # noqa: B027  # most need it not
        """Settings of one of the first trials; told before anything is suggested. They replace what it suggests."""

    def learn(self, params: Params, score: float) -> None:
        """A result of an earlier search; told before anything is suggested. All settings lie in the space.

        Raises:
            ConfigError: it learns nothing of results.
        """
        raise ConfigError(
            'warm_start: this searcher learns nothing of results: take one that does, such as searcher="optuna:tpe"'
        )

    def define(self, trial: int, name: str, domain: Domain) -> Plain:
        """A value for a setting that a training function asks for while it runs.

        Raises:
            ConfigError: it cannot suggest what the space does not name.
        """
        raise ConfigError(
            f"trial.suggest: this searcher knows the space alone, which has no {name!r}: add it there, or take "
            f'searcher="random"'
        )


searchers: Registry[Searcher] = Registry("searcher", Searcher)  # type: ignore[type-abstract]
"""Name → what it stands for."""
