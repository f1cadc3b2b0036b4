"""The agreement of an elastic run's members on each change of membership.

A run is a sequence of generations. The members of one average their gradients on their own process groups. When a
member dies, leaves or joins, every member of the old generation makes a statement. :func:`successor` computes the next
generation from the statements of the remaining members, with the same result on each.

Exchanges are counted over the whole run, and members differ by at most one: no member completes an exchange that
another has not entered. When a member dies during one, there are two cases:

* No member has completed it: the members of the next generation add up their gradients again, without the dead one's.
* A member has completed it: it sends its sum to the others, and the dead member's gradient counts.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from uneven.policy.core.plain import Count, Range, read
from uneven.policy.core.records import MembershipRecord

Members = tuple[int, ...]
Meeting = Callable[[int, Members], tuple[Members, ...]]
"""The function from a generation's number and members to the groups in which they meet, each member in one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A member's statement at the end of its generation."""

    exchanges: Count  # completed over the whole run
    by: Count = 0  # number of the generation whose members computed the newest of these
    drawn: Annotated[int, Range(-1)]  # the last iteration whose samples its loader has drawn; −1 before the first
    leaving: bool = False  # it takes no part in the next generation
    between: bool = False  # it is between two steps, so newcomers can join
    new: bool = False  # it has joined but has not received the state of the run

    def text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The workers that average their gradients, from one change of membership to the next."""

    number: Count  # 0 for the workers at the start of the run
    members: tuple[int, ...]  # workers, ascending. A worker keeps its number for life, and no other worker reuses it.
    border: Count = 0  # the first iteration whose samples are split among these members; no worker has drawn it yet
    exchange: Count = 0  # the first exchange that these members compute
    # the member that sends the sum of the exchange before that to those that lack it; None if none lacks it
    donor: int | None = None
    by: Count = 0  # number of the generation whose members computed that sum
    came: dict[str, dict[str, Any]]  # newcomer → its introduction
    left: tuple[int, ...] = ()  # members of the generation before that are not in this one
    why: dict[str, str]  # the reason for each of these

    def place(self, worker: int) -> int:
        return self.members.index(worker)

    def text(self) -> str:
        return json.dumps(asdict(self))


def statement_of(text: str) -> Statement:
    """Return the inverse of :meth:`Statement.text`. Raises ValueError for any other text."""
    return read(Statement, json.loads(text))


def generation_of(text: str) -> Generation:
    """Return the inverse of :meth:`Generation.text`. Raises ValueError for any other text."""
    return read(Generation, json.loads(text))


def first_generation(size: int) -> Generation:
    return Generation(number=0, members=tuple(range(size)), came={}, why={})


def successor(
    old: Generation,
    said: Mapping[int, Statement],
    gone: Mapping[int, str],
    asking: Mapping[int, dict[str, Any]],
    most: int,
) -> Generation:
    """Return the generation after ``old``.

    Args:
        said: the statement of every member that is not gone.
        gone: failed members → reason.
        asking: workers that want to join → their introductions, in the order of their requests.
        most: the largest number of members.
    """
    there = [one for one in old.members if one in said and one not in gone]
    able = [one for one in there if not said[one].new]  # these have the state of the run
    waiting = {**{one: old.came[str(one)] for one in there if said[one].new}, **asking}
    # If all of them leave, one stays until a newcomer has the state.
    stay = [one for one in able if not said[one].leaving] or able[: bool(waiting) and most > 1]
    furthest = max((said[one].exchanges for one in stay), default=old.exchange)
    lacking = any(said[one].exchanges < furthest for one in stay)
    donor = next(one for one in stay if said[one].exchanges == furthest) if lacking else None
    came: dict[int, dict[str, Any]] = {}
    if all(said[one].between for one in stay) and not lacking:  # newcomers cannot take part in an exchange that is owed
        came = dict(list(waiting.items())[: max(0, most - len(stay))])
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
    """Return the generation after ``old`` if members owe each other no exchange; None if it is the same.

    Args:
        leaving: members that take no part in the next one.
        lacking: newcomers of ``old`` that have not received the state of the run.
    """
    able = {one for one in old.members if one not in gone and one not in lacking}
    if able <= {*leaving} and (lacking or (asking and most > 1)):  # one that has the state stays until another has it
        leaving = tuple(one for one in leaving if one != min(able, default=-1))
    stay = [one for one in old.members if one not in gone and one not in leaving]
    room = max(0, most - len(stay))
    # A member still asks if its admission was written in part.
    new = dict([one for one in asking.items() if one[0] not in old.members][:room])
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


_LEAVES = "it got a request to leave"
_TOO_EARLY = "members changed before it had the state of the run; it asks again"


def told(generation: Generation) -> str:
    """Return a text that names the workers that joined and left."""
    said = [f"worker {one} is gone: {generation.why.get(str(one), '')}" for one in generation.left]
    return "; ".join([*said, *(f"worker {one} has joined" for one in generation.came)]) or "no change of members"


def record_of(new: Generation, rank: int, iteration: int, at_s: float, pause_s: float) -> MembershipRecord:
    """Return the journal's record of a change, as worker ``rank`` sees it at ``at_s`` (Unix time)."""
    return MembershipRecord(
        rank=rank,
        iteration=iteration,
        at_s=at_s,
        generation=new.number,
        members=new.members,
        came=tuple(sorted(map(int, new.came))),
        left=new.left,
        border=new.border,
        pause_s=pause_s,
        why=told(new),
    )
