"""Statistics of messages between workers, by connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

from uneven.policy.core.records import LineRecord


@dataclass(slots=True)
class LineUse:
    """The traffic and waiting time of one worker on one connection."""

    exchanges: int = 0
    sent_bytes: int = 0
    waited_s: float = 0.0


@dataclass(slots=True)
class Messages:
    """The sums over a run; ``lines`` maps a connection's name to rank to use."""

    lines: dict[str, dict[int, LineUse]] = field(default_factory=dict)

    def add(self, record: LineRecord) -> None:
        use = self.lines.setdefault(record.line, {}).setdefault(record.rank, LineUse())
        use.exchanges += record.exchanges
        use.sent_bytes += record.sent_bytes
        use.waited_s += record.waited_s

    def rows(self) -> list[tuple[str, int, int, float, float]]:
        """Return (connection, most exchanges of a worker, bytes of all, mean and longest wait in s), most bytes
        first.
        """
        found = [_row(line, list(uses.values())) for line, uses in self.lines.items()]
        return sorted(found, key=lambda row: (-row[2], row[0]))


def _row(line: str, uses: list[LineUse]) -> tuple[str, int, int, float, float]:
    waited_s = [one.waited_s for one in uses]
    sent_bytes = sum(one.sent_bytes for one in uses)
    return line, max(one.exchanges for one in uses), sent_bytes, fmean(waited_s), max(waited_s)
