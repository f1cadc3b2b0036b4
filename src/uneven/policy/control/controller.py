"""The slow loop as a state machine: events in, instructions out.

::

    measured(rank, …)         a worker has measured one of its iterations
    begins(rank, k)           it is about to start iteration k              ─► CallForReports
    called(k, reports)        calls have arrived with the exchange of iteration k
    ended(rank, k)            it has ended iteration k                      ─► SplitRecord, Complaint, GiveReport
    reported(rank, report)    one report has arrived; or, by gathered(table), all of them
    members_changed(k, …)     other members train from iteration k on

Its driver moves rows and reads clocks, and decides nothing. A real run drives one controller per rank with that rank's
worker, and receives the others' reports through the network. The simulator and the benches drive one with all workers.
Either way the same reports at the same iterations lead to the same splits.

Reports are due at the end of an iteration. When all have arrived, the next iteration that ends decides: at iteration j,
for j + 1 + lookahead. A worker whose speed has left its forecast calls for reports with the exchange of its next
iteration and attaches its own. All decide by it when that iteration ends, and then report.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypedDict

from uneven.policy.control.decider import Decider, Decision, PartialUpdate
from uneven.policy.control.forecast import Forecaster
from uneven.policy.control.referee import Complaint
from uneven.policy.control.reporter import SILENT, Load, Report, Reporter
from uneven.policy.control.table import ReportTable
from uneven.policy.core.plain import Count, Misfit, inside, loading, read
from uneven.policy.core.records import ForecastRecord, SplitRecord
from uneven.policy.core.views import Limits, Observation

# Reports of each rank in a checkpoint, so that a rank can learn from its own past out of any rank's file.
_PAST = 32


class GiveReport(NamedTuple):
    """Send this report to all workers at the end of this iteration."""

    rank: int
    iteration: int
    report: Report


class CallForReports(NamedTuple):
    """Call for reports with the exchange of this iteration."""

    rank: int
    iteration: int
    report: Report | None  # attached, for all to decide by; None if the balancer needs a report of every worker


# A split applies from its ``iteration`` on; position i of its columns belongs to rank i.
Instruction = SplitRecord | Complaint | GiveReport


class ControllerState(TypedDict):
    """The checkpoint of one worker, next to the decider's."""

    rank: Count
    forecaster: dict[str, Any]
    past: list[list[list[float | None]]]


@dataclass(slots=True)
class _Era:
    """The time of one membership."""

    first: int  # the first iteration of these members
    decider: Decider
    due: int | None = None  # the iteration at whose end reports are due; None before any member has ended one
    soonest: int = 0  # from this iteration on a worker may call for reports …
    far: int = 0  # … and from this one if its speed is far off
    ended: int = -1  # the furthest iteration that a member has ended
    launched: int = -1  # the furthest iteration at whose end a report in transit was given
    given: set[int] = field(default_factory=set)  # workers whose reports are in transit
    arrived: dict[int, Report] = field(default_factory=dict)  # those that have arrived …
    table: ReportTable | None = None  # … and all of them, once complete
    calls: dict[int, Report] = field(default_factory=dict)  # rank → report attached to its call, until the decision
    heard: int = -1  # the furthest iteration whose exchange carried a call
    places: dict[int, int] = field(init=False)  # rank → position among the members

    def __post_init__(self) -> None:
        self.places = {rank: place for place, rank in enumerate(self.decider.members)}


