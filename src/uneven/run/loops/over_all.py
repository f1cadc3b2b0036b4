"""The methods of a session that involve all workers: loss weights, means, passes and evaluations."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, overload

import torch
from torch import Tensor

from uneven.errors import ConfigError
from uneven.policy.core.registry import describe
from uneven.run.gradients.loss_weight import GatheredCounts, Uncounted
from uneven.run.lines import Line
from uneven.run.loops.evaluate import EvaluatedTotals, Found, TakenPositions, batches_of, check_evaluated, evaluating
from uneven.run.loops.mended import MendedEvaluation
from uneven.run.loops.passes import in_passes
from uneven.run.loops.piece_taking import PieceTaker
from uneven.run.model.check import parts_called
from uneven.run.replicas.peers.replica_sync import NoSync
from uneven.run.reports.streams import check_samples
from uneven.run.samples.async_sampling.session_store import SessionStore
from uneven.run.samples.indexed import told_of
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.user_batches import DrawnSteps
from uneven.run.step.attach import NoModel
from uneven.run.step.context import one_number
from uneven.run.step.loop import StepLoop


class OverAll:
    """The methods of a session that involve all workers."""

    _loop: StepLoop
    _loader: BalancedLoader | DrawnSteps | None
    _line: Line | None = None
    _store: SessionStore | None = None
    _counted: GatheredCounts | None = None
    _evaluations = 0
    _together = False
    _taker: PieceTaker | None = None

    def weighted(self, count: float | Tensor) -> AbstractContextManager[None]:
        """Treat the loss inside as a mean over ``count`` items of this worker, not over its samples::

            with session.weighted((y != -100).sum()):           # tokens that are not padding
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100)
                loss.backward()

        The gradient is then that of one process on the whole batch, Σ (c_i / C) ḡ_i with C = Σ c_i. Put the forward
        pass inside; the backward pass may follow. Every worker must enter the same number of blocks. A worker with a
        count of 0 adds nothing, even if its mean is a NaN, except for passes in :meth:`no_sync`.

        Args:
            count: the divisor of the mean: tokens, the sum of class weights, pairs; scalar, finite, not negative.

        Raises:
            ConfigError: ``count`` is not valid, or gradients are not averaged over all workers in every step.
            TrainingError: all counts add up to 0; no forward pass is inside, or passes on two batches are.
            PeerError: a worker did not come.
        """
        number = one_number("session.weighted", count)
        if not (math.isfinite(number) and number >= 0.0):
            raise ConfigError(f"session.weighted({number}): give what the mean is divided by, a number of 0 or more")
        if self._alone("session.weighted"):
            return self._loop.counting.alone()
        return self._loop.counting.block(number, self._gathered)

    def summed(self) -> AbstractContextManager[None]:
        """Treat the loss inside as a sum over this worker's samples; the gradient is then the sum of all workers'.

        Raises:
            ConfigError, TrainingError: as :meth:`weighted`.
        """
        if self._alone("session.summed"):
            return self._loop.counting.alone()
        return self._loop.counting.block(1.0, Uncounted)

    @overload
    def mean(self, x: float, weight: float | None = None) -> float: ...
    @overload
    def mean(self, x: Tensor, weight: float | None = None) -> Tensor: ...
    def mean(self, x: float | Tensor, weight: float | None = None) -> float | Tensor:
        """Return the mean of all workers' ``x``: Σ w_i x_i / Σ w_i. All workers call it, and wait for each other::

            session.log(loss=session.mean(loss.item()))          # the loss over the global batch

        Args:
            x: a number, or a tensor of the same shape on every worker.
            weight: of this worker's ``x``. By default its batch's weight (its samples, or the count of
                :meth:`weighted`), and 1 outside of a step.

        Returns:
            A number or tensor like ``x``, without gradient; NaN if all weights are 0.

        Raises:
            ConfigError: before ``setup``; workers do not meet (``asp``); or an argument is not a number.
            PeerError: a worker did not come.
        """
        counts = self._counts() if weight is None else one_number("session.mean(weight=…)", weight)
        own = x if isinstance(x, Tensor) else torch.tensor(one_number("session.mean", x), dtype=torch.float64)
        value = own.detach()
        flat = torch.empty(value.numel() + 1, dtype=torch.float64)
        flat[0] = counts
        torch.mul(value.reshape(-1).double().cpu(), counts, out=flat[1:])
        if counts == 0.0:
            flat[1:] = 0.0  # 0 · NaN would be NaN
        self._sum(flat)
        mean = flat[1:] / flat[0]
        return mean.reshape(value.shape).to(value) if isinstance(x, Tensor) else mean.item()

    def passes(self, batch: Any) -> Iterator[Any]:
        """Yield pieces of the batch that fit in memory, each for a forward and a backward pass, as ``microbatch``
        sets::

            loader = session.loader(dataset, batch_size=512, microbatch="auto")
            session.profile(step)
            for batch in loader:
                for x, y in session.passes(batch):
                    F.cross_entropy(model(x), y).backward()      # mean over this piece
                optimizer.step()
                optimizer.zero_grad()

        The gradient is that of one pass over the whole batch. Workers may take different numbers of passes; all
        exchange in the last one. Inside ``with session.weighted(count):`` each loss must be its piece's sum divided by
        the count.

        With ``loader(…, together=True)`` the pieces come from a counter during the iteration, so that all workers end
        together at any speed; see :mod:`uneven.policy.samples.finish_together`.

        Raises:
            ConfigError: before ``setup``; the memory limit has not been measured; or ``together`` does not support the
                model or the policy.
            DataError: the batch holds no tensor.
            TrainingError: with ``together``, outside of the loop, or inside :meth:`weighted`.
        """
        if (run := self._loop.parts.run) is None:
            raise ConfigError("session.passes comes after session.setup(model, optimizer)")
        if parts_called(run.model) != [run.model]:
            raise ConfigError(
                f"session.passes weighs each piece as it comes out of the model, and the {type(run.model).__name__} "
                f"that session.setup was given has no forward(): write a module whose forward() calls its parts"
            )
        if not self._together:
            return in_passes(self._loop, run.model, batch, self._loop.reports.fitting())
        if self._taker is None:
            assert isinstance(self._loader, BalancedLoader)
            self._taker = PieceTaker(self._loop, self._loader, run.model, self._open(), self._counters())
        return self._taker.pieces(batch)

    @property
    def weight(self) -> float:
        """The weight of this worker's newest backward pass in the gradient: c_i / C; 1.0 in a single-process run.

        The sum of all workers' ``loss.item() * session.weight`` is the loss over the global batch.
        """
        carrier = self._loop.gradients.carrier
        return 1.0 if carrier is None else carrier.turn.in_gradient

    def evaluate(
        self, fn: Callable[[Any], Found], dataset: Any, batch_size: int | None = None, **dataloader: Any
    ) -> Any:
        """Return sums over a whole data set, which all workers process together, each at its own speed::

            def count(batch):
                x, y = batch
                logits = model(x)
                return {"loss": F.cross_entropy(logits, y, reduction="sum"), "right": (logits.argmax(1) == y).sum(),
                        "samples": len(y)}

            found = session.evaluate(count, held_out)         # on every worker
            print(found["loss"] / found["samples"])

        Each sample counts once, even if an elastic run loses a worker in it. The model is the one of
        :meth:`evaluated`, in evaluation mode, without gradients. All workers call it at the same place, inside or
        outside a loop; its time does not count in any iteration.

        Args:
            fn: a function from a batch to a number, a tensor, or a dictionary of them: sums over the batch.
            dataset: with an index, the same on every worker.
            batch_size: of all workers together, as in :meth:`loader`; by default the loader's.
            dataloader: for torch's ``DataLoader``: ``collate_fn``, ``num_workers``, …

        Returns:
            The results of ``fn``, summed over all samples; the same on every worker. Sums of integers are exact; others
            are computed in float64, in an order that depends on which workers were free.

        Raises:
            ConfigError: before ``setup``; workers do not meet (``asp``), or one that joins an elastic run is not in it
                yet; the batch size is unknown; each worker holds a part of the model.
            DataError: the data set has no index, or differs between workers; or ``fn`` returned an unsupported value.
            PeerError: a worker did not come.
        """
        length, size = check_evaluated(dataset), self._batch_size(batch_size)
        self._loop.gradients.check_apart("session.evaluate")
        self._open()
        run, context, meter = self._loop.parts.run, self._loop.context, self._loop.reports.books.meter
        assert run is not None
        shares, members = self._loop.current_shares(), context.members
        part = shares[context.place] / sum(shares) if len(shares) == len(members) else 1.0 / len(members)
        most = max(1, round(size * part))
        if context.elastic is not None:
            context.elastic.check_in("session.evaluate")
        with meter.aside(), self._loop.evaluated(), evaluating(run.model):
            if context.elastic is not None:
                mended = MendedEvaluation(context.elastic.recovery, length, most, part, self._sum)
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

    def _counters(self) -> SessionStore:
        if self._store is None:
            self._store = SessionStore(self._loop.context.rank, len(self._loop.context.members))
        return self._store

    def _batch_size(self, given: int | None) -> int:
        size = self._loader.batch_size if given is None and self._loader is not None else given
        if type(size) is not int or size < 1:
            raise ConfigError(f"session.evaluate(batch_size={given!r}): give the samples of all workers together")
        return size

    def _counts(self) -> float:
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
        if len(loop.context.members) == 1 and loop.context.elastic is None:
            return True
        # Under other policies workers average parameters, so a weight of the gradient would have no effect on others.
        if not isinstance(loop.model.agreement, NoSync) or loop.gradients.carrier is None:
            raise ConfigError(
                f"{caller} under sync = {describe(loop.context.policy)}: workers average parameters there, by samples, "
                f"and not gradients; use sync='bsp'"
            )
        self._open()
        return False

    def _open(self) -> Line:
        """Return the line for sums over all workers; raise :class:`ConfigError` before ``setup``."""
        if self._line is None:
            if (run := self._loop.parts.run) is None:
                raise ConfigError("what is summed over all workers comes after session.setup(model, optimizer)")
            self._line = run.lines.open("session")
        return self._line

    def _sum(self, flat: Tensor) -> tuple[int, ...]:
        line = self._open()
        if self._counted is not None:  # one exchange at a time, because a lost worker may force a repetition
            self._counted.settle()
        return line.sum(flat).wait()
