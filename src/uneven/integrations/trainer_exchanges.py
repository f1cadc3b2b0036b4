"""A library's own exchanges between workers, whose time counts as waiting, not as work."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from uneven.errors import ConfigError


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
