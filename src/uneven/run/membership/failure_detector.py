"""The failure detector of an elastic run; it also notices workers that ask to join."""

import contextlib
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial

from uneven.runtime.membership_board import CLOSED, NEWS, SESSION, STARTS_WITHIN_S, WORKERS, Board
from uneven.runtime.system import in_forks

_MOST = 256  # connections that a worker accepts; more wait in the kernel


class PeerConnections:
    """Connections to other workers, which the kernel closes when their processes end for any reason.

    They carry no data. A process that is stopped, and a machine that is cut off or without power, are not noticed here.
    """

    # `interface` is this machine's address for the others; None is the loopback.
    def __init__(self, interface: str | None) -> None:
        host = interface or "127.0.0.1"
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=self._family, backlog=64)
        self._listener.setblocking(False)
        self.address = f"{host} {self._listener.getsockname()[1]}"  # host and port that the others connect to
        self._selector = selectors.DefaultSelector()
        self._lines: dict[int, tuple[str, socket.socket]] = {}
        self._ended: set[int] = set()  # workers whose first connection has ended
        self._guests: list[socket.socket] = []
        # A reader process that outlives its worker must not keep the worker's port.
        in_forks(partial(_close, weakref.ref(self._listener)))

    def follow(self, addresses: Mapping[int, str]) -> None:
        """Watch these workers and no others; accept connections of workers that watch this one."""
        self._receive()
        for worker in self._lines.keys() - addresses.keys():
            self._drop(worker)
            self._ended.discard(worker)
        for worker in addresses.keys() - self._lines.keys():
            self._open(worker, addresses[worker])

    def gone(self, within_s: float) -> list[int]:
        """Return the workers whose processes have ended since the last call; wait for one at most ``within_s``."""
        found = []
        for key, _ in self._selector.select(within_s):
            worker = key.data
            address, line = self._lines[worker]
            try:
                line.recv(1)
                refused = False
            except ConnectionRefusedError:
                refused = True
            except ConnectionResetError:
                refused = False
            except BlockingIOError:
                continue
            except OSError:  # no route to it: the missing heartbeats will show that
                self._selector.unregister(line)
                continue
            if refused and worker in self._ended:
                found.append(worker)
            if refused:  # never connected before: perhaps a firewall rejects, not the worker's kernel
                self._selector.unregister(line)
                continue
            # A router may drop an idle connection, so a closed one is opened again. Only a rejection after that means
            # the process ended.
            self._ended.add(worker)
            self._drop(worker)
            self._open(worker, address)
        return found

    def close(self) -> None:
        for worker in [*self._lines]:
            self._drop(worker)
        for one in (*self._guests, self._listener):
            one.close()
        self._selector.close()

    def _receive(self) -> None:
        for guest in [one for one in self._guests if _over(one)]:
            self._guests.remove(guest)
            guest.close()
        with contextlib.suppress(BlockingIOError):
            while len(self._guests) < _MOST:
                guest, _ = self._listener.accept()
                guest.setblocking(False)
                self._guests.append(guest)

    def _open(self, worker: int, address: str) -> None:
        host, port = address.split()
        line = socket.socket(self._family)
        line.setblocking(False)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.connect_ex((host, int(port)))
        self._lines[worker] = address, line
        self._selector.register(line, selectors.EVENT_READ, worker)

    def _drop(self, worker: int) -> None:
        _, line = self._lines.pop(worker)
        if line in self._selector.get_map():
            self._selector.unregister(line)
        line.close()


def _close(one: weakref.ref[socket.socket]) -> None:
    if (found := one()) is not None:
        found.close()


