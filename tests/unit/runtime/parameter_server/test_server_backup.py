"""A step that is complete with the first so many: who is not waited for, and when; time is a number here."""

from __future__ import annotations

import numpy as np
import pytest
from lossy import ELEMENTS, TABLE, vector

from uneven.runtime.parameter_server.pure.roster import Patience
from uneven.runtime.parameter_server.pure.shard import Shard
from uneven.runtime.parameter_server.pure.wire import Kind, Message, encode


class Crew:
    """Members of one shard, who contribute numbers to its steps."""

    def __init__(self, members: int) -> None:
        self.shard = Shard(7, range(members), Patience(silence_s=10.0))
        self.sequences = [0] * members
        for rank in range(members):
            self.say(Kind.HELLO, rank, elements=ELEMENTS)
        self.say(Kind.OFFER, 0, elements=ELEMENTS, vector=vector(0, 0, 0))

    def say(self, kind: Kind, rank: int, now_s: float = 0.0, **more: object) -> list[Message]:
        message = Message(kind=kind, rank=rank, life=7, table=TABLE, **more)  # type: ignore[arg-type]
        return self.shard.take(encode(message), now_s)[1]

    def give(self, rank: int, step: int, number: float, *, quorum: int, now_s: float = 0.0) -> list[Message]:
        """A contribution, and the question for what comes of it; the answers to everybody."""
        self.sequences[rank] += 1
        same = {"clock": step, "sequence": self.sequences[rank], "now_s": now_s}
        carried = {"elements": ELEMENTS, "vector": vector(number, 0, 0), "value": 1.0, "extra": quorum}
        out = self.say(Kind.GRADIENT, rank, **same, **carried)
        return [*out, *self.say(Kind.RESULT, rank, **same, value=100.0)]


def told(messages: list[Message]) -> dict[int, float]:
    """Member → first number of the mean that it is told."""
    return {one.rank: float(np.concatenate(one.vector)[0]) for one in messages if one.kind is Kind.MEAN}


def test_the_copy_is_the_mean_of_the_first_and_who_comes_late_finds_the_newest() -> None:
    crew = Crew(3)
    assert told(crew.give(0, 0, 2.0, quorum=2)) == {}
    assert told(crew.give(1, 0, 6.0, quorum=2)) == {0: 4.0, 1: 4.0}
    (mean,) = [one for one in crew.give(2, 0, 1e6, quorum=2) if one.kind is Kind.MEAN]
    assert (mean.value, crew.shard.counts["late"]) == (0.0, 1)
    (copy,) = crew.say(Kind.PULL, 2, value=100.0)
    assert (copy.version, float(np.concatenate(copy.vector)[0])) == (1, 4.0)
    assert copy.extra == 1, "a shard that starts again goes on after that step"
    assert told(crew.give(2, 1, 8.0, quorum=2)) == {}
    assert told(crew.give(2, 1, 100.0, quorum=2)) == {}, "nobody counts twice"
    assert told(crew.give(0, 1, 4.0, quorum=2)) == {2: 6.0, 0: 6.0}


@pytest.mark.parametrize("how", ["leaves", "is silent", "is through", "meets"])
def test_a_step_does_not_wait_for_who_does_not_come(how: str) -> None:
    crew = Crew(3)
    crew.give(0, 0, 2.0, quorum=3)
    assert told(crew.give(1, 0, 6.0, quorum=3)) == {}
    if how == "leaves":
        out = crew.say(Kind.LEAVE, 2)
    elif how == "is silent":
        crew.say(Kind.PING, 0, 9.0)
        crew.say(Kind.PING, 1, 9.0)
        assert told(crew.shard.tick(9.5)) == {}
        out = crew.shard.tick(10.5)
    elif how == "is through":
        out = crew.say(Kind.PING, 2, extra=1)
    else:
        out = crew.say(Kind.MEET, 2, clock=1, value=100.0)
    assert told(out) == {0: 4.0, 1: 4.0}
    assert crew.shard.version == 1


def test_who_is_still_in_the_epoch_is_waited_for_by_who_is_in_the_next() -> None:
    crew = Crew(2)
    crew.say(Kind.PING, 0, extra=1)
    assert told(crew.give(0, 0, 2.0, quorum=2)) == {}
    assert told(crew.say(Kind.PING, 1, extra=1)) == {}, "it is through too, and comes in the next epoch"
    assert told(crew.give(1, 0, 4.0, quorum=2)) == {0: 3.0, 1: 3.0}
