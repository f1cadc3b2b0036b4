"""The slow loop: carries reports to everybody and hands them to the decider.

It never makes the fast loop wait. A report that is made at the end of one iteration rides on the gradients of the next
one, and is read when that has ended. Where it cannot ride it goes into an asynchronous gather, whose result is read
then; by that time everybody has passed a gradient exchange that came after it, so the result is there. Where workers
meet only every few steps, it is read after the next step in which they did. Every rank reads the same table, so every
rank decides the same, and no server is needed. A split that was decided after iteration k is in force from
k + 1 + lookahead, where ``lookahead`` is how far ahead the loaders have drawn indices.

A worker whose speed leaves what it foretold calls for reports, and its own rides on the gradients with the call. So
everybody hears both in the same iteration, decides by it at once, and reports. That is what lets reports be rare while
nothing changes.

The loop has a budget. What it costs is part of the reports, so all ranks know the dearest one's cost and
space the reports alike.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

from uneven.control import Amendment, Decider, Decision, Forecaster, Report, Table
from uneven.control.forecast import Forecast
from uneven.core.plain import Count, Misfit, inside, loading, read
from uneven.core.records import SplitRecord
from uneven.core.views import Observation
from uneven.run.gradients.piggyback import Heard
from uneven.run.lines.transport import Pending
from uneven.run.measure.meter import Timing
from uneven.run.reports.trainer import BackgroundTrainer

_PAST = 32
"""Reports of each rank that go into a checkpoint, so that a rank can learn from its own past out of any rank's file."""


class _State(TypedDict):
    """Beside the decider's."""

    rank: Count
    forecaster: dict[str, Any]
    past: list[list[list[float | None]]]


@dataclass(slots=True)
class _Window:
    """Sums over the iterations since the last report."""

    iteration: int = -1
    iterations: int = 0
    samples: int = 0
    local_s: float = 0.0
    exchange_s: float = 0.0
    transfer_s: float = 0.0
    control_s: float = 0.0

    def add(self, timing: Timing, samples: int, control_s: float) -> None:
        self.iteration = timing.iteration
        self.iterations += 1
        self.samples += samples
        self.local_s += timing.local_s
        self.exchange_s += timing.exchange_s
        self.transfer_s += timing.transfer_s
        self.control_s += control_s


class Load(NamedTuple):
    """Use of the node, 0 … 1, as it goes into a report: its processors by others, its memory by everybody."""

    cpu: float = math.nan
    memory: float = math.nan


