"""Who came and went in a run, as the records of those that were there say it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from uneven.core.records import MembershipRecord

LEFT = "left"
"""The event of a worker that was told to leave, and has; it stands where others have :data:`uneven.journal.END`."""

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberChange:
    """One change of the members of a run.

    Attributes:
        at_s: when the first of those that saw it wrote it down, Unix time.
        border: the first iteration that is split among the members.
        members: workers that take part from then on.
        came, left: the difference.
        pause_s: the longest that anybody has seen.
        why: in words.
    """

    at_s: float
    border: int
    members: Members
    came: Members
    left: Members
    pause_s: float
    why: str


class MemberChanges:
    """All changes of a run; every worker that was there has a record of each."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int, Members, Members, Members], MemberChange] = {}
        self._gone: set[int] = set()

    def add(self, record: MembershipRecord, *, apart: bool = False) -> bool:
        """Take in one record; whether nobody else had told of this change.

        Args:
            apart: whether each worker takes steps of its own, so that each tells of another border.
        """
        border = 0 if apart else record.border
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

    def placed(self, at: Callable[[float], int]) -> MemberChanges:
        """The same with other borders: those that ``at`` says for a Unix time."""
        found = MemberChanges()
        found._found = {key: replace(one, border=at(one.at_s)) for key, one in self._found.items()}
        found._gone = set(self._gone)
        return found

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def all(self) -> list[MemberChange]:
        """In the order in which they happened."""
        return sorted(self._found.values(), key=lambda one: one.at_s)

    @property
    def gone(self) -> frozenset[int]:
        """Workers that are not there any more."""
        return frozenset(self._gone)

    def members(self, iteration: int) -> Members | None:
        """Those among whom an iteration is split; None before the first change."""
        return next((one.members for one in reversed(self.all) if one.border <= iteration), None)

    def members_at(self, at_s: float) -> Members | None:
        """Those that were there at a Unix time; None where nobody ever came or went."""
        return next((one.members for one in reversed(self.all) if one.at_s <= at_s), self.founders())

    def founders(self) -> Members | None:
        """Those that the run began with, as the first change says; None where there is none."""
        if not self._found:
            return None
        first = self.all[0]
        return tuple(sorted({*first.members, *first.left} - {*first.came}))

    def presence(self) -> Mapping[int, list[tuple[float, float]]]:
        """Worker → from when to when it was there, Unix time; infinite where nobody says."""
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
