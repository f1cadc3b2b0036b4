"""Operations of all workers together: loss weights, means, passes and evaluations; see :class:`uneven.Session`."""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from uneven.errors import ConfigError, PeerError
from uneven.policy.core.membership import Members
from uneven.policy.core.registry import describe
from uneven.policy.samples.requeued import Run, runs
from uneven.run.context.context import one_number
from uneven.run.gradients.loss_weight import GatheredCounts, SummedCount
from uneven.run.lines import Line
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.loops.evaluate import (
    EvaluatedTotals,
    Found,
    Kinds,
    TakenPositions,
    batches_of,
    check_evaluated,
    evaluating,
)
from uneven.run.loops.passes import in_passes
from uneven.run.loops.piece_taking import PieceTaker
from uneven.run.model.check import parts_called
from uneven.run.reports.streams import check_samples
from uneven.run.samples.async_sampling.session_store import SessionStore
from uneven.run.samples.indexed import told_of
from uneven.run.samples.loader import BalancedLoader
from uneven.run.step.attach import NoModel
from uneven.run.step.build import rounds_of
from uneven.run.step.loop import StepLoop

Batches = Callable[[Iterable[list[int]]], Iterable[Any]]

_LOOK_EVERY_S = 0.002


class MendedEvaluation:
    """One worker's part in one evaluation of an elastic run; all workers start it at the same exchange.

    The others repeat the counts of a worker that is lost in it. Every worker takes its batches from a counter in the
    store and records them there. When the counter has reached its end, all workers sum their totals. They know whose
    totals are in the sum, and so which samples no worker has counted. These are dispatched in another round, until none
    are left.

    Args:
        part: estimated part of all work that this worker does: 0 … 1.
        add_up: replaces a vector by its sum over the members; returns the members whose vectors are in it.
    """

    def __init__(
        self, rounds: ElasticCommunicator, length: int, most: int, part: float, add_up: Callable[[Tensor], Members]
    ) -> None:
        self._membership = rounds.membership
        self._key = f"evaluate/{rounds.exchanges}"
        self._left: list[Run] = [(0, length)]
        self._most = most
        self._part = part
        self._add_up = add_up
        self._round = 0

    def over_all(self, batches: Batches, fn: Callable[[Any], Found]) -> Any:
        """Return all workers' totals in the form that ``fn`` returns; ``batches`` turns positions into batches.
        Raises :class:`PeerError` if too few workers are left, or one that is alive does not come in time."""
        whole = EvaluatedTotals()
        while self._left:
            self._round += 1
            whole.add_all(self._one_round(batches, fn))
        return whole.as_given()

    def _one_round(self, batches: Batches, fn: Callable[[Any], Found]) -> EvaluatedTotals:
        board, key = self._membership.board, f"{self._key}/{self._round}"
        length = sum(last - first for first, last in self._left)
        taken: list[int] = []

        def positions() -> Iterator[list[int]]:
            for own in TakenPositions(lambda n: board.count(key, n) - n, length, self._most, self._part):
                taken.extend(own)
                yield positions_in(self._left, own)

        totals = EvaluatedTotals()
        for batch in batches(positions()):
            totals.add(fn(batch))
        if totals.sums:
            board.write_once(f"{key}/kinds", totals.describe())
        board.write(f"{key}/{self._membership.worker}", json.dumps(runs(taken)))
        kinds = self._kinds(key)
        # Batches are recorded before the sum, so all workers in the sum have a record that the others can read.
        flat = totals.flat(kinds)
        contributors = self._add_up(flat)
        counted = [run for one in contributors for run in json.loads(board.look(f"{key}/{one}") or "[]")]
        self._left = without(self._left, counted)
        return EvaluatedTotals.of(flat, kinds)

    def _kinds(self, key: str) -> Kinds:
        """Return the totals' kinds when a worker has written them; none if no remaining worker has any."""
        board, timeout_s = self._membership.board, self._membership.timeout_s
        until_s = time.monotonic() + timeout_s
        while True:
            open_ = [one for one in self._membership.members if board.look(f"{key}/{one}") is None]
            open_ = sorted({*open_} - {*board.dead(open_)})
            kinds = board.look(f"{key}/kinds")  # read last: a worker that has ended by now wrote its own before that
            if kinds is not None or not open_:
                found: Kinds = json.loads(kinds or "{}")
                return found
            if time.monotonic() > until_s:
                board.miss(open_, "the evaluation")
                raise PeerError(
                    f"session.evaluate: worker {', '.join(map(str, open_))} did not reach its end within "
                    f"{timeout_s:g} s; a slow worker needs a larger timeout_s"
                )
            time.sleep(_LOOK_EVERY_S)


