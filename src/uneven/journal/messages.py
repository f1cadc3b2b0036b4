"""What passed between workers, by line. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

from uneven.core.records import LineRecord


@dataclass(slots=True)
class LineUse:
    """What one worker has sent on one line, and waited there."""

    exchanges: int = 0
    sent_bytes: int = 0
    waited_s: float = 0.0


@dataclass(slots=True)
class Messages:
    """Sums over a run.

    Attributes:
        lines: name → rank → what it sent and waited.
    """

    lines: dict[str, dict[int, LineUse]] = field(default_factory=dict)

    def add(self, record: LineRecord) -> None:
        """What has passed since the record before."""
        use = self.lines.setdefault(record.line, {}).setdefault(record.rank, LineUse())
        use.exchanges += record.exchanges
        use.sent_bytes += record.sent_bytes
        use.waited_s += record.waited_s

    def rows(self) -> list[tuple[str, int, int, float, float]]:
        """Each line: exchanges of the worker that had most, bytes sent by all, seconds waited by the mean worker and by
        the one that waited longest; the line that sends most first."""
        found = [_row(line, list(uses.values())) for line, uses in self.lines.items()]
        return sorted(found, key=lambda row: (-row[2], row[0]))


def _row(line: str, uses: list[LineUse]) -> tuple[str, int, int, float, float]:
    waited_s = [one.waited_s for one in uses]
    sent_bytes = sum(one.sent_bytes for one in uses)
    return line, max(one.exchanges for one in uses), sent_bytes, fmean(waited_s), max(waited_s)
