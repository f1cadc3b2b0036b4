"""The slow loop of a real run: sends reports and carries out the controller's decisions.

It never delays the fast loop. A report made at the end of an iteration is piggybacked on the gradients of the next one
and read after it. Otherwise it goes into an asynchronous gather, whose result is read then: all ranks have passed a
later gradient exchange, so it has arrived. If workers meet only every few steps, it is read after their next meeting.
All ranks read the same table and decide the same, so no server is needed. A split decided after iteration k applies
from k + 1 + lookahead on, with ``lookahead``, the number of batches whose indices the loaders have drawn in advance.

A worker whose speed leaves its forecast calls for reports and piggybacks its own report on the gradients with the call.
All ranks receive both in the same iteration, decide immediately, and report. Therefore reports can be rare while
nothing changes.

The loop has a budget: reports include its cost, so all ranks know the highest cost and space the reports equally.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from uneven.policy.control import Complaint, Controller, Decider, Forecaster, Load, Report, ReportTable
from uneven.policy.control.controller import Instruction
from uneven.policy.core.records import ForecastRecord, SplitRecord
from uneven.policy.core.views import Limits, Observation
from uneven.policy.predict import Lesson
from uneven.run.lines.control_words import Heard
from uneven.run.lines.transport import Pending
from uneven.run.measure.meter import MeterReading

_SHARE = 0.001  # largest share of the time that training may take


class BackgroundTrainer:
    """Runs one training job at a time; starts a thread with the first job."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._job: Future[tuple[Any, float]] | None = None
        self._not_before_s = 0.0

    def turn(self, forecaster: Forecaster) -> None:
        """Pass the result of the last job to the forecaster and start a job that is due; never waits."""
        if self._job is not None:
            if not self._job.done():
                return
            (learnt, took_s), self._job = self._job.result(), None
            forecaster.absorb(learnt)
            self._not_before_s = time.monotonic() + took_s / _SHARE
        if time.monotonic() < self._not_before_s:
            return
        job = forecaster.lesson()
        if job is not None:
            self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="uneven-trainer")
            self._job = self._pool.submit(_timed, job)

    def drop(self) -> None:
        """Cancel the job, whose forecaster has been replaced."""
        if self._job is not None:
            self._job.cancel()
            self._job = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._job = None


def _timed(job: Lesson) -> tuple[Any, float]:
    began_s = time.monotonic()
    return job.learn(), time.monotonic() - began_s


class SlowLoop:
    """Drives one rank's :class:`~uneven.policy.control.Controller`; the controllers of all ranks decide the same."""

    def __init__(
        self,
        rank: int,  # this worker
        give: Callable[[Sequence[float]], Pending],
        decider: Decider,  # of this rank; all ranks have the same
        forecaster: Callable[[], Forecaster],  # makes the predictor of this rank's own speed
        *,
        on_split: Callable[[SplitRecord], None],  # called with every change of the split
        on_complaint: Callable[[int, int, str], None],  # called for every rejected report: rank, iteration, text
        on_forecast: Callable[[ForecastRecord], None],  # called with this rank's forecast in each report
    ) -> None:
        self._rank = rank
        self._give = give  # sends this rank's row to all; see `uneven.run.lines.transport.Transport.gather`
        self._controller = Controller(decider, forecaster)
        self._reporter = self._controller.reporter(rank)
        self._trainer = BackgroundTrainer()
        self._on_split = on_split
        self._on_complaint = on_complaint
        self._on_forecast = on_forecast
        self._pending: Pending | None = None

    @property
    def newest(self) -> tuple[int, ...]:
        return self._controller.newest

    def shares(self, iteration: int) -> tuple[int, ...]:
        return self._controller.shares(iteration)

    @property
    def adapts(self) -> bool:
        return self._controller.adapts

    @property
    def watches(self) -> bool:
        """True if the predictor needs the machine's load in every step."""
        return self._reporter.forecaster.watches

    @property
    def suspects_change(self) -> bool:
        """True if the next iteration must be read immediately, to decide whether this worker's speed has changed."""
        return self._reporter.forecaster.suspects_change

    def measured(self, timing: MeterReading, samples: int, control_s: float, load: Load, late: bool = False) -> None:
        """Pass one iteration's timing on; see :meth:`Reporter.measured` for ``control_s`` and ``late``."""
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
        """Return this rank's report for the exchange of ``iteration`` if its speed has left its last forecast;
        otherwise None."""
        call = self._controller.begins(self._rank, iteration, load, cost_s)
        if call is None:
            return None
        if call.report is None:
            # An empty row only calls for reports: the balancer needs those of all to decide.
            return ()
        self._on_forecast(call.report.forecast(self._rank, iteration))
        return call.report

    def due(self, iteration: int, heard: Heard | None) -> bool:
        """Return whether to decide or report at the end of ``iteration``; see :meth:`tick`."""
        return self._controller.due(iteration, heard is not None and heard.called)

    def tick(self, iteration: int, load: Load, cost_s: float, heard: Heard | None, met: bool = True) -> bool:
        """Decide and report at the end of ``iteration``; called on every rank.

        Args:
            met: whether all ranks have waited for each other in it, so that earlier messages have arrived.
            heard: the calls for reports since the last turn, the same on every rank; None if calls are not sent.
            cost_s: cost of this rank's last exchange of reports for the fast loop, from sending to deciding.

        Returns:
            Whether a report was sent.
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
        """Continue with other members from iteration ``border`` on, without the old members' reports under way."""
        self._controller.members_changed(border, members, limits, global_batch, kinds)
        self._reporter, self._pending = self._controller.reporter(self._rank), None

    def for_newcomers(self) -> dict[str, Any]:
        return self._controller.for_newcomers()

    def take_over(self, state: dict[str, Any]) -> None:
        self._controller.take_over(state)
        self._reporter = self._controller.reporter(self._rank)

    def state_dict(self) -> dict[str, Any]:
        return self._controller.state_dict(self._rank)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._controller.load_state_dict(self._rank, state)
        self._trainer.drop()
        if self._pending is not None:  # a report of undone iterations: all have sent it, so the gather must finish
            self._pending.result()
            self._pending = None

    def close(self) -> None:
        self._trainer.close()