def positions_in(left: list[Run], places: Sequence[int]) -> list[int]:
    """Return the positions at these places in the concatenated runs of ``left``."""
    found, before, wanted = [], 0, list(places)
    for first, last in left:
        while wanted and wanted[0] < before + last - first:
            found.append(first + wanted.pop(0) - before)
        before += last - first
    return found


def without(left: list[Run], counted: Iterable[Sequence[int]]) -> list[Run]:
    """Return the rest of ``left`` without these runs of its places."""
    length = sum(last - first for first, last in left)
    gaps, place = [], 0
    for first, last in sorted(map(tuple, counted)):
        if first > place:
            gaps.append((place, first))
        place = max(place, last)
    if place < length:
        gaps.append((place, length))
    return [run for first, last in gaps for run in runs(positions_in(left, range(first, last)))]


class OverAll:
    """Sums over all workers, and evaluations and passes that all workers share."""

    def __init__(self, loop: StepLoop) -> None:
        self._loop = loop
        self._line: Line | None = None
        self._store: SessionStore | None = None
        self._counted: GatheredCounts | None = None
        self._evaluations = 0
        self._taker: PieceTaker | None = None

    def loss_mean(self, count: float | Tensor) -> AbstractContextManager[None]:
        number = one_number("session.loss_mean", count)
        if not (math.isfinite(number) and number >= 0.0):
            raise ConfigError(f"session.loss_mean({number}): give the divisor of the mean, 0 or more")
        if self._alone("session.loss_mean"):
            return self._loop.counting.alone()
        return self._loop.counting.block(number, self._gathered)

    def loss_sum(self) -> AbstractContextManager[None]:
        if self._alone("session.loss_sum"):
            return self._loop.counting.alone()
        return self._loop.counting.block(1.0, SummedCount)

    def mean(self, x: float | Tensor, weight: float | None) -> float | Tensor:
        counts = self.counts() if weight is None else one_number("session.mean(weight=…)", weight)
        own = x if isinstance(x, Tensor) else torch.tensor(one_number("session.mean", x), dtype=torch.float64)
        value = own.detach()
        if value.is_complex():
            raise ConfigError(f"session.mean of a tensor of type {value.dtype}: give torch.view_as_real of it")
        flat = torch.empty(value.numel() + 1, dtype=torch.float64)
        flat[0] = counts
        torch.mul(value.reshape(-1).double().cpu(), counts, out=flat[1:])
        if counts == 0.0:
            flat[1:] = 0.0  # 0 · NaN would be NaN
        self._sum(flat)
        mean, kind = flat[1:] / flat[0], value.dtype if value.is_floating_point() else torch.get_default_dtype()
        return mean.reshape(value.shape).to(value.device, kind) if isinstance(x, Tensor) else mean.item()

    def microbatches(self, batch: Any) -> Iterator[Any]:
        if (run := self._loop.callbacks.run) is None:
            raise ConfigError("session.microbatches comes after session.setup(model, optimizer)")
        if parts_called(run.model) != [run.model]:
            raise ConfigError(
                "session.microbatches weighs each piece as it comes out of the model, and the "
                f"{type(run.model).__name__} that session.setup was given has no forward(): write a module whose "
                "forward() calls its parts"
            )
        if not self._loop.reports.together:
            return in_passes(self._loop, run.model, batch, self._loop.reports.fitting())
        if self._taker is None:
            assert isinstance(self._loop.loader, BalancedLoader)
            self._taker = PieceTaker(self._loop, self._loop.loader, run.model, self._open(), self._counters())
        return self._taker.pieces(batch)

    @property
    def loss_weight(self) -> float:
        return self._loop.gradients.turn.in_gradient

    def evaluate(
        self, fn: Callable[[Any], Found], dataset: Any, batch_size: int | None, dataloader: dict[str, Any]
    ) -> Any:
        length, size = check_evaluated(dataset), self._batch_size(batch_size)
        self._loop.gradients.check_apart("session.evaluate")
        self._open()
        run, context, meter = self._loop.callbacks.run, self._loop.context, self._loop.reports.books.meter
        assert run is not None
        shares, members = self._loop.current_shares(), context.members
        part = shares[context.participants.place] / sum(shares) if len(shares) == len(members) else 1.0 / len(members)
        most = max(1, round(size * part))
        context.participants.check_in("session.evaluate")
        with meter.aside(), self._loop.evaluation_model(), evaluating(run.model):
            if (rounds := rounds_of(context)) is not None:
                mended = MendedEvaluation(rounds, length, most, part, self._sum)
                return mended.over_all(lambda positions: batches_of(dataset, positions, dataloader), fn)
            self._evaluations += 1
            key, store, totals = f"evaluate/{self._evaluations}", self._counters(), EvaluatedTotals()
            for batch in batches_of(
                dataset, TakenPositions(lambda n: store.add(key, n) - n, length, most, part), dataloader
            ):
                totals.add(fn(batch))
            transport = context.connection.transport
            some = told_of(dataset, dataloader) if transport.size > 1 else None
            said = [json.loads(text) for text in transport.gather_text(json.dumps([totals.describe(), some]))]
            check_samples([row for _, row in said], "session.evaluate")
            return totals.over_all([text for text, _ in said], self._sum)

    def barrier(self) -> None:
        context, meter = self._loop.context, self._loop.reports.books.meter
        if context.participants.changes and self._loop.callbacks.run is not None:
            if context.rank in context.members:  # a worker that has not joined yet has nothing to wait for
                self._sum(torch.zeros(1, dtype=torch.float64))
            return
        with context.connection.waiting(meter):
            context.connection.transport.gather([0.0]).result()

    def _counters(self) -> SessionStore:
        if self._store is None:
            self._store = SessionStore(self._loop.context.rank, len(self._loop.context.members))
        return self._store

    def _batch_size(self, given: int | None) -> int:
        loader = self._loop.loader
        size = loader.batch_size if given is None and loader is not None else given
        if type(size) is not int or size < 1:
            raise ConfigError(
                f"session.evaluate(global_batch_size={given!r}): give the number of samples of all workers together"
            )
        return size

    def counts(self) -> float:
        """Return the weight of this worker's current batch; 1 without one."""
        part = self._loop.part
        return 1.0 if part is None else self._loop.counting.of(part, self._loop.context.rank)

    def _gathered(self, count: float) -> GatheredCounts:
        self._counted = GatheredCounts(count, self._open())
        return self._counted

    def _alone(self, caller: str) -> bool:
        """Return whether this is a single-process run; raise :class:`ConfigError` if the policy cannot weight
        losses."""
        loop = self._loop
        if isinstance(loop.model, NoModel):
            raise ConfigError(f"{caller} comes after session.setup(model, optimizer)")
        if loop.context.participants.alone:
            return True
        # Under other policies workers average parameters, so a weight of the gradient would have no effect on others.
        if not loop.model.agreement.gradients_only or loop.gradients.members is None:
            raise ConfigError(
                f"{caller} under sync = {describe(loop.context.policy)}: it averages parameters; use sync='bsp'"
            )
        self._open()
        return False

    def _open(self) -> Line:
        """Return the line for sums over all workers; raise :class:`ConfigError` before ``setup``."""
        if self._line is None:
            if (run := self._loop.callbacks.run) is None:
                raise ConfigError("sums over all workers come after session.setup(model, optimizer)")
            self._line = run.lines.open("session")
        return self._line

    def _sum(self, flat: Tensor) -> tuple[int, ...]:
        line = self._open()
        if self._counted is not None:  # one exchange at a time, because a lost worker may force a repetition
            self._counted.settle()
        return line.sum(flat).wait()
