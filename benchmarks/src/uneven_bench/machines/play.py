"""Playing one case of ``uneven bench machines``: hosts on a network, their launchers, and the faults."""

import fcntl
import json
import os
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from uneven_bench.elastic.machines import Machines
from uneven_bench.forked.scripts import Script
from uneven_bench.harness.faulty import PlayedCase
from uneven_bench.harness.marked import marked_script, named, running, sweep
from uneven_bench.machines.cases import BLIP_S, CLOCK_S, HOSTS, LOSS, STALL_S, STORE, MachinesCase, Strike, expected
from uneven_bench.machines.clock import shift
from uneven_bench.machines.judge import HostEnd, judge

_IMPORTED = (
    "uneven.cli.store",
    "uneven.runtime.launch.elastic_workers",
    "uneven_bench.elastic.inside",
    "uneven_bench.machines.script",
)
_STARTS_WITHIN_S, _GONE_WITHIN_S = 90.0, 5.0
_PORT = 29500
_PIPE_BYTES = 4096
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStrikes(PlayedCase):
    """A case, played. ``struck``: all faults came before the end of the training; ``took_s``: from the last fault to
    the last end."""

    lost: int  # see :class:`uneven_bench.machines.judge.HostsVerdict`
    twice: int


@dataclass(slots=True, kw_only=True)
class _Host:
    folder: Path
    script: Script
    pipe: int | None = None  # descriptor of the pipe that stands for its journal
    ended_s: float | None = None
    left: list[str] = field(default_factory=list)


def play(case: MachinesCase, folder: Path) -> Generator[None, None, PlayedStrikes]:
    """Play a case in this empty folder, as a generator: others may be played between two yields."""
    with ExitStack() as stack:
        game = _Game(case, folder, stack)
        yield from game.begin()
        yield from game.strike()
        yield from game.end()
        ends = game.ends()
        return PlayedStrikes(
            case=case,
            struck=len(game.case.strikes) == len(case.strikes),
            took_s=max(end.took_s for end in ends.values()),
            said="\n".join(f"--- host {host} ---\n{end.said}" for host, end in ends.items()),
            **asdict(judge(game.case, ends)),
        )


