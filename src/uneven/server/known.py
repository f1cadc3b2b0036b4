"""What a shard knows of each worker, and how long it waits for one. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from uneven.server.wire import Kind, Message

FOLLOWER = 1 << 31
"""Rank of the one member that may be no worker; see ``follower``."""


def called(rank: int) -> str:
    """A member, for messages."""
    return "what other sites have to send" if rank == FOLLOWER else f"rank {rank}"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a shard waits at most, in seconds.

    Those that greet it say how long they wait themselves for an answer. It waits for a silent one at most half of
    the shortest of these times, so that the other half is left to answer in.

    Attributes:
        join_s: at the start of a run, after the first greeting, for the others' greetings.
        silence_s: without a sign of life, before a member is no longer counted.
    """

    join_s: float = 60.0
    silence_s: float = 10.0


@dataclass(slots=True)
class KnownWorker:
    """A worker as the shard knows it.

    Attributes:
        here: has been heard lately; None before it has greeted.
        left: has said that nobody shall wait for it, and asked for nothing since.
        buried: others have said that it is gone: nothing more is taken from it.
        waits_s: how long it waits for an answer, as it has said.
        sequence: of its last update in the copy.
        clock: steps that it has finished, as its updates say.
        met: how often it has come to a meeting.
        through: epochs that it is through with; who is still in one of these does not wait for it.
        heard_s: when it was last heard.
        parked: its request that waits, and until when.
        answer: to its last exchange, kept until its next update shows that it has come.
    """

    here: bool | None = None
    left: bool = False
    buried: bool = False
    waits_s: float = math.inf
    sequence: int = 0
    clock: int = 0
    met: int = 0
    through: int = 0
    heard_s: float = 0.0
    parked: tuple[Message, float] | None = None
    answer: Message | None = None

    @property
    def counted(self) -> bool:
        """Whether others wait for it."""
        return self.here is not False and not self.left

    @property
    def meeting(self) -> bool:
        """Whether it waits for all others to meet, so that its clock stands."""
        return self.parked is not None and self.parked[0].kind is Kind.MEET


def least_clock_for(rank: int, crew: Mapping[int, KnownWorker]) -> float:
    """Least clock of the other counted workers that neither wait in a meeting nor have finished the epoch of this one.

    That of the follower, if there is one, counts once it has said to be through with all epochs up to this one.
    Infinite without any.
    """
    through, far = crew[rank].through, crew.get(FOLLOWER)
    others = (one for other, one in crew.items() if other not in (rank, FOLLOWER))
    clocks = [one.clock for one in others if _moves(one) and one.through <= through]
    if far is not None and rank != FOLLOWER and _moves(far):
        clocks.append(far.clock if far.through > through else 0)
    return min(clocks, default=math.inf)


def followed(rank: int, crew: Mapping[int, KnownWorker]) -> tuple[int, int]:
    """The least clock of the others that are in the first epoch which anybody is in, and 1 + that epoch.

    Both 0 where all others wait in a meeting or have left.
    """
    moving = [one for other, one in crew.items() if other != rank and _moves(one)]
    through = min((one.through for one in moving), default=-1)
    return min((one.clock for one in moving if one.through == through), default=0), through + 1


def _moves(one: KnownWorker) -> bool:
    return one.counted and not one.meeting
