"""Statistics of preconditioners' refreshes, by owning worker."""

from dataclasses import dataclass, field
from statistics import median

from uneven.policy.core.records import ScalarRecord

_SUFFIX = "/refresh_s"  # each worker logs PART/refresh_s at the end of a refresh that it owns


@dataclass(slots=True)
class Refreshes:
    """The durations of a run's refreshes: part → rank → seconds of each, oldest first."""

    seconds: dict[str, dict[int, list[float]]] = field(default_factory=dict)

    def add(self, record: ScalarRecord) -> bool:
        """Add a record if it is a refresh; return whether it is."""
        if not record.name.endswith(_SUFFIX):
            return False
        part = self.seconds.setdefault(record.name.removesuffix(_SUFFIX), {})
        part.setdefault(record.rank, []).append(record.value)
        return True

    def rows(self) -> list[tuple[str, int, int, float, float, float]]:
        """Return rows of part, rank, number of refreshes, and their median, longest and total seconds."""
        return [
            (part, rank, len(taken), median(taken), max(taken), sum(taken))
            for part, ranks in sorted(self.seconds.items())
            for rank, taken in sorted(ranks.items())
        ]