class _Game:
    """The hosts of a case; the stack ends all that it starts. ``case`` has the strikes that have happened, once
    :meth:`strike` is over."""

    def __init__(self, case: MachinesCase, folder: Path, stack: ExitStack) -> None:
        self.case = case
        self._folder = folder
        self._notes = folder / "notes"
        self._notes.mkdir()
        self._stack = stack
        self._machines = Machines(HOSTS + 1, relayed=True)
        stack.callback(self._machines.close)
        self._hosts: dict[int, _Host] = {}
        self._struck_s = 0.0
        self._mend_s: dict[int, float] = {}  # host → when its link is back
        self._stalled_s: dict[int, float] = {}  # host → when its packets arrive
        self._full: list[int] = []  # hosts whose disk is full

    def begin(self) -> Generator[None]:
        """Start the launchers; the store of an elastic run is there first."""
        until_s = time.monotonic() + _STARTS_WITHIN_S
        if self.case.elastic:
            self._start(STORE)
            while "--join" not in self._hosts[STORE].script.printed() and time.monotonic() < until_s:
                yield
        for host in range(HOSTS):
            self._start(host)

    def strike(self) -> Generator[None]:
        """Wait for the step of each fault, and let it happen."""
        self._struck_s = time.monotonic()
        until_s = self._struck_s + _STARTS_WITHIN_S
        coming, happened = list(self.case.strikes), []
        while any(self._runs(one.host % HOSTS) for one in coming) and time.monotonic() < until_s:
            for one in list(coming):
                if len(list(self._taken(one.host % HOSTS))) >= one.step:
                    (self._notes / f"strikes-{one.host % HOSTS}").touch()
                    self._happen(one)
                    coming.remove(one)
                    happened.append(one)
                    self._struck_s = time.monotonic()
            self._tick()
            yield
        self.case = replace(self.case, strikes=tuple(happened))

    def end(self) -> Generator[None]:
        """Wait for the ends of the launchers, and end all that is left."""
        want = expected(self.case)
        waiting = set(self._hosts)
        while waiting - set(want.waits) and time.monotonic() < self._struck_s + want.within_s:
            self._tick()
            for host in [one for one in waiting if not self._runs(one)]:
                self._hosts[host].ended_s = time.monotonic()
                waiting.remove(host)
            yield
        until_s = time.monotonic() + _GONE_WITHIN_S
        for ended in [self._hosts[number] for number in self._hosts if number not in waiting]:
            while list(running(ended.folder)) and time.monotonic() < until_s:
                yield
            ended.left += map(named, running(ended.folder))
            ended.left += [f"a file: {one.name}" for one in (ended.folder / "disk" / "tmp").iterdir()]

    def ends(self) -> dict[int, HostEnd]:
        """Return the end of each host."""
        found = {}
        for number, host in self._hosts.items():
            here, used = self._note(f"here-{number}"), self._note(f"used-{number}")
            code = host.script.poll()
            found[number] = HostEnd(
                code=None if host.ended_s is None else code,
                said=host.script.printed(),
                took_s=(host.ended_s or time.monotonic()) - self._struck_s,
                done=(self._notes / f"done-{number}").exists(),
                worker=here[0] if here else None,
                taken=tuple((epoch, index) for epoch, batch in self._taken(number) for index in batch),
                used=None if used is None else frozenset(map(tuple, used)),
                left=tuple(host.left),
            )
        return found

    def _start(self, number: int) -> None:
        case, folder = self.case, self._folder / f"host{number}"
        disk, clock = folder / "disk", folder / "clock"
        for one in (disk / "tmp", disk / "run"):
            one.mkdir(parents=True)
        clock.write_bytes(bytes(8))
        kind = next((one.kind for one in case.strikes if one.host == number), "")
        pipe = self._pipe(folder / "journal") if kind == "hang-journal" else None
        if kind == "hang-save":
            os.mkfifo(disk / "state")
        told = {
            "host": number,
            "hosts": list(case.workers),
            "notes": str(self._notes),
            # To write a file again, room is freed first, which would be enough.
            "save": {"hang-save": str(disk / "state"), "full-save": str(disk / "state-{}")}.get(kind, ""),
            "journal": str((folder if pipe else disk) / "journal") if kind.endswith("journal") else "",
            "step": next((one.step for one in case.strikes if one.host % HOSTS == number), 0),
        }
        small = disk if kind.startswith("full") else ""
        words: list[object] = [*self._machines.words(number), "uneven_bench.machines.inside", small, clock]
        words += ["uneven_bench.forked.run", *self._launcher(number)]
        if number in case.workers:
            # Through a parameter server, all machines need the folder with its keys.
            run = self._folder / "run" if case.served and not case.elastic else disk / "run"
            words += ["--nproc", 1, "--run-dir", run, "--sync", case.sync, "--timeout", case.timeout_s]
            words += ["-m", "uneven_bench.machines.script", json.dumps(told)]
        script = marked_script(words, folder, disk / "tmp", *_IMPORTED)
        self._stack.enter_context(script)
        self._stack.callback(sweep, folder)
        self._hosts[number] = _Host(folder=folder, script=script, pipe=pipe)

    def _launcher(self, number: int) -> list[object]:
        case, address = self.case, self._machines.address
        if not case.elastic:
            return ["run", "--nnodes", HOSTS, "--node-rank", number, "--master-addr", address(0)]
        if number < HOSTS:
            return ["run", "--join", f"{address(STORE)}:{_PORT}"]
        elastic: list[object] = ["--elastic", f"{case.least}:{len(case.workers)}", "--silence", case.silence_s]
        if case.served:
            return ["run", *elastic, "--servers", 1, "--rdzv-endpoint", f"{address(STORE)}:{_PORT}"]
        return ["store", *elastic, "--host", address(STORE), "--port", _PORT]

    def _pipe(self, path: Path) -> int:
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._stack.callback(os.close, pipe)
        fcntl.fcntl(pipe, _SET_PIPE_SIZE, _PIPE_BYTES)
        return pipe

    def _happen(self, strike: Strike) -> None:
        number, host, now_s = strike.host, self._hosts[strike.host], time.monotonic()
        match strike.kind:
            case "kill":
                with suppress(ProcessLookupError):
                    os.kill(self._note(f"here-{number}")[1], signal.SIGKILL)
            case "die":
                self._machines.cut(number)  # first, so that no connection is closed
                sweep(host.folder)
            case "cut" | "blip":
                self._machines.cut(number)
                limit_s = self.case.silence_s if self.case.elastic else self.case.timeout_s
                self._mend_s[number] = now_s + (BLIP_S if strike.kind == "blip" else limit_s + 4.0)
            case "loss":
                self._machines.delay(number, 0.0, LOSS)
            case "stall":
                self._stalled_s[number] = now_s + STALL_S
            case "full-journal" | "full-save":
                self._full.append(number)
            case "hang-journal":
                assert host.pipe is not None
                pipe, host.pipe = host.pipe, None
                with suppress(BlockingIOError):
                    while True:
                        os.write(pipe, bytes(_PIPE_BYTES))
            case "clock-ahead" | "clock-back":
                shift(host.folder / "clock", CLOCK_S if strike.kind == "clock-ahead" else -CLOCK_S)

    def _tick(self) -> None:
        now_s = time.monotonic()
        for number in [one for one, until_s in self._mend_s.items() if now_s >= until_s]:
            self._machines.mend(number)
            del self._mend_s[number]
        for number, until_s in list(self._stalled_s.items()):
            self._machines.delay(number, max(0.0, until_s - now_s))  # all that is sent until then arrives then
            if now_s >= until_s:
                del self._stalled_s[number]
        for number in self._full:  # again and again, as files are removed
            disk = f"/proc/{self._note(f'here-{number}')[1]}/root{self._hosts[number].folder}/disk/rest"
            with suppress(OSError), open(disk, "ab", 0) as rest:
                while rest.write(bytes(4096)):
                    pass
        for host in self._hosts.values():
            if host.pipe is not None:
                with suppress(BlockingIOError):
                    os.read(host.pipe, 2**20)

    def _runs(self, number: int) -> bool:
        return self._hosts[number].script.poll() is None

    def _taken(self, number: int) -> Iterator[Any]:
        with suppress(FileNotFoundError):
            for line in (self._notes / f"taken-{number}.jsonl").read_text().splitlines():
                with suppress(json.JSONDecodeError):  # the end of a line that is being written
                    yield json.loads(line)

    def _note(self, name: str) -> Any:
        with suppress(FileNotFoundError):
            return json.loads((self._notes / name).read_text())
        return None
