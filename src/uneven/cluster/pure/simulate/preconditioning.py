"""The work and exchanges of a preconditioner in a simulated run, after those of the gradients.

Owners are placed as in a real run (:mod:`uneven.policy.ownership.placement` and ``agree``), with the nodes' current
speeds::

    gradients averaged ─► [sums to owners ─► decompose ─► bases in the column] ─► turn ─► results in the row ─► end
                           └─────────── every refresh_period steps ──────────┘
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from uneven.cluster.pure.describe.cluster_events import COMINGS_AND_GOINGS
from uneven.cluster.pure.describe.spec import ClusterSpec, Preconditioning
from uneven.cluster.pure.simulate.stage import Stage
from uneven.cluster.pure.simulate.virtual_worker import Worker
from uneven.errors import ConfigError
from uneven.policy.core.actions import Payload, Via
from uneven.policy.ownership.agreed_speeds import AgreedSpeeds, better
from uneven.policy.ownership.placement import Item, Placement, RankGrid, gradient_workers, grid, place

_NUMBER_BYTES = 4
_ROW_BYTES = 6 * 8  # of the speeds that workers exchange at a refresh

Pairs = Mapping[tuple[int, int], float]  # (from, to) → bytes


class OwnOutcome(NamedTuple):
    """One worker's work for its preconditioner, means over its steps."""

    rank: int
    seconds: float  # of the worker's work after the gradients' exchange
    factors_s: float  # of taking factors, part of its computing
    sent_bytes: float  # without framing
    squares: int  # that it owns at the end


@dataclass(slots=True)
class _OwnSums:
    steps: int = 0
    seconds: float = 0.0
    factors_s: float = 0.0
    sent_bytes: float = 0.0


@dataclass(slots=True, eq=False)
class _Phase:
    """The work of each member, and an exchange of all."""

    work: Mapping[int, float]  # rank → cost
    pairs: Pairs
    lasting: bool  # whether the work serves all steps until the next refresh
    arrived: dict[int, Worker] = field(default_factory=dict)
    own_end_s: float = 0.0


class _Dealt:
    """The owners of all squares among some members."""

    def __init__(self, one: Preconditioning, members: tuple[int, ...]) -> None:
        self.members = members
        self._one = one
        step = 0.0 if one.kind == "muon" else one.turns
        ns_steps = round(one.turns) if one.kind == "muon" else 0
        self.items = [
            Item(f"layer {number:05}", sides, step * sides[0] * sides[1] * sum(sides), ns_steps)
            for number, sides in enumerate(one.layers)
        ]
        self.grid: RankGrid = grid(members, gradient_workers(one.share, len(members)))
        self.placement = self._placed(AgreedSpeeds((1.0,) * len(members), 0.0, 0.0, False))

    def _placed(self, table: AgreedSpeeds) -> Placement:
        one = self._one
        period = float(one.refresh_period)
        return place(self.items, self.grid, rule=one.place, speeds=table.speeds, period=period, fixed=table.fixed)

    def renew(self, table: AgreedSpeeds) -> None:
        """Change the owners if that saves a twentieth of a step."""
        other = better(self.placement, self._placed(table), self.items, table, self.members, self._one.refresh_period)
        self.placement = other or self.placement

    def owned(self, rank: int) -> Iterator[tuple[int, int]]:
        for number, owners in enumerate(self.placement.owners):
            yield from ((number, square) for square, owner in enumerate(owners) if owner == rank)

    def turning(self) -> dict[int, float]:
        found = dict.fromkeys(self.members, 0.0)
        for item, column in zip(self.items, self.placement.columns, strict=True):
            for rank in column:
                found[rank] += item.step
        return found

    def decomposing(self) -> dict[int, float]:
        return {rank: sum(self.items[i].refresh(j) for i, j in self.owned(rank)) for rank in self.members}

    def sums(self) -> Pairs:
        """Return the bytes to the owners: half of each (symmetric) square from all others, and a row of speeds."""
        them = {rank: sum(self._side(i, j) ** 2 / 2 for i, j in self.owned(rank)) for rank in self.members}
        kfac = self._one.kind == "kfac"
        return self._among(self.members, lambda _, there: _NUMBER_BYTES * them[there] * kfac + _ROW_BYTES)

    def bases(self) -> Pairs:
        """Return the bytes from owners to the members of their columns."""
        them = {rank: sum(self._basis_bytes(i, j) for i, j in self.owned(rank)) for rank in self.members}
        found: dict[tuple[int, int], float] = {}
        for column in self.grid.columns:
            found |= self._among(column, lambda here, _: them[here])
        return found

    def _basis_bytes(self, item: int, square: int) -> float:
        one, side = self.items[item], self._side(item, square)
        return 2.0 * math.prod(one.sides) if one.ns_steps else float(_NUMBER_BYTES * side * (side + 1))  # bfloat16

    def results(self) -> Pairs:
        """Return the bytes of turned gradients to the other members of each row."""
        found: dict[tuple[int, int], float] = {}
        for row in self.grid.rows:
            them = dict.fromkeys(row, 0.0)
            for item, column in zip(self.items, self.placement.columns, strict=True):
                them[next(rank for rank in row if rank in column)] += item.sides[0] * item.sides[1]
            found |= self._among(row, lambda here, _, them=them: _NUMBER_BYTES * them[here])  # type: ignore[misc]
        return found

    def _side(self, item: int, square: int) -> int:
        return self.items[item].sides[square]

    @staticmethod
    def _among(ranks: tuple[int, ...], size: Callable[[int, int], float]) -> dict[tuple[int, int], float]:
        return {(here, there): size(here, there) for here in ranks for there in ranks if here != there}


