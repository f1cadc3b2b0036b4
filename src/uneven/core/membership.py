"""Who takes part from which exchange on, as the members of an elastic run agree on it. Pure.

The life of a run is a row of generations. The members of one average their gradients on process groups of their own.
When a member dies, leaves or joins, every member of the old generation makes a statement. The next generation follows
from the statements of those that are still there, by :func:`successor`, whoever works it out.

Exchanges are counted over the whole run, and members are at most one apart: nobody completes an exchange that somebody
has not entered. When a member dies inside of one, some may have completed it and others not:

* nobody has: the members of the next generation add their gradients up anew, without the dead one's;
* somebody has: it gives its sum to the others, and the dead one's gradient counts in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from uneven.core.plain import Count, Range, read

Members = tuple[int, ...]
Meeting = Callable[[int, Members], tuple[Members, ...]]
"""From a generation's number and its members: the groups in which these meet, each of them in one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a member says when its generation ends.

    Attributes:
        exchanges: that it has completed, over the whole run.
        by: number of the generation among whose members the newest of these was worked out.
        drawn: the last iteration whose samples its loader has drawn; −1 before the first.
        leaving: it takes no part in the next generation.
        between: it is between two steps, where newcomers can come.
        new: it has joined, but has not been given the state of the run yet.
    """

    exchanges: Count
    by: Count = 0
    drawn: Annotated[int, Range(-1)]
    leaving: bool = False
    between: bool = False
    new: bool = False

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Those that average their gradients, from one change of members to the next.

    Attributes:
        number: 0 for the workers that the run begins with.
        members: workers, ascending. A worker keeps its number for life, and nobody else ever gets it.
        border: the first iteration whose samples are split among these members; nobody has drawn it yet.
        exchange: the first exchange that is worked out among these members.
        donor: the member that gives the sum of the exchange before that to those that lack it; None if nobody does.
        by: number of the generation among whose members that sum was worked out.
        came: newcomer → how it has introduced itself.
        left: who is not there any more.
        why: of these, why.
    """

    number: Count
    members: tuple[int, ...]
    border: Count = 0
    exchange: Count = 0
    donor: int | None = None
    by: Count = 0
    came: dict[str, dict[str, Any]]
    left: tuple[int, ...] = ()
    why: dict[str, str]

    def place(self, worker: int) -> int:
        """Position of a worker among the members: what sessions call its rank."""
        return self.members.index(worker)

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def statement_of(text: str) -> Statement:
    """Inverse of :meth:`Statement.text`.

    Raises:
        ValueError: it is no statement.
    """
    return read(Statement, json.loads(text))


def generation_of(text: str) -> Generation:
    """Inverse of :meth:`Generation.text`.

    Raises:
        ValueError: it is no generation.
    """
    return read(Generation, json.loads(text))


def first_generation(size: int) -> Generation:
    """The workers that a run begins with."""
    return Generation(number=0, members=tuple(range(size)), came={}, why={})


def successor(
    old: Generation,
    said: Mapping[int, Statement],
    gone: Mapping[int, str],
    asking: Mapping[int, dict[str, Any]],
    most: int,
) -> Generation:
    """The generation after ``old``.

    Args:
        said: the statement of every member that is not gone.
        gone: members that are not there any more → why.
        asking: workers that want to join, in the order in which they asked → how they introduced themselves.
        most: members that a run may have.
    """
    there = [one for one in old.members if one in said and one not in gone and not said[one].leaving]
    stay = [one for one in there if not said[one].new]
    furthest = max((said[one].exchanges for one in stay), default=old.exchange)
    lacking = any(said[one].exchanges < furthest for one in stay)
    donor = next(one for one in stay if said[one].exchanges == furthest) if lacking else None
    came: dict[int, dict[str, Any]] = {}
    if all(said[one].between for one in stay) and not lacking:  # else they would have no place in what is owed
        earlier = {one: old.came[str(one)] for one in there if said[one].new}
        came = dict(list({**earlier, **asking}.items())[: max(0, most - len(stay))])
    members = tuple(sorted((*stay, *came)))
    left = tuple(one for one in old.members if one not in members)
    return Generation(
        number=old.number + 1,
        members=members,
        border=max((said[one].drawn for one in stay), default=old.border) + 1,
        exchange=furthest,
        donor=donor,
        by=0 if donor is None else said[donor].by,
        came={str(one): it for one, it in came.items()},
        left=left,
        why={str(one): gone.get(one, _LEAVES if one in said and said[one].leaving else _TOO_EARLY) for one in left},
    )


def replaced(
    old: Generation,
    gone: Mapping[int, str],
    asking: Mapping[int, dict[str, Any]],
    most: int,
    *,
    leaving: Members = (),
    lacking: Members = (),
) -> Generation | None:
    """The generation after ``old`` where members owe each other nothing, so that nobody has to make a statement.

    Args:
        gone, asking, most: as of :func:`successor`.
        leaving: members that take no part in the next one.
        lacking: newcomers of ``old`` that have not been given the state of the run yet.

    Returns:
        None where nobody comes or goes.
    """
    stay = [one for one in old.members if one not in gone and one not in leaving]
    room = max(0, most - len(stay))
    new = dict(list(asking.items())[:room])
    if len(stay) == len(old.members) and not new:
        return None
    came = {one: old.came[str(one)] for one in lacking if one in stay} | new
    left = tuple(one for one in old.members if one not in stay)
    return Generation(
        number=old.number + 1,
        members=tuple(sorted((*stay, *new))),
        border=old.border,
        exchange=old.exchange,
        came={str(one): it for one, it in came.items()},
        left=left,
        why={str(one): gone.get(one, _LEAVES) for one in left},
    )


_LEAVES = "it was told to leave"
_TOO_EARLY = "members changed before it had the state of the run; it asks again"


def told(generation: Generation) -> str:
    """Who came and went with it, in words."""
    said = [f"worker {one} is gone: {generation.why.get(str(one), '')}" for one in generation.left]
    return "; ".join([*said, *(f"worker {one} has joined" for one in generation.came)]) or "nobody came or went"
