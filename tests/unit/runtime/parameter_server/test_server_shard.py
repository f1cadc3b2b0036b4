"""What a shard does when members are silent, late, or gone; time is a number here."""

from __future__ import annotations

import numpy as np
from lossy import ELEMENTS, TABLE, Net, link, vector

from uneven.runtime.parameter_server.pure.roster import FOLLOWER, Patience
from uneven.runtime.parameter_server.pure.shard import Shard
from uneven.runtime.parameter_server.pure.wire import Kind, Message, encode


def tell(shard: Shard, kind: Kind, rank: int, now_s: float, *, waits_s: float = 0.0, **more: float) -> list[Message]:
    carried = vector(1, 2, 3) if kind in (Kind.OFFER, Kind.PUSH) else ()
    elements = ELEMENTS if carried or kind is Kind.HELLO else 0
    message = Message(
        kind=kind,
        rank=rank,
        life=7,
        table=TABLE,
        elements=elements,
        vector=carried,
        value=waits_s if kind is Kind.HELLO else 1.0,
        **more,  # type: ignore[arg-type]
    )
    return shard.take(encode(message), now_s)[1]


def serving(members: int, patience: Patience) -> Shard:
    shard = Shard(7, range(members), patience)
    for rank in range(members):
        tell(shard, Kind.HELLO, rank, 0.0)
    tell(shard, Kind.OFFER, 0, 0.0)
    assert shard.serving
    return shard


def test_nobody_is_asked_before_all_have_greeted_or_stayed_away() -> None:
    shard = Shard(7, range(3), Patience(join_s=60.0, silence_s=10.0))
    assert tell(shard, Kind.HELLO, 2, 0.0) == []
    assert tell(shard, Kind.HELLO, 1, 55.0) == []
    assert shard.tick(59.0) == []  # rank 2 has been silent for too long, but rank 0 may still come
    (want,) = shard.tick(61.0)
    assert (want.kind, want.rank) == (Kind.WANT, 1)
    assert shard.counts["left"] == 2


def test_after_a_restart_a_silent_member_is_awaited_for_a_shorter_time() -> None:
    shard = Shard(7, range(2), Patience(join_s=60.0, silence_s=10.0))
    assert tell(shard, Kind.HELLO, 0, 0.0, version=5) == []
    assert tell(shard, Kind.HELLO, 0, 9.0, version=5) == []
    (want,) = shard.tick(10.5)
    assert (want.kind, want.rank) == (Kind.WANT, 0)


def test_nobody_waits_in_vain_for_one_that_has_died_before_it_greeted() -> None:
    shard = Shard(7, range(3), Patience())
    assert tell(shard, Kind.HELLO, 1, 0.0, waits_s=14.0) == []
    assert tell(shard, Kind.HELLO, 2, 1.0, waits_s=300.0) == []
    tell(shard, Kind.HELLO, 1, 6.0, waits_s=14.0)
    assert shard.tick(6.9) == []
    (want,) = shard.tick(7.1)
    assert (want.kind, want.rank) == (Kind.WANT, 1)


def test_nobody_waits_in_vain_for_one_that_was_asked_for_its_copy_and_died() -> None:
    shard = Shard(7, range(2), Patience())
    tell(shard, Kind.HELLO, 0, 0.0, waits_s=14.0)
    assert [one.rank for one in tell(shard, Kind.HELLO, 1, 1.0, waits_s=14.0)] == [0]
    assert shard.tick(6.9) == []
    assert [(one.kind, one.rank) for one in shard.tick(7.1)] == [(Kind.WANT, 1)]


