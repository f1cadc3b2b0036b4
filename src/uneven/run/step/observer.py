"""Who is notified when a worker waits for others."""

from __future__ import annotations

from typing import Protocol


class ExchangeObserver(Protocol):
    """Notified when the training waits for an exchange, and when it goes on (the meter)."""

    def ready(self) -> None: ...
    def done(self) -> None: ...
