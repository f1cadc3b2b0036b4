"""What preconditioners refresh, by the worker that owns it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from uneven.core.records import ScalarRecord

_SUFFIX = "/refresh_s"
"""Behind the name of a part: what each worker logs when a refresh of its own has ended."""


@dataclass(slots=True)
class Refreshes:
    """Over a run.

    Attributes:
        seconds: part → rank → of each refresh, oldest first.
    """

    seconds: dict[str, dict[int, list[float]]] = field(default_factory=dict)

    def add(self, record: ScalarRecord) -> bool:
        """Whether it is one, and was taken in."""
        if not record.name.endswith(_SUFFIX):
            return False
        part = self.seconds.setdefault(record.name.removesuffix(_SUFFIX), {})
        part.setdefault(record.rank, []).append(record.value)
        return True

    def rows(self) -> list[tuple[str, int, int, float, float, float]]:
        """Part, rank, refreshes, and seconds: of the middle one, the longest, and all together."""
        return [
            (part, rank, len(taken), median(taken), max(taken), sum(taken))
            for part, ranks in sorted(self.seconds.items())
            for rank, taken in sorted(ranks.items())
        ]