def _over(guest: socket.socket) -> bool:
    """Return whether the guest has closed the connection or sends data, which no worker does."""
    try:
        guest.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class FailureDetector:
    """Send this worker's heartbeats, check the others', and notice workers that ask to join; a background thread.

    A launcher reports the death of its workers. This thread finds a process that was stopped or cut off by its
    missing heartbeats. It finds one that died together with its launcher by its connection
    (:class:`.connections.PeerConnections`).

    Args:
        silence_s: how long heartbeats may be missing before a member counts as failed; 0 means no limit.

    Attributes:
        news, dead: the arguments of the last call of ``listener``: a counter of changes, and the failed members.
    """

    def __init__(
        self, board: Board, worker: int, members: tuple[int, ...], silence_s: float, interface: str | None = None
    ) -> None:
        self.members = members
        self.asked = False  # whether a worker asks to join
        self.lost: RuntimeError | None = None  # why the store no longer answers; None while it does
        # called in the thread with failed members and reasons
        self.listener: Callable[[dict[int, str]], None] | None = None
        self.news = 0
        self.dead: dict[int, str] = {}
        self._board = board  # with a connection that only this thread uses
        self._worker = worker
        self._silence_s = silence_s
        self._lifelines = PeerConnections(interface)
        self._board.write(f"lifeline/{worker}", self._lifelines.address)
        self._listens: dict[int, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uneven-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        beats: dict[int, tuple[int, float]] = {}
        every_s = max(_LOOK_EVERY_S, self._silence_s / _BEATS) if self._silence_s > 0.0 else 1.0
        ended: dict[int, float] = {}
        next_s = look_s = 0.0
        try:
            while not self._over.is_set():
                for one in self._lifelines.gone(_LOOK_EVERY_S):
                    ended[one] = time.monotonic()
                self.asked = bool(self._board.asking())
                now_s = time.monotonic()
                self._bury(ended, now_s)
                listener = self.listener  # the training thread sets it to None at the end
                if listener is not None and (news := self._board.count(NEWS)) != self.news:
                    self.dead = self._board.dead(self.members)
                    listener(self.dead)
                    self.news = news
                if now_s < next_s:
                    continue
                # A process that was itself stopped has missed the others' heartbeats: start all counts again.
                slept = now_s > next_s + self._silence_s / 2.0 and next_s > 0.0
                next_s = now_s + every_s
                self._board.count(f"beats/{self._worker}", 1)
                self._lifelines.follow(self._addresses())
                if self._silence_s > 0.0 and (slept or now_s >= look_s):
                    look_s = now_s + every_s * max(1, len(self.members) // _OFTEN)
                    self._look_after(beats, now_s, slept)
        except RuntimeError as error:
            self.lost = error
        finally:
            self._lifelines.close()

    def _addresses(self) -> dict[int, str]:
        """Return the addresses of the next members, as far as they have published them."""
        members = self.members
        place = members.index(self._worker) if self._worker in members else 0
        others = [one for one in (*members[place:], *members[:place]) if one != self._worker][:_FOLLOWED]
        for one in (one for one in others if one not in self._listens):
            if (text := self._board.look(f"lifeline/{one}")) is not None:
                self._listens[one] = text
        return {one: self._listens[one] for one in others if one in self._listens}

    def _bury(self, ended: dict[int, float], now_s: float) -> None:
        """Report workers whose connections have ended if their launcher has not, and if they did not leave."""
        for one in [one for one, at_s in ended.items() if now_s - at_s > _SAID_WITHIN_S]:
            del ended[one]
            if not self._board.any_of(("through", "left"), one):
                # An error closes the session some time before the process ends and its launcher can report it.
                closed = self._board.look(f"{SESSION}/{one}") == CLOSED
                self._board.remove_member(one, _ERROR if closed else "its process has ended, and its launcher with it")

    def _look_after(self, beats: dict[int, tuple[int, float]], now_s: float, slept: bool) -> None:
        for one in self.members:
            if one == self._worker:
                continue
            count = self._board.count(f"beats/{one}")
            limit_s = self._silence_s if count else max(self._silence_s, STARTS_WITHIN_S)
            # No launcher has started it yet, so there cannot be heartbeats.
            awaited = count == 0 and one >= self._board.count(WORKERS)
            if slept or awaited or one not in beats or beats[one][0] != count:
                beats[one] = count, now_s
            elif now_s - beats[one][1] > limit_s:
                del beats[one]
                self._board.bury_silent(one, limit_s)


_ERROR = "its session ended with the error in its output"

_BEATS = 40  # heartbeats within `silence_s`

# Up to this many members each heartbeat checks all; with more, checks are rarer, so that the store's load stays the
# same.
_OFTEN = 8

_FOLLOWED = 4  # next members by place whose connections a worker watches, so that failures at the same time are found

_SAID_WITHIN_S = 0.15  # how long a launcher may take to report the end of one of its workers

_LOOK_EVERY_S = 0.05
