"""A player that runs a case on one arm: starts it, applies faults, adds newcomers, ends it, and keeps the logs."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from uneven.errors import LaunchError
from uneven_bench.elastic.arms import ElasticArm, TorchrunArm
from uneven_bench.elastic.cases import SETTLED, PlannedFault
from uneven_bench.elastic.logs import WorkerLog
from uneven_bench.elastic.orders import Logs, Orders, Tail, exists
from uneven_bench.elastic.trace import SpotTrace
from uneven_bench.forked.scripts import Script
from uneven_bench.harness.marked import running, sweep
from uneven_bench.harness.show import Told

_LOOK_EVERY_S = 0.01
_STARTS_WITHIN_S = 90.0
_GOES_ON_WITHIN_S = 60.0
_WAKES_WITHIN_S = 20.0
_ENDS_WITHIN_S = 60.0
_GONE_WITHIN_S = 5.0
_AHEAD = 8  # steps until a worker strikes itself, so that it reads the order in time
_COMES_WITHIN_S = 0.8  # the usual seconds from a newcomer's start to its first step
_AFTERWARDS = 3  # steps after a fault that count as its consequences, in addition to those until the next exchange
_SAID = 6000  # characters of output that are kept of a run that does not end


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEvent:
    """A fault or another event of a run. ``kind, moment``: as in :class:`uneven_bench.elastic.cases.PlannedFault`."""

    kind: str
    moment: str
    at_s: float  # when it happened
    until_s: float  # when its consequences were over
    victims: tuple[int, ...] = ()  # the processes that it hit
    inside: bool | None = None  # True if a victim was in an exchange; None if unknown
    went_on: bool = True  # True if a survivor took a step afterwards
    out_s: float | None = None  # seconds from SIGTERM to the end of the process
    ended: int = 0  # survivors whose processes ended because of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The result of a run."""

    logs: tuple[WorkerLog, ...]
    events: tuple[FaultEvent, ...] = ()
    woke: dict[str, int]  # workers that joined again, ended or hung after a stop or a cut
    left: int  # processes that remained after the end of the run
    over: bool  # True if it came to its end
    said: str = ""  # the end of the output of launchers and workers, if it did not