def test_if_the_one_with_the_newest_copy_falls_silent_the_next_is_asked() -> None:
    shard = Shard(7, range(3), Patience(silence_s=10.0))
    tell(shard, Kind.HELLO, 0, 0.0, version=1)
    tell(shard, Kind.HELLO, 1, 0.0, version=3)
    (want,) = tell(shard, Kind.HELLO, 2, 0.0, version=2)
    assert want.rank == 1
    tell(shard, Kind.HELLO, 0, 9.0, version=1)
    tell(shard, Kind.HELLO, 2, 9.0, version=2)
    (want,) = shard.tick(10.5)
    assert (want.kind, want.rank) == (Kind.WANT, 2)
    (again,) = tell(shard, Kind.HELLO, 2, 11.0, version=2)  # whose WANT was lost
    assert again.kind is Kind.WANT
    welcomed = tell(shard, Kind.OFFER, 2, 11.0, version=2)
    assert {(one.kind, one.rank) for one in welcomed} == {(Kind.WELCOME, 0), (Kind.WELCOME, 2)}


def test_an_offer_that_was_not_asked_for_is_refused() -> None:
    shard = Shard(7, range(2))
    tell(shard, Kind.HELLO, 0, 0.0)
    (refused,) = tell(shard, Kind.OFFER, 0, 0.0)
    assert (refused.kind, shard.serving) == (Kind.REFUSED, False)


def test_who_is_silent_is_not_waited_for_and_is_again_when_it_is_back() -> None:
    shard = serving(2, Patience(silence_s=10.0))
    tell(shard, Kind.PUSH, 0, 8.0, sequence=1, clock=1)
    message = Message(kind=Kind.PULL, rank=0, number=4, life=7, clock=1, value=100.0)
    assert shard.take(encode(message), 8.0)[1] == []
    (copy,) = shard.tick(11.0)
    assert (copy.kind, copy.rank, copy.number) == (Kind.COPY, 0, 4)
    assert [(one.here, one.clock) for one in copy.entries] == [(True, 1), (False, 0)]
    (pong,) = tell(shard, Kind.PING, 1, 12.0)
    assert (pong.kind, shard.least_clock, shard.counts["returned"]) == (Kind.PONG, 0, 1)


def test_waiting_ends_with_the_names_of_those_who_are_behind() -> None:
    shard = serving(3, Patience(silence_s=100.0))
    tell(shard, Kind.PUSH, 0, 0.0, sequence=1, clock=3)
    tell(shard, Kind.PUSH, 2, 0.0, sequence=1, clock=2)
    shard.take(encode(Message(kind=Kind.PULL, rank=0, number=4, life=7, clock=3, value=5.0)), 1.0)
    assert shard.tick(5.9) == []
    (missing,) = shard.tick(6.1)
    assert (missing.kind, missing.number) == (Kind.MISSING, 4)
    assert [(one.rank, one.clock) for one in missing.entries] == [(1, 0), (2, 2)]


def test_a_gap_is_refused_until_it_is_filled() -> None:
    shard = serving(1, Patience())
    (gap,) = tell(shard, Kind.PUSH, 0, 0.0, sequence=2, clock=2)
    assert (gap.kind, gap.sequence, shard.version) == (Kind.GAP, 1, 0)
    pull = Message(kind=Kind.PULL, rank=0, number=4, life=7, sequence=1)
    assert shard.take(encode(pull), 0.0)[1][0].kind is Kind.GAP  # would not hold what its worker has pushed


def test_an_update_that_would_overflow_changes_nothing() -> None:
    shard, huge = serving(1, Patience()), np.full(ELEMENTS, 3e38, np.float32)
    for sequence, kind in ((1, Kind.APPLIED), (2, Kind.REFUSED)):
        push = Message(
            kind=Kind.PUSH, life=7, sequence=sequence, value=1.0, table=TABLE, elements=ELEMENTS, vector=(huge,)
        )
        assert shard.take(encode(push), 0.0)[1][0].kind is kind
    assert shard.version == 1


def test_a_link_waits_for_its_welcome_and_ignores_other_lives() -> None:
    one = link(0)
    assert one.request(Kind.PULL, clock=0, value=1.0)[1] == []
    assert one.receive(Message(kind=Kind.COPY, number=1, life=3)) == ([], [])
    sent, _ = one.receive(Message(kind=Kind.WELCOME, life=3))
    assert [message.kind for message in sent] == [Kind.PULL]
    assert one.receive(Message(kind=Kind.PONG, number=9, life=4)) == ([], [])


