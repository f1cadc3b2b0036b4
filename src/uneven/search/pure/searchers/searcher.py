"""Define the interface of searchers."""

import math
from abc import ABC, abstractmethod
from enum import Enum
from random import Random

from uneven.errors import ConfigError
from uneven.policy.core.registry import Registry
from uneven.search.pure.space import Choices, Domain, Params, Plain, Space


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
        """Start a search in ``space`` with ``seed``; called once, first.

        Raises:
            ConfigError: it cannot search this space.
        """

    @abstractmethod
    def suggest(self, trial: int) -> Params | NoneNow:
        """Return settings for a new trial: a value for each name of the space."""

    def tell(self, trial: int, score: float | None) -> None:  # noqa: B027  # most need it not
        """Record that a trial has ended with this score, higher is better; None if it failed."""

    def enqueue(self, params: Params) -> None:  # noqa: B027  # most need it not
        """Announce ``params`` that will replace one of the first suggestions; called before them."""

    def learn(self, params: Params, score: float) -> None:
        """Record the ``score`` of ``params`` in an earlier search, within the space; called before any suggestion.

        Raises:
            ConfigError: it does not learn from results.
        """
        raise ConfigError(
            'warm_start: this searcher does not use results: use one that does, such as searcher="optuna:tpe"'
        )

    def define(self, trial: int, name: str, domain: Domain) -> Plain:
        """Return a value of ``domain`` for the setting ``name`` that a running ``trial`` requests.

        Raises:
            ConfigError: it cannot suggest a setting that the space does not name.
        """
        raise ConfigError(f'trial.suggest: this searcher needs {name!r} in the space: add it, or use searcher="random"')


searchers: Registry[Searcher] = Registry("searcher", Searcher)  # type: ignore[type-abstract]
"""Name → searcher."""


class RandomSearch(Searcher):
    """The random searcher: draws every setting from its range, and tries grids as :class:`GridSearch` does."""

    def __init__(self) -> None:
        self._space = Space({})
        self._seed = 0
        self._grids: dict[str, Choices] = {}
        self._place = 0  # of the next combination

    def begin(self, space: Space, seed: int) -> None:
        self._space, self._seed = space, seed
        self._grids = {name: one for name, one in space.items() if isinstance(one, Choices) and one.every}

    @property
    def combinations(self) -> int:
        return math.prod(len(one.values) for one in self._grids.values())

    def suggest(self, trial: int) -> Params | NoneNow:
        found: dict[str, Plain] = {}
        place, self._place = self._place % self.combinations, self._place + 1
        for name, one in reversed(self._grids.items()):  # the last name changes fastest
            place, at = divmod(place, len(one.values))
            found[name] = one.values[at]
        return {
            name: found[name] if name in found else self.define(trial, name, one) for name, one in self._space.items()
        }

    def enqueue(self, params: Params) -> None:
        self._place -= 1  # grids start after these trials

    def define(self, trial: int, name: str, domain: Domain) -> Plain:
        # The value depends on seed, trial and name only, so it does not change with the order of calls.
        return domain.sample(Random(f"{self._seed} {trial} {name}"))


class GridSearch(RandomSearch):
    """The grid searcher: tries all combinations of choices and grids once. It does not support ranges of numbers."""

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        for name, one in space.items():
            if not isinstance(one, Choices):
                raise ConfigError(
                    f'searcher="grid" cannot enumerate {name!r}, which is {one}: list values with search.grid(…), '
                    'or use searcher="random"'
                )
            self._grids[name] = one

    def suggest(self, trial: int) -> Params | NoneNow:
        return super().suggest(trial) if self._place < self.combinations else NoneNow.NEVER


class ConcurrencyLimit(Searcher):
    """The searcher that limits open trials, so that a searcher which learns gets some results before it suggests more.

    Args:
        inner: the searcher that suggests.
        max_concurrent: largest number of suggested trials that have not ended.

    Raises:
        ConfigError: ``max_concurrent`` is below one.
    """

    def __init__(self, inner: str | Searcher = "random", max_concurrent: int = 1) -> None:
        if max_concurrent < 1:
            raise ConfigError(f"max_concurrent={max_concurrent}: give at least 1")
        self._inner = searchers.resolve(inner)
        self._most = max_concurrent
        self._open: set[int] = set()

    def begin(self, space: Space, seed: int) -> None:
        self._inner.begin(space, seed)

    def suggest(self, trial: int) -> Params | NoneNow:
        if len(self._open) >= self._most:
            return NoneNow.LATER
        found = self._inner.suggest(trial)
        if not isinstance(found, NoneNow):
            self._open.add(trial)
        return found

    def tell(self, trial: int, score: float | None) -> None:
        self._open.discard(trial)
        self._inner.tell(trial, score)

    def enqueue(self, params: Params) -> None:
        self._inner.enqueue(params)

    def learn(self, params: Params, score: float) -> None:
        self._inner.learn(params, score)

    def define(self, trial: int, name: str, domain: Domain) -> Plain:
        return self._inner.define(trial, name, domain)