class Controller:
    """Decides the split of every iteration from the events of the workers.

    Controllers of one run start with equal deciders; ``forecaster`` creates that of a worker.
    """

    def __init__(self, decider: Decider, forecaster: Callable[[], Forecaster]) -> None:
        self._make_forecaster = forecaster
        self._era = _Era(0, decider)
        self._earlier: list[_Era] = []
        self._before: dict[int, tuple[int, ...]] = {}  # splits of iterations that others drew before this worker joined
        self._reporters: dict[int, Reporter] = {}
        self._past: deque[ReportTable] = deque(maxlen=_PAST)
        self._adapts = True

    # ---------------------------------------------------------------- called in every iteration
    @property
    def newest(self) -> tuple[int, ...]:
        return self._era.decider.newest

    @property
    def members(self) -> tuple[int, ...]:
        """The newest members; position i of a split belongs to the i-th one."""
        return self._era.decider.members

    def shares(self, iteration: int) -> tuple[int, ...]:
        era = self._era
        if era.first > iteration:
            if iteration in self._before:
                return self._before[iteration]
            era = next(era for era in reversed(self._earlier) if era.first <= iteration)
        return era.decider.shares(iteration)

    @property
    def adapts(self) -> bool:
        # Once False it stays so for the same members, so the decider is not called again.
        self._adapts = self._adapts and self._era.decider.adapts
        return self._adapts

    def reporter(self, rank: int) -> Reporter:
        known = self._reporters.get(rank)
        return self._enlist(rank) if known is None else known

    def due(self, iteration: int, called: bool) -> bool:
        """Return whether :meth:`ended` must be called for ``iteration``; ``called``: its exchange carried a call."""
        era = self._era
        if era.due is None or era.given or called or iteration >= era.due:
            return self.adapts
        return False

    def measured(self, rank: int, seen: Observation, control_s: float = 0.0, late: bool = False) -> None:
        if self.adapts:
            self.reporter(rank).measured(seen, control_s, late)

    def begins(
        self, rank: int, iteration: int, load: Load, cost_s: float, control_s: float = 0.0
    ) -> CallForReports | None:
        """Return a worker's call for reports if its speed has left its last forecast."""
        era = self._era
        if era.given or era.due is None or rank not in era.places:
            return None
        reporter = self.reporter(rank)
        if not reporter.forecaster.calls(iteration, era.soonest, era.far) or not self.adapts:
            return None
        if not era.decider.partial_updates:
            return CallForReports(rank, iteration, None)
        # Keeps the next report urgent too, because this one resets the detector.
        reporter.called = True
        report = reporter.report(load, cost_s, control_s, no_early_reports=False, split=era.decider.fingerprint())
        return CallForReports(rank, iteration, report)

    def called(self, iteration: int, reports: Mapping[int, Report]) -> None:
        """Record calls that arrived with the exchange of ``iteration``, and attached reports by rank."""
        era = self._era
        era.due = iteration if era.due is None else min(era.due, iteration)
        era.calls.update(reports)
        era.heard = max(era.heard, iteration)

    def ended(
        self,
        rank: int,
        iteration: int,
        load: Load,
        cost_s: float,
        control_s: float = 0.0,
        *,
        no_early_reports: bool = False,
        newest: int = -1,
    ) -> list[Instruction]:
        """Return the instructions after a worker has ended ``iteration``; costs as in :meth:`Reporter.report`.

        Args:
            no_early_reports: whether exchanges cannot carry calls.
            newest: the furthest iteration that any worker has started, if workers run asynchronously.

        Raises:
            ConflictError: see :meth:`Decider.decide`.
        """
        era = self._era
        if rank not in era.places or not self.adapts:
            return []
        era.ended = max(era.ended, iteration)
        if era.due is None:  # the first iteration warms up
            era.soonest = era.far = era.due = iteration + 1
        # Decide before reporting, so that the new report has the newest split's fingerprint.
        found = [*self._partial_update(era, newest), *self._decide(era, newest)]
        if iteration >= era.due and rank not in era.given:
            reporter = self.reporter(rank)
            fingerprint = era.decider.fingerprint()
            report = reporter.report(load, cost_s, control_s, no_early_reports=no_early_reports, split=fingerprint)
            reporter.called = False
            era.given.add(rank)
            era.launched = max(era.launched, iteration)
            found.append(GiveReport(rank, iteration, report))
        return found

    def reported(self, rank: int, report: Report, newest: int = -1) -> list[Instruction]:
        """Record a report; the last one decides immediately if a member has already ended a later iteration."""
        era = self._era
        era.arrived[rank] = report
        if len(era.arrived) < len(era.places):
            return []
        self.gathered(ReportTable([era.arrived[one] for one in era.places]))
        return self._decide(era, newest)

    def gathered(self, table: ReportTable) -> None:
        """Record all reports, by position of the member; the next iteration that ends decides by them."""
        self._era.table, self._era.arrived = table, {}

    def members_changed(
        self,
        first: int,
        members: tuple[int, ...],
        limits: Limits,
        global_batch: int | None = None,
        kinds: Mapping[int, str] | None = None,
    ) -> None:
        """Change the members from iteration ``first``, which none has started; see :meth:`Decider.successor`."""
        old = self._era
        # Workers may still ask for splits of iterations before ``first``.
        self._earlier.append(old)
        self._era = era = _Era(first, old.decider.successor(members, limits, global_batch, kinds))
        past = [_of_members(table, old.places, members) for table in self._past]
        self._past.clear()
        self._past.extend(past)
        era.soonest = era.far = era.due = first + 1
        self._adapts = True
        for rank in [rank for rank in self._reporters if rank not in old.places]:
            del self._reporters[rank]
        for rank in members:
            if rank not in old.places:
                self._enlist(rank, first)
        for reporter in self._reporters.values():
            reporter.called = False

    def for_newcomers(self) -> dict[str, Any]:
        """Return what a newcomer's controller needs right after :meth:`members_changed`, as plain data."""
        first, decider = self._era.first, self._era.decider
        drawn = range(max(0, first - decider.lookahead), first)  # perhaps again, if all leave their loop
        return {"first": first, "decider": decider.state_dict(), "before": [[one, self.shares(one)] for one in drawn]}

    def take_over(self, state: dict[str, Any]) -> None:
        """Continue, in a newcomer, from :meth:`for_newcomers`; raise ``CheckpointError`` if the state does not fit."""
        decider, first = self._era.decider, int(state["first"])
        with loading("the balancing"):
            if not decider.load_state_dict(state["decider"]):
                raise Misfit(state["decider"].get("kind"), "the balancer and limits of this worker", "kind")
        self._era = era = _Era(first, decider)
        self._before = {one: tuple(shares) for one, shares in state["before"]}
        era.soonest = era.far = era.due = first + 1
        self._reporters.clear()

    def _enlist(self, rank: int, since: int = 0) -> Reporter:
        made = self._reporters[rank] = Reporter(self._make_forecaster(), since)
        made.forecaster.hidden_s = self._era.decider.hidden_s
        return made

    def _partial_update(self, era: _Era, newest: int) -> list[Instruction]:
        if not era.calls or era.ended < era.heard:
            return []
        calls, era.calls = era.calls, {}
        by_place = {era.places[rank]: report for rank, report in calls.items()}
        return _told(era, era.decider.partial_update(max(era.ended, newest), by_place))

    def _decide(self, era: _Era, newest: int) -> list[Instruction]:
        if era.table is None or era.ended <= era.launched:
            return []
        table, era.table = era.table, None
        self._past.append(table)
        decision = era.decider.decide(max(era.ended, newest), era.launched, table)
        era.given = set()
        era.soonest, era.far, era.due = decision.soonest, decision.far, decision.next
        for reporter in self._reporters.values():
            reporter.forecaster.hidden_s = era.decider.hidden_s
        return _told(era, decision)

    def state_dict(self, rank: int) -> dict[str, Any]:
        """Return the decider's state, one worker's forecaster and the past of all workers, as plain data."""
        past = [[[x if math.isfinite(x) else None for x in row] for row in table.rows.tolist()] for table in self._past]
        forecaster = self.reporter(rank).forecaster.state_dict()
        place = self._era.places[rank]  # ranks are renumbered on resume if members have changed
        return {**self._era.decider.state_dict(), "rank": place, "forecaster": forecaster, "past": past}

    def check(self, rank: int, state: dict[str, Any]) -> None:
        """Raise ``CheckpointError``, which names the field, if ``state`` cannot be resumed; change nothing."""
        with loading("the balancing"):
            saved, decider = read(ControllerState, state), self._era.decider
            if not decider.check(state):
                return
            size = len(decider.newest), len(Report._fields)
            if any((len(rows), *{len(row) for row in rows}) != size for rows in saved["past"]):
                raise Misfit(saved["past"], f"tables of {size[0]} reports with {size[1]} numbers each", "past")
            past = list(map(_table, saved["past"]))
            for row in (
                row for table in past for row in table.rows.tolist()
            ):  # so that all ranks reject the same files
                report = Report(*row)  # without a finished iteration it has no speed
                if report.believable and report.iterations and not report.observation().speed_per_s > 0.0:
                    raise Misfit(row, "a report with a speed above 0", "past")
            self._foretelling(rank, saved, past)

    def load_state_dict(self, rank: int, state: dict[str, Any]) -> None:
        """Resume after :meth:`check`; a state of other workers, batch, limits or balancer starts from scratch."""
        self.check(rank, state)
        decider = self._era.decider
        goes_on = decider.load_state_dict(state)
        self._era, self._adapts = _Era(0, decider), True
        self._earlier.clear()
        self._past.clear()
        if goes_on:
            self._past.extend(map(_table, state["past"]))
            forecaster = self._foretelling(rank, read(ControllerState, state), self._past)
        else:
            forecaster = self._make_forecaster()
            forecaster.hidden_s = decider.hidden_s
        self.reporter(rank).restart(forecaster)

    def _foretelling(self, rank: int, saved: ControllerState, past: Iterable[ReportTable]) -> Forecaster:
        # The saved forecaster is of one rank; the others learn from their own rows of the saved reports.
        forecaster = self._make_forecaster()
        forecaster.hidden_s = self._era.decider.hidden_s
        place = self._era.places[rank]
        if saved["rank"] == place:
            with inside("forecaster"):
                forecaster.load_state_dict(saved["forecaster"])
        else:
            for table in past:
                own = Report(*table.rows[place].tolist())
                if own.believable and own.iterations:
                    forecaster.observe(own.observation())
        forecaster.tell()
        return forecaster


