"""Statistics of parameter exchanges: frequency, staleness, bytes, distances."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from uneven.policy.core.records import ExchangeRecord


@dataclass(slots=True)
class Exchanged:
    """The sums over the exchanges of one or several workers."""

    count: int = 0  # finished exchanges
    late: Counter[int] = field(default_factory=Counter)  # steps during an exchange → frequency; 0: training waited
    sent_bytes: int = 0  # computed from the shape of each exchange
    dropped: int = 0  # exchanges skipped because one was in progress
    lost: int = 0  # samples of exchanges that came too late for their step
    gap_most: float = 0  # most steps of a thread between two exchanges
    _gaps: float = 0
    _distance: float = 0.0
    _took_s: float = 0.0

    def add(self, record: ExchangeRecord) -> None:
        self.count += 1
        self.late[record.late] += 1
        self.sent_bytes += record.sent_bytes
        self.dropped += record.dropped
        # In the background a dropped exchange is skipped, and its samples are in the next one.
        self.lost += record.samples if record.dropped and record.moment == "step" else 0
        gap = record.gap / record.threads
        self.gap_most = max(self.gap_most, gap)
        self._gaps += gap
        self._distance += record.distance
        self._took_s += record.took_s

    @property
    def gap(self) -> float:
        """The sync gap: mean steps of a worker's thread between two exchanges (ShadowSync, §3.1)."""
        return self._gaps / self.count if self.count else math.nan

    @property
    def staleness(self) -> float:
        """The mean number of steps taken during an exchange."""
        return sum(steps * times for steps, times in self.late.items()) / self.count if self.count else math.nan

    @property
    def distance(self) -> float:
        """The mean distance of a worker's parameters from the mean just before averaging, per parameter."""
        return self._distance / self.count if self.count else math.nan

    @property
    def took_s(self) -> float:
        return self._took_s / self.count if self.count else math.nan

    @classmethod
    def of(cls, records: Iterable[ExchangeRecord]) -> "Exchanged":
        found = cls()
        for record in records:
            found.add(record)
        return found


def staleness_told(late: Counter[int], most: int = 6) -> str:
    """Return a histogram in one line, ``0: 12 · 1: 3 · 2+: 1``, with at most ``most`` entries."""
    shown = sorted(late)
    parts = [f"{steps}: {late[steps]:,}" for steps in shown]
    if len(shown) > most:
        rest = sum(late[steps] for steps in shown[most - 1 :])
        parts[most - 1 :] = [f"{shown[most - 1]}+: {rest:,}"]
    return " · ".join(parts)
