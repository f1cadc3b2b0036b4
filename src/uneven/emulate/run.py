"""Runs a script on an emulated cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from signal import Signals

from uneven.cluster.spec import ClusterSpec, Do, Event
from uneven.core.records import EventRecord, StepRecord
from uneven.core.text import printable
from uneven.emulate import checks, probe, state
from uneven.emulate.isolated import Isolated
from uneven.emulate.machines import Machines
from uneven.emulate.replay import Happening, Replay, Setting, in_words
from uneven.emulate.throttled import Throttled
from uneven.emulate.workers import Program, Workers
from uneven.errors import LaunchError
from uneven.jobs import Events, Stop
from uneven.jobs.processes import usable_cores
from uneven.journal import Follower, Writer, rank_path
from uneven.rundir import is_ready

READY_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.02
_READ_EVERY_S = 0.1


def emulate(
    spec: ClusterSpec,
    program: Program,
    *,
    run_directory: Path,
    unprivileged: bool = False,
    ready_within_s: float = READY_WITHIN_S,
) -> None:
    """Run ``program`` on every node of ``spec`` until it ends. Call it in the main thread.

    Args:
        run_directory: told to the workers, for settings and journal; it must exist.
        unprivileged: use only what an ordinary user can, also as root.
        ready_within_s: the description holds from when every worker's training has started, and after this time
            in any case.

    Raises:
        ConfigError: something in ``spec`` cannot be emulated here; nothing has been started.
        LaunchError: a worker died, naming it; or the run was interrupted; or the machine refuses. Everything has
            ended and been removed by then.
    """
    run_directory = run_directory.absolute()  # a worker may change its working directory
    isolated = check(spec, unprivileged=unprivileged)
    for note in checks.notes(spec, usable_cores()):
        say(note)
    with ExitStack() as stack:
        events = stack.enter_context(Events())
        stop = stack.enter_context(Stop(lambda number: events.wake()))
        machines = _machines(spec, isolated)
        stack.callback(machines.close)
        say(f"{spec.name}: {len(spec.nodes)} nodes, by {machines.how}")
        workers = Workers(spec, program, machines, run_directory, events)
        stack.callback(workers.forget_errors)
        stack.callback(workers.end, lambda: stop.requests > 1)
        emulation = Emulation(spec, machines, workers, run_directory, events)
        emulation.run(stop, ready_within_s)


def check(spec: ClusterSpec, *, unprivileged: bool = False) -> str:
    """See that this machine can emulate ``spec``.

    Returns:
        Why the nodes are not isolated from each other; "" if they are.

    Raises:
        ConfigError: it cannot, naming nodes and keys.
    """
    isolated = "only the means of an ordinary user were asked for" if unprivileged else probe.why_not_isolated()
    checks.check(spec, probe.able(isolated=isolated))
    return isolated


def _machines(spec: ClusterSpec, isolated: str) -> Machines:
    if isolated:
        return Throttled()
    for removed in state.clean():
        say(f"removed what was left of {removed}")
    return Isolated(spec, probe.trees(), netem=not probe.why_no_netem())


class Emulation:
    """Carries a description out while the workers train."""

    def __init__(
        self, spec: ClusterSpec, machines: Machines, workers: Workers, run_directory: Path, events: Events
    ) -> None:
        self._spec = spec
        self._machines = machines
        self._workers = workers
        self._events = events
        self._run_directory = run_directory
        self._replay = Replay(spec)
        self._places = {node.name: rank for rank, node in enumerate(spec.nodes)}
        self._follower = Follower(run_directory)
        self._finished = dict.fromkeys(self._places, 0)
        self._read_at_s = 0.0
        self._begun: set[int] = set()
        self._through: set[int] = set()

    def run(self, stop: Stop, ready_within_s: float) -> None:
        """Stay until every worker has ended.

        Raises:
            LaunchError: a worker died, or a request to stop came.
        """
        ready = self._wait(stop, lambda: self._all_ready, ready_within_s)
        if self._workers.all_ended:
            return
        if not ready:
            self._say_late(ready_within_s)
        zero_s = time.monotonic()
        while not self._workers.all_ended:
            now_s = time.monotonic() - zero_s
            self._read_journal(now_s)
            self._carry_out(now_s)
            until_s = min(self._replay.next_s(now_s) - (time.monotonic() - zero_s), _READ_EVERY_S)
            self._wait(stop, lambda: False, until_s)
            self._let_go()
        for event in self._replay.pending():
            say(f"the run has ended before this could happen: {in_words(event)}")

    @property
    def _all_ready(self) -> bool:
        return all(is_ready(self._run_directory, rank) for rank in range(len(self._spec.nodes)))

    def _say_late(self, ready_within_s: float) -> None:
        late = [node.name for rank, node in enumerate(self._spec.nodes) if not is_ready(self._run_directory, rank)]
        say(
            f"{', '.join(late)} did not start training within {ready_within_s:g} s (a loader of an uneven.Session says "
            f"so when it is first used): the description holds from now on"
        )

    def _wait(self, stop: Stop, done: Callable[[], bool], limit_s: float) -> bool:
        """Look after the workers until something is done, all have ended, or the time is over."""
        end_s = time.monotonic() + limit_s
        while True:
            if stop.requests:
                self._workers.end(lambda: stop.requests > 1)
                name = Signals(stop.number).name
                raise LaunchError(f"stopped by {name}; all workers have ended", 128 + stop.number)
            if why := self._machines.broken():
                self._workers.end(lambda: stop.requests > 0)
                raise LaunchError(why)
            if self._workers.failed:
                self._workers.end(lambda: stop.requests > 0)
                raise self._workers.failure()
            if done():
                return True
            left_s = end_s - time.monotonic()
            if left_s <= 0 or self._workers.all_ended:
                return False
            self._events.wait(min(left_s, _LOOK_EVERY_S))

    def _carry_out(self, now_s: float) -> None:
        for change in self._replay.advance(now_s, self._finished):
            match change:
                case Happening(event):
                    self._happen(event, now_s)
                case Setting(of=(here, there)):
                    self._machines.apply_between((here, there), change)
                case Setting(of=str(name)):
                    rank = self._places[name]
                    if rank not in self._through and self._workers.running(rank):
                        self._machines.apply(rank, change)

    def _happen(self, event: Event, now_s: float) -> None:
        rank = self._places.get(event.node, 0)
        words = in_words(event)
        say(f"{now_s:.1f} s: {words}")
        self._record(rank, event.do.value, words)
        if event.do is Do.KILL:
            when = f"at {event.at_s:g} s" if event.at_s is not None else f"in iteration {event.at_iteration}"
            self._workers.kill(rank, f"cluster {self._spec.name!r} says so, {when}")

    def _record(self, rank: int, event: str, message: str) -> None:
        """Write into the worker's own journal, if it keeps one; records are single lines at the end of the file."""
        path = rank_path(self._run_directory, rank)
        if not path.is_file():
            return
        done = self._finished[self._spec.nodes[rank].name]
        with Writer(path) as writer:
            writer.write(EventRecord(rank=rank, iteration=done, at_s=time.time(), event=event, message=message))

    def _read_journal(self, now_s: float) -> None:
        if not self._replay.awaits_iterations or now_s < self._read_at_s:
            return
        self._read_at_s = now_s + _READ_EVERY_S
        for rank, record in self._follower.poll_ranks():
            if isinstance(record, StepRecord):
                self._finished[self._spec.nodes[rank].name] = record.iteration + 1

    def _let_go(self) -> None:
        """A worker that says it is through may use what it can get, see ``rundir.mark_through``."""
        for rank in range(len(self._spec.nodes)):
            if is_ready(self._run_directory, rank):
                self._begun.add(rank)
            elif rank in self._begun - self._through:
                self._through.add(rank)
                self._machines.lift(rank)


def say(text: str) -> None:
    """A line for the user, on standard error as all of uneven's own."""
    print(f"uneven: {printable(text)}", file=sys.stderr)
