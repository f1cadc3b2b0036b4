"""The run of a script on an emulated cluster."""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from uneven.cluster.emulate import capabilities, emulation_state
from uneven.cluster.emulate.emulated_workers import EmulatedWorkers
from uneven.cluster.emulate.isolated import Isolated, Machines
from uneven.cluster.emulate.pure import requirements
from uneven.cluster.emulate.pure.replay import ON_LINKS, Happening, Replay, Setting, in_words
from uneven.cluster.emulate.throttled import Throttled
from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Event
from uneven.errors import LaunchError
from uneven.journal import Follower, Writer, rank_path
from uneven.policy.core.printable import printable
from uneven.policy.core.records import EventRecord, StepRecord
from uneven.runtime.jobs import Events, Stop
from uneven.runtime.jobs.processes import usable_cores
from uneven.runtime.launch import Launch
from uneven.runtime.launch.failure import stopped_by
from uneven.runtime.launch.local_workers import LocalWorker
from uneven.runtime.rundir import is_ready
from uneven.runtime.system import not_on_windows

_log = logging.getLogger(__name__)

READY_WITHIN_S = 60.0
_ELASTIC = "workers come and go in an elastic run: add --elastic MIN:MAX"
_LOOK_EVERY_S = 0.02
_READ_EVERY_S = 0.1


def emulate(
    spec: ClusterSpec,
    launch: Launch,
    *,
    run_directory: Path,
    unprivileged: bool = False,
    ready_within_s: float = READY_WITHIN_S,
    served: bool = False,
) -> None:
    """Run the script of ``launch`` on every node of ``spec`` until it ends. Call it in the main thread.

    Args:
        launch: what to start; with ``elastic``, workers leave, join and die as in the description, and the others
            continue.
        run_directory: for settings and journal of the workers; it must exist.
        unprivileged: use only the means of an ordinary user, also as root.
        ready_within_s: the description applies when every worker's training has started, or after this time.
        served: whether the workers of an elastic run need a parameter server. It is on the link of the first node.

    Raises:
        ConfigError: something in ``spec`` cannot be emulated here; nothing has been started.
        LaunchError: a worker died, the run was interrupted, or the machine fails. Everything has ended and is removed.
    """
    run_directory = run_directory.absolute()  # because a worker may change its working directory
    isolated = check(spec, unprivileged=unprivileged, elastic=launch.elastic is not None)
    for note in requirements.notes(spec, usable_cores()):
        say(note)
    with ExitStack() as stack:
        events = stack.enter_context(Events())
        stop = stack.enter_context(Stop(lambda number: events.wake()))
        machines = _machines(spec, isolated)
        stack.callback(machines.close)
        say(f"{spec.name}: {len(spec.nodes)} nodes, by {machines.how}")
        if served:
            from uneven.runtime.messages.keys import SERVER
            from uneven.runtime.parameter_server import ShardHost, make_keys

            make_keys(run_directory / SERVER)
            many = len(spec.initial_members)
            stack.enter_context(
                machines.meet(
                    lambda host, port: ShardHost(run_directory / SERVER, 0, many, bind=f"tcp://{host}", growing=True)
                )
            )
        workers = EmulatedWorkers(spec, launch, machines, run_directory, events)
        stack.callback(workers.forget_errors)
        stack.callback(workers.end_all, lambda: stop.requests > 1)
        emulation = Emulation(spec, machines, workers, run_directory, events)
        emulation.run(stop, ready_within_s)


def check(spec: ClusterSpec, *, unprivileged: bool = False, elastic: bool = False) -> str:
    """Return why the nodes cannot be isolated from each other here; "" if they can. Raises ConfigError, with nodes and
    keys, if this machine cannot emulate ``spec``."""
    not_on_windows("emulated clusters")
    isolated = "emulation without root was requested" if unprivileged else capabilities.why_not_isolated()
    requirements.check(spec, replace(capabilities.able(isolated=isolated), changes="" if elastic else _ELASTIC))
    return isolated


def _machines(spec: ClusterSpec, isolated: str) -> Machines:
    if isolated:
        return Throttled()
    for removed in emulation_state.clean():
        say(f"removed the leftovers of {removed}")
    return Isolated(spec, capabilities.trees(), netem=not capabilities.why_no_netem())


