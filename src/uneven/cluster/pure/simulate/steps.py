"""The steps of the workers.

::

    begin ─► waits hold? ─► read the server ─► compute ─► exchanges of the plan, in order ─► end ─► begin …
                                                    └─ gradients of the first exchange travel while it computes
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from uneven.cluster.pure.simulate.preconditioning import VirtualPreconditioner
from uneven.cluster.pure.simulate.shares import Shares
from uneven.cluster.pure.simulate.stage import Stage
from uneven.cluster.pure.simulate.table_servers import VirtualTables
from uneven.cluster.pure.simulate.virtual_exchanges import VirtualExchanges
from uneven.cluster.pure.simulate.virtual_worker import Worker
from uneven.policy.core.actions import Moment, Wait, overlapping
from uneven.policy.core.records import StepRecord


@dataclass(slots=True, eq=False)
class Steps:
    """Takes workers through their steps.

    Args:
        iterations: the clock at which a worker is finished.
        samples: total that all workers take from one common order; None for fixed positions in each step.
        pause_s: pause before the first step with other members, if gradients are averaged.
    """

    stage: Stage
    exchanges: VirtualExchanges
    shares: Shares
    iterations: int
    samples: int | None
    pause_s: float
    started: Callable[[int], None]
    record: Callable[[StepRecord], None]
    over: Callable[[Worker], None]
    preconditioner: VirtualPreconditioner | None = None
    tables: VirtualTables | None = None
    _taken: int = field(init=False, default=0)

    def begin(self, worker: Worker) -> None:
        stage, clock = self.stage, worker.clock
        if worker.gone:
            return
        enough = clock >= self.iterations or self._left() <= 0
        if clock > stage.newest and not enough:
            self.started(clock)
        if enough or (worker.stop_at is not None and clock >= worker.stop_at):
            self.over(worker)
        if worker.gone:
            return
        present = stage.history.at(clock)
        worker.began_s = stage.queue.now_s
        worker.todo = 0
        changed = present.generation > max(0, worker.generation)
        if present.generation != worker.generation:
            worker.generation = present.generation
            worker.plans.members_changed(present.members, present.generation)
        worker.plan = worker.plans.at(clock)
        exchanges = worker.plan.exchanges
        # The members of its last step were others, and those of this one have to meet first.
        if changed and self.pause_s > 0.0 and exchanges and exchanges[0].moment is Moment.BACKWARD:
            stage.queue.at(stage.queue.now_s + self.pause_s, self._start, worker)
        else:
            self._start(worker)

    def _start(self, worker: Worker) -> None:
        worker.began_s = self.stage.queue.now_s
        late = worker.due.pop(worker.clock, None)
        self._wait(worker, (*worker.plan.waits, *(() if late is None else (late,))))

    def _wait(self, worker: Worker, waits: tuple[Wait, ...]) -> None:
        if worker.gone:
            return
        clocks = self.stage.clocks
        for wait in waits:
            if not clocks.holds(wait.members, wait.clock):
                clocks.when(wait.members, wait.clock, partial(self._wait, worker, waits))
                return
        letters = self.exchanges.letters
        if letters.blocks(worker.rank, waits):
            letters.when_heard(worker.rank, partial(self._wait, worker, waits))
            return
        self._compute(worker)

    def _compute(self, worker: Worker) -> None:
        if worker.gone:
            return
        if worker.unread:
            one = worker.unread.pop(0)
            self.exchanges.read(worker, one, partial(self._compute, worker))
            return
        if self._left() <= 0:  # other workers took the last samples during the wait
            self.over(worker)
            return
        if self._waits_for_rows(worker):
            return
        stage, machine, clock = self.stage, worker.machine, worker.clock
        worker.batch, worker.first = self.shares.part(worker.rank, clock)
        first = self._first(worker)
        stage.arithmetic.computes(worker.rank, clock, range(first, first + worker.batch), stage.queue.now_s)
        work_s = machine.cost.seconds(worker.batch) * machine.jitter.factor(clock)
        factors_s = 0.0 if self.preconditioner is None else self.preconditioner.factors_work_s(worker, clock)
        worker.compute(stage.queue.now_s, work_s + factors_s)
        worker.factors_s = (worker.computed_s - worker.started_s) * factors_s / (work_s + factors_s or 1.0)
        exchanges = worker.plan.exchanges
        if exchanges and exchanges[0].moment is Moment.BACKWARD:
            worker.todo = 1
            self.exchanges.overlap(worker, exchanges[0])
        else:
            stage.when_done(worker, 1.0, self._computed, worker)

    def _waits_for_rows(self, worker: Worker) -> bool:
        if self.tables is None:
            return False
        now_s = self.stage.queue.now_s
        batch = self.shares.part(worker.rank, worker.clock).batch
        there_s = self.tables.rows_s(worker.rank, worker.clock, batch, now_s)
        if there_s <= now_s:
            return False
        self.tables.waited(worker.rank, there_s - now_s)
        worker.rows_s += there_s - now_s
        self.stage.queue.at(there_s, self._compute, worker)
        return True

    def _first(self, worker: Worker) -> int:
        if self.samples is None:
            return worker.clock * self.stage.workload.global_batch + worker.first
        # From the common order every worker takes the next samples, regardless of its position in the split.
        worker.batch = min(worker.batch, self.samples - self._taken)
        first, self._taken = self._taken, self._taken + worker.batch
        return first

    def _left(self) -> float:
        return math.inf if self.samples is None else self.samples - self._taken

    def _computed(self, worker: Worker) -> None:
        worker.event = worker.awaited = None
        self.go_on(worker)

    def go_on(self, worker: Worker) -> None:
        """Continue after the computing, or after an exchange that delayed the worker."""
        exchanges = worker.plan.exchanges
        while worker.todo < len(exchanges):
            one = exchanges[worker.todo]
            if not worker.stepped and one.moment is not Moment.BACKWARD:
                self._optimize(worker)
            worker.todo += 1
            # The outcome enters later: the step of that clock waits for it.
            if one.delay:
                if worker.due:
                    raise overlapping(one)
                worker.due[worker.clock + 1 + one.delay] = Wait(one.members, worker.clock + 1)
            if not self.exchanges.begin(worker, one):
                return
        if self.preconditioner is None:
            self._end(worker)
        else:
            self.preconditioner.begin(worker, partial(self._end, worker))

    def _optimize(self, worker: Worker) -> None:
        worker.stepped = True
        if worker.plan.divided:
            self.stage.arithmetic.divides(worker.rank, *self._divided(worker))
        if not worker.late:
            self.stage.arithmetic.steps(worker.rank, worker.clock, self.stage.queue.now_s)

    def _divided(self, worker: Worker) -> tuple[float, float]:
        # Factors of learning rate and gradient: 1 / K, and K times the site's part of the samples.
        parties = max(len(one.parties) for one in worker.plan.exchanges)
        near = next((one.members for one in worker.plan.exchanges if one.moment is Moment.BACKWARD), (worker.rank,))
        everybody = self.stage.history.at(worker.clock).members
        taken = {rank: self.shares.part(rank, worker.clock).batch for rank in everybody}
        return 1 / parties, parties * sum(taken[rank] for rank in near) / max(1, sum(taken.values()))

    def _end(self, worker: Worker) -> None:
        if not worker.stepped:
            self._optimize(worker)
        step = self._step(worker)
        self.record(step)
        self.shares.measured(step, worker.batch)
        clock = worker.clock
        worker.clock = max(clock + 1, worker.skip_to if worker.late else 0)
        worker.stepped = worker.late = False
        worker.transfer_s = worker.own_s = worker.refresh_s = worker.rows_s = 0.0
        worker.counted = None
        self.exchanges.tell_clock(worker)
        self.shares.ended(worker, clock, self.stage.newest)
        self.begin(worker)

    def _step(self, worker: Worker) -> StepRecord:
        now_s, load = self.stage.queue.now_s, self.stage.workload
        computed_s = worker.computed_s - worker.started_s
        more_s = 0.0 if self.preconditioner is None else self.preconditioner.counted_s(worker)
        return StepRecord(
            rank=worker.rank,
            iteration=worker.clock,
            epoch=worker.clock * load.global_batch // load.epoch_samples,
            batch=0 if worker.late else worker.batch,
            global_batch=load.global_batch if worker.counted is None else worker.counted,
            data_s=worker.rows_s,
            compute_s=computed_s + more_s,
            exchange_s=max(0.0, now_s - worker.began_s - computed_s - worker.own_s - worker.rows_s),
            control_s=0.0,
            ended_at_s=now_s,
            transfer_s=worker.transfer_s,
        )
