"""Messages between workers over ZeroMQ: in order, from nobody else, and not for ever awaited."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq

from uneven.run.lines.in_process_rendezvous import Hub
from uneven.run.replicas.sparse.exchange import peers_of
from uneven.runtime.messages.peer_messages import PeerMessages


def posts(
    size: int, play: Callable[[PeerMessages, int], object], *, timeout_s: float = 20.0, most_bytes: int = 1 << 20,
    two_ways: bool = False,
) -> list[object]:  # fmt: skip
    """What each of some workers that all talk to each other returns."""
    hub = Hub(size)

    def one(rank: int) -> object:
        peers = [peer for peer in range(size) if peer != rank]
        post = PeerMessages(
            rank, peers, hub.endpoint(rank).gather_text, meeting=None, most_bytes=most_bytes, timeout_s=timeout_s,
            two_ways=two_ways,
        )  # fmt: skip
        return play(post, rank)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def test_messages_come_whole_in_order_and_by_sender() -> None:
    def play(post: PeerMessages, rank: int) -> list[bytes]:
        others = [peer for peer in range(3) if peer != rank]
        for count in range(4):
            for peer in others:
                post.send(peer, bytes([rank, count]) * (300_000 if count == 2 else 1))
        found = [bytes(post.receive(peer)) for peer in reversed(others) for _ in range(4)]
        post.close(failed=False)
        return found

    for rank, found in enumerate(posts(3, play)):
        expected = [[peer, count] for peer in (2, 1, 0) if peer != rank for count in range(4)]
        assert [list(one[:2]) for one in found] == expected  # type: ignore[attr-defined]
        assert [len(one) for one in found] == [2, 2, 600_000, 2] * 2  # type: ignore[attr-defined]


def test_who_ends_without_a_word_is_noticed_by_its_connection() -> None:
    def play(post: PeerMessages, rank: int) -> str:
        if rank == 1:
            post.send(0, b"last")
            post.close(failed=True)
            return ""
        assert bytes(post.receive(1)) == b"last", "what was sent before still counts"
        with pytest.raises(RuntimeError, match="from rank 1 has come to rank 0: its connection is closed") as error:
            post.receive(1)
        post.close(failed=True)
        return str(error.value)

    assert posts(2, play)[0]


def test_who_says_nothing_is_not_awaited_for_ever() -> None:
    done = threading.Event()

    def play(post: PeerMessages, rank: int) -> None:
        if rank == 0:
            with pytest.raises(RuntimeError, match=r"within 0\.5 s"):
                post.receive(1)
            done.set()
        done.wait(10.0)
        post.close(failed=True)

    posts(2, play, timeout_s=0.5)


def test_a_peer_that_is_through_sends_nothing_more() -> None:
    def play(post: PeerMessages, rank: int) -> None:
        if rank == 1:
            post.close(failed=False)
            return
        with pytest.raises(RuntimeError, match="rank 1 has ended its part"):
            post.receive(1)
        post._boxes[1].append((b"\2", b""))  # it was taken out
        post.close(failed=False)

    posts(2, play)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_stranger_is_not_let_in_and_disturbs_nobody(keyed: bool) -> None:
    def play(post: PeerMessages, rank: int) -> bytes:
        if rank == 0:
            context = zmq.Context()
            stranger = context.socket(zmq.PUSH)
            if keyed:  # knows the public key of the worker, but has none of the run
                public, secret = zmq.curve_keypair()
                stranger.curve_publickey, stranger.curve_secretkey = public, secret
                stranger.curve_serverkey = post.key
            stranger.setsockopt(zmq.LINGER, 0)
            stranger.connect(post._in.getsockopt_string(zmq.LAST_ENDPOINT))
            stranger.send_multipart([b"\1", b"from nobody"])
            for _ in range(10):
                post._look()
            context.destroy()
        post.send(1 - rank, b"mine")
        found = bytes(post.receive(1 - rank))
        post.close(failed=False)
        return found

    assert posts(2, play) == [b"mine"] * 2


def test_a_message_that_is_too_long_ends_the_connection() -> None:
    def play(post: PeerMessages, rank: int) -> None:
        if rank == 1:
            post.send(0, bytes(200_000))
            with pytest.raises(RuntimeError, match="its connection is closed"):
                post.receive(0)
        else:
            with pytest.raises(RuntimeError, match="no message from rank 1"):
                post.receive(1)
        post.close(failed=True)

    posts(2, play, timeout_s=3.0, most_bytes=100_000)


def test_who_talks_to_whom() -> None:
    parties = ((0, 3), (1, 2, 5), (4,))
    assert [peers_of(rank, parties) for rank in range(6)] == [(1, 3, 4), (0, 2, 4, 5), (1,), (0,), (0, 1), (1,)]


def test_a_short_message_has_a_way_of_its_own() -> None:
    def play(post: PeerMessages, rank: int) -> tuple[list[bytes], bytes]:
        post.send(1 - rank, b"entries")
        post.send_early(1 - rank, b"places")
        found: list[bytes] = []
        while not found:
            found += post.early(1 - rank)
        after = bytes(post.receive(1 - rank))
        post.close(failed=False)
        return found, after

    assert posts(2, play, two_ways=True) == [([b"places"], b"entries")] * 2
