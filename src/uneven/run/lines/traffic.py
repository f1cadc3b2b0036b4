"""What passes between workers, counted by line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from uneven.core.records import LineRecord


@dataclass(slots=True)
class Traffic:
    """What has passed on one line since the run began; one thread adds to it.

    Attributes:
        exchanges: that were waited for.
        sent_bytes: by this worker, as counted from the shapes of the exchanges.
        waited_s: seconds for which the calling thread waited for them.
    """

    exchanges: int = 0
    sent_bytes: int = 0
    waited_s: float = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, this worker waits for one exchange."""
        began_s = perf_counter()
        yield
        self.exchanges += 1
        self.waited_s += perf_counter() - began_s


def bytes_of_sum(nbytes: int, members: int) -> int:
    """What each member sends where so many bytes are summed up over so many members, in pieces passed round."""
    return 2 * (members - 1) * nbytes // members


@dataclass(slots=True)
class TrafficBook:
    """The traffic of one worker, by line."""

    _lines: list[tuple[str, Traffic, Traffic]] = field(default_factory=list)  # the newest, and as last written down

    def open(self, line: str) -> Traffic:
        """The traffic of another line; names may occur more than once."""
        traffic = Traffic()
        self._lines.append((line, traffic, Traffic()))
        return traffic

    def sent_bytes(self, wanted: Callable[[str], bool]) -> int:
        """By this worker since the run began, on the lines whose name is wanted."""
        return sum(now.sent_bytes for line, now, _ in self._lines if wanted(line))

    def records(self, rank: int, iteration: int, at_s: float) -> Iterator[LineRecord]:
        """What has passed on each line since this was last asked, for those that were used.

        Args:
            at_s: now, Unix time.
        """
        for line, now, noted in self._lines:
            exchanges, sent_bytes, waited_s = now.exchanges, now.sent_bytes, now.waited_s
            if (exchanges, sent_bytes) == (noted.exchanges, noted.sent_bytes):
                continue
            yield LineRecord(
                rank=rank,
                iteration=iteration,
                at_s=at_s,
                line=line,
                exchanges=exchanges - noted.exchanges,
                sent_bytes=sent_bytes - noted.sent_bytes,
                waited_s=waited_s - noted.waited_s,
            )
            noted.exchanges, noted.sent_bytes, noted.waited_s = exchanges, sent_bytes, waited_s
