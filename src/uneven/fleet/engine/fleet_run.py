"""Train an ensemble: plan flotillas, run passes over the shared data and keep what was trained.

::

    plan ──► load members ──► pass over the data ──► newly trained? ───► state.json ──┬─► pass …   while the round lasts
     ▲                         all read one stream                                     │
     └────────── stop all members ◄─── fewer than α · M devices busy ──────────────────┘

All members of a flotilla start a pass together, so all of them are between epochs at its end. To continue later, the
number of passes is all that must be known about the data.
"""

import math
import pickle
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from uneven.errors import ConfigError, TrainingError
from uneven.fleet.engine.fleet_options import Options, RunSnapshot, Show
from uneven.fleet.engine.fleet_state import MemberState, RunState, folders, load, locked, save, tidy
from uneven.fleet.engine.hosts import Host, Hosts
from uneven.fleet.engine.measure_rates import Profiler, take_given
from uneven.fleet.ensemble import Ensemble
from uneven.fleet.member.member_host import Job, checkpoint_path
from uneven.fleet.pure.converge import Epoch
from uneven.fleet.pure.ledger import Ledger
from uneven.fleet.pure.planning.allocate import Flotilla
from uneven.fleet.pure.planning.assign import assign_devices
from uneven.fleet.pure.planning.flotillas import LEAST_GAIN, FlotillaPlanner, Planner, Together, places_for, takes_turns
from uneven.fleet.pure.planning.rates import Rates
from uneven.fleet.pure.sections import Stream
from uneven.fleet.stream.feed import Feed, look
from uneven.fleet.stream.preprocess import Source
from uneven.runtime.jobs.begun import LockedRun
from uneven.runtime.jobs.call import IMPORTED
from uneven.runtime.jobs.code import Code, code_of
from uneven.runtime.jobs.devices import Devices
from uneven.runtime.jobs.engines import place_for
from uneven.runtime.jobs.executor import Linked, Place
from uneven.runtime.jobs.processes import usable_cores

_IMPORTED = (*IMPORTED, "uneven.fleet.member.member_host", "uneven.fleet.stream.preprocess")


# For shorter epochs, a second slot saves fewer seconds than profiling members on it costs (two seconds each).
LONG_EPOCH_S = 5.0


def run(
    ensemble: Ensemble, devices: Devices, directory: Path, options: Options, show: Show, engine: str = "local"
) -> RunState:
    """Train until every member is trained or has failed, or continue an earlier start. See ``fleet.train``."""
    jobs = _pickled(ensemble)
    asked = asked_for(ensemble, options)
    with closing(place_for(engine, devices, _IMPORTED)) as place, locked(directory):
        if options.together and not place.shares_devices:
            raise ConfigError(
                f"together=True: engine={engine!r} trains one member at a time on a device: leave together out"
            )
        place.enter(directory)
        state, code = load(directory, asked), code_in(ensemble)
        untrained = {f"member {name}" for name, member in state.members.items() if not member.epochs}
        trained = [name for name in code if name not in untrained] if len(untrained) < len(state.members) else ()
        begun = LockedRun(directory, "fleet", code, trained)
        for member in state.members.values():  # a new start tries failed members again: their cause may be fixed
            if member.status == "failed":
                member.status, member.why, member.deaths = "waiting", "", 0
            flaw = member.history(ensemble.metric.higher_is_better).flaw(ensemble.metric.name)
            if member.status == "trained" and flaw and options.nonfinite == "raise":
                member.status, member.why = "failed", flaw  # kept by a start with "warn" or an earlier version
            if member.status == "trained" and _more(ensemble, member):
                member.status = "waiting"
        if any(member.status == "waiting" for member in state.members.values()):
            _Run(ensemble, place, directory, options, state, jobs, show).go()
            if all(member.status == "trained" for member in state.members.values()):
                begun.finish()
        else:
            begun.report_finished()
    return state


def asked_for(ensemble: Ensemble, options: Options) -> dict[str, Any]:
    """Return what a later start must ask for as well; ``state.json`` keeps it."""
    return {
        "members": list(ensemble.members),
        "samples": len(ensemble.dataset),
        "validation samples": len(ensemble.validate) if ensemble.validate is not None else 0,
        "seed": ensemble.seed,
        "chunk": options.chunk,
        "metric": ensemble.metric.name,
    }


