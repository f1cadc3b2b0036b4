"""A session's loader for loops that count batches: they draw exactly one epoch's batches and never ask for one more."""

from collections.abc import Callable, Generator, Iterator
from functools import wraps
from typing import Any

from uneven.errors import ConfigError
from uneven.run.samples.loader import BalancedLoader


def waited(exchange: Callable[..., Any]) -> Any:
    """Make a method of a library's strategy wait in the strategy's ``session``; elastic runs do not support it."""

    @wraps(exchange)
    def call(strategy: Any, *given: Any, **named: Any) -> Any:
        if strategy.session.world.elastic is not None and exchange.__name__ != "barrier":
            raise ConfigError(
                f"{exchange.__name__} of Lightning in an elastic run, whose workers come and go: use session.mean, or "
                f"start without --elastic"
            )
        with strategy.session.waiting():
            return exchange(strategy, *given, **named)

    return call


class CountedEpochs:
    """A wrapper of a session's loader; each pass is an epoch.

    Such a loop leaves the last step of an epoch open. It ends when the next epoch begins, or in :meth:`finish`.
    """

    def __init__(self, loader: BalancedLoader) -> None:
        self._loader = loader
        self._running: Generator[Any, None, None] | None = None
        self.dataset = loader.dataset

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self.finish()
        some = False
        while not some:  # an epoch that was resumed at its end has no batches left, and the loop is at the next one
            self._running = iter(self._loader)
            for batch in self._running:
                some = True
                yield batch

    def finish(self) -> None:
        """End the newest step and the pass, even if batches remain."""
        if self._running is not None and self._loader.ended:
            next(self._running, None)
        self._running = None
