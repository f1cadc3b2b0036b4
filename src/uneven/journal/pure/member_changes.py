"""The changes of a run's membership, from the records of its members."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from uneven.policy.core.records import MembershipRecord, Record, RunRecord, SplitRecord

LEFT = "left"  # the last event of a worker that left on request; others end with :data:`uneven.journal.END`

Members = tuple[int, ...]


def of_newest_workers(records: Iterable[Record]) -> list[Record]:
    """Return the records without those of workers that took part only before the newest start, which has fewer.

    If members change within the run, all records are returned.
    """
    records = list(records)
    sizes = [one.world_size for one in records if isinstance(one, RunRecord) and one.rank == 0]
    if not sizes or any(isinstance(one, MembershipRecord) for one in records):
        return records
    return [one for one in records if isinstance(one, SplitRecord) or one.rank < sizes[-1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberChange:
    """A change of a run's membership."""

    at_s: float  #: Unix time of its first record
    border: int  #: the first iteration that is divided among the members
    members: Members  #: workers that take part from then on
    came: Members  #: workers that joined since the previous change
    left: Members  #: workers that left since the previous change
    pause_s: float  #: the longest pause of a member
    why: str  #: the reason in words


class MemberChanges:
    """All changes of a run; every member writes a record of each."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int, Members, Members, Members], MemberChange] = {}
        self._gone: set[int] = set()

    def add(self, record: MembershipRecord, *, apart: bool = False) -> bool:
        """Add a ``record``; return True if it is the first of its change. ``apart``: workers are asynchronous."""
        border = 0 if apart else record.border  # asynchronous workers each report their own step as the border
        key = (record.generation, border, record.members, record.came, record.left)
        known = self._found.get(key)
        self._found[key] = MemberChange(
            at_s=min(record.at_s, known.at_s if known else record.at_s),
            border=border,
            members=record.members,
            came=record.came,
            left=record.left,
            pause_s=max(record.pause_s, known.pause_s if known else 0.0),
            why=record.why,
        )
        self._gone |= set(record.left)
        return known is None

    def placed(self, at: Callable[[float], int]) -> "MemberChanges":
        """Return a copy whose borders are ``at`` of their Unix times."""
        found = MemberChanges()
        found._found = {key: replace(one, border=at(one.at_s)) for key, one in self._found.items()}
        found._gone = set(self._gone)
        return found

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def all(self) -> list[MemberChange]:
        """The changes in chronological order."""
        return sorted(self._found.values(), key=lambda one: one.at_s)

    @property
    def gone(self) -> frozenset[int]:
        """The workers that have left or failed."""
        return frozenset(self._gone)

    def members(self, iteration: int) -> Members | None:
        """Return the members among which an iteration is divided; None before the first change."""
        return next((one.members for one in reversed(self.all) if one.border <= iteration), None)

    def members_at(self, at_s: float) -> Members | None:
        """Return the members at the Unix time ``at_s``; None if the membership never changed."""
        return next((one.members for one in reversed(self.all) if one.at_s <= at_s), self.founders())

    def founders(self) -> Members | None:
        """Return the first members according to the first change; None if there is none."""
        if not self._found:
            return None
        first = self.all[0]
        return tuple(sorted({*first.members, *first.left} - {*first.came}))

    def presence(self) -> Mapping[int, list[tuple[float, float]]]:
        """Return worker → intervals of its membership, Unix time; infinite if unknown."""
        found: dict[int, list[tuple[float, float]]] = {}
        for worker in self.founders() or ():
            found[worker] = [(float("-inf"), float("inf"))]
        for change in self.all:
            for worker in change.came:
                found.setdefault(worker, []).append((change.at_s, float("inf")))
            for worker in change.left:
                spans = found.setdefault(worker, [(float("-inf"), float("inf"))])
                spans[-1] = (spans[-1][0], change.at_s)
        return found
