"""Faults between sites: a line that is cut and comes back, one whose connections are closed, a hub that is gone."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
import torch
import zmq
from far_lines import Relay, posts_over_relays
from torch import nn

from uneven.errors import PeerError
from uneven.policy.core.actions import Add, Exchange, Far, Mean, Moment, Payload, Selection, Significant, TopK
from uneven.run.lines.traffic import TrafficBook
from uneven.run.replicas.flat import Flat
from uneven.run.replicas.sparse.exchange import EntriesExchange, Moved, peers_of
from uneven.runtime.messages.peer_messages import PeerMessages

SIZE, STEPS = 4000, 6


class Roll:
    """Names nobody; what a post says comes through."""

    def waiting(self, what: str, place: str = "") -> Any:
        return torch.no_grad()  # any block will do


def far(policy: str) -> Exchange:
    kinds: dict[str, tuple[Any, Selection, dict[str, Any]]] = {
        "geo": (Add(), Significant(0.01), {}),
        "geo, all of it": (Add(), Significant(0.0), {}),
        "geo, a lead": (Add(), Significant(0.01), {"far": Far(lead=2)}),
        "geo, hubs": (Add(), Significant(0.01), {"far": Far(hubs=((0, 1), (2,)))}),
        "sparse-local": (Mean(), TopK(0.1, 64, 2), {}),
    }
    merge, select, more = kinds[policy]
    return Exchange(
        payload=Payload.DELTA, members=(0, 1, 2), merge=merge, moment=Moment.STEP, select=select,
        parties=((0,), (1,), (2,)), **more,
    )  # fmt: skip


class Site:
    """One of three, whose steps are drawn."""

    def __init__(self, post: PeerMessages, rank: int, policy: str) -> None:
        self.values = nn.Parameter(torch.ones(SIZE, dtype=torch.float64))
        parties, roll = ((0,), (1,), (2,)), Roll()
        book = [TrafficBook().open(name) for name in "abc"]
        self.entries = EntriesExchange(
            Flat([self.values]),
            rank,
            parties,
            post,
            book,
            roll,
            lambda text: [text] * 3,  # type: ignore[arg-type]
        )
        self.entries.begin()
        self._exchange, self._draw = far(policy), torch.Generator().manual_seed(rank)

    def step(self, clock: int) -> None:
        with torch.no_grad():
            self.values += 0.02 * torch.randn(SIZE, generator=self._draw, dtype=torch.float64)
        self.entries.meet(self._exchange, Moved(clock, 1.0 + clock))

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        self.entries.catch_up()
        assert self.entries._sums is not None
        return self.values.detach().numpy().copy(), self.entries._sums.held.copy()


def peers(rank: int) -> tuple[int, ...]:
    return peers_of(rank, ((0,), (1,), (2,)))


@pytest.mark.parametrize("policy", ["geo", "geo, all of it", "geo, a lead", "geo, hubs", "sparse-local"])
def test_a_site_that_is_cut_off_and_comes_back_has_lost_nothing(policy: str) -> None:
    def train(cut: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        def play(post: PeerMessages, rank: int, relays: list[Relay]) -> tuple[np.ndarray, np.ndarray]:
            site = Site(post, rank, policy)
            for clock in range(1, STEPS + 1):
                if cut and rank == 0 and clock == 3:
                    for relay in relays:  # nobody reaches anybody
                        relay.open.clear()
                    threading.Timer(0.5, lambda: [relay.open.set() for relay in relays]).start()
                site.step(clock)
            found = site.found()
            post.close(failed=False)
            return found

        return posts_over_relays(3, peers, play)  # type: ignore[return-value]

    whole, after = train(cut=False), train(cut=True)
    for (values, held), (values_cut, held_cut) in zip(whole, after, strict=True):
        if policy == "geo, a lead":
            break  # what is significant there depends on what has come by then
        np.testing.assert_allclose(values_cut, values, rtol=0, atol=1e-12)
        np.testing.assert_allclose(held_cut, held, rtol=0, atol=1e-12)
    if policy != "sparse-local":
        for values, held in after[1:]:
            np.testing.assert_allclose(values - held, after[0][0] - after[0][1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("policy", ["geo", "geo, a lead", "geo, hubs", "sparse-local"])
def test_a_hub_that_is_gone_is_named_by_all_who_wait_for_it(policy: str) -> None:
    """Site 0 is the hub of the first group, and the first of three without hubs."""

    def play(post: PeerMessages, rank: int, relays: list[Relay]) -> str:
        site = Site(post, rank, policy)
        try:
            for clock in range(1, STEPS + 1):
                if rank == 0 and clock == 3:
                    break
                site.step(clock)
        except (RuntimeError, PeerError) as error:
            return str(error)
        finally:
            post.close(failed=True)
        return ""

    said = posts_over_relays(3, peers, play)
    assert said[0] == ""
    for rank in (1, 2):
        assert f"to rank {rank}: its connection is closed" in str(said[rank])
    assert any("from rank 0" in str(one) for one in said[1:]), "the others may miss who has ended because of it"


def test_where_connections_are_closed_what_is_missing_is_not_taken_for_something_else() -> None:
    def play(post: PeerMessages, rank: int, relays: list[Relay]) -> list[bytes]:
        if rank:
            found = [bytes(post.receive(0))]
            with pytest.raises(RuntimeError, match="message 3 from rank 0 to rank 1 is lost, and number 4 has come"):
                post.receive(0)
            post.close(failed=True)
            return found
        post.send(1, b"first")
        post._numbered(1, b"\1")  # one that was on its way when the connection was closed
        post.send(1, b"third")
        with pytest.raises(RuntimeError, match="from rank 1 has come to rank 0: its connection is closed"):
            post.receive(1)
        post.close(failed=True)
        return []

    assert posts_over_relays(2, lambda rank: (1 - rank,), play)[1] == [b"first"]


def test_a_line_whose_connections_are_closed_is_noticed_at_once() -> None:
    met = threading.Barrier(2)  # rank 1 may not have heard rank 0's first word yet

    def play(post: PeerMessages, rank: int, relays: list[Relay]) -> None:
        met.wait(60.0)
        if rank == 0:
            for relay in relays:
                relay.break_off()
        with pytest.raises(RuntimeError, match=f"from rank {1 - rank} has come to rank {rank}: its connection"):
            post.receive(1 - rank)
        post.close(failed=True)

    posts_over_relays(2, lambda rank: (1 - rank,), play)


def test_one_that_hears_nobody_leaves_no_socket_behind() -> None:
    nobody = json.dumps({"at": "tcp://127.0.0.1:1", "key": zmq.curve_keypair()[0].decode()})
    with pytest.raises(RuntimeError, match="no message from rank 1 has come to rank 0: "):
        PeerMessages(0, (1,), lambda text: (text, nobody), meeting=None, most_bytes=1 << 22, timeout_s=0.3)
