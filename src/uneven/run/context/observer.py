"""The observer of a worker's waiting times."""

from __future__ import annotations

from typing import Protocol


class ExchangeObserver(Protocol):
    """Notified when the training waits for an exchange and when it continues; the meter implements it."""

    def ready(self) -> None: ...
    def done(self) -> None: ...
