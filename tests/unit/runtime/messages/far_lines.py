"""Lines between posts that can be cut: a relay that holds back what passes, or closes its connections."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from uneven.run.lines.in_process_rendezvous import Hub
from uneven.runtime.messages.peer_messages import PeerMessages


class Relay:
    """Passes on what comes to its port, in both directions.

    Attributes:
        at: its endpoint.
        open: cleared, it reads nothing and so passes nothing on.
    """

    def __init__(self, target: str) -> None:
        self._target = target.rsplit("/", 1)[1].split(":")
        self._door = socket.create_server(("127.0.0.1", 0))
        self.at = f"tcp://127.0.0.1:{self._door.getsockname()[1]}"
        self.open = threading.Event()
        self.open.set()
        self._ended, self._breaking = False, threading.Event()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._pass, daemon=True)
        self._thread.start()

    def _pass(self) -> None:
        while not self._ended:
            if self._breaking.is_set():
                self._close_all()
                self._breaking.clear()
            ready = select.select([self._door, *self._pairs], [], [], 0.02)[0] if self.open.wait(0.02) else []
            for one in ready:
                if one is self._door:
                    self._join(one.accept()[0])
                elif one in self._pairs:
                    try:
                        data = one.recv(1 << 16)
                        self._pairs[one].sendall(data)
                    except OSError:
                        data = b""
                    if not data:
                        self._close(one)

    def _join(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection((self._target[0], int(self._target[1])))
        except OSError:  # who listened there is gone
            near.close()
            return
        self._pairs |= {near: far, far: near}

    def _close(self, one: socket.socket) -> None:
        other = self._pairs.pop(one)
        del self._pairs[other]
        one.close()
        other.close()

    def _close_all(self) -> None:
        while self._pairs:
            self._close(next(iter(self._pairs)))

    def break_off(self) -> None:
        """Close what is connected; who connects anew is let through."""
        self._breaking.set()

    def close(self) -> None:
        """Pass nothing on any more."""
        self._ended = True
        self._thread.join()
        self._close_all()
        self._door.close()


def posts_over_relays(
    size: int, peers: Callable[[int], Sequence[int]], play: Callable[[PeerMessages, int, list[Relay]], object],
    *, timeout_s: float = 60.0,
) -> list[object]:  # fmt: skip
    """What each worker returns, where each is reached by way of its own relay."""
    hub, relays, made = Hub(size), list[Relay](), threading.Barrier(size)

    def one(rank: int) -> object:
        def texts(text: str) -> Sequence[str]:
            said = [json.loads(each) for each in hub.endpoint(rank).gather_text(text)]
            if rank == 0:
                relays.extend(Relay(each["at"]) for each in said)
            made.wait()
            return [json.dumps({**each, "at": relay.at}) for each, relay in zip(said, relays, strict=True)]

        post = PeerMessages(rank, peers(rank), texts, meeting=None, most_bytes=1 << 22, timeout_s=timeout_s)
        return play(post, rank, relays)

    try:
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(one, range(size)))
    finally:
        for relay in relays:
            relay.close()
