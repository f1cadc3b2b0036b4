"""A shard's record of each worker, and the limits of its waits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from uneven.runtime.parameter_server.pure.wire import Kind, Message

FOLLOWER = 1 << 31  # the rank of the one member that may not be a worker; see ``follower``


def called(rank: int) -> str:
    """Return the name of a member, for messages."""
    return "the updates of other sites" if rank == FOLLOWER else f"rank {rank}"


@dataclass(frozen=True, slots=True)
class Patience:
    """The longest waits of a shard, in seconds.

    Workers report in their greeting how long they wait for an answer. The shard waits for a silent worker at most half
    of the shortest such time, so the other half remains for the answer.
    """

    join_s: float = 60.0  # longest wait for the others' greetings at the start of a run, after the first one
    silence_s: float = 10.0  # without a heartbeat, before a member is no longer counted


@dataclass(slots=True)
class KnownWorker:
    """A shard's record of a worker."""

    here: bool | None = None  # True if a message has come recently; None before its greeting
    left: bool = False  # it has asked that no worker waits for it, and has sent no request since
    buried: bool = False  # other workers have declared it failed; the shard rejects its messages
    waits_s: float = math.inf  # how long it waits for an answer
    sequence: int = 0  # of its last update in the copy
    clock: int = 0  # steps that it has finished, according to its updates
    met: int = 0  # number of meetings that it has entered
    through: int = 0  # epochs that it has finished; workers in one of these do not wait for it
    heard_s: float = 0.0  # time of its last message
    parked: tuple[Message, float] | None = None  # its waiting request, and the time limit
    answer: Message | None = None  # to its last exchange, kept until its next update proves its arrival

    @property
    def counted(self) -> bool:
        return self.here is not False and not self.left

    @property
    def meeting(self) -> bool:
        """True if it waits in a meeting, so that its clock does not advance."""
        return self.parked is not None and self.parked[0].kind is Kind.MEET


def least_clock_for(rank: int, crew: Mapping[int, KnownWorker]) -> float:
    """Return the least clock that ``rank`` must wait for; infinite without any.

    Members in a meeting or past this one's epoch do not count; the follower counts after all epochs up to this one.
    """
    through, far = crew[rank].through, crew.get(FOLLOWER)
    others = (one for other, one in crew.items() if other not in (rank, FOLLOWER))
    clocks = [one.clock for one in others if _moves(one) and one.through <= through]
    if far is not None and rank != FOLLOWER and _moves(far):
        clocks.append(far.clock if far.through > through else 0)
    return min(clocks, default=math.inf)


def followed(rank: int, crew: Mapping[int, KnownWorker]) -> tuple[int, int]:
    """Return the least clock of the others in the earliest current epoch, and 1 + that epoch; both 0 if none moves."""
    moving = [one for other, one in crew.items() if other != rank and _moves(one)]
    through = min((one.through for one in moving), default=-1)
    return min((one.clock for one in moving if one.through == through), default=0), through + 1


def _moves(one: KnownWorker) -> bool:
    return one.counted and not one.meeting
