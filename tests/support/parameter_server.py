"""What a parameter server promises, wherever its shards are. Needs pytest; inherit `ParameterServerContract`."""

from __future__ import annotations

import threading
from typing import NamedTuple, Protocol

import numpy as np
import pytest

from uneven.errors import NonFiniteError, PeerError
from uneven.runtime.parameter_server.client import Client
from uneven.runtime.parameter_server.connection import ShardLine
from uneven.runtime.parameter_server.pure.partition import table_of
from uneven.runtime.parameter_server.pure.shard import Shard
from uneven.runtime.parameter_server.pure.wire import Array, Vector

SHAPES = ((3, 5), (30_000,), (1,))
"""The second is cut in two."""

LARGE = ((5,), (2_200_000,))
"""Parts that take more than one piece of a message."""

SHARDS = 2


class Stored(NamedTuple):
    """A snapshot of a shard."""

    version: int
    vector: Vector
    least_clock: int
    counts: dict[str, int]

    @classmethod
    def of(cls, shard: Shard) -> Stored:
        """The vector is the shard's own; a shard never changes a vector in place."""
        return cls(shard.version, shard.vector, shard.least_clock, dict(shard.counts))


class ShardPlace(Protocol):
    """Somewhere with shards."""

    def line(self, rank: int) -> ShardLine:
        """For the client of this rank."""
        ...

    def start(self, shard: int) -> None:
        """Start a shard, with nothing in it."""
        ...

    def kill(self, shard: int) -> None:
        """End a shard and lose what it holds."""
        ...

    def stored(self, shard: int) -> Stored:
        """Its state."""
        ...

    def close(self) -> None:
        """End all."""
        ...


def arrays(value: float = 0.0) -> list[Array]:
    """Tensors of ``SHAPES``, flat, with one value everywhere."""
    return [np.full(int(np.prod(shape)), value, np.float32) for shape in SHAPES]


class Crew:
    """The clients of one test."""

    def __init__(self, place: ShardPlace, members: int, *, timeout_s: float = 20.0) -> None:
        self.place = place
        self.clients = [self.client(place, rank, timeout_s=timeout_s) for rank in range(members)]

    @staticmethod
    def client(place: ShardPlace, rank: int, *, timeout_s: float = 20.0) -> Client:
        """A new client of a rank, whose tensors are all 1."""
        return Client(rank, table_of(SHAPES, "float32", SHARDS), arrays(1.0), place.line(rank), timeout_s=timeout_s)

    def __enter__(self) -> list[Client]:
        return self.clients

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()
        self.place.close()


def pulled(client: Client, clock: int = 0) -> set[float]:
    """The values in the copy."""
    into = arrays(np.nan)
    client.pull(clock).into(into)
    return set(np.unique(np.concatenate(into)).tolist())


