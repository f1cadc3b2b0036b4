"""Which members go on when the store of an elastic run is gone, or when they are cut off from it. Pure.

Each launcher that has joined keeps an empty store; the *row* of these is agreed in the generation's record. When the
run's store is gone, members go to the next one in the row and vote there. They go on with it once **more than half** of
the last generation has come. Those that keep the old store go on only while **at least half** of the last generation is
there, not counting who has ended for certain. Both cannot be, so a partition never makes two runs.

Of the last generation some may not have heard yet. As long as nobody knows that all of its members have (their process
group was made), more than half of the generation before is needed as well: what a generation *owes*.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace

from uneven.core.membership import Generation, Members, generation_of, is_most
from uneven.core.plain import Count, read


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """What a member says at the next store.

    Attributes:
        generation: the newest that it has entered, as text.
        settled: whether it knows that all members of that one have entered it.
        workers: how many numbers have been given to workers, as far as it knows.
    """

    generation: str
    settled: bool = False
    workers: Count = 0

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def vote_of(text: str) -> Vote:
    """Inverse of :meth:`Vote.text`.

    Raises:
        ValueError: it is no vote.
    """
    return read(Vote, json.loads(text))


def elected(votes: Mapping[int, Vote], store: str) -> tuple[Generation, int] | None:
    """The newest generation of those that have voted, from which they go on at the new store, and how many numbers
    workers have had; None while too few have come.

    What is next is made at the new store, and needs more than half of this one: it owes itself. What may follow that
    store is what stands behind it in the row: those before it are gone or closed.

    Args:
        store: the new one, as it is in the row.
    """
    known = {one: generation_of(vote.generation) for one, vote in votes.items()}
    newest = max(known.values(), key=_age, default=None)
    if newest is None:
        return None
    those = {one for one in votes if one in newest.members}
    alike = [one for one in those if _age(known[one]) == _age(newest)]
    if any(known[one].members != newest.members for one in alike):
        return None  # of two stores, neither of which can have led on
    owed = () if any(votes[one].settled for one in alike) else newest.owed
    if not all(is_most(those, group) for group in (newest.members, *owed)):
        return None
    row = newest.row[newest.row.index(store) + 1 :] if store in newest.row else ()
    goes_on = replace(newest, reign=newest.reign + 1, owed=_each_once((*owed, newest.members)), row=row)
    return goes_on, max((vote.workers for vote in votes.values()), default=0)


def _age(generation: Generation) -> tuple[int, int]:
    return generation.reign, generation.number


def _each_once(groups: Collection[Members]) -> tuple[Members, ...]:
    return tuple(dict.fromkeys(groups))
