"""What the exchanges of parameters came to: how often, how stale, how many bytes, how far apart. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from uneven.core.records import ExchangeRecord


@dataclass(slots=True)
class Exchanged:
    """Sums over the exchanges of one worker, or of several.

    Attributes:
        count: exchanges that ended.
        late: steps that were taken while an exchange was under way → how often; 0 where training waited for it.
        sent_bytes: as counted from the shape of each exchange.
        dropped: exchanges that were not begun, as one was under way.
        gap_most: most steps of a thread from one exchange to the next.
    """

    count: int = 0
    late: Counter[int] = field(default_factory=Counter)
    sent_bytes: int = 0
    dropped: int = 0
    gap_most: float = 0
    _gaps: float = 0
    _distance: float = 0.0
    _took_s: float = 0.0

    def add(self, record: ExchangeRecord) -> None:
        """One more."""
        self.count += 1
        self.late[record.late] += 1
        self.sent_bytes += record.sent_bytes
        self.dropped += record.dropped
        gap = record.gap / record.threads
        self.gap_most = max(self.gap_most, gap)
        self._gaps += gap
        self._distance += record.distance
        self._took_s += record.took_s

    @property
    def gap(self) -> float:
        """The sync gap: mean steps of a thread of a worker from one exchange to the next (ShadowSync, §3.1)."""
        return self._gaps / self.count if self.count else math.nan

    @property
    def staleness(self) -> float:
        """Mean steps that were taken while an exchange was under way."""
        return sum(steps * times for steps, times in self.late.items()) / self.count if self.count else math.nan

    @property
    def distance(self) -> float:
        """Mean of the distances from the mean just before it was taken, per parameter."""
        return self._distance / self.count if self.count else math.nan

    @property
    def took_s(self) -> float:
        """Mean seconds."""
        return self._took_s / self.count if self.count else math.nan

    @classmethod
    def of(cls, records: Iterable[ExchangeRecord]) -> Exchanged:
        """All of some records."""
        found = cls()
        for record in records:
            found.add(record)
        return found


def staleness_told(late: Counter[int], most: int = 6) -> str:
    """A histogram in a line: ``0: 12 · 1: 3 · 2+: 1``, with so many entries at most; empty where there is nothing."""
    shown = sorted(late)
    if len(shown) > most:
        rest = sum(late[steps] for steps in shown[most - 1 :])
        parts = [f"{steps}: {late[steps]:,}" for steps in shown[: most - 1]] + [f"{shown[most - 1]}+: {rest:,}"]
    else:
        parts = [f"{steps}: {late[steps]:,}" for steps in shown]
    return " · ".join(parts)
