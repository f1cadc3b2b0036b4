"""What a shard knows of each worker, and how long it waits for one. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from uneven.server.wire import Kind, Message


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
