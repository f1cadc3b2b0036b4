"""The processes in which members train, as the engine sees them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from uneven.fleet.engine.meeting import Meetings
from uneven.fleet.member.host import Job, host
from uneven.fleet.stream.feed import Feed
from uneven.fleet.timeout import TIMEOUT_S, hangs
from uneven.jobs import end_all
from uneven.jobs.place import Linked, Place
from uneven.jobs.pulse import Silence

_LOOK_S = 0.25

_BETWEEN = "\0"  # in a reader's name, between the member and the number of its worker


def reader_of(member: str, rank: int) -> str:
    """The name under which a worker of a member reads the stream."""
    return f"{member}{_BETWEEN}{rank}" if rank else member


def member_of(reader: str) -> str:
    """Whose worker reads under this name."""
    return reader.partition(_BETWEEN)[0]


def devices_of(job: Job) -> tuple[int, ...]:
    """The devices of a member's workers, by their indices in the place where it is trained."""
    return job.places or tuple(range(len(job.devices)))


@dataclass(slots=True)
class Host:
    """A member and the processes in which it trains, one for each of its devices.

    Attributes:
        asked: workers that were asked for something and have not answered.
        used: how many of its workers have something to do.
        answer: what the member said last: "loaded", "epoch", "profiled", "failed" or "died".
        lost: workers that ended because another one was missing, and what they said.
        since_s: until when its time has been counted.
    """

    children: list[Linked]
    job: Job
    asked: set[int] = field(default_factory=set)
    used: int = 1
    answer: tuple[Any, ...] = ()
    lost: dict[int, str] = field(default_factory=dict)
    since_s: float = field(default_factory=time.perf_counter)

    @property
    def gone(self) -> bool:
        """Whether it has failed or died, and its processes have ended."""
        return bool(self.answer) and self.answer[0] in ("failed", "died")


class Hosts:
    """Gives each member its processes, asks all of them at once and collects the answers.

    Args:
        timeout_s: how long a member that has been asked for something may be silent.

    Attributes:
        by_member: who has processes now.
    """

    def __init__(self, place: Place, feed: Feed, timeout_s: float = TIMEOUT_S) -> None:
        self._place = place
        self._feed = feed
        self._timeout_s = timeout_s
        self._meetings = Meetings(place.address)
        self._spare: dict[int, list[Linked]] = {}
        self._started = 0
        self.by_member: dict[str, Host] = {}

    def load(self, job: Job) -> None:
        """Give a member processes, such as others have left or new ones, and let it be made or restored in them."""
        self._open(job, lambda seat: ("load", job, seat))

    def profile(self, job: Job, sample: list[Any], limit_s: float) -> None:
        """The same to measure how fast it is, for so many seconds."""
        self._open(job, lambda seat: ("profile", job, seat, sample, limit_s))

    def epoch(self, name: str, number: int) -> None:
        """Let a member train for this pass over the data. One that died since it was asked last has answered."""
        one = self.by_member[name]
        if one.gone:
            return
        one.asked, one.answer = set(range(one.used)), ()
        for rank in range(one.used):
            self._feed.join(reader_of(name, rank))
            one.children[rank].send(("epoch", number))

    def leave(self, name: str) -> Host:
        """A member is stopped; its processes, if they live, are for the next one."""
        one = self.by_member.pop(name)
        if not one.gone:
            for device, child in zip(devices_of(one.job), one.children, strict=True):
                child.send(("leave",))
                self._spare.setdefault(self._place.seat(device), []).append(child)
        return one

    def collect(self, look: Callable[[], None] = lambda: None) -> dict[str, tuple[Any, ...]]:
        """Wait for all who were asked.

        Args:
            look: called four times a second.

        Returns:
            Member → its answer, "failed" and "died" among them, also of those who had died before they were asked.

        Raises:
            DataError: a sample cannot be prepared.
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
        """Members that are busy, and do not wait for samples → how long all of their workers have been silent.

        A worker that waits for another one is silent too, and not for that one's fault.
        """
        return {
            name: min((one.children[rank].silence for rank in one.asked), key=lambda silence: silence.for_s)
            for name, one in self.by_member.items()
            if one.asked and not any(self._feed.waits(reader_of(name, rank)) for rank in one.asked)
        }

    def tell(self, reader: str, message: Any) -> None:
        """Answer a reader."""
        one = self.by_member.get(member_of(reader))
        if one is not None:
            one.children[int(reader.partition(_BETWEEN)[2] or 0)].send(message)

    @property
    def processes(self) -> dict[str, tuple[int, ...]]:
        """Member → the numbers of its processes."""
        return {name: tuple(child.pid for child in one.children) for name, one in self.by_member.items()}

    def close(self) -> None:
        """End all."""
        children = [child for spare in self._spare.values() for child in spare]
        for one in self.by_member.values():
            if one.used > 1:  # they may be waiting for each other, and would not hear that they are to end
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
                    spare.remove(child)
            return
        name, rank = place
        if rank not in self.by_member[name].lost:  # else its end says nothing; whom it missed will be heard of
            self._end(name, ("died", str(child.ending)))

    def _lost(self, name: str, rank: int, text: str) -> None:
        one = self.by_member[name]
        one.lost[rank] = text
        if len(one.lost) == one.used:  # nobody failed: they lost each other
            self._end(name, ("died", f"its workers lost each other: {text}"))

    def _answered(self, name: str, rank: int, message: tuple[Any, ...]) -> None:
        one = self.by_member[name]
        one.asked.discard(rank)
        if message[0] == "loaded":
            one.used = message[1]
        elif message[0] == "epoch":
            self._feed.leave(reader_of(name, rank))  # the ring holds nothing back for it any more
        if rank == 0:
            one.answer = message

    def _end_hanging(self) -> None:
        for name, silence in self.quiet.items():
            if silence.for_s > self._timeout_s:
                one = self.by_member[name]
                longest = max((one.children[rank] for rank in one.asked), key=lambda child: child.quiet_s)
                self._end(name, ("failed", hangs(self._timeout_s, longest.at)))

    def _end(self, name: str, answer: tuple[Any, ...]) -> None:
        """One of a member's workers has failed or died; those who wait for it would wait long."""
        one = self.by_member[name]
        if one.gone:
            return
        for rank, child in enumerate(one.children):
            child.kill()
            self._feed.leave(reader_of(name, rank))
        one.answer, one.asked = answer, set()