class ParameterServerContract:
    """Inherit it and say where the shards are: override ``place``."""

    def place(self, members: int) -> ShardPlace:
        """Shards for so many workers, all started."""
        raise NotImplementedError

    def test_pushes_add_up_on_all_shards_and_one_sees_ones_own(self) -> None:
        with Crew(self.place(2), 2) as (first, second):
            assert pulled(first) == {1.0}
            for step in range(3):
                first.push(step, arrays(4.0), scale=0.5)
                assert pulled(first) >= {3.0 + 2 * step}
            second.push(0, arrays(-1.0)).result()
            assert pulled(first) == {6.0}

    def test_what_takes_several_pieces_of_a_message_arrives_whole(self) -> None:
        place = self.place(1)
        first = [np.arange(np.prod(shape), dtype=np.float32) for shape in LARGE]
        client = Client(0, table_of(LARGE, "float32", SHARDS), first, place.line(0))
        client.push(0, first, scale=2.0)
        into = [np.zeros_like(array) for array in first]
        client.pull(1).into(into)
        assert all(np.array_equal(got, 3 * sent) for got, sent in zip(into, first, strict=True))
        client.close()
        place.close()

    def test_a_pull_waits_for_the_least_clock_and_not_for_who_has_left(self) -> None:
        with Crew(self.place(3), 3) as (first, second, third):
            first.push(0, arrays(1.0))
            waiting = first.pull(1)
            second.push(0, arrays(10.0)).result()
            assert not waiting.done
            third.push(0, arrays(100.0)).result()
            into = arrays()
            waiting.into(into)
            assert into[1][-1] == 112.0  # all that was waited for
            third.leave()  # and goes on to give signs of life
            first.push(1, arrays(0.0))
            second.push(1, arrays(0.0))
            assert pulled(second, 2) == {112.0}

    def test_who_has_died_before_it_came_is_given_up_before_the_others_give_up(self) -> None:
        place = self.place(2)
        client = Crew.client(place, 1, timeout_s=1.0)
        assert pulled(client) == {1.0}
        client.close()
        place.close()

    def test_all_who_push_and_pull_for_one_clock_get_one_copy(self) -> None:
        with Crew(self.place(3), 3) as clients:
            for step in range(8):
                replies = [client.push_pull(step, arrays(1.0), clock=step + 1) for client in clients]
                copies = [arrays() for _ in clients]
                for reply, into in zip(replies, copies, strict=True):
                    reply.into(into)
                assert np.unique([into[1] for into in copies]).tolist() == [1.0 + 3 * (step + 1)]

    def test_all_who_meet_get_one_copy_and_who_waits_there_keeps_nobody_waiting(self) -> None:
        place = self.place(3)
        with Crew(place, 3) as (first, second, third):
            first.push(0, arrays(1.0)).result()
            early = first.meet(1)
            second.leave()  # is waited for by no pull, and at the meeting all the same
            third.push(4, arrays(100.0))
            assert pulled(third, 5) == {102.0}
            late = third.meet(1)
            second.pull().result()
            assert not early.done
            place.kill(0)
            place.start(0)
            second.push(0, arrays(10.0))
            copies = [arrays() for _ in range(3)]
            for reply, into in zip((early, late, second.meet(1)), copies, strict=True):
                reply.into(into)
            assert [set(np.concatenate(into).tolist()) for into in copies] == [{112.0}] * 3
            first.timeout_s = 0.3
            in_vain = first.meet(2)
            first.timeout_s = 20.0
            with pytest.raises(PeerError, match=r"rank 1 \(finished 1 steps\), rank 2 \(finished 5 steps\)"):
                in_vain.result()

    def test_who_is_through_with_an_epoch_is_waited_for_in_the_next_one(self) -> None:
        with Crew(self.place(2), 2) as (first, second):
            first.push(2, arrays(1.0)).result()
            waiting = first.pull(3)
            second.push(0, arrays(1.0)).result()
            assert not waiting.done
            second.through(1)
            waiting.result()
            first.through(1)
            waiting = first.pull(3)
            second.push(1, arrays(1.0)).result()
            assert not waiting.done
            second.push(2, arrays(1.0))
            waiting.result()
            assert pulled(first) == {5.0}

    def test_who_takes_more_of_an_epoch_waits_for_nobody_who_is_through_with_it(self) -> None:
        with Crew(self.place(2), 2) as (first, second):
            first.push(0, arrays(1.0)).result()
            for one in (first, second):
                one.through(1)
            waiting = second.pull(1)
            assert not waiting.done
            second.push(0, arrays(1.0)).result()
            waiting.result()
            second.push(1, arrays(1.0)).result()
            waiting = second.pull(2)
            assert not waiting.done
            second.through(0)
            waiting.result()
            second.gradient(0, arrays(5.0), weight=1.0, quorum=2).into(copies := arrays())
            assert set(np.concatenate(copies).tolist()) == {5.0}

    def test_a_wait_in_vain_names_who_was_missing(self) -> None:
        with Crew(self.place(3), 3) as (first, second, third):
            first.push(4, arrays())
            third.push(2, arrays()).result()
            second.pull().result()
            first.timeout_s = 0.3  # what the shard is told
            in_vain = first.pull(5)
            first.timeout_s = 20.0
            with pytest.raises(PeerError, match=r"rank 1 \(finished 0 steps\), rank 2 \(finished 3 steps\)"):
                in_vain.result()
            assert pulled(first) == {1.0}

    def test_an_exchange_keeps_the_sum_of_copy_and_replica(self) -> None:
        with Crew(self.place(2), 2) as (first, second):
            replica = arrays(9.0)
            first.exchange(0, replica, alpha=0.25).into(replica)
            assert set(replica[1].tolist()) == {7.0}
            assert pulled(second) == {3.0}
            other = arrays(-1.0)
            reply = second.exchange(0, other, alpha=0.5)
            other[0] += 10.0  # learnt meanwhile, and kept
            reply.into(other)
            assert (other[0][0], other[1][0], pulled(first)) == (11.0, 1.0, {1.0})

    def test_the_mean_of_a_step_is_that_of_its_quorum_and_late_ones_are_dropped(self) -> None:
        with Crew(self.place(3), 3) as (first, second, third):
            one = first.gradient(0, arrays(2.0), weight=1.0, quorum=2)
            two = second.gradient(0, arrays(6.0), weight=3.0, quorum=2)
            into = arrays()
            assert not one.into(into).late
            assert set(into[1].tolist()) == {5.0}
            two.result()
            late = third.gradient(0, arrays(1e6), weight=1.0, quorum=2).into(into)
            assert (late.late, late.newest, into[0][0]) == (True, 0, 5.0)
            for step in range(1, 6):
                first.gradient(step, arrays(1.0), weight=1.0, quorum=2)
                second.gradient(step, arrays(1.0), weight=1.0, quorum=2).result()
            assert third.mean(4).result().newest == 5
            with pytest.raises(PeerError, match="mean of step 0 is no longer stored, the newest is 5"):
                third.mean(0).result()

    def test_what_is_no_number_is_refused_and_the_next_one_is_taken(self) -> None:
        with Crew(self.place(1), 1) as (alone,):
            bad = arrays(1.0)
            for tensor in bad:
                tensor[:] = np.where(np.arange(tensor.size) % 2, np.inf, tensor)
            bad[0][0] = bad[2][0] = np.nan  # on every shard
            with pytest.raises(NonFiniteError, match="rank 0"):
                alone.push(0, bad).result()
            alone.push(0, arrays(1.0))
            assert pulled(alone) == {2.0}

    def test_shards_that_start_again_have_lost_no_update(self) -> None:
        place = self.place(3)
        steps = 60
        with Crew(place, 3) as clients:

            def work(client: Client) -> None:
                for step in range(steps):
                    client.push(step, arrays(1.0))
                    if step % 3 == client.rank:
                        client.pull(max(0, step - 5)).result()

            threads = [threading.Thread(target=work, args=(client,)) for client in clients]
            for thread in threads:
                thread.start()
            for shard in (0, 1, 0):
                while place.stored(shard).version < 10:
                    threads[0].join(0.005)
                place.kill(shard)
                place.start(shard)
            for thread in threads:
                thread.join()
            assert pulled(clients[0], steps) == {1.0 + 3 * steps}
            assert [place.stored(shard).counts["restored"] for shard in range(SHARDS)] == [1, 1]

    def test_a_new_client_of_a_rank_goes_on_where_the_last_one_ended(self) -> None:
        place = self.place(1)
        with Crew(place, 1) as clients:
            clients[0].push(0, arrays(1.0)).result()
            clients[0].close()
            clients[0] = Crew.client(place, 0)
            assert pulled(clients[0]) == {2.0}
            clients[0].push(1, arrays(1.0))
            assert pulled(clients[0]) == {3.0}

    def test_other_tensors_are_refused(self) -> None:
        place = self.place(1)
        with Crew(place, 1) as clients:
            assert pulled(clients[0]) == {1.0}
            clients[0].close()
            table = table_of([(8,)], "float32", SHARDS)
            clients[0] = Client(0, table, [np.zeros(8, np.float32)], place.line(0))
            with pytest.raises(PeerError, match="another table of tensors"):
                clients[0].pull().result()
