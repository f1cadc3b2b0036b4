"""The state of one virtual worker."""

from dataclasses import dataclass, field

from uneven.cluster.pure.simulate.compute import Jitter, Processor
from uneven.cluster.pure.simulate.event_queue import Action, Handle
from uneven.policy.control.step_plans import StepPlans
from uneven.policy.core.actions import Exchange, StepPlan, Wait
from uneven.policy.core.cost import Cost

_NOTHING = StepPlan()


@dataclass(slots=True, kw_only=True)
class Machine:
    """The hardware of a worker."""

    processor: Processor
    cost: Cost  # Γ(x) with the whole node
    jitter: Jitter
    exchange_work_s: float = 0.0  # time of its own side of an exchange of the whole model, with the whole node
    report_work_s: float = 0.0  # time of giving a report and deciding, with the whole node
    one_processor: bool = False  # whether an exchange in the background takes that time from the computing


@dataclass(slots=True, eq=False)
class Worker:
    """One worker and its current step.

    It keeps numbers instead of a ``StepLedger``, with which steps of 10,000 workers take 1.1 to 1.5 times as long.
    """

    rank: int
    machine: Machine
    plans: StepPlans
    clock: int = 0  # steps that it has finished, or that others finished for it
    stop_at: int | None = None  # the clock at which it leaves; None to stay
    gone: bool = False  # it has died, left or finished all its steps
    generation: int = -1  # of the members in its newest step
    plan: StepPlan = _NOTHING
    todo: int = 0  # number of the plan's exchanges that have started
    stepped: bool = False  # whether the optimizer has taken this step
    batch: int = 0  # samples of this step
    first: int = 0  # position of the first of them
    counted: int | None = None  # samples of all gradients in this step; None if unknown
    late: bool = False  # whether its part of this step was dropped …
    skip_to: int = 0  # … and the clock at which it continues
    began_s: float = 0.0  # when it was ready for the step
    started_s: float = 0.0  # when it started to compute
    computed_s: float = 0.0  # when it finished computing
    transfer_s: float = 0.0  # time of its own side of this step's exchanges
    own_s: float = 0.0  # time of its preconditioner's work after the exchanges in this step …
    refresh_s: float = 0.0  # … and of a refresh in it, which also serves later steps
    factors_s: float = 0.0  # time of taking factors, part of its computing
    rows_s: float = 0.0  # time of waiting for rows of embedding tables in this step
    event: Handle | None = None  # the next event while it computes
    # part of the work until that event, action and arguments
    awaited: tuple[float, Action, tuple[object, ...]] | None = None
    # exchanges with the server whose outcome it reads before it computes again
    unread: list[Exchange] = field(default_factory=list)
    # background exchanges in transit → the first step that they publish
    flying: dict[object, int] = field(default_factory=dict)
    owed: int | None = None  # if such an exchange could not start: the first step not sent yet
    # clock → the wait of the step there, because an outcome enters then
    due: dict[int, Wait] = field(default_factory=dict)
    paid_s: float = 0.0  # when its processor can afford the next exchange, by its load
    owed_s: float = 0.0  # background work to do in its next computing, if it has one processor
    dead: bool = False
    fetching: bool = False  # whether its first parameters are still in transit
    _work_s: float = 0.0
    _mark: tuple[float, float] = (0.0, 0.0)  # a time, and the work done by then

    def compute(self, now_s: float, work_s: float) -> None:
        processor = self.machine.processor
        self.started_s = now_s
        self._settle(now_s)
        # Background exchanges on the only processor delay this step by their work.
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
        """Return when ``part`` of this step's work is done."""
        if part >= 1.0:
            return self.computed_s
        since_s, done_s = self._mark
        left_s = self._work_s * part - done_s
        return self.machine.processor.end_s(since_s, left_s) if left_s > 0.0 else since_s

    def keep(self, now_s: float) -> bool:
        """Record the work done before a change of speed; return whether the worker is computing."""
        since_s, done_s = self._mark
        if not since_s <= now_s < self.computed_s:
            return False
        here_s = self.machine.processor.work_s(since_s, now_s)
        self.machine.processor.spend(since_s, here_s)
        self._mark = now_s, done_s + here_s
        return True

    def go_on(self) -> None:
        since_s, done_s = self._mark
        self.computed_s = self.machine.processor.end_s(since_s, self._work_s - done_s)

    def own_side(self, now_s: float, part: float = 1.0) -> tuple[float, float]:
        """Return the duration and the end of its own side of an exchange of ``part`` of the model that starts now."""
        work_s = self.machine.exchange_work_s * part
        if not work_s:
            return 0.0, now_s
        self._settle(now_s)
        busy_s = self.machine.processor.end_s(now_s, work_s) - now_s
        return busy_s, self.machine.processor.answer_s(now_s, work_s)

    def answer_s(self, now_s: float, part: float, *, waited: bool) -> float:
        """Return when it has passed on a message with this part of an exchange."""
        self._settle(now_s)
        return self.machine.processor.answer_s(now_s, self.machine.exchange_work_s * part, waited=waited)
