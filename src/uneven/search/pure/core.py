"""Decide what a search does: events in, decisions out.

It has no clock, process, file or tensor. Its caller runs trials, reports events and carries out decisions. Each event
that matters is noted, so that a killed search is restored by applying the same events to a new core::

    start()          the next trial ────────────┐            note({"event": "start", "trial": 7})
    reported(7, …)   continue, pause or stop ───┼──► note ──► the log, and apply() reads it again
    ended(7)         its function has returned ─┘
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from uneven.errors import CheckpointError, ConfigError, UnknownNameError
from uneven.search.pure.decisions import GO_ON, Clone, Move, Progress, Ruling
from uneven.search.pure.schedulers import Scheduler
from uneven.search.pure.searchers import NoneNow, Searcher
from uneven.search.pure.space import Params, Plain, Space, domain_of
from uneven.search.pure.trial_records import SearchTerms, TrialRecord, TrialStatus, WaitingTrials

Happened = dict[str, Any]
"""An event as plain data, for JSON."""

# In the reason of a decision that was made because of a target. It is read again, since the target may have changed.
_REACHED = "reached the target"


class SearchCore:
    """The state of a search and its decisions. `note` is called with each event once it has been decided on.

    Raises `ConfigError` if the terms and the scheduler contradict each other, or the searcher cannot search this space.
    """

    def __init__(
        self,
        terms: SearchTerms,
        space: Space,
        scheduler: Scheduler,
        searcher: Searcher,
        note: Callable[[Happened], None] = lambda event: None,
    ) -> None:
        if terms.max_t is not None and scheduler.max_t is not None and terms.max_t != scheduler.max_t:
            raise ConfigError(
                f"max_t={terms.max_t:g} for the search, max_t={scheduler.max_t:g} for its scheduler: give one of them"
            )
        self.terms = terms
        self.space = space
        self.trials: list[TrialRecord] = []  # all of them, by number
        self.target_by: int | None = None  # the trial that has reached the target
        self.learnt = 0  # number of results of earlier searches that the searcher got
        self.note = note
        self.scheduler = scheduler
        self._searcher = searcher
        self._queues = WaitingTrials()
        self._suggested = 0
        self._exhausted = False
        self._stopping: dict[int, str] = {}
        self._replayed: Happened | None = None  # the event that is applied now
        self._running = 0
        self._whys: dict[str, str] = {}  # reasons that many trials share are stored once
        self._points = [space.checked(point, open_=not space) for point in terms.points_to_evaluate]
        self._point_of: dict[int, Params] = {}
        scheduler.begin(space, terms.seed)
        searcher.begin(space, terms.seed)
        for point in self._points:
            searcher.enqueue(point)

    @property
    def over(self) -> bool:
        """True if no trial runs and none will start. Valid after :meth:`start` has returned None."""
        return self._running == 0 and (self.target_by is not None or self._upcoming() is None)

    @property
    def best(self) -> TrialRecord | None:
        scored = [one for one in self.trials if one.best == one.best]
        return max(scored, key=lambda one: (one.best, -one.number), default=None)

    def waiting(self) -> list[int]:
        return [*self._queues.urgent, *self._queues.pending, *self._queues.paused]

    def left(self, trial: int, t: float) -> float:
        """Return the training that a trial with ``t`` may still get; infinite without a limit."""
        most = self.terms.max_t if self.terms.max_t is not None else self.scheduler.max_t
        return math.inf if most is None else max(0.0, most - t)

    def known(self, trial: int) -> TrialRecord:
        if not 0 <= trial < len(self.trials):
            raise UnknownNameError("trial", str(trial), [str(one.number) for one in self.trials])
        return self.trials[trial]

    def learn(self, results: Sequence[tuple[Params, float]]) -> None:
        """Give the searcher settings and scores (higher is better) of earlier searches, before its first suggestion.

        Raises `ConfigError` if the searcher does not learn from results.
        """
        for params, score in results:
            self._searcher.learn(params, score)
        self.learnt += len(results)
        self.note({"event": "learn", "results": [[dict(params), score] for params, score in results]})

    def start(self) -> TrialRecord | None:
        """Start the next trial and return it, or None if none is to be started now."""
        if self.target_by is not None:
            return None
        self._refill()
        trial = self._upcoming()
        return None if trial is None else self._started(trial)

    def _started(self, trial: int) -> TrialRecord:
        self._queues.out(trial)
        one = self.trials[trial]
        one.status, one.why = TrialStatus.RUNNING, ""
        self._running += 1
        self.scheduler.started(trial)
        self.note({"event": "start", "trial": trial})
        return one

    @property
    def starts_more(self) -> bool:
        """True if a trial would start if there were a free device."""
        return self.target_by is None and (self._upcoming() is not None or self._wants_more)

    @property
    def _wants_more(self) -> bool:
        few = len(self._queues.pending) < self.scheduler.ahead
        return few and not self._exhausted and self._suggested < self.terms.trials

    def _upcoming(self) -> int | None:
        if self._queues.urgent:
            # Trials that must run again (failed, resumed, cloned) come before the scheduler's choice.
            return next(iter(self._queues.urgent))
        return self.scheduler.choose(self._queues.pending.keys(), self._queues.paused.keys())

    def _refill(self) -> None:
        while self._wants_more and self._suggest():
            pass

    def _suggest(self) -> bool:
        number = len(self.trials)
        found = self._searcher.suggest(number)
        if isinstance(found, NoneNow):
            # After LATER the searcher is asked again when a trial has ended.
            self._exhausted = found is NoneNow.NEVER
            return False
        known = {**self.space.constants, **found}
        if self._suggested < len(self._points):
            # The searcher fills in the settings that a point leaves out.
            self._point_of[number] = point = self._points[self._suggested]
            known |= {name: value for name, value in point.items() if name in known}
        self._suggested += 1
        self._add(TrialRecord(number, known))
        self._queues.pending[number] = None
        self.note({"event": "suggest", "trial": number, "params": self.trials[number].params})
        return True

    def _add(self, one: TrialRecord) -> None:
        self.trials.append(one)
        self.scheduler.added(one.number, one.params)

    def reported(self, trial: int, t: float, metric: float | None, more: Mapping[str, Any] | None = None) -> Ruling:
        """Process a running trial's report and return the decision. `metric` is None if the report had none."""
        one = self.trials[trial]
        if trial in self._stopping:
            self.note({"event": "halt", "trial": trial})
            return self._halted(one)
        # A trial that resumed from an older state reports known results again; they change nothing.
        if t <= one.t or metric is None:
            return GO_ON
        score = self.terms.sign * metric
        one.t, one.score = t, score
        if not one.best >= score and score == score:  # `not >=` is True while best is NaN; `==` excludes a NaN score
            one.best, one.best_t = score, t
        ruling, ordered = self._judged(one)
        event: Happened = {"event": "report", "trial": trial, "t": t, "metric": metric}
        event |= {"move": ruling.move.value, "why": ruling.why}
        if others := {str(other): what.why for other, what in ruling.others.items() if what.why}:
            event["others"] = others
        self.note({**event, **(more or {})})
        self._settle(one, ruling, ordered)
        return ruling

    def _decided(self, one: TrialRecord) -> Ruling | None:
        """Return the decision that is made without the scheduler, if any."""
        event, by, target, diverged = self._replayed, self.target_by, self.terms.target, self._diverged(one)
        if by is None and target is not None and not diverged and one.score >= self.terms.sign * target:
            self.target_by = one.number
        if event is not None and _REACHED in event.get("why", ""):
            return Ruling(Move.STOP, event["why"])
        if event is None and by is not None:
            return Ruling(Move.STOP, f"trial {by} has {_REACHED}")
        if diverged:
            return Ruling(Move.STOP, f"diverged: {self.terms.metric} is not finite at {one.t:g}")
        return Ruling(Move.STOP, f"{_REACHED} {target:g}") if event is None and self.target_by is not None else None

    def _diverged(self, one: TrialRecord) -> bool:
        return not math.isfinite(one.score) and self.terms.nonfinite == "stop"

    def _judged(self, one: TrialRecord) -> tuple[Ruling, bool]:
        """Return the decision, and whether the scheduler made it."""
        decided = self._decided(one)
        if decided is not None:
            return decided, False
        # The scheduler gets the report even if max_t ends the trial, because other trials are compared with it.
        ruling = self.scheduler.on_result(Progress(one.number, one.t, one.score, self._queues.waiting))
        if self.terms.max_t is not None and one.t >= self.terms.max_t and ruling.move is not Move.STOP:
            return Ruling(Move.STOP, f"trained to max_t={self.terms.max_t:g}", others=ruling.others), False
        return ruling, True

    def _settle(self, one: TrialRecord, ruling: Ruling, ordered: bool) -> None:
        for other, what in ruling.others.items():
            self._paused_other(self.trials[other], what)
        if ruling.move is Move.STOP:
            failed = self._diverged(one)
            self._over(one, TrialStatus.ERROR if failed else TrialStatus.TERMINATED, ruling, told=not ordered)
        elif ruling.clone is not None:
            self._become(one, ruling.clone)
            self._wait(one, ruling.why, urgent=ruling.move is Move.CONTINUE)
        elif ruling.move is Move.PAUSE:
            self._wait(one, ruling.why)

    def _paused_other(self, one: TrialRecord, ruling: Ruling) -> None:
        if ruling.clone is not None:
            self._become(one, ruling.clone)
        if ruling.move is Move.STOP and not one.over:
            self._over(one, TrialStatus.TERMINATED, ruling, told=False)

    def _become(self, one: TrialRecord, clone: Clone) -> None:
        one.params, one.t, one.life = dict(clone.params), clone.t, one.life + 1
        one.source = clone.source, self.trials[clone.source].life, clone.t

    def _wait(self, one: TrialRecord, why: str, *, urgent: bool = False) -> None:
        self._running -= one.status is TrialStatus.RUNNING
        one.status, one.why = TrialStatus.PAUSED, why
        (self._queues.urgent if urgent else self._queues.paused)[one.number] = None

    def _over(self, one: TrialRecord, status: TrialStatus, ruling: Ruling, *, told: bool) -> Ruling:
        """End a trial. `told` notifies the scheduler, unless the end was its own decision."""
        self._running -= one.status is TrialStatus.RUNNING
        self._queues.out(one.number)
        self._stopping.pop(one.number, None)
        one.status, one.why = status, self._whys.setdefault(ruling.why, ruling.why)
        # A trial whose score is NaN has nothing to teach the searcher.
        failed = status is TrialStatus.ERROR or one.score != one.score
        self._searcher.tell(one.number, None if failed else one.score)
        if told:
            for other, what in self.scheduler.gone(one.number).items():
                self._paused_other(self.trials[other], what)
        return ruling

    def _halted(self, one: TrialRecord) -> Ruling:
        return self._over(one, TrialStatus.TERMINATED, Ruling(Move.STOP, self._stopping[one.number]), told=True)

    def saved(self, trial: int, t: float) -> None:
        """Record that a checkpoint exists which a decision asked for."""
        self.trials[trial].kept_t = t
        self.scheduler.saved(trial, t)
        self.note({"event": "saved", "trial": trial, "t": t})

    def ended(self, trial: int, metric: float | None = None, more: Mapping[str, Any] | None = None) -> None:
        """Record that a running trial's function has returned. Its value, if any, counts instead of its reports."""
        one, ruling, failed = self.trials[trial], None, False
        event: Happened = {"event": "end", "trial": trial}
        if metric is not None:
            one.t = one.best_t = one.t or 1.0
            one.score = one.best = self.terms.sign * metric
            event |= {"t": one.t, "metric": metric, **(more or {})}
            ruling, failed = self._decided(one), self._diverged(one)
            event |= {"why": ruling.why} if ruling is not None else {}
        self.note(event)
        status = TrialStatus.ERROR if failed else TrialStatus.TERMINATED
        self._over(one, status, ruling or Ruling(why="its function returned"), told=True)

    def failed(self, trial: int, why: str, *, lost: bool = False) -> bool:
        """Record that a running trial raised or its process was killed. Return whether it is tried again.

        `lost` means that its machine or the whole search was lost, so the trial and its settings are not the cause.
        """
        self.note({"event": "fail", "trial": trial, "why": why, "lost": lost})
        one = self.trials[trial]
        one.failures += not lost
        again = trial not in self._stopping and (lost or one.failures <= self.terms.max_failures)
        if trial in self._stopping:
            self._halted(one)
        elif again:
            self._running -= 1
            one.status, one.why = TrialStatus.PENDING, why
            self._queues.urgent[trial] = None
        else:
            self._over(one, TrialStatus.ERROR, Ruling(why=why), told=True)
        return again

    def define(self, trial: int, name: str, said: Mapping[str, Any]) -> Plain:
        """Return a setting that a training function asks for while it runs; the same for each call.

        Raises `ConfigError` if the space defines it differently, or the searcher cannot suggest it.
        """
        one, domain = self.trials[trial], domain_of(said)
        point = self._point_of.get(trial, {})
        if name in point and not domain.holds(point[name]):
            raise ConfigError(f"points_to_evaluate has {name}={point[name]!r}: give a value in {domain}")
        if name not in one.params:
            found = self._searcher.define(trial, name, domain)
            one.params[name] = point.get(name, found)
            self.note({"event": "define", "trial": trial, "name": name, "domain": dict(said)})
        elif not domain.holds(one.params[name]):
            raise ConfigError(
                f"trial.suggest of {name!r} as {domain}: this trial has {one.params[name]!r}; define it in one place"
            )
        return one.params[name]

    def stop(self, trial: int) -> str:
        """Stop a trial at its next report, or now if it does not run. Return the effect in words."""
        one = self.known(trial)
        if one.over:
            return f"trial {trial} has already ended"
        self.note({"event": "stop", "trial": trial})
        why = "stopped by hand"
        if one.status is TrialStatus.RUNNING:
            # A training function can be ended only in its next `report`.
            self._stopping[trial] = why
            return f"trial {trial} stops at its next report"
        self._over(one, TrialStatus.TERMINATED, Ruling(why=why), told=True)
        return f"trial {trial} is stopped"

    def resume(self, trial: int) -> str:
        """Let a waiting or ended trial run next. Return the effect in words."""
        one = self.known(trial)
        if one.status is TrialStatus.RUNNING and trial not in self._stopping:
            return f"trial {trial} is already running"
        self.note({"event": "resume", "trial": trial})
        if self._stopping.pop(trial, None) is not None:
            return f"trial {trial} continues, and is not stopped"
        self._queues.out(trial)
        if one.over:
            self.scheduler.added(trial, one.params)
        one.status, one.why, one.failures = TrialStatus.PENDING, "resumed by hand", 0
        self._queues.urgent[trial] = None
        return f"trial {trial} is next"

    def clone(self, trial: int, t: float, changes: Mapping[str, object]) -> int:
        """Create a trial from this one's checkpoint at ``t`` (0: none) with changed settings, and return its number.

        Raises `UnknownNameError` for an unknown trial, and `ConfigError` for an invalid setting.
        """
        one = self.known(trial)
        changed = self.space.checked(changes)
        self.note({"event": "clone", "trial": trial, "t": t, "changes": changed})
        number = len(self.trials)
        made = TrialRecord(
            number, {**one.params, **changed}, t=t, source=(trial, one.life, t), why=f"a clone of trial {trial}"
        )
        self._add(made)
        self._queues.urgent[number] = None
        return number

    def close(self) -> None:
        for one in self.trials:
            if not one.over:
                cut = "ended with the search" if one.status is TrialStatus.RUNNING else "not started"
                one.status, one.why = TrialStatus.TERMINATED, f"{one.why}; not resumed" if one.why else cut
                self._queues.out(one.number)

    def apply(self, event: Happened) -> None:
        """Apply an event of the log. Raises `CheckpointError` if searcher or scheduler decide differently now."""
        trial = -1 if event["event"] in ("learn", "suggest", "data") else event["trial"]
        self._replayed = event
        match event["event"]:
            case "learn":
                self.learn([(params, score) for params, score in event["results"]])
            case "suggest":
                if not self._suggest() or self.trials[-1].params != event["params"]:
                    raise self._differs("the searcher suggests other settings", event)
            case "start":
                if self._upcoming() != trial:
                    raise self._differs("the scheduler starts another trial", event)
                self._started(trial)
            case "report":
                ruling = self.reported(trial, event["t"], float(event["metric"]))
                if ruling.move.value != event["move"]:
                    raise self._differs(f"the scheduler takes another decision ({ruling.move.value})", event)
            case "saved":
                self.saved(trial, event["t"])
            case "end":
                self.ended(trial, None if "metric" not in event else float(event["metric"]))
            case "halt":
                self._halted(self.trials[trial])
            case "fail":
                self.failed(trial, event["why"], lost=event["lost"])
            case "define":
                self.define(trial, event["name"], event["domain"])
            case "stop":
                self.stop(trial)
            case "resume":
                self.resume(trial)
            case "clone":
                self.clone(trial, event["t"], event["changes"])
        self._replayed = None

    def interrupted(self) -> list[int]:
        """Restart the trials that ran when the search was killed, without counting a failure. Return them."""
        running = [one.number for one in self.trials if one.status is TrialStatus.RUNNING]
        for trial in running:
            self.failed(trial, "the search was interrupted", lost=True)
        return running

    def _differs(self, what: str, event: Happened) -> CheckpointError:
        return CheckpointError(
            f"{what} than when the search began ({event}): the searcher, the scheduler, the space or the version "
            "changed; use those of the first run, or name another directory"
        )