def _told(era: _Era, outcome: Decision | PartialUpdate) -> list[Instruction]:
    found: list[Instruction] = [*outcome.complaints]
    if outcome.split is not None:
        found.append(_by_rank(outcome.split, era.decider.members))
    return found


def _by_rank(split: SplitRecord, members: tuple[int, ...]) -> SplitRecord:
    # Readers expect position i for rank i; a rank that is not a member gets no samples.
    ranks = members[-1] + 1
    if ranks == len(members):
        return split
    shares, speeds, predicted = [0] * ranks, [math.nan] * ranks, [math.nan] * ranks
    for place, rank in enumerate(members):
        shares[rank], speeds[rank] = split.shares[place], split.speeds_per_s[place]
        predicted[rank] = split.predicted_per_s[place]
    return replace(split, shares=tuple(shares), speeds_per_s=tuple(speeds), predicted_per_s=tuple(predicted))


def _of_members(table: ReportTable, places: Mapping[int, int], members: Iterable[int]) -> ReportTable:
    # In the order of the new members; newcomers have reported nothing.
    return ReportTable([table.rows[places[one]] if one in places else SILENT for one in members])


def _table(rows: Sequence[Sequence[float | None]]) -> ReportTable:
    return ReportTable([[math.nan if x is None else x for x in row] for row in rows])


