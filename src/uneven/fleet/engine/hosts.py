"""Manage the processes in which members train."""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from uneven.errors import ConfigError
from uneven.fleet.member.member_host import Job, host
from uneven.fleet.member.team import PATIENCE_S, Seat
from uneven.fleet.stream.feed import Feed
from uneven.fleet.timeout import TIMEOUT_S, hangs
from uneven.runtime.jobs import end_all
from uneven.runtime.jobs.executor import Linked, Place
from uneven.runtime.jobs.heartbeat import Silence
from uneven.runtime.tcp_store import tcp_store


class Meetings:
    """The rendezvous of members' workers at this machine's `address`. The engine's store outlives each worker."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._address = address
        self._store: Any = None
        self._port = 0
        self._held = 0

    def seats(self, size: int) -> list[Seat]:
        """Return a seat for each of a member's `size` workers. Raises `ConfigError` if no port is available."""
        if size == 1:
            return [Seat()]
        if self._store is None:
            self._open()
        self._held += 1
        # Each rendezvous has its own key prefix, so a later member never reads the keys of an earlier one.
        return [Seat(rank, size, self._port, f"meeting {self._held}", self._address) for rank in range(size)]

    def close(self) -> None:
        self._store = None

    def _open(self) -> None:
        try:
            listening = socket.create_server((self._address, 0))  # a socket of torch's would listen on all interfaces
        except OSError as error:
            raise ConfigError(
                f"members on several devices need a port on {self._address}, and none could be opened "
                f"({error.strerror}): give every member one device"
            ) from error
        self._port = listening.getsockname()[1]
        self._store = tcp_store(
            self._address,
            self._port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
            timeout=timedelta(seconds=PATIENCE_S),
        )


_LOOK_S = 0.25

_BETWEEN = "\0"  # in a reader's name, between the member and the number of its worker


def reader_of(member: str, rank: int) -> str:
    return f"{member}{_BETWEEN}{rank}" if rank else member


def member_of(reader: str) -> str:
    """Return the member whose worker reads under this name."""
    return reader.partition(_BETWEEN)[0]


def devices_of(job: Job) -> tuple[int, ...]:
    """Return the devices of a member's workers, by index in the place where it is trained."""
    return job.places or tuple(range(len(job.devices)))


@dataclass(slots=True)
class Host:
    """A member and its processes, one per device."""

    children: list[Linked]
    job: Job
    asked: set[int] = field(default_factory=set)  # ranks of the workers that have not answered the last request
    used: int = 1  # number of workers that have work to do
    # the member's last answer: "loaded", "epoch", "profiled", "failed" or "died", with its values
    answer: tuple[Any, ...] = ()
    # rank → message of a worker that ended because another worker was missing
    lost: dict[int, str] = field(default_factory=dict)
    # time up to which the member's device time has been counted
    since_s: float = field(default_factory=time.perf_counter)

    @property
    def gone(self) -> bool:
        return bool(self.answer) and self.answer[0] in ("failed", "died")


