"""Runs trials in a pool of processes, one on each device, and tells the core what happens.

::

    core.start() ──► a device ──► its process trains ──► report ──► core.reported() ──┬─► go on
         ▲               (placing)                                  events.jsonl      │
         └─────────────────────────── the device is free ◄── paused, stopped, ended ◄─┘
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError, TrainingError
from uneven.jobs import end_all
from uneven.jobs.place import Linked, Place
from uneven.search import checkpoints
from uneven.search.control import SearchControl
from uneven.search.core import SearchCore
from uneven.search.data import SharedData
from uneven.search.placing import Placer
from uneven.search.records import TrialRecord, TrialStatus
from uneven.search.rulings import Move, Ruling
from uneven.search.trial import TrialJob
from uneven.search.worker import seed_of, work

LOOK_S = 0.25

MOST_QUICK_DEATHS = 3
"""So many processes in a row may end before they have said anything; then none will."""


@dataclass(slots=True)
class Slot:
    """A device, its process, and the trial in it.

    Attributes:
        trial: None if it is free.
        leaving: it has been told to leave its trial, and may be keeping its state.
        spoke: something was heard of it.
    """

    device: int
    process: Linked
    trial: int | None = None
    leaving: bool = False
    spoke: bool = False


@dataclass(frozen=True, slots=True)
class SearchSnapshot:
    """What a face may show.

    Attributes:
        running: trial → its device.
        curves: trial → its newest reports, as (t, metric).
        unit_s: trial → seconds for a unit of training, where it runs.
        moves: how often a trial was moved to a faster device.
    """

    core: SearchCore
    devices: tuple[str, ...]
    running: Mapping[int, int]
    curves: Mapping[int, list[tuple[float, float]]]
    unit_s: Mapping[int, float]
    moves: int
    took_s: float


@dataclass(slots=True)
class Pool:
    """See the module.

    Args:
        train: the training function, pickled.
        show: called four times a second.
        timeout_s: a trial that reports nothing for so long hangs, and its process is killed.

    Attributes:
        held: trials that run by the core's word and wait for a device.
        data: that all trials read.
        own_cpu_s: processor time of trials that prepare their own samples.
    """

    core: SearchCore
    place: Place
    directory: Path
    train: bytes
    placer: Placer
    show: Callable[[SearchSnapshot], None] = lambda moment: None
    timeout_s: float = math.inf
    slots: list[Slot] = field(default_factory=list)
    held: list[TrialRecord] = field(default_factory=list)
    curves: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    failure: TrainingError | None = None
    stopped: bool = False
    data: SharedData | None = None
    own_cpu_s: float = 0.0
    _quick: int = 0
    _began_s: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Until nobody runs and nobody will be started.

        Raises:
            TrainingError: processes end before they say anything, or no trial ever reports the metric.
        """
        control = SearchControl(self.directory, self._asked)
        self.core.interrupted()
        try:
            self._fill()
            looked_s = -math.inf
            while not self.stopped and not self._over():
                self.place.wait(LOOK_S)
                now_s = time.monotonic()
                if now_s - looked_s >= LOOK_S:
                    looked_s = now_s
                    self._end_hanging(now_s)
                    if control.listen():
                        self._fill()
                    self.show(self.snapshot())
                failure = self.failure or (self.data.failure if self.data is not None else None)
                if failure is not None:
                    raise failure
            self.show(self.snapshot())
        finally:
            end_all([slot.process for slot in self.slots], within_s=0.5)
            if self.data is not None:
                self.data.close()
                self.core.note({
                    "event": "data", "prepared": self.data.prepared, "read": self.data.read,
                    "cpu_s": round(self.data.cpu_s + self.own_cpu_s, 3),
                })  # fmt: skip

    def snapshot(self) -> SearchSnapshot:
        """How it stands."""
        running = {slot.trial: slot.device for slot in self.slots if slot.trial is not None}
        unit_s = {trial: self.placer.paces.unit_s(trial, device) for trial, device in running.items()}
        return SearchSnapshot(
            self.core, self.place.devices, running, self.curves, unit_s, self.placer.moves,
            time.monotonic() - self._began_s,
        )  # fmt: skip

    def _over(self) -> bool:
        idle = all(slot.trial is None for slot in self.slots)
        return (idle and not self.held and self.core.over) or self.core.target_by is not None

    # ---------------------------------------------------------------- who runs where
    def tell(self, trial: int, message: Any) -> None:
        """Say something to the process of a trial."""
        for slot in self.slots:
            if slot.trial == trial:
                slot.process.send(message)

    def _reads_no_more(self, trial: int) -> None:
        if self.data is not None:
            self.data.leave(trial)

    def _fill(self) -> None:
        """Give free devices to trials that may run."""
        taken = {slot.device for slot in self.slots if slot.trial is not None}
        free = dict.fromkeys(device for device in range(len(self.place.devices)) if device not in taken)
        waiting, self.held = self.held, []
        while free:
            one = waiting.pop(0) if waiting else self.core.start()
            if one is None:
                break
            device = None if self._unsettled(one) else self.placer.device_for(one.number, free, self._busy_s())
            if device is None:
                self.held.append(one)
                continue
            del free[device]
            self._begin(one, device)
        self.held += waiting

    def _unsettled(self, one: TrialRecord) -> bool:
        """Whether its state, or the one that it is to be made of, is still being kept."""
        source = one.source[0] if one.source is not None else None
        return any(slot.leaving and slot.trial in (one.number, source) for slot in self.slots)

    def _busy_s(self) -> dict[int, float]:
        """Device → seconds until its trial is done, as far as one can tell."""
        found: dict[int, float] = {}
        for slot in self.slots if self.placer.looks else ():
            if slot.trial is not None:
                unit_s = self.placer.paces.unit_s(slot.trial, slot.device)
                found[slot.device] = self.core.left(slot.trial, self.core.trials[slot.trial].t) * unit_s
        return found

    def _begin(self, one: TrialRecord, device: int) -> None:
        slot = self._slot(device)
        terms = self.core.terms
        slot.trial, slot.leaving = one.number, False
        slot.process.send(("run", TrialJob(
            number=one.number, params=one.params, seed=seed_of(terms.seed, one.number), t=one.t, life=one.life,
            folder=checkpoints.folder_of(self.directory, one.number), load=self._state_of(one), metric=terms.metric,
            time_attr=terms.time_attr, sign=terms.sign, best=one.best if one.life == 0 else math.nan,
            device=self.place.devices[device], slot=device,
        )))  # fmt: skip

    def _slot(self, device: int) -> Slot:
        for slot in self.slots:
            if slot.device == device:
                return slot
        process = self.place.start(
            f"trials on device {device}",
            work,
            (self.train, self.data.handle if self.data is not None else None),
            heard=self._heard,
            ended=self._died,
            device=device,
        )
        self.slots.append(Slot(device, process))
        return self.slots[-1]

    def _state_of(self, one: TrialRecord) -> Path | None:
        """The newest state of its own, else the one that its life begins with."""
        folder = checkpoints.folder_of(self.directory, one.number)
        own = checkpoints.newest(folder, one.life, one.t)
        if own is not None or one.source is None:
            return own.path if own is not None else None
        trial, life, t = one.source
        first = checkpoints.newest(checkpoints.folder_of(self.directory, trial), life, t)
        return checkpoints.adopt(first.path, folder, one.life, first.t) if first is not None else None

    # ---------------------------------------------------------------- what they say
    def _heard(self, process: Linked, message: tuple[Any, ...]) -> None:
        slot = next((one for one in self.slots if one.process is process), None)
        if slot is None or slot.trial is None or message[1] != slot.trial:
            return
        slot.spoke, self._quick = True, 0
        what, trial, *rest = message
        if what == "report":
            self._reported(slot, trial, *rest)
        elif what == "saved":
            self.core.saved(trial, rest[0])
            self._tidy(self.core.trials[trial])
        elif what == "want" and self.data is not None:
            self.data.want(trial, *rest)
        elif what == "define":
            self._defined(slot, trial, *rest)
        elif what == "failed":
            self.slots.remove(slot)  # nobody knows what the user's code has left behind, so it ends
            slot.process.ask_to_end()
            self._failed(slot, rest[0])
            self._fill()
        elif what in ("left", "ended"):
            slot.trial, slot.leaving = None, False
            self._reads_no_more(trial)
            if what == "ended":
                self._ended(trial)
            self._fill()

    def _reported(self, slot: Slot, trial: int, t: float, metrics: dict[str, float], told: Mapping[str, Any]) -> None:
        one, terms = self.core.trials[trial], self.core.terms
        self.own_cpu_s += told.get("prepared_s", 0.0)
        self.placer.paces.measured(trial, slot.device, t - max(0.0, self._t_before(trial)), told["seconds"])
        metric = metrics.get(terms.metric)
        more = {"device": slot.device, "seconds": round(told["seconds"], 6)}
        if len(metrics) > 1:
            more["metrics"] = {name: value for name, value in metrics.items() if name != terms.metric}
        fresh = metric is not None and t > one.t
        ruling = self.core.reported(trial, t, metric, more)
        if fresh and metric is not None:
            self.curves.setdefault(trial, []).append((t, metric))
            del self.curves[trial][:-100]
        self._settled(one, ruling)
        move = ruling.move
        if move is Move.CONTINUE and ruling.clone is None and not self.held and not self.core.waiting():
            taken = {other.device for other in self.slots if other.trial is not None}
            free = [device for device in range(len(self.place.devices)) if device not in taken]
            busy = {device: left_s for device, left_s in self._busy_s().items() if device != slot.device}
            if self.placer.device_for(trial, free, busy, slot.device) != slot.device:
                move = Move.PAUSE
                self.held.append(one)
        leaves = move is not Move.CONTINUE or ruling.clone is not None
        word = "stop" if ruling.clone is not None else move.value
        slot.leaving = leaves
        slot.process.send(("ruling", word, ruling.save))
        if one.over:
            self.curves.pop(trial, None)
        if told["saved"]:
            self._tidy(one)
        if ruling.others:
            self._fill()

    def _t_before(self, trial: int) -> float:
        curve = self.curves.get(trial)
        return curve[-1][0] if curve else self.core.trials[trial].t

    def _settled(self, one: TrialRecord, ruling: Ruling) -> None:
        """Keep for clones what they are made of, before it is tidied away."""
        for number, what in {one.number: ruling, **ruling.others}.items():
            if what.clone is not None:
                self._state_of(self.core.trials[number])

    def _tidy(self, one: TrialRecord) -> None:
        kept = {one.best_t} if one.kept_t is None else {one.best_t, one.kept_t}
        checkpoints.tidy(checkpoints.folder_of(self.directory, one.number), one.life, kept)

    def _defined(self, slot: Slot, trial: int, name: str, domain: dict[str, Any]) -> None:
        try:
            slot.process.send(("value", self.core.define(trial, name, domain)))
        except ConfigError as error:
            slot.process.send(("refused", str(error)))

    def _ended(self, trial: int) -> None:
        one = self.core.trials[trial]
        if one.t == 0.0 and one.best != one.best:
            self.failure = TrainingError(
                f"trial {trial} has ended and never reported {self.core.terms.metric!r}, the search's metric: call "
                f"trial.report({self.core.terms.metric}=…), or name another metric"
            )
        self.core.ended(trial)

    def _failed(self, slot: Slot, text: str) -> None:
        trial, slot.trial, slot.leaving = slot.trial, None, False
        assert trial is not None
        self._reads_no_more(trial)
        if self.core.trials[trial].status is TrialStatus.RUNNING:
            self.core.failed(trial, text.strip())
        self.held = [one for one in self.held if one.number != trial]

    def _died(self, process: Linked) -> None:
        slot = next((one for one in self.slots if one.process is process), None)
        if slot is None:
            return
        self.slots.remove(slot)
        self._quick = 0 if slot.spoke else self._quick + 1
        if self._quick >= MOST_QUICK_DEATHS:
            self.failure = TrainingError(
                f"{MOST_QUICK_DEATHS} processes ended before they said anything ({process.ending}): the training "
                f'function must be importable there, and a script must search only under if __name__ == "__main__":'
            )
        if slot.trial is not None:
            self._failed(slot, f"its process {process.ending.words if process.ending else 'ended'}")
        self._fill()

    def _end_hanging(self, now_s: float) -> None:
        for slot in list(self.slots):
            if slot.trial is not None and slot.process.quiet_s > self.timeout_s:
                slot.process.kill(hung=f"nothing was heard of trial {slot.trial} for {self.timeout_s:g} s")
                self._died(slot.process)

    # ---------------------------------------------------------------- a person's word
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
        return f"trial {made} goes on from trial {trial}" + (f" at {saved.t:g}" if saved is not None else ", anew")
