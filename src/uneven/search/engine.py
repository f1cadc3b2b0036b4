"""Run trials in a pool of processes, one per device, and report their events to the core.

::

    core.start() ──► a device ──► its process trains ──► report ──► core.reported() ──┬─► continue
         ▲               (placing)                                  events.jsonl      │
         └─────────────────────────── the device is free ◄── paused, stopped, ended ◄─┘
"""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError, TrainingError
from uneven.fleet.engine.hosts import Meetings
from uneven.fleet.member.team import Seat
from uneven.runtime.jobs import Stop, end_all
from uneven.runtime.jobs.executor import Linked, Place
from uneven.search import checkpoints
from uneven.search.control import SearchControl
from uneven.search.data import SharedData
from uneven.search.pure.core import SearchCore
from uneven.search.pure.decisions import Move, Ruling
from uneven.search.pure.placing import Dispatch, Placer
from uneven.search.pure.trial_records import TrialRecord, TrialStatus
from uneven.search.trial import TrialJob
from uneven.search.trial_worker import seed_of, work


@dataclass(slots=True)
class Slot:
    """A device, its process, and the trial in it."""

    device: int
    process: Linked
    trial: int | None = None  # None if it is free
    rank: int = 0  # of this process within its trial; rank 0 reports
    size: int = 1  # number of processes of its trial
    leaving: bool = False  # it was sent a decision to leave its trial, and may be saving its state
    spoke: bool = False  # a message from it has arrived

    def begins(self, trial: int, seat: Seat) -> None:
        self.trial, self.rank, self.size, self.leaving = trial, seat.rank, seat.size, False

    def is_left(self) -> int | None:
        trial, self.trial, self.leaving = self.trial, None, False
        return trial


@dataclass(slots=True)
class DeviceSlots:
    all: list[Slot] = field(default_factory=list)

    def of(self, process: Linked) -> Slot | None:
        """Return the slot of a process; None if it was given up."""
        return next((one for one in self.all if one.process is process), None)

    def at(self, device: int) -> Slot | None:
        return next((one for one in self.all if one.device == device), None)

    def team(self, trial: int) -> list[Slot]:
        return sorted((one for one in self.all if one.trial == trial), key=lambda one: one.rank)

    def devices_of(self, trial: int) -> tuple[int, ...]:
        return tuple(one.device for one in self.team(trial))

    @property
    def running(self) -> dict[int, tuple[int, ...]]:
        return {one.trial: self.devices_of(one.trial) for one in self.all if one.trial is not None}

    def leaving(self, *trials: int | None) -> bool:
        """Return whether a process may still be saving the state of one of these trials."""
        return any(one.leaving and one.trial in trials for one in self.all)


LOOK_S = 0.25

MOST_WITHOUT_METRIC = 10  # reports without the metric, after which the trial will never report it

MOST_QUICK_DEATHS = 3  # processes in a row that end before their first message; further ones would end too

START_S = 120.0  # limit for the start of a process, if `timeout_s` is shorter


@dataclass(frozen=True, slots=True)
class SearchSnapshot:
    """The state of a search as a view shows it."""

    core: SearchCore
    devices: tuple[str, ...]
    running: Mapping[int, tuple[int, ...]]  # trial → its devices
    curves: Mapping[int, list[tuple[float, float]]]  # trial → its newest reports, as (t, metric)
    unit_s: Mapping[int, float]  # running trial → seconds for a unit of training
    moves: int  # how often a trial was moved to a faster device
    took_s: float