class Hosts:
    """The processes of all members: starts them, sends requests and collects answers within `timeout_s` seconds."""

    def __init__(self, place: Place, feed: Feed, timeout_s: float = TIMEOUT_S) -> None:
        self._place = place
        self._feed = feed
        self._timeout_s = timeout_s
        self._meetings = Meetings(place.address)
        self._spare: dict[int, list[Linked]] = {}
        self._started = 0
        self.by_member: dict[str, Host] = {}  # the members that have processes now

    def load(self, job: Job) -> None:
        """Assign processes to a member, idle or new ones, and make or restore the member in them."""
        self._open(job, lambda seat: ("load", job, seat))

    def profile(self, job: Job, sample: list[Any], limit_s: float) -> None:
        """Assign processes to a member and measure its speed for `limit_s` seconds."""
        self._open(job, lambda seat: ("profile", job, seat, sample, limit_s))

    def epoch(self, name: str, number: int) -> None:
        """Start a member's pass `number` over the data. A member that has died since its last request does nothing."""
        one = self.by_member[name]
        if one.gone:
            return
        one.asked, one.answer = set(range(one.used)), ()
        # A worker joins the ring before it starts, so that no sample of its pass is overwritten before it reads.
        for rank in range(one.used):
            self._feed.join(reader_of(name, rank))
            one.children[rank].send(("epoch", number))

    def leave(self, name: str) -> Host:
        """Stop a member and keep its live processes for the next one."""
        one = self.by_member.pop(name)
        if not one.gone:
            for device, child in zip(devices_of(one.job), one.children, strict=True):
                child.send(("leave",))
                self._spare.setdefault(self._place.seat(device), []).append(child)
        return one

    def collect(self, look: Callable[[], None] = lambda: None) -> dict[str, tuple[Any, ...]]:
        """Wait for the answers to all requests. Call `look` four times a second.

        Returns member → answer, including "failed" and "died", also of members that had died before the request. Raises
        `DataError` if a sample cannot be prepared.
        """
        asked = [name for name, one in self.by_member.items() if one.asked or one.gone]
        looked_s = -_LOOK_S
        while any(self.by_member[name].asked for name in asked):
            self._feed.wait(_LOOK_S)
            self._end_hanging()
            if time.perf_counter() - looked_s >= _LOOK_S:
                look()
                looked_s = time.perf_counter()
        return {name: self.by_member[name].answer for name in asked}

    @property
    def quiet(self) -> dict[str, Silence]:
        """Return how long all workers of each busy member that has data have been silent."""
        return {
            # The shortest silence: while one worker hangs, those that wait for it are silent too, so the member hangs
            name: min((one.children[rank].silence for rank in one.asked), key=lambda silence: silence.for_s)
            for name, one in self.by_member.items()
            if one.asked and not any(self._feed.waits(reader_of(name, rank)) for rank in one.asked)
        }

    def tell(self, reader: str, message: Any) -> None:
        one = self.by_member.get(member_of(reader))
        if one is not None:
            one.children[int(reader.partition(_BETWEEN)[2] or 0)].send(message)

    @property
    def processes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(child.pid for child in one.children) for name, one in self.by_member.items()}

    def close(self) -> None:
        children = [child for spare in self._spare.values() for child in spare]
        for one in self.by_member.values():
            if one.used > 1:  # blocked in a collective with each other, they would not read a request to end
                for child in one.children:
                    child.kill()
            else:
                children += one.children
        end_all(children)
        self._meetings.close()

    def _open(self, job: Job, message: Callable[[Any], tuple[Any, ...]]) -> None:
        size = len(job.devices)
        children = [self._spared(device) or self._start(device) for device in devices_of(job)]
        self.by_member[job.name] = Host(children, job, asked=set(range(size)), used=size)
        for child, seat in zip(children, self._meetings.seats(size), strict=True):
            child.send(message(seat))

    def _spared(self, device: int) -> Linked | None:
        spare = self._spare.get(self._place.seat(device))
        return spare.pop() if spare else None

    def _start(self, device: int) -> Linked:
        self._started += 1
        arguments = (self._feed.ring.handle(writable=False), self._feed.stream)
        return self._place.start(
            f"member process {self._started}", host, arguments, heard=self._heard, ended=self._died, device=device
        )

    def _of(self, child: Linked) -> tuple[str, int] | None:
        for name, one in self.by_member.items():
            if child in one.children:
                return name, one.children.index(child)
        return None

    def _heard(self, child: Linked, message: tuple[Any, ...]) -> None:
        place = self._of(child)
        if place is None:
            return
        name, rank = place
        if message[0] == "want":
            self._feed.want(reader_of(name, rank), *message[1:])
        elif message[0] == "missing":
            self._feed.missing(reader_of(name, rank), *message[1:])
        elif message[0] == "read":
            self._feed.read(reader_of(name, rank), message[1])
        elif message[0] == "failed":
            self._end(name, message)
        elif message[0] == "lost":
            self._lost(name, rank, message[1])
        else:
            self._answered(name, rank, message)

    def _died(self, child: Linked) -> None:
        place = self._of(child)
        if place is None:
            for spare in self._spare.values():
                if child in spare:
                    # A dead process must not be given to the next member.
                    spare.remove(child)
            return
        name, rank = place
        if rank not in self.by_member[name].lost:  # otherwise the worker that it missed reports the cause
            self._end(name, ("died", str(child.ending)))

    def _lost(self, name: str, rank: int, text: str) -> None:
        one = self.by_member[name]
        one.lost[rank] = text
        if len(one.lost) == one.used:  # no worker failed: the connection between them broke
            self._end(name, ("died", f"its workers lost their connections: {text}"))

    def _answered(self, name: str, rank: int, message: tuple[Any, ...]) -> None:
        one = self.by_member[name]
        one.asked.discard(rank)
        if message[0] == "loaded":
            one.used = message[1]
        elif message[0] == "epoch":
            self._feed.leave(reader_of(name, rank))  # otherwise the ring would keep samples for it
        if rank == 0:
            one.answer = message

    def _end_hanging(self) -> None:
        for name, silence in self.quiet.items():
            if silence.for_s > self._timeout_s:
                one = self.by_member[name]
                longest = max((one.children[rank] for rank in one.asked), key=lambda child: child.quiet_s)
                self._end(name, ("failed", hangs(self._timeout_s, longest.at)))

    def _end(self, name: str, answer: tuple[Any, ...]) -> None:
        """Kill all workers of a member, because the others would wait for the one that failed or died."""
        one = self.by_member[name]
        if one.gone:
            return
        for rank, child in enumerate(one.children):
            child.kill()
            self._feed.leave(reader_of(name, rank))
        one.answer, one.asked = answer, set()