def test_what_waits_at_the_shard_is_not_sent_again() -> None:
    net = Net(2, 0)
    net.settle()
    net.ask(0, clock=1)
    while net.move():
        pass
    for _ in range(3):
        net.beat()
        while net.move():
            pass
    assert net.shard is not None
    assert not net.answers[0]
    net.push(0, 1, 1.0)
    net.push(1, 1, 1.0)
    net.settle()
    assert len(net.answers[0]) == 2
    assert net.shard.counts["repeated"] == 0


def sited() -> Shard:
    """Two workers with ranks of their own, and one that follows them."""
    shard = Shard(7, (3, 5, FOLLOWER))
    for rank in (3, 5, FOLLOWER):
        tell(shard, Kind.HELLO, rank, 0.0)
    tell(shard, Kind.OFFER, 3, 0.0)
    return shard


def test_a_follower_is_answered_when_the_others_clock_comes_or_their_epoch_changes() -> None:
    shard = sited()
    (begins,) = tell(shard, Kind.FOLLOW, FOLLOWER, 0.0, number=1, clock=1, extra=0)
    assert (begins.kind, begins.clock, begins.extra) == (Kind.FOLLOWED, 0, 1)
    assert tell(shard, Kind.FOLLOW, FOLLOWER, 0.0, number=2, clock=1, extra=1) == []
    assert len(tell(shard, Kind.PUSH, 3, 0.0, number=3, sequence=1, clock=1)) == 1
    _, there = tell(shard, Kind.PUSH, 5, 0.0, number=4, sequence=1, clock=1)
    assert (there.rank, there.number, there.clock, there.extra) == (FOLLOWER, 2, 1, 1)
    assert tell(shard, Kind.FOLLOW, FOLLOWER, 0.0, number=5, clock=2, extra=1) == []
    assert len(tell(shard, Kind.PING, 3, 0.0, extra=1)) == 1, "one may still be in the epoch before"
    _, changed = tell(shard, Kind.PING, 5, 0.0, extra=1)
    assert (changed.number, changed.clock, changed.extra) == (5, 1, 2)
    assert tell(shard, Kind.FOLLOW, FOLLOWER, 0.0, number=6, clock=2, extra=2) == []
    assert tell(shard, Kind.MEET, 3, 0.0, number=7, clock=1) == []
    (still,) = tell(shard, Kind.MEET, 5, 0.0, number=8, clock=1)
    assert (still.number, still.extra) == (6, 0), "nobody moves"
    assert {one.rank for one in tell(shard, Kind.MEET, FOLLOWER, 0.0, number=9, clock=1)} == {3, 5, FOLLOWER}


def test_workers_wait_for_what_their_follower_has_still_to_say_of_their_epoch() -> None:
    shard = sited()
    for rank in (3, 5):
        tell(shard, Kind.PUSH, rank, 0.0, number=1, sequence=1, clock=1)
    assert tell(shard, Kind.PULL, 3, 0.0, number=2, sequence=1, clock=1) == []
    assert len(tell(shard, Kind.PUSH, FOLLOWER, 0.0, number=1, sequence=1, clock=2)) == 1, "of which epoch?"
    _, answer = tell(shard, Kind.PING, FOLLOWER, 0.0, extra=1)
    assert (answer.kind, answer.rank) == (Kind.COPY, 3)
    tell(shard, Kind.PUSH, FOLLOWER, 0.0, number=2, sequence=2, clock=0)
    assert tell(shard, Kind.PULL, 3, 0.0, number=3, sequence=1, clock=1) == [], "its clock may fall"
    assert len(tell(shard, Kind.PULL, 5, 0.0, number=2, sequence=1, clock=0)) == 1