def code_in(ensemble: Ensemble) -> Code:
    """Return the code that decides what members learn. The convergence rule is left out, because it may change."""
    given = {name: getattr(ensemble, name) for name in ("dataset", "transform", "validate", "validate_transform")}
    members = {f"member {name}": factory for name, factory in ensemble.members.items()}
    return code_of({**given, "metric": ensemble.metric.of, **members}, *ensemble.members.values())


def _more(ensemble: Ensemble, member: MemberState) -> bool:
    """Return whether a trained member stopped only at an epoch limit that has been raised since."""
    history = member.history(ensemble.metric.higher_is_better)
    return len(member.epochs) < ensemble.max_epochs and not ensemble.converged(history)


def _pickled(ensemble: Ensemble) -> dict[str, bytes]:
    found = {}
    for name, factory in ensemble.members.items():
        try:
            found[name] = pickle.dumps(factory)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"member {name!r}: its factory cannot be sent to another process ({error}): use a function at the "
                "top level of a module, or a functools.partial of one"
            ) from error
    return found


@dataclass(eq=False)
class _Run:
    ensemble: Ensemble
    place: Place
    directory: Path
    options: Options
    state: RunState
    factories: Mapping[str, bytes]
    show: Show

    def __post_init__(self) -> None:
        place, options, state = self.place, self.options, self.state
        self._free = list(range(len(place.devices)))
        self._together = options.together
        if self._together is None:
            on_cores = place.shares_devices and options.rates is None and place.devices[0] == "cpu"
            self._together = on_cores and takes_turns(len(place.devices), usable_cores())
        self._folders = folders(self.directory, list(state.members))
        self._running: dict[str, int] = {}
        self._wall_s = state.wall_s
        self._cpu_s = state.preprocess_cpu_s
        self._prepared = state.prepared
        self._began_s = time.perf_counter()

    def go(self) -> None:
        ensemble, options = self.ensemble, self.options
        source = Source(ensemble.dataset, ensemble.validate, ensemble.transform, ensemble.validate_transform)
        validation = len(ensemble.validate) if ensemble.validate is not None else 0
        stream = Stream(len(ensemble.dataset), validation, options.chunk, ensemble.seed)
        probed = look(self.place, source, options.timeout_s, self._look_at_first)
        self._feed = Feed(
            self.place,
            source,
            stream,
            probed.layout,
            slots=options.buffer // options.chunk,
            most=options.preprocessors or self.place.cores,
            tell=self._tell,
            start=stream.begins(self.state.passes),
            timeout_s=options.timeout_s,
        )
        with closing(self._feed), closing(Hosts(self.place, self._feed, options.timeout_s)) as self._hosts:
            self._profiler = Profiler(self._hosts, self.state, self._job, self.place, probed.sample, self._look)
            planner = self._planner()
            save(self.directory, self.state)
            self._rounds(stream, planner)

    def _look_at_first(self, process: Linked) -> None:
        moment = RunSnapshot(self.state, {}, Ledger(slots=1), 1, self.ensemble.max_epochs)
        self.show(replace(moment, processes={"": (process.pid,)}, quiet={process.name: process.silence}))

    def _tell(self, reader: str, message: Any) -> None:
        self._hosts.tell(reader, message)

    def _planner(self) -> FlotillaPlanner:
        """Return FLEET's planner, or ours if members take turns, after measuring what it needs of the members."""
        self._slots = self._left()
        options, state, slots = self.options, self.state, self._slots
        if options.rates is not None:
            take_given(state, options.rates)
        if not self._together:
            self._profiler.known_rates(state.members)
            self._rates = self._profiler.rates()
            return Planner(self._fitting(slots), slots, options.paradigm, options.closeness, options.alpha)
        # Read before the profile, whose processes take memory themselves.
        free_bytes = psutil.virtual_memory().available
        self._profiler.brief_look()
        waiting = self._waiting()
        if len(waiting) < slots and self._worth_profiling(waiting):
            self._profiler.known_rates(waiting, LEAST_GAIN)
        self._rates = self._profiler.rates()
        places = places_for(max(1, len(waiting)), slots, state.member_bytes, free_bytes)
        self._free = list(range(max(slots, places)))
        return Together(self._rates, slots, places, alpha=options.alpha)

    def _worth_profiling(self, names: list[str]) -> bool:
        """Return whether these members' epochs are long enough to measure their gain from a second slot."""
        alone = [self._profiler.rates().per_s(name, 1) for name in names]
        return bool(alone) and len(self.ensemble.dataset) / min(alone) > LONG_EPOCH_S

    def _rounds(self, stream: Stream, planner: FlotillaPlanner) -> None:
        self._start(self._interrupted())
        while True:
            planner = self._replanned(planner)
            began_s = time.perf_counter()
            flotilla = planner.next_flotilla(self._waiting(), len(self._free), Flotilla(dict(self._running)))
            self.state.scheduling_s += time.perf_counter() - began_s
            self._start(flotilla)
            if not self._running and not self._waiting():
                break
            if not self._running:
                continue  # no member of this flotilla started
            before = len(self._running)
            self._pass(stream)
            planner = self._replanned(planner)
            # If no member has left, a new plan would be the same one, and stopping members for it would cost their
            # start.
            if len(self._running) < before and self._ends(planner):
                for name in list(self._running):
                    self._stop(name)
                if self._together:
                    planner = self._planner()
            self._save()
        self._save()
        self._look()

    def _replanned(self, planner: FlotillaPlanner) -> FlotillaPlanner:
        """Return the planner, or a new one if devices were lost since it was made."""
        return planner if self._left() == self._slots else self._planner()

    def _ends(self, planner: FlotillaPlanner) -> bool:
        if self._together and not self._worth_profiling([*self._running, *self._waiting()]):
            return False  # another plan would be the same one
        return planner.round_ends(sum(self._running.values()))

    def _interrupted(self) -> Flotilla:
        """Return the flotilla of an earlier start that stopped in the middle of a round, so that its plan continues."""
        members = self.state.members
        left = {name: n for name, n in self.state.running.items() if members[name].status == "waiting"}
        return Flotilla(left if sum(left.values()) <= len(self._free) else {})

    def _fitting(self, slots: int) -> Rates:
        """Return the rates of the members that fit on `slots` devices. After a loss, the others fail in this start."""
        if slots == len(self.place.devices):
            return self._rates
        fits = {}
        for name, row in zip(self._rates.members, self._rates.table, strict=True):
            member, least = self.state.members[name], self._rates.least(name)
            if least <= slots:
                fits[name] = row
            elif member.status == "waiting":
                member.status, member.why = "failed", f"needs {least} devices; left: {slots}"
        return Rates(fits or {"nobody": [1.0]})

    def _left(self) -> int:
        """Return the number of devices that are left. Raises `TrainingError` if none is left."""
        gone = self.place.gone()
        self._free = [device for device in self._free if device not in gone]
        if len(gone) == len(self.place.devices):
            raise TrainingError(
                "every machine with a device was lost: start again on the same directory when machines are back"
            )
        return len(self.place.devices) - len(gone)

    def _waiting(self) -> list[str]:
        members = self.state.members
        return [name for name, one in members.items() if one.status == "waiting" and name not in self._running]

    def _start(self, flotilla: Flotilla) -> None:
        if not flotilla.members:
            return
        nodes = self.place.nodes(self._free)
        dealt = assign_devices(flotilla, nodes) if len(nodes) > 1 else {}
        for name, count in flotilla.members.items():
            self._running[name] = count
            taken = dealt.get(name, tuple(self._free[:count]))
            self._free = [device for device in self._free if device not in taken]
            self._hosts.load(self._job(name, taken))
        for name, answer in self._hosts.collect(self._look).items():
            if answer[0] != "loaded":
                self._lost(name, answer)
        if self._running:
            self._feed.needs(self._pace())
            self.state.plan.append((self.state.passes, dict(self._running)))

    def _pace(self) -> float:
        """Return the samples/s of the flotilla if data were always available; infinite starts all preprocessors."""
        # If members take turns on the cores, an idle preprocessor costs nothing, so their number needs no limit.
        if self.options.preprocessors is not None or self._together:
            return math.inf
        return min(self._alone_per_s(name, count) for name, count in self._running.items())

    def _alone_per_s(self, name: str, count: int) -> float:
        """Return a member's samples/s in its last epoch on `count` devices, or its profile's before that."""
        last = [epoch for epoch in self.state.members[name].epochs[-1:] if epoch.devices == count]
        busy_s = sum(epoch.train_s + epoch.validate_s - epoch.waited_s for epoch in last)
        return last[0].samples / busy_s if busy_s > 0.0 else self._rates.per_s(name, count)

    def _pass(self, stream: Stream) -> None:
        number, began_s = self.state.passes, self._now_s
        for name in self._running:
            self._hosts.epoch(name, number)
        after = stream.begins(number + 1)
        # The preprocessors may already fill the buffer for the next pass, but only if there will be one.
        ahead = self._feed.ledger.slots if self._goes_on() else 0
        self._feed.allow(after + ahead, after)
        answers = self._hosts.collect(self._look)
        self.state.passes = number + 1
        for name, answer in answers.items():
            if answer[0] == "epoch":
                at = {"flotilla": len(self.state.plan), "began_s": began_s, "ended_s": self._now_s}
                self._judge(name, replace(answer[1], **at))
            else:
                self._lost(name, answer)
        if self._running:
            self._feed.needs(self._pace())  # set again, because the pass measured what one preprocessor makes

    def _goes_on(self) -> bool:
        """Return whether some member needs the next pass, as far as the epoch counts show."""
        members, last = self.state.members, self.ensemble.max_epochs - 1
        return bool(self._waiting()) or any(len(members[name].epochs) < last for name in self._running)

    def _judge(self, name: str, epoch: Epoch) -> None:
        member = self.state.members[name]
        member.epochs.append(epoch)
        member.deaths = 0
        history = member.history(self.ensemble.metric.higher_is_better)
        if self.ensemble.converged(history):
            member.status, member.why = "trained", "converged"
        elif len(member.epochs) >= self.ensemble.max_epochs:
            member.status, member.why = "trained", "largest number of epochs"
        if member.status == "trained":
            flaw = history.flaw(self.ensemble.metric.name)
            if flaw and self.options.nonfinite == "raise":
                member.status, member.why = "failed", flaw
            elif flaw:
                member.note = flaw
            self._stop(name)

    def _lost(self, name: str, answer: tuple[Any, ...]) -> None:
        """Stop a member that failed or whose process was killed. The others continue."""
        member = self.state.members[name]
        if answer[0] == "failed":
            member.status, member.why = "failed", answer[1].strip()
        elif not self.place.gone().intersection(self._hosts.by_member[name].job.places):
            why = member.died(answer[1], "one epoch")  # the machine lives, so the member may be the cause
            if why:
                member.status, member.why = "failed", why
        self._stop(name)

    def _stop(self, name: str) -> None:
        del self._running[name]
        one = self._hosts.leave(name)
        self._free.extend(one.job.places)
        self._charge(one)

    def _charge(self, one: Host) -> None:
        now_s = time.perf_counter()
        self.state.members[one.job.name].device_s += (now_s - one.since_s) * len(one.job.devices)
        one.since_s = now_s

    def _save(self) -> None:
        self._count()
        # After a kill, `_interrupted` restarts exactly these members.
        self.state.running = dict(self._running)
        for one in self._hosts.by_member.values():
            self._charge(one)
        save(self.directory, self.state)
        for name, member in self.state.members.items():
            if member.epochs:
                best = member.history(self.ensemble.metric.higher_is_better).best
                tidy(self._folders[name], {len(member.epochs), best + 1})

    @property
    def _now_s(self) -> float:
        return self._wall_s + time.perf_counter() - self._began_s

    def _count(self) -> None:
        state, feed = self.state, self._feed
        state.wall_s = self._now_s
        state.preprocess_cpu_s, state.prepared = self._cpu_s + feed.cpu_s, self._prepared + feed.samples

    def _look(self) -> None:
        self._count()
        feed, most = self._feed, self.ensemble.max_epochs
        processes = {**self._hosts.processes, "": feed.processes}
        quiet = {**{maker.name: maker.silence for maker in feed.busy}, **self._hosts.quiet}
        self.show(RunSnapshot(self.state, dict(self._running), feed.ledger, feed.wanted, most, processes, quiet))

    def _job(self, name: str, places: tuple[int, ...]) -> Job:
        epochs = len(self.state.members[name].epochs)
        folder, names = self._folders[name], self.place.devices
        return Job(
            name,
            self.factories[name],
            self.ensemble.metric,
            tuple(names[one % len(names)] for one in places),
            folder,
            epochs,
            self.ensemble.seed,
            self.options.batch_rule,
            self.options.balance,
            places,
            self.options.nonfinite,
        )


def best_checkpoint(directory: Path, ensemble: Ensemble, state: RunState, name: str) -> Path | None:
    """Return the file of a member's best epoch, or None if it has finished none."""
    member = state.members[name]
    if not member.epochs:
        return None
    folder = folders(directory, list(state.members))[name]
    return checkpoint_path(folder, member.history(ensemble.metric.higher_is_better).best + 1)
