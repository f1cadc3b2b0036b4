"""Statistics of messages between workers, by connection."""

import re
from dataclasses import dataclass, field
from statistics import fmean

from uneven.policy.core.records import EventRecord, LineRecord

# The planned length of the run. The message is ``iterations=N``, counted from the run's first iteration, also after a
# resume. The newest plan holds.
PLAN = "plan"

END = "end"  # this rank has finished all its work; the run has ended when rank 0 has

CLUSTER = ("slow", "cut_link", "stop", "kill", "leave", "join")  # the names of events in a cluster description

_PLAN = re.compile(r"iterations=(\d{1,15})(?!\d)", re.ASCII)  # a longer number is not a plan


def plan_message(iterations: int) -> str:
    """Return the message of a :data:`PLAN` event of ``iterations`` iterations."""
    return f"iterations={iterations}"


def planned_iterations(record: EventRecord) -> int | None:
    """Return the iterations of the whole run if ``record`` is a valid plan, None otherwise."""
    found = _PLAN.search(record.message) if record.event == PLAN else None
    return int(found[1]) if found else None


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
        first."""
        found = [_row(line, list(uses.values())) for line, uses in self.lines.items()]
        return sorted(found, key=lambda row: (-row[2], row[0]))


def _row(line: str, uses: list[LineUse]) -> tuple[str, int, int, float, float]:
    waited_s = [one.waited_s for one in uses]
    sent_bytes = sum(one.sent_bytes for one in uses)
    return line, max(one.exchanges for one in uses), sent_bytes, fmean(waited_s), max(waited_s)