_UNKNOWN = Load()

Told = ForecastRecord | SplitRecord | Complaint


class Loopback:
    """The driver of one controller for all workers, in the simulator and in benches."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller

    def measured(self, rank: int, seen: Observation, late: bool = False) -> None:
        if self.controller.adapts:
            self.controller.measured(rank, seen, late=late)
            self.controller.reporter(rank).forecaster.study()

    def ended(self, rank: int, iteration: int, cost_s: float, newest: int = -1) -> list[Told]:
        """Record that a worker has ended an iteration, and return the consequences in order; see
        :meth:`Controller.ended`."""
        controller = self.controller
        found = self._carry_out(controller.ended(rank, iteration, _UNKNOWN, cost_s, cost_s, newest=newest), newest)
        call = controller.begins(rank, iteration + 1, _UNKNOWN, cost_s, cost_s)
        if call is not None:  # arrives with that iteration's exchange
            controller.called(call.iteration, {} if call.report is None else {rank: call.report})
            if call.report is not None:
                found.append(call.report.forecast(rank, call.iteration))
        return found

    def _carry_out(self, instructions: Iterable[Instruction], newest: int) -> list[Told]:
        found: list[Told] = []
        for one in instructions:
            if isinstance(one, GiveReport):
                found.append(one.report.forecast(one.rank, one.iteration + 1))
                # The last report of a round decides, and its instructions are carried out here too.
                found += self._carry_out(self.controller.reported(one.rank, one.report, newest), newest)
            else:
                found.append(one)
        return found
