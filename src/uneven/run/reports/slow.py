"""The slow loop of a real run: carries the reports, and what the controller says of them.

It never makes the fast loop wait. A report that is made at the end of one iteration rides on the gradients of the next
one, and is read when that has ended. Where it cannot ride it goes into an asynchronous gather, whose result is read
then; by that time everybody has passed a gradient exchange that came after it, so the result is there. Where workers
meet only every few steps, it is read after the next step in which they did. Every rank reads the same table, so every
rank decides the same, and no server is needed. A split that was decided after iteration k is in force from
k + 1 + lookahead, where ``lookahead`` is how far ahead the loaders have drawn indices.

A worker whose speed leaves what it foretold calls for reports, and its own rides on the gradients with the call. So
everybody hears both in the same iteration, decides by it at once, and reports. That is what lets reports be rare while
nothing changes.

The loop has a budget. What it costs is part of the reports, so all ranks know the cost of the most expensive one and
space the reports alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from uneven.policy.control import Complaint, Controller, Decider, Forecaster, Load, Report, ReportTable
from uneven.policy.control.controller import Instruction
from uneven.policy.core.records import ForecastRecord, SplitRecord
from uneven.policy.core.views import Limits, Observation
from uneven.run.gradients.piggyback import Heard
from uneven.run.lines.transport import Pending
from uneven.run.measure.meter import MeterReading
from uneven.run.reports.trainer import BackgroundTrainer


class SlowLoop:
    """Drives one rank's :class:`~uneven.policy.control.Controller`, which decides; all ranks' come to the same answers.

    Args:
        rank: this worker.
        give: hands this rank's row to everybody; see :meth:`uneven.run.lines.transport.Transport.gather`.
        decider: this rank's; all ranks hold the same.
        forecaster: makes the one that gives this rank's word on its own speed.
        on_split: called with every change of the split.
        on_complaint: called for every report that was not believed: rank, iteration, text.
        on_forecast: called with this rank's forecast in each report.
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
        on_forecast: Callable[[ForecastRecord], None],
    ) -> None:
        self._rank, self._give = rank, give
        self._controller = Controller(decider, forecaster)
        self._reporter = self._controller.reporter(rank)
        self._trainer = BackgroundTrainer()
        self._on_split = on_split
        self._on_complaint = on_complaint
        self._on_forecast = on_forecast
        self._pending: Pending | None = None

    @property
    def newest(self) -> tuple[int, ...]:
        """The newest split decided."""
        return self._controller.newest

    def shares(self, iteration: int) -> tuple[int, ...]:
        """The split in force in ``iteration``."""
        return self._controller.shares(iteration)

    @property
    def adapts(self) -> bool:
        return self._controller.adapts

    @property
    def watches(self) -> bool:
        """Whether the use of the machine is asked for on every step."""
        return self._reporter.forecaster.watches

    @property
    def suspects_change(self) -> bool:
        """Whether the next iteration cannot wait to be read: it will tell if this worker's speed has changed."""
        return self._reporter.forecaster.suspects_change

    def measured(self, timing: MeterReading, samples: int, control_s: float, load: Load, late: bool = False) -> None:
        """One iteration's timing has become readable.

        Args:
            control_s, late: see :meth:`Reporter.measured`.
        """
        if not self.adapts:
            return
        seen = Observation(
            iteration=timing.iteration,
            samples=samples,
            local_s=timing.local_s,
            exchange_s=timing.exchange_s,
            transfer_s=timing.transfer_s,
            cpu=load.cpu,
            memory=load.memory,
        )
        self._controller.measured(self._rank, seen, control_s, late)
        self._trainer.turn(self._reporter.forecaster)

    def early_report(self, iteration: int, load: Load, cost_s: float) -> Report | tuple[()] | None:
        """This rank's report, ahead of time, if its speed has left its last forecast; else None. It goes with the
        exchange of ``iteration``, which is about to begin; all ranks decide by it at once, and then report.

        Args:
            cost_s: see :meth:`tick`.

        Returns:
            A row of no numbers where all can but report, as the balancer needs everybody's word.
        """
        call = self._controller.begins(self._rank, iteration, load, cost_s)
        if call is None:
            return None
        if call.report is None:
            return ()
        self._on_forecast(call.report.forecast(self._rank, iteration))
        return call.report

    def due(self, iteration: int, heard: Heard | None) -> bool:
        """Whether the end of ``iteration`` is the moment for deciding or for a report; see :meth:`tick`."""
        return self._controller.due(iteration, heard is not None and heard.called)

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
            rows = self._pending.result() if met else None
            if rows is None:
                return False
            self._pending = None
            self._controller.gathered(ReportTable(rows))
        if heard is not None and heard.called:
            members = self._controller.members
            self._controller.called(iteration, {members[place]: Report(*row) for place, row in heard.rows.items()})
        self._carry_out(self._controller.ended(self._rank, iteration, load, cost_s, no_early_reports=heard is None))
        return self._pending is not None

    def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, SplitRecord):
                self._on_split(one)
            elif isinstance(one, Complaint):
                self._on_complaint(one.rank, one.iteration, one.text)
            else:
                self._on_forecast(one.report.forecast(self._rank, one.iteration + 1))
                self._pending = self._give(one.report)

    def members_changed(
        self, border: int, members: tuple[int, ...], limits: Limits, global_batch: int, kinds: Mapping[int, str]
    ) -> None:
        """Others take part from iteration ``border`` on; reports under way among the old members are dropped."""
        self._controller.members_changed(border, members, limits, global_batch, kinds)
        self._reporter, self._pending = self._controller.reporter(self._rank), None

    def for_newcomers(self) -> dict[str, Any]:
        """What a worker that joins now has to know to decide as all do; see :meth:`take_over`."""
        return self._controller.for_newcomers()

    def take_over(self, state: dict[str, Any]) -> None:
        """This worker has just joined; inverse of :meth:`for_newcomers`."""
        self._controller.take_over(state)
        self._reporter = self._controller.reporter(self._rank)

    def state_dict(self) -> dict[str, Any]:
        """The decider's state, what this rank's forecaster has learnt, and everybody's past, as plain data."""
        return self._controller.state_dict(self._rank)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._controller.load_state_dict(self._rank, state)
        self._trainer.drop()
        if self._pending is not None:  # a report of iterations that are now undone; everybody has sent it
            self._pending.result()
            self._pending = None

    def close(self) -> None:
        """End what runs in the background."""
        self._trainer.close()
