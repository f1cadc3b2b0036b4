"""What is known of one virtual worker. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from uneven.core.actions import Exchange, StepPlan, Wait
from uneven.core.cost import Cost
from uneven.simulate.compute import Jitter, Processor
from uneven.simulate.events import Action, Handle

_NOTHING = StepPlan()


@dataclass(slots=True, kw_only=True)
class Machine:
    """What a worker computes with.

    Attributes:
        cost: Γ(x) with the whole node.
        exchange_work_s: what its own side of an exchange of the whole model takes, with the whole node.
        report_work_s: what giving a report and deciding take, with the whole node.
        one_processor: whether an exchange in the background takes that time from the computing.
    """

    processor: Processor
    cost: Cost
    jitter: Jitter
    exchange_work_s: float = 0.0
    report_work_s: float = 0.0
    one_processor: bool = False


@dataclass(slots=True, eq=False)
class Worker:
    """One worker and the step that it is in.

    Attributes:
        clock: steps that it has finished, or that others finished for it.
        stop_at: the clock at which it leaves; None to stay.
        gone: it died, left or has taken all its steps.
        dead: it died.
        plan, todo: of this step, and how many of the plan's exchanges have been begun.
        batch, first: samples of this step and the position of the first of them in the order of the data.
        counted: samples of everybody whose gradients went into this step; None if nobody said.
        late, skip_to: its part of this step was dropped, and the clock that it goes on at.
        began_s, started_s, computed_s: when it was ready for the step, began to compute, and was done with that.
        event, awaited: its next appointment while it computes, and how much work is to be done for it.
        transfer_s: what its own side of this step's exchanges takes.
        own_s, refresh_s: what its preconditioner's work behind the exchanges takes in this step, and of that a refresh,
            which serves the steps after it, too.
        factors_s: of its computing, what taking factors for that takes.
        rows_s: that it waits for rows of embedding tables in this step.
        unread: exchanges with the parameter server whose outcome it reads before it computes again.
        flying: exchanges in the background that are under way, with the first step that they make known.
        owing: those that could not start for that, with the first step that is not sent yet.
        due: clock → what the step there waits for, as an outcome is to enter then.
        paid_s: from when on its processor can afford another one, by the load of the exchange.
        owed_s: work of its exchanges in the background that it has still to do between its own.
        fetching: whether the parameters that it starts from are still on their way.
        stepped: whether the optimizer has, in this step.
    """

    rank: int
    machine: Machine
    clock: int = 0
    stop_at: int | None = None
    gone: bool = False
    plan: StepPlan = _NOTHING
    todo: int = 0
    stepped: bool = False
    batch: int = 0
    first: int = 0
    counted: int | None = None
    late: bool = False
    skip_to: int = 0
    began_s: float = 0.0
    started_s: float = 0.0
    computed_s: float = 0.0
    transfer_s: float = 0.0
    own_s: float = 0.0
    refresh_s: float = 0.0
    factors_s: float = 0.0
    rows_s: float = 0.0
    event: Handle | None = None
    awaited: tuple[float, Action, tuple[object, ...]] | None = None
    unread: list[Exchange] = field(default_factory=list)
    flying: dict[object, int] = field(default_factory=dict)
    owing: dict[object, int] = field(default_factory=dict)
    due: dict[int, Wait] = field(default_factory=dict)
    paid_s: float = 0.0
    owed_s: float = 0.0
    dead: bool = False
    fetching: bool = False
    _work_s: float = 0.0
    _mark: tuple[float, float] = (0.0, 0.0)  # a time, and the work that was done by then

    def compute(self, now_s: float, work_s: float) -> None:
        """Begin to compute."""
        processor = self.machine.processor
        self.started_s = now_s
        self._settle(now_s)
        self._work_s = work_s + self.owed_s
        self.owed_s = 0.0
        self._mark = now_s, 0.0
        self.computed_s = processor.end_s(now_s, self._work_s)

    def _settle(self, now_s: float) -> None:
        since_s, done_s = self._mark
        if now_s < self.computed_s:
            return
        self.machine.processor.spend(since_s, self._work_s - done_s)
        self._mark = self.computed_s, self._work_s

    def ready_s(self, part: float) -> float:
        """When so much of this step's work is done, or was."""
        if part >= 1.0:
            return self.computed_s
        since_s, done_s = self._mark
        left_s = self._work_s * part - done_s
        return self.machine.processor.end_s(since_s, left_s) if left_s > 0.0 else since_s

    def keep(self, now_s: float) -> bool:
        """Note what is done so far, for the speed is about to change; whether it is computing at all."""
        since_s, done_s = self._mark
        if not since_s <= now_s < self.computed_s:
            return False
        here_s = self.machine.processor.work_s(since_s, now_s)
        self.machine.processor.spend(since_s, here_s)
        self._mark = now_s, done_s + here_s
        return True

    def go_on(self) -> None:
        """Reckon the end anew, after :meth:`keep`."""
        since_s, done_s = self._mark
        self.computed_s = self.machine.processor.end_s(since_s, self._work_s - done_s)

    def own_side(self, now_s: float, part: float = 1.0) -> tuple[float, float]:
        """Its own side of an exchange of the whole model that begins now: how long that keeps it busy, and its end.

        Args:
            part: of the whole model.
        """
        work_s = self.machine.exchange_work_s * part
        if not work_s:
            return 0.0, now_s
        self._settle(now_s)
        busy_s = self.machine.processor.end_s(now_s, work_s) - now_s
        return busy_s, self.machine.processor.answer_s(now_s, work_s)

    def answer_s(self, now_s: float, part: float, *, waited: bool) -> float:
        """When it has passed on a message with such a part of an exchange, for which it had waited or not."""
        self._settle(now_s)
        return self.machine.processor.answer_s(now_s, self.machine.exchange_work_s * part, waited=waited)