class Emulation:
    """The control loop of an emulation while the workers train."""

    def __init__(
        self, spec: ClusterSpec, machines: Machines, workers: EmulatedWorkers, run_directory: Path, events: Events
    ) -> None:
        self._spec = spec
        self._machines = machines
        self._workers = workers
        self._events = events
        self._run_directory = run_directory
        self._replay = Replay(spec)
        self._places = {node.name: place for place, node in enumerate(spec.nodes)}
        self._follower = Follower(run_directory)
        self._finished = dict.fromkeys(self._places, 0)
        self._read_at_s = 0.0
        self._to_come: list[int] = []  # nodes that wait for the end of their former worker
        self._coming: set[LocalWorker] = set()  # workers without limits so far

    def run(self, stop: Stop, ready_within_s: float) -> None:
        """Supervise until every worker has ended. Raises LaunchError after a stop or the death of an indispensable
        worker."""
        ready = self._wait(stop, lambda: self._all_ready, ready_within_s)
        if not self._workers.running:
            return
        if not ready:
            self._say_late(ready_within_s)
        zero_s = time.monotonic()
        while self._workers.running:
            now_s = time.monotonic() - zero_s
            self._read_journal(now_s)
            self._let_in()
            self._carry_out(now_s)
            until_s = min(self._replay.next_s(now_s) - (time.monotonic() - zero_s), _READ_EVERY_S)
            self._wait(stop, lambda: False, until_s)
        for event in self._replay.pending():
            say(f"the run has ended before this could happen: {in_words(event)}")
        if lost := len(self._workers.lost):
            say(f"the run has finished; {lost} of its workers {'was' if lost == 1 else 'were'} lost")

    @property
    def _all_ready(self) -> bool:
        return all(is_ready(self._run_directory, worker.rank) for worker in self._workers.founders)

    def _say_late(self, ready_within_s: float) -> None:
        late = [
            self._spec.nodes[worker.place].name
            for worker in self._workers.founders
            if not is_ready(self._run_directory, worker.rank)
        ]
        say(
            f"{', '.join(late)} did not start training within {ready_within_s:g} s (the loader of an uneven.Session "
            "reports it): the description applies from now on"
        )

    def _wait(self, stop: Stop, done: Callable[[], bool], limit_s: float) -> bool:
        """Supervise the workers until ``done``, all have ended, or the time limit is reached."""
        end_s = time.monotonic() + limit_s
        while True:
            if stop.requests:
                self._workers.end_all(lambda: stop.requests > 1)
                raise stopped_by(stop.number)
            if why := self._machines.broken():
                self._workers.end_all(lambda: stop.requests > 0)
                raise LaunchError(why)
            if self._workers.failed:
                self._workers.end_all(lambda: stop.requests > 0)
                raise self._workers.failure()
            if done():
                return True
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not self._workers.running:
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
                    worker = self._workers.on(self._places[name])
                    on_link = change.quantity in ON_LINKS
                    if worker is not None and (on_link or worker not in self._coming):
                        self._machines.apply(worker.place, change)

    def _happen(self, event: Event, now_s: float) -> None:
        node = self._places.get(event.node, 0)
        words = in_words(event)
        say(f"{now_s:.1f} s: {words}")
        if event.do is Do.JOIN:
            self._to_come.append(node)
            self._let_in()
            return
        self._record(node, event.do.value, words)
        if event.do is Do.KILL:
            when = f"at {event.at_s:g} s" if event.at_s is not None else f"in iteration {event.at_iteration}"
            self._workers.kill_on(node, f"cluster {self._spec.name!r}: event {when}")
        elif event.do is Do.LEAVE:
            self._workers.leave(node)

    def _let_in(self) -> None:
        """Start pending workers, and apply the description to those whose training has started."""
        for node in [one for one in self._to_come if self._workers.on(one) is None]:
            self._to_come.remove(node)
            worker = self._workers.join(node)
            self._coming.add(worker)
            for setting in self._replay.now(self._spec.nodes[node].name):
                if setting.quantity in ON_LINKS:
                    self._machines.apply(node, setting)
        for worker in [one for one in self._coming if is_ready(self._run_directory, one.rank)]:
            self._coming.remove(worker)
            for setting in self._replay.now(self._spec.nodes[worker.place].name):
                self._machines.apply(worker.place, setting)

    def _record(self, node: int, event: str, message: str) -> None:
        worker = self._workers.on(node)
        # Appending to the worker's own journal is safe: records are single lines at the end of the file.
        path = None if worker is None else rank_path(self._run_directory, worker.rank)
        if worker is None or path is None or not path.is_file():
            return
        done = self._finished[self._spec.nodes[node].name]
        with Writer(path) as writer:
            writer.write(EventRecord(rank=worker.rank, iteration=done, at_s=time.time(), event=event, message=message))

    def _read_journal(self, now_s: float) -> None:
        if not self._replay.pending() or now_s < self._read_at_s:
            return
        self._read_at_s = now_s + _READ_EVERY_S
        for number, record in self._follower.poll_ranks():
            if isinstance(record, StepRecord):
                self._finished[self._spec.nodes[self._workers[number].place].name] = record.iteration + 1


def say(text: str) -> None:
    _log.info(printable(text))