@dataclass(slots=True)
class Pool:
    """The processes of a search. `train` is the pickled training function; `show` is called four times a second.

    It ends on a request to `stop` or after `time_budget_s`. It kills a trial that is silent for `timeout_s`.
    """

    core: SearchCore
    place: Place
    directory: Path
    train: bytes
    placer: Placer
    stop: Stop
    show: Callable[[SearchSnapshot], None]
    timeout_s: float = math.inf
    time_budget_s: float = math.inf
    curves: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    failure: TrainingError | None = None
    data: SharedData | None = None  # the data of all trials
    own_cpu_s: float = 0.0  # processor time of trials that prepare their own samples
    _missed: dict[int, int] = field(default_factory=dict)
    slots: DeviceSlots = field(init=False)
    _dispatch: Dispatch = field(init=False)
    _meetings: Meetings = field(init=False)
    _quick: int = 0
    _began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.slots = DeviceSlots()
        self._meetings = Meetings(self.place.address)
        self._dispatch = Dispatch(self.core, self.placer, len(self.place.devices))

    def run(self) -> None:
        """Run until no trial runs and none will start.

        Raises `TrainingError` if processes end before their first message, or no trial ever reports the metric.
        """
        control = SearchControl(self.directory, self._asked)
        # Trials that ran when an earlier start was killed have priority.
        self.core.interrupted()
        try:
            self._fill()
            looked_s = -math.inf
            while not self.stop.requests and not self._over():
                self.place.wait(LOOK_S)
                now_s = time.monotonic()
                if now_s - looked_s >= LOOK_S:
                    looked_s = now_s
                    self._end_hanging()
                    if control.listen():
                        self._fill()
                    self.show(self.snapshot())
                failure = self.failure or (self.data.failure if self.data is not None else None)
                if failure is not None:
                    raise failure
            self.show(self.snapshot())
        finally:
            self._end_processes()
            if self.data is not None:
                self.data.close()
                counts = {"prepared": self.data.prepared, "read": self.data.read}
                self.core.note({"event": "data", **counts, "cpu_s": round(self.data.cpu_s + self.own_cpu_s, 3)})

    def _end_processes(self) -> None:
        for slot in self.slots.all:
            if slot.trial is not None and len(self.slots.team(slot.trial)) > 1:
                slot.process.kill()  # blocked in a collective with each other, they would not read a request to end
        end_all([slot.process for slot in self.slots.all], within_s=0.5)
        self._meetings.close()

    def snapshot(self) -> SearchSnapshot:
        running = self.slots.running
        unit_s = {trial: self.placer.paces.unit_s(trial, *devices) for trial, devices in running.items()}
        took_s = time.monotonic() - self._began_s
        return SearchSnapshot(self.core, self.place.devices, running, self.curves, unit_s, self.placer.moves, took_s)

    def _over(self) -> bool:
        idle = all(slot.trial is None for slot in self.slots.all)
        spent = time.monotonic() - self._began_s >= self.time_budget_s
        return (idle and not self._dispatch.held and self.core.over) or self.core.target_by is not None or spent

    def tell(self, device: int, message: Any) -> None:
        slot = self.slots.at(device)
        if slot is not None:
            slot.process.send(message)

    def _fill(self) -> None:
        for one, devices in self._dispatch.starts(self.slots.running, self._left_s, self._unsettled):
            self._begin(one, devices)

    def _unsettled(self, one: TrialRecord) -> bool:
        """Return whether its state, or the one that it is cloned from, is still being written."""
        return self.slots.leaving(one.number, one.source[0] if one.source is not None else None)

    def _left_s(self, trial: int) -> float:
        if self.slots.leaving(trial):
            return 0.0
        devices = self.slots.devices_of(trial)
        return self.core.left(trial, self.core.trials[trial].t) * self.placer.paces.unit_s(trial, *devices)

    def _begin(self, one: TrialRecord, devices: tuple[int, ...]) -> None:
        terms, load = self.core.terms, self._state_of(one)
        for device, seat in zip(devices, self._meetings.seats(len(devices)), strict=True):
            slot = self.slots.at(device) or self._started(device)
            slot.begins(one.number, seat)
            job = TrialJob(
                number=one.number,
                params=one.params,
                seed=seed_of(terms.seed, one.number),
                t=one.t,
                life=one.life,
                folder=checkpoints.folder_of(self.directory, one.number),
                load=load,
                metric=terms.metric,
                time_attr=terms.time_attr,
                sign=terms.sign,
                # A clone starts without a best score, because checkpoints of its earlier lives are not its own.
                best=one.best if one.life == 0 else math.nan,
                device=self.place.devices[device],
                slot=device,
                seat=seat,
            )
            slot.process.send(("run", job))

    def _started(self, device: int) -> Slot:
        process = self.place.start(
            f"trials on device {device}",
            work,
            (self.train, self.data.handle if self.data is not None else None),
            heard=self._heard,
            ended=self._died,
            device=device,
        )
        self.slots.all.append(Slot(device, process))
        return self.slots.all[-1]

    def _state_of(self, one: TrialRecord) -> Path | None:
        """Return the newest state of this life, or the one that the life starts from."""
        folder = checkpoints.folder_of(self.directory, one.number)
        own = checkpoints.newest(folder, one.life, one.t)
        if own is not None or one.source is None:
            return own.path if own is not None else None
        trial, life, t = one.source
        first = checkpoints.newest(checkpoints.folder_of(self.directory, trial), life, t)
        return checkpoints.adopt(first.path, folder, one.life, first.t) if first is not None else None

    def _heard(self, process: Linked, message: tuple[Any, ...]) -> None:
        slot = self.slots.of(process)
        if slot is None:
            return
        slot.spoke, self._quick = True, 0
        # Late messages about a trial that has left are dropped.
        if slot.trial is None or message[1] != slot.trial:
            return
        what, trial, *rest = message
        if what == "report":
            self._reported(trial, *rest)
        elif what == "saved":
            self.core.saved(trial, rest[0])
            self._tidy(self.core.trials[trial])
        elif what == "want" and self.data is not None:
            self.data.want(slot.device, *rest)
        elif what == "define":
            self._defined(slot, trial, *rest)
        elif what in ("failed", "lost"):
            self._give_up(slot, rest[0], lost=what == "lost")
        elif what in ("left", "ended"):
            here = self.slots.devices_of(trial)
            self._left(slot)
            for one in (*map(self.core.known, self.core.waiting()), *self._dispatch.held):
                if one.source is not None and one.source[0] == trial:
                    self._link(one)
            if what == "ended" and slot.rank == 0:
                self._ended(trial, here, *rest)
            self._fill()

    def _reported(self, trial: int, t: float, metrics: dict[str, float], told: Mapping[str, Any]) -> None:
        one, metric = self.core.trials[trial], metrics.get(self.core.terms.metric)
        here = self.slots.devices_of(trial)
        self.own_cpu_s += told.get("prepared_s", 0.0)
        self.placer.paces.measured(trial, here, t - max(0.0, self._t_before(trial)), told["seconds"])
        if metric is None and one.best != one.best:
            self._missed[trial] = self._missed.get(trial, 0) + 1
            if self._missed[trial] == MOST_WITHOUT_METRIC or self.core.left(trial, t) == 0:
                self._never_reported(trial, metrics)
        fresh = metric is not None and t > one.t
        ruling = self.core.reported(trial, t, metric, self._noted(here, metrics, told["seconds"]))
        if fresh and metric is not None:
            # Only new reports, since a resumed trial repeats older ones.
            self.curves.setdefault(trial, []).append((t, metric))
            # A long trial's curve would grow without limit, and the view shows only its end.
            del self.curves[trial][:-100]
        self._settled(one, ruling)
        # The clone starts from another trial's state, so the process leaves this trial without saving.
        move = Move.STOP if ruling.clone is not None else ruling.move
        if move is Move.CONTINUE and self._moves(trial):
            move = Move.PAUSE
            self._dispatch.held.append(one)
        for member in self.slots.team(trial):
            member.leaving = move is not Move.CONTINUE
            member.process.send(("ruling", move.value, ruling.save))
        if one.over:
            self.curves.pop(trial, None)
        if told["saved"]:
            self._tidy(one)
        if ruling.others:
            self._fill()

    def _noted(self, here: tuple[int, ...], metrics: Mapping[str, float], seconds: float) -> dict[str, Any]:
        more: dict[str, Any] = {"device": here[0], "seconds": round(seconds, 6)}
        if len(here) > 1:
            more["beside"] = here[1:]
        if len(metrics) > 1:
            more["metrics"] = {name: value for name, value in metrics.items() if name != self.core.terms.metric}
        return more

    def _moves(self, trial: int) -> bool:
        running = self.slots.running
        there = self._dispatch.goes_on(trial, running, self._left_s)
        return set(there) != set(running[trial])

    def _t_before(self, trial: int) -> float:
        curve = self.curves.get(trial)
        return curve[-1][0] if curve else self.core.trials[trial].t

    def _settled(self, one: TrialRecord, ruling: Ruling) -> None:
        for number, what in {one.number: ruling, **ruling.others}.items():
            if what.clone is not None:
                self._link(self.core.trials[number])

    def _link(self, clone: TrialRecord) -> None:
        """Link the state that a clone starts from, before it is tidied away; it may still be written."""
        assert clone.source is not None
        trial, life, t = clone.source
        if checkpoints.path_of(checkpoints.folder_of(self.directory, trial), life, t).exists():
            self._state_of(clone)

    def _tidy(self, one: TrialRecord) -> None:
        kept = {one.best_t} if one.kept_t is None else {one.best_t, one.kept_t}
        checkpoints.tidy(checkpoints.folder_of(self.directory, one.number), one.life, kept)

    def _defined(self, slot: Slot, trial: int, name: str, domain: dict[str, Any]) -> None:
        try:
            slot.process.send(("value", self.core.define(trial, name, domain)))
        except ConfigError as error:
            slot.process.send(("refused", str(error)))

    def _ended(self, trial: int, here: tuple[int, ...], metrics: Mapping[str, float] | None, seconds: float) -> None:
        one = self.core.trials[trial]
        if metrics is None and one.t == 0.0 and one.best != one.best:
            self._never_reported(trial, {})
        self.curves.pop(trial, None)
        metric = metrics.get(self.core.terms.metric) if metrics else None
        self.core.ended(trial, metric, self._noted(here, metrics, seconds) if metrics else None)

    def _never_reported(self, trial: int, others: Collection[str]) -> None:
        said = f", but {', '.join(others)}" if others else ""
        self.failure = TrainingError(
            f"trial {trial} never reported {self.core.terms.metric!r}, the search's metric{said}: call "
            f"trial.report({self.core.terms.metric}=…), return it, or name another metric"
        )

    def _left(self, slot: Slot) -> int | None:
        if self.data is not None:
            self.data.leave(slot.device)
        return slot.is_left()

    def _give_up(self, slot: Slot, text: str, *, lost: bool) -> None:
        """End the process of a trial that failed, because the state that the user's code left behind is unknown.

        `lost` means that it misses another process of its trial, whose report then counts unless that one is missing
        too.
        """
        assert slot.trial is not None
        self.slots.all.remove(slot)
        slot.process.ask_to_end()
        if lost and self.slots.team(slot.trial):
            self._left(slot)
        else:
            self._failed(slot, text, again_alone=slot.size > 1)
        self._fill()

    def _failed(self, slot: Slot, text: str, *, again_alone: bool = False, lost: bool = False) -> None:
        """Stop all processes of a failed trial.

        The failure does not count if the trial continues on one device (`again_alone`) or had not started (`lost`).
        """
        trial = self._left(slot)
        assert trial is not None
        for other in self.slots.team(trial):
            self.slots.all.remove(other)
            self._left(other)
            other.process.kill()  # it would wait for the failed one
        if self.core.trials[trial].status is TrialStatus.RUNNING:
            self.core.failed(trial, text.strip(), lost=again_alone or lost)
            self.placer.alone |= {trial} if again_alone else set()
        self._dispatch.held = [one for one in self._dispatch.held if one.number != trial]

    def _died(self, process: Linked) -> None:
        slot = self.slots.of(process)
        if slot is None:
            return
        self.slots.all.remove(slot)
        # Processes that end before any message point to an import error or a missing guard, not to a trial.
        self._quick = 0 if slot.spoke else self._quick + 1
        if self._quick >= MOST_QUICK_DEATHS:
            self.failure = TrainingError(
                f"{MOST_QUICK_DEATHS} processes ended before their first message ({process.ending}): let them "
                'import the training function, and search only under if __name__ == "__main__":'
            )
        if slot.trial is not None:
            words = process.ending.words if process.ending else "ended"
            self._failed(slot, f"its process {words}", lost=not slot.spoke)
        self._fill()

    def _end_hanging(self) -> None:
        waiting = self.data.check_makers(self.timeout_s) if self.data is not None else set()
        for slot in list(self.slots.all):
            # A process that starts imports torch first, which takes long on a busy machine.
            limit_s = self.timeout_s if slot.spoke else max(self.timeout_s, START_S)
            if slot.trial is not None and slot.device not in waiting and slot.process.quiet_s > limit_s:
                slot.process.kill(hung=f"trial {slot.trial} sent nothing for {limit_s:g} s")
                self._died(slot.process)

    def _asked(self, note: dict[str, Any]) -> str:
        verb, trial = note["verb"], int(note["trial"])
        if verb == "stop":
            return self.core.stop(trial)
        if verb == "resume":
            return self.core.resume(trial)
        one = self.core.known(trial)
        saved = checkpoints.newest(checkpoints.folder_of(self.directory, trial), one.life, one.t)
        made = self.core.clone(trial, saved.t if saved is not None else 0.0, note["changes"])
        self._state_of(self.core.trials[made])
        return f"trial {made} continues from trial {trial}" + (f" at {saved.t:g}" if saved is not None else ", again")
