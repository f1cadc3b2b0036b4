"""The traffic between workers, counted by line."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from uneven.policy.core.records import LineRecord


@dataclass(slots=True)
class Traffic:
    """The traffic on one line since the run started: exchanges that have ended, bytes sent, and seconds waited for
    them."""

    # Without a lock, because only one thread updates it.
    exchanges: int = 0
    sent_bytes: int = 0  # by this worker, computed from the shapes of the exchanges
    waited_s: float = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count one exchange, and the wait for it inside."""
        began_s = perf_counter()
        yield
        self.exchanges += 1
        self.waited_s += perf_counter() - began_s


def bytes_of_sum(nbytes: int, members: int) -> int:
    """Return the bytes that each member sends in a ring all-reduce of ``nbytes``."""
    return 2 * (members - 1) * nbytes // members


@dataclass(slots=True)
class TrafficBook:
    """The traffic of one worker, by line."""

    _lines: list[tuple[str, Traffic, Traffic]] = field(default_factory=list)  # current, and as last recorded

    def open(self, line: str) -> Traffic:
        """Return the traffic of a new line; names need not be unique."""
        traffic = Traffic()
        self._lines.append((line, traffic, Traffic()))
        return traffic

    def sent_bytes(self, wanted: Callable[[str], bool]) -> int:
        """Return the bytes sent by this worker since the run started, on the lines whose name is ``wanted``."""
        return sum(now.sent_bytes for line, now, _ in self._lines if wanted(line))

    def records(self, rank: int, iteration: int, at_s: float) -> Iterator[LineRecord]:
        """Yield the traffic of each used line since the last call; ``at_s`` is Unix time."""
        for line, now, noted in self._lines:
            # Read once, because another thread may add to them.
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