class SlowLoop:
    """Keeps the split.

    Args:
        rank: this worker.
        give: hands this rank's row to everybody; see :meth:`uneven.run.lines.transport.Transport.gather`.
        decider: this rank's; all ranks hold the same.
        forecaster: makes the one that gives this rank's word on its own speed.
        on_split: told about every change of the split.
        on_complaint: told about every report that was not believed: rank, iteration, text.
        on_forecast: told what this rank foretells with each report: the first iteration that it is about, and what.
    """

    def __init__(
        self,
        rank: int,
        give: Callable[[Sequence[float]], Pending],
        decider: Decider,
        forecaster: Callable[[], Forecaster],
        *,
        on_split: Callable[[SplitRecord], None],
        on_complaint: Callable[[int, int, str], None],
        on_forecast: Callable[[int, Forecast], None] | None = None,
    ) -> None:
        self._rank, self._give = rank, give
        self._decider = decider
        self._make_forecaster = forecaster
        self._forecaster = forecaster()
        self._trainer = BackgroundTrainer()
        self._past: deque[Table] = deque(maxlen=_PAST)
        self._on_split = on_split
        self._on_complaint = on_complaint
        self._on_forecast = on_forecast
        self._window = _Window()
        self._pending: Pending | None = None
        self._next: int | None = None  # the first iteration, also after a resume, warms up and is not reported
        self._soonest = self._far = 0
        self._warm = self._cried = False
        self._adapts = True
        self._launched = 0

    @property
    def newest(self) -> tuple[int, ...]:
        """The newest split decided."""
        return self._decider.newest

    def shares(self, iteration: int) -> tuple[int, ...]:
        """The split in force in ``iteration``."""
        return self._decider.shares(iteration)

    @property
    def adapts(self) -> bool:
        """Whether what is measured can change anything; what cannot any more never can, and is not asked again."""
        self._adapts = self._adapts and self._decider.adapts
        return self._adapts

    @property
    def watches(self) -> bool:
        """Whether the use of the machine is asked for on every step."""
        return self._forecaster.watches

    @property
    def wary(self) -> bool:
        """Whether the next iteration cannot wait to be read: it will tell if this worker's speed has changed."""
        return self._forecaster.wary

    def cry(self, iteration: int, load: Load, cost_s: float) -> Report | tuple[()] | None:
        """What this rank has to say with the exchange of ``iteration``, which is about to begin, if its speed has left
        what it last told; else None. The others decide by it as soon as they have heard it, and report themselves.

        Args:
            cost_s: see :meth:`tick`.

        Returns:
            A row of no numbers where all can but report, as the balancer needs everybody's word.
        """
        if self._pending is not None or self._next is None:
            return None
        if not self._forecaster.calls(iteration, self._soonest, self._far):
            return None
        if not self._decider.amends:
            return ()
        self._cried = True
        return self._report(iteration - 1, load, cost_s, deaf=False)

    def due(self, iteration: int, heard: Heard | None) -> bool:
        """Whether the end of ``iteration`` is the moment for deciding or for a report; see :meth:`tick`."""
        if not self.adapts:
            return False
        rested = self._pending is None and self._next is not None
        return not rested or (heard is not None and heard.called) or iteration >= (self._next or 0)

    def measured(self, timing: Timing, samples: int, control_s: float, load: Load) -> None:
        """One iteration's timing has become readable; padded batches and the first iteration do not count.

        Args:
            control_s: what measuring and deciding cost in it.
        """
        warm, self._warm = self._warm, True
        if samples > 0 and warm and self.adapts:
            self._window.add(timing, samples, control_s)
            self._forecaster.observe(
                Observation(
                    iteration=timing.iteration,
                    samples=samples,
                    local_s=timing.local_s,
                    exchange_s=timing.exchange_s,
                    transfer_s=timing.transfer_s,
                    cpu=load.cpu,
                    memory=load.memory,
                )
            )
            self._trainer.turn(self._forecaster)

    def tick(self, iteration: int, load: Load, cost_s: float, heard: Heard | None, met: bool = True) -> bool:
        """The end of ``iteration``; called on every rank alike.

        Args:
            met: whether all ranks have waited for each other in this iteration, so that what they sent before is there.
            heard: who has called for reports since the last turn, the same on every rank; None where calls are not
                carried.
            cost_s: what this rank's last exchange of reports cost the fast loop, from giving a report to deciding.

        Returns:
            Whether a report was given.
        """
        if not self.adapts:
            return False
        if self._pending is not None:
            if not met:
                return False
            rows = self._pending.result()
            if rows is None:
                return False
            self._pending = None
            self._decide(iteration, Table(rows))
        if self._next is None:
            self._next = self._soonest = self._far = iteration + 1
        called = heard is not None and heard.called
        if heard is not None and called and heard.rows:
            self._amend(iteration, heard.rows)
        if called or iteration >= self._next:
            self._pending = self._give(self._report(iteration, load, cost_s, deaf=heard is None))
            self._launched, self._cried = iteration, False
            return True
        return False

    def _amend(self, iteration: int, rows: dict[int, list[float]]) -> None:
        self._announce(self._decider.amend(iteration, {rank: Report(*row) for rank, row in rows.items()}))

    def _announce(self, outcome: Decision | Amendment) -> None:
        for complaint in outcome.complaints:
            self._on_complaint(complaint.rank, complaint.iteration, complaint.text)
        if outcome.split is not None:
            self._on_split(outcome.split)

    def _decide(self, iteration: int, table: Table) -> None:
        self._past.append(table)
        decision = self._decider.decide(iteration, self._launched, table)
        self._announce(decision)
        self._soonest, self._far, self._next = decision.soonest, decision.far, decision.next
        self._forecaster.hidden_s = self._decider.hidden_s

    def _report(self, iteration: int, load: Load, cost_s: float, deaf: bool) -> Report:
        window, self._window = self._window, _Window()
        urgent = self._forecaster.urgent or self._cried
        forecast = self._forecaster.tell()
        if self._on_forecast is not None:
            self._on_forecast(iteration + 1, forecast)
        return Report(
            iteration=window.iteration,
            iterations=window.iterations,
            samples=window.samples,
            local_s=window.local_s,
            exchange_s=window.exchange_s,
            transfer_s=window.transfer_s,
            control_s=window.control_s,
            cost_s=cost_s,
            cpu=load.cpu,
            memory=load.memory,
            predicted_per_s=forecast.predicted_per_s,
            doubt=forecast.doubt,
            urgent=float(urgent),
            deaf=float(deaf),
            split=self._decider.fingerprint(),
        )

    def state_dict(self) -> dict[str, Any]:
        """The decider's state, what this rank's forecaster has learnt, and everybody's past, as plain data."""
        past = [[[x if math.isfinite(x) else None for x in row] for row in table.rows.tolist()] for table in self._past]
        forecaster = self._forecaster.state_dict()
        return {**self._decider.state_dict(), "rank": self._rank, "forecaster": forecaster, "past": past}

    def check(self, state: dict[str, Any]) -> None:
        """See that ``state`` can be gone on with. Nothing is changed.

        Raises:
            CheckpointError: it is damaged; the message names the field.
        """
        with loading("the balancing"):
            saved = read(_State, state)
            if not self._decider.check(state):
                return
            size = len(self._decider.newest), len(Report._fields)
            if any((len(rows), *{len(row) for row in rows}) != size for rows in saved["past"]):
                raise Misfit(saved["past"], f"tables of {size[0]} reports with {size[1]} numbers each", "past")
            past = list(map(_table, saved["past"]))
            for row in (row for table in past for row in table.rows.tolist()):  # all ranks refuse what one must
                if (report := Report(*row)).believable and not report.observation().speed_per_s > 0.0:
                    raise Misfit(row, "a report with a speed above 0", "past")
            self._foretelling(saved["rank"], saved["forecaster"], past)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another run stopped; one with other workers, batch, limits or balancer starts afresh.

        Raises:
            CheckpointError: see :meth:`check`.
        """
        self.check(state)
        if self._pending is not None:  # a report of iterations that are now undone; everybody has sent it
            self._pending.result()
        self._pending, self._next, self._window, self._cried = None, None, _Window(), False
        self._trainer.drop()
        self._forecaster = self._make_forecaster()
        self._past.clear()
        goes_on = self._decider.load_state_dict(state)
        self._adapts = True
        self._forecaster.hidden_s = self._decider.hidden_s
        if not goes_on:
            return
        self._past.extend(map(_table, state["past"]))
        self._forecaster = self._foretelling(state["rank"], state["forecaster"], self._past)

    def close(self) -> None:
        """End what runs in the background."""
        self._trainer.close()

    def _foretelling(self, rank: int, state: dict[str, Any], past: Iterable[Table]) -> Forecaster:
        """A forecaster that goes on with this state, or with what this worker reported if it is another rank's."""
        forecaster = self._make_forecaster()
        forecaster.hidden_s = self._decider.hidden_s
        if rank == self._rank:
            with inside("forecaster"):
                forecaster.load_state_dict(state)
        else:
            for table in past:
                own = Report(*table.rows[self._rank].tolist())
                if own.believable:
                    forecaster.observe(own.observation())
        forecaster.tell()
        return forecaster


def _table(rows: Sequence[Sequence[float | None]]) -> Table:
    return Table([[math.nan if x is None else x for x in row] for row in rows])