class Player:
    """One run on one arm. ``until``: see :class:`uneven_bench.elastic.orders.Orders`; ``steps_apart``: from one
    exchange to the next; ``together``: True if all workers take the same steps."""

    def __init__(self, arm: ElasticArm, steps_apart: int = 1, *, together: bool = True, **orders: int) -> None:
        self.arm = arm
        self._together = together
        self._steps_apart = steps_apart
        self.orders = Orders(arm.folder, **orders)
        self.logs = Logs(arm.folder)
        self.events: list[FaultEvent] = []
        self.woke = {"joined again": 0, "ended": 0, "hung": 0}

    def start(self, workers: int, ready: int = 1) -> None:
        """Start workers, and wait until all have taken ``ready`` steps. Raises LaunchError: they have not, in a minute
        and a half."""
        self.arm.start(workers)
        self._await_workers(workers, ready)

    def _await_workers(self, workers: int, ready: int) -> None:
        def up() -> bool:
            return sum(tail.reached >= ready for tail in self.logs.alive()) >= workers

        if not self.wait(up, _STARTS_WITHIN_S):
            said = self.arm.said()[-3000:]
            raise LaunchError(f"{workers} workers have not trained within {_STARTS_WITHIN_S:g} s:\n{said}")

    def wait(self, holds: Callable[[], bool], within_s: float) -> bool:
        """Look at the logs until ``holds()``; False after ``within_s``."""
        until_s = time.monotonic() + within_s
        while True:
            self.logs.look()
            if holds():
                return True
            if time.monotonic() > until_s:
                return False
            time.sleep(_LOOK_EVERY_S)

    def suffer(self, fault: PlannedFault, dice: Random, settled: int = SETTLED) -> bool:
        """Apply a fault and replace the lost workers; False if no worker continued. ``settled``: steps to wait for
        before it."""
        settled += self.logs.reached + 2
        if not self.wait(lambda: self.logs.reached >= settled, _GOES_ON_WITHIN_S):
            return False
        there = self.logs.alive()
        # The meeting point is on the first machine, so its line stays up.
        able = [tail for tail in there if fault.kind != "cut" or self._place(tail) > 0]
        chosen = dice.sample(able, min(fault.victims, len(there) - 1))
        victims = tuple(tail.log.pid for tail in chosen if tail.log)
        others = [tail for tail in there if tail not in chosen]
        if fault.moment == "join":
            at_s, inside, victims = self._strike_while_one_joins(fault, victims[0], dice)
        else:
            at_s, inside = self._strike(fault, victims, chosen)
        goal = self.logs.reached + _AFTERWARDS + self._steps_apart
        pids = {tail.log.pid for tail in there if tail.log} - set(victims)

        def went_on() -> bool:
            return any(tail.reached >= goal for tail in self.logs.alive() if tail.log and tail.log.pid not in victims)

        out_s: float | None = None

        def over() -> bool:
            nonlocal out_s
            if fault.kind == "leave" and out_s is None and not any(exists(pid) for pid in victims):
                out_s = time.monotonic() - at_s
            return went_on() or not self.arm.running

        self.wait(over, _GOES_ON_WITHIN_S)
        if fault.kind == "leave" and out_s is None:
            out_s = self._gone_s(victims, at_s)
        ended = sum(not exists(pid) for pid in pids)
        self.events.append(
            FaultEvent(kind=fault.kind, moment=fault.moment, at_s=at_s, until_s=time.monotonic(), victims=victims,
                       inside=inside, went_on=went_on(), out_s=out_s, ended=ended)
        )  # fmt: skip
        if not went_on():
            return False
        if fault.kind in ("stop", "cut"):
            self._wake(victims, chosen)
        elif fault.kind == "kill":
            # On a busy machine the signal takes effect late. A victim that still counts as alive is not replaced, and
            # after several of them the run has fewer workers than it needs.
            self.wait(lambda: not any(exists(pid) for pid in victims), _GONE_WITHIN_S)
        self._await_newcomers(len(there) if self.arm.restarts and fault.kind != "leave" else 0)
        for _ in range(len(there) - len(self._training())):
            if not self.join():
                return False
        return bool(others)

    def _await_newcomers(self, workers: int) -> None:
        """Wait until all present workers train, ``workers`` at least."""

        def settled() -> bool:
            return len(self._training()) >= workers and all(tail.reached >= 0 for tail in self.logs.alive())

        self.wait(settled, _STARTS_WITHIN_S)

    def _training(self) -> list[Tail]:
        """Return the workers that take part."""
        if not self._together:
            return [tail for tail in self.logs.alive() if tail.reached >= 0]
        # Between two exchanges a worker may be behind by the steps of a whole period.
        return [tail for tail in self.logs.alive() if tail.reached >= self.logs.reached - 1 - self._steps_apart]

    def _strike(self, fault: PlannedFault, victims: tuple[int, ...], chosen: list[Tail]) -> tuple[float, bool | None]:
        # Only the worker knows when its exchange begins, so it strikes itself, in a step far enough ahead for all to
        # see it.
        if fault.moment != "any":
            self.orders.strike(victims, self.logs.reached + _AHEAD, fault.kind, fault.moment, fault.fraction)
            self.wait(lambda: all(tail.log and tail.log.struck_s for tail in chosen), _GOES_ON_WITHIN_S)
            struck = [tail.log for tail in chosen if tail.log and tail.log.struck_s is not None]
            if not struck:
                raise LaunchError(f"{fault.words}: no worker has had it within {_GOES_ON_WITHIN_S:g} s")
            return min(log.struck_s for log in struck if log.struck_s), any(log.inside for log in struck)
        if fault.kind == "cut":
            assert self.arm.machines is not None
            at_s = time.monotonic()
            for tail in chosen:
                self.arm.machines.cut(self._place(tail))
            return at_s, None
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM}[fault.kind]
        # Wait for a step to begin, then for a part of its length: the moment is a fraction of a step.
        times_s = [tail.at_s for tail in chosen]
        reached = self.logs.reached
        self.wait(lambda: self.logs.reached > reached, _GOES_ON_WITHIN_S)
        time.sleep(fault.fraction * max(0.0, max(tail.at_s for tail in chosen) - max(times_s)))
        at_s = time.monotonic()
        for place, pid in enumerate(victims):
            if place:
                time.sleep(fault.later_s)
            with suppress(ProcessLookupError):
                os.kill(self._told_to_leave(pid) if fault.kind == "leave" else pid, number)
        self.logs.look()
        return at_s, None

    def _strike_while_one_joins(
        self, fault: PlannedFault, first: int, dice: Random
    ) -> tuple[float, bool | None, tuple[int, ...]]:
        """Kill one worker, start a newcomer, and kill any present worker while the join may be under way."""
        at_s = time.monotonic()
        os.kill(first, signal.SIGKILL)
        joining = None if self.arm.restarts else self.arm.join()
        time.sleep(fault.fraction * _COMES_WITHIN_S)
        self.logs.look()
        there = [tail.log.pid for tail in self.logs.alive() if tail.log and tail.log.pid != first]
        second = dice.choice(there)
        os.kill(second, signal.SIGKILL)
        if joining is not None:
            self.wait(lambda: bool(self.logs.of([joining.pid])) or joining.poll() is not None, _STARTS_WITHIN_S)
        return at_s, None, (first, second)

    def _told_to_leave(self, pid: int) -> int:
        """Return the process that gets SIGTERM: torchrun's agent forwards it, the others' workers get it themselves."""
        log = next(tail.log for tail in self.logs.of([pid]) if tail.log and tail.log.pid == pid)
        return log.parent if isinstance(self.arm, TorchrunArm) else pid

    def _gone_s(self, victims: tuple[int, ...], at_s: float) -> float:
        self.wait(lambda: not any(exists(pid) for pid in victims), _ENDS_WITHIN_S)
        return time.monotonic() - at_s

    def _place(self, tail: Tail) -> int:
        assert tail.log is not None
        return self.arm.place_of(tail.log.pid, tail.log.parent)

    def _wake(self, victims: tuple[int, ...], chosen: list[Tail]) -> None:
        """Continue the victims that were stopped or cut off, count their fates, and kill those that hang."""
        reached = self.logs.reached
        for pid, tail in zip(victims, chosen, strict=True):
            if self.arm.machines is not None:
                self.arm.machines.mend(self._place(tail))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        def decided() -> bool:
            return all(not exists(pid) or self._back(pid, reached) for pid in victims)

        self.wait(decided, _WAKES_WITHIN_S)
        for pid in victims:
            if self._back(pid, reached):
                self.woke["joined again"] += 1
            elif not exists(pid):
                self.woke["ended"] += 1
            else:
                self.woke["hung"] += 1
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _back(self, pid: int, reached: int) -> bool:
        return any(tail.reached > reached for tail in self.logs.of([pid]))

    def join(self) -> bool:
        """Start a newcomer, and return whether it has trained."""
        before = {tail.log.pid for tail in self.logs.alive() if tail.log}
        at_s = time.monotonic()
        self.arm.join()

        def newcomers() -> list[Tail]:
            found = (tail for tail in self.logs.alive() if tail.log and tail.log.pid not in before)
            return [tail for tail in found if tail.reached >= 0]

        came = self.wait(lambda: bool(newcomers()), _STARTS_WITHIN_S)
        goal = self.logs.reached + _AFTERWARDS + self._steps_apart
        came = came and self.wait(lambda: self.logs.reached >= goal, _GOES_ON_WITHIN_S)
        self.events.append(FaultEvent(kind="join", moment="any", at_s=at_s, until_s=time.monotonic(), went_on=came))
        return came

    def follow(self, trace: SpotTrace, told: Told) -> float:
        """Let machines come and go along a trace, and return the time of its beginning."""
        machines: dict[int, Script] = {machine: self.arm.join() for machine in trace.first}
        self._await_workers(trace.stay + len(trace.first), 1)
        since_s = time.monotonic()
        for number, change in enumerate(trace.changes):
            while (left_s := since_s + change.at_s - time.monotonic()) > 0:
                time.sleep(min(left_s, 1.0))
                past = (time.monotonic() - since_s) / trace.seconds
                told(f"{number} of {len(trace.changes)} comings and goings", past)
            if change.comes:
                machines[change.machine] = self.arm.join()
            else:
                self._goes(machines.pop(change.machine), change.notice)
        while (left_s := since_s + trace.seconds - time.monotonic()) > 0:
            time.sleep(min(left_s, 1.0))
            told("the rest", (time.monotonic() - since_s) / trace.seconds)
        return since_s

    def _goes(self, machine: Script, notice: bool) -> None:
        self.logs.look()
        pids = [tail.log.pid for tail in self.logs.of([machine.pid]) if tail.log]
        if notice:
            pids = [machine.pid] if isinstance(self.arm, TorchrunArm) else pids
        for pid in dict.fromkeys(pids if notice and pids else [machine.pid, *pids]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if notice else signal.SIGKILL)

    def end(self) -> bool:
        """Let all workers take the same last step, if their steps are common, and return whether all ended."""
        self.logs.look()
        if not self._together:
            self.orders.end(0)
            return self.wait(lambda: not self.logs.alive(), _ENDS_WITHIN_S)
        last = self.logs.reached + _AHEAD * 2
        self.orders.until(last)

        def waiting() -> bool:
            return all(tail.reached >= last - 1 for tail in self.logs.alive())

        there = self.wait(waiting, _ENDS_WITHIN_S) and bool(self.logs.alive())
        self.orders.end(last)
        return self.wait(lambda: not self.logs.alive(), _ENDS_WITHIN_S) and there

    def played(self, over: bool) -> Played:
        """Return the result, after all processes of the run have ended."""
        self.arm.close_head()
        self.wait(lambda: not any(True for _ in running(self.arm.folder)), _GONE_WITHIN_S if over else 0.0)
        left = sum(1 for _ in running(self.arm.folder))
        logs, events, said = tuple(self.logs.all()), tuple(self.events), "" if over else self.arm.said()[-_SAID:]
        return Played(logs=logs, events=events, woke=self.woke, left=left if over else 0, over=over, said=said)


@contextmanager
def playing(arm: ElasticArm, **orders: Any) -> Iterator[Player]:
    """Yield a player whose run leaves no process behind."""
    player = Player(arm, **orders)
    try:
        yield player
    finally:
        arm.close()
        sweep(arm.folder)
        if arm.machines is not None:
            arm.machines.close()