class VirtualPreconditioner:
    """The preconditioner's part of each step, after the exchanges."""

    def __init__(self, stage: Stage, spec: ClusterSpec, one: Preconditioning) -> None:
        self._stage = stage
        self._spec = spec
        self._one = one
        self._dealt: _Dealt | None = None
        self._phases: dict[tuple[int, int], _Phase] = {}  # of a step, by number
        self._plans: dict[int, list[_Phase]] = {}
        self._then: dict[int, Callable[[], None]] = {}
        self._sums: dict[int, _OwnSums] = {}
        self._factors_s: dict[int, float] = {}  # rank → part of its newest factors in each step,
        self._refresh_s: dict[int, float] = {}  # and of its newest refresh

    def factors_work_s(self, worker: Worker, clock: int) -> float:
        """Return the cost of taking factors in a step, seconds of the whole node."""
        due = clock % self._one.factor_period == 0
        return self._one.factor_core_s * worker.batch / self._cores(worker.rank) if due else 0.0

    def counted_s(self, worker: Worker) -> float:
        """Return the seconds of this step's record besides its computing."""
        # As in a real run, factors and refreshes are spread evenly over the steps that they serve.
        one, clock, rank = self._one, worker.clock, worker.rank
        if clock % one.factor_period == 0:
            self._factors_s[rank] = worker.factors_s / one.factor_period
        if clock % one.refresh_period == 0:
            self._refresh_s[rank] = worker.refresh_s / one.refresh_period
        lasting_s = self._factors_s.get(rank, 0.0) + self._refresh_s.get(rank, 0.0)
        return worker.own_s + lasting_s - worker.refresh_s - worker.factors_s

    def begin(self, worker: Worker, then: Callable[[], None]) -> None:
        """Start the preconditioning, then call ``then``; raise ``ConfigError`` if the gradients are not averaged."""
        clock = worker.clock
        members = self._stage.history.at(clock).members
        self._check(worker, members)
        self._then[worker.rank] = then
        if clock not in self._plans:
            self._plans[clock] = self._planned(clock, members)
            self._plans = {at: plan for at, plan in self._plans.items() if at >= clock - 1}
        self._work(worker, clock, 0)

    def leave(self, worker: Worker) -> None:
        self._then.pop(worker.rank, None)
        for (clock, number), phase in list(self._phases.items()):
            phase.arrived.pop(worker.rank, None)
            self._recheck(clock, number)

    def outcome(self) -> tuple[OwnOutcome, ...]:
        dealt = self._dealt
        return tuple(
            OwnOutcome(
                rank,
                them.seconds / them.steps,
                them.factors_s / them.steps,
                them.sent_bytes / them.steps,
                sum(1 for _ in dealt.owned(rank)) if dealt is not None else 0,
            )
            for rank, them in sorted(self._sums.items())
            if them.steps  # it may have died in its first one
        )

    def _check(self, worker: Worker, members: tuple[int, ...]) -> None:
        averaged = any(
            one.payload is Payload.GRADIENT and one.via is Via.GROUP and one.members == members
            for one in worker.plan.exchanges
        )
        if len(members) > 1 and not averaged:
            raise ConfigError("a preconditioner needs gradients averaged over all workers in every step: use bsp")

    def _planned(self, clock: int, members: tuple[int, ...]) -> list[_Phase]:
        one, dealt = self._one, self._dealt
        if dealt is None or dealt.members != members:
            dealt = self._dealt = _Dealt(one, members)
        if clock % one.refresh_period:
            return [_Phase(dealt.turning(), dealt.results(), False)]
        dealt.renew(self._speeds(clock, members))
        nothing = dict.fromkeys(members, 0.0)
        return [
            _Phase(nothing, dealt.sums(), True),
            _Phase(dealt.decomposing(), dealt.bases(), True),
            _Phase(dealt.turning(), dealt.results(), False),
        ]

    def _speeds(self, clock: int, members: tuple[int, ...]) -> AgreedSpeeds:
        stage, one = self._stage, self._one
        workers = [stage.workers[rank] for rank in members]
        # No worker has measured anything at the first refresh, so the shares approximate the speeds.
        if clock < one.refresh_period:
            return AgreedSpeeds(tuple(max(1.0, float(it.batch)) for it in workers), 0.0, 0.0, False)
        whole = [one.cost_per_s * self._cores(rank) for rank in members]
        now_s = stage.queue.now_s
        speeds = tuple(
            max(rate * it.machine.processor.rate(now_s), 1e-9) for rate, it in zip(whole, workers, strict=True)
        )
        fixed = min(rate * it.machine.cost.seconds(0) for rate, it in zip(whole, workers, strict=True))
        other = sum(rate * it.machine.cost.seconds(it.batch) for rate, it in zip(whole, workers, strict=True))
        return AgreedSpeeds(speeds, fixed, other, False)

    def _cores(self, rank: int) -> float:
        return self._spec.nodes[rank].cores

    def _work(self, worker: Worker, clock: int, number: int) -> None:
        stage, phase = self._stage, self._plans[clock][number]
        now_s = stage.queue.now_s
        work_s = phase.work[worker.rank] / (self._one.cost_per_s * self._cores(worker.rank))
        end_s = worker.machine.processor.end_s(now_s, work_s)
        worker.machine.processor.spend(now_s, work_s)
        worker.own_s += end_s - now_s
        worker.refresh_s += (end_s - now_s) * phase.lasting
        self._phases.setdefault((clock, number), phase)
        stage.queue.at(end_s, self._arrive, worker, clock, number)

    def _arrive(self, worker: Worker, clock: int, number: int) -> None:
        if not worker.gone and self._stage.workers[worker.rank] is worker:
            self._phases[clock, number].arrived[worker.rank] = worker
            self._recheck(clock, number)

    def _recheck(self, clock: int, number: int) -> None:
        phase, stage = self._phases[clock, number], self._stage
        awaited = [rank for rank in stage.history.at(clock).members if not stage.workers[rank].gone]
        if not phase.arrived or any(rank not in phase.arrived for rank in awaited):
            return
        del self._phases[clock, number]
        here = phase.arrived
        pairs = {pair: size for pair, size in phase.pairs.items() if pair[0] in here and pair[1] in here and size}
        if not pairs:
            self._through(phase, clock, number)
            return
        now_s = phase.own_end_s = stage.queue.now_s
        # A worker's own side is given for an all-reduce of the whole model; scale it by bytes.
        whole = 2 * (len(here) - 1) / len(here) * max(1, stage.workload.gradient_bytes)
        for rank, worker in here.items():
            sent = sum(size for pair, size in pairs.items() if pair[0] == rank)
            self._sums_of(rank).sent_bytes += sent
            _, end_s = worker.own_side(now_s, sent / whole)
            phase.own_end_s = max(phase.own_end_s, end_s)
        framed = {pair: size * stage.workload.framing for pair, size in pairs.items()}
        stage.network.start(stage.topology.pieces(framed), 1.0, self._carried, phase, clock, number)

    def _carried(self, phase: _Phase, clock: int, number: int) -> None:
        self._stage.queue.at(max(phase.own_end_s, self._stage.queue.now_s), self._through, phase, clock, number)

    def _through(self, phase: _Phase, clock: int, number: int) -> None:
        last = number + 1 == len(self._plans[clock])
        for worker in phase.arrived.values():
            if worker.gone or self._stage.workers[worker.rank] is not worker:
                continue
            if not last:
                self._work(worker, clock, number + 1)
                continue
            them = self._sums_of(worker.rank)
            them.steps += 1
            them.seconds += worker.own_s
            them.factors_s += worker.factors_s
            self._then.pop(worker.rank)()

    def _sums_of(self, rank: int) -> _OwnSums:
        return self._sums.setdefault(rank, _OwnSums())


def preconditioner_of(stage: Stage, spec: ClusterSpec) -> VirtualPreconditioner | None:
    """Return a description's preconditioner, if any; raise ``ConfigError`` if its share does not fit the members."""
    one = spec.preconditioner
    if one is None:
        return None
    if one.share != 1.0 and any(event.do in COMINGS_AND_GOINGS for event in spec.events):
        raise ConfigError(
            f"preconditioner: share = {one.share!r} with nodes that come and go: any worker may be lost, so each "
            "must hold all bases; give share = 1"
        )
    gradient_workers(one.share, len(spec.initial_members))
    return VirtualPreconditioner(stage, spec, one)
