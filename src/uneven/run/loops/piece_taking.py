"""One worker's pieces in iterations that are finished together; see :mod:`uneven.policy.samples.finish_together` for
the rule.

The samples that no worker starts with are in the order of the ranks, and a counter in the store holds how many have
been taken. All passes leave their gradients in ``.grad``, each weighted by its samples / X. When no samples are left,
the gradients are exchanged, and each worker's numbers are gathered in parallel.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from uneven.errors import ConfigError, TrainingError
from uneven.policy.core.registry import describe
from uneven.policy.samples.finish_together import FinishTogether, LaunchFit
from uneven.policy.samples.order import Portion
from uneven.run.lines import Line
from uneven.run.lines.line import Handle
from uneven.run.loops.passes import cut, weigh
from uneven.run.model.check import check_model, is_sharded
from uneven.run.model.hooks import ModelHook
from uneven.run.samples.async_sampling.session_store import SessionStore
from uneven.run.samples.loader import BalancedLoader
from uneven.run.step.loop import StepLoop

_NUMBERS = 4  # that a worker reports of an iteration: samples, seconds, seconds of its first part, and of a launch


@dataclass(slots=True)
class _Passes:
    """One worker's passes in one iteration."""

    since_s: float
    samples: int = 0
    first_s: float = 0.0
    sizes: list[int] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)

    @contextmanager
    def timed(self, samples: int) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        now_s = time.perf_counter()
        self.samples += samples
        self.sizes.append(samples)
        self.took_s.append(now_s - began_s)
        if len(self.sizes) == 1:
            self.first_s = now_s - self.since_s


class PieceCounter:
    """The counter's value: the samples taken, the last writer, and the speeds (0 if it has left) by worker's place."""

    def __init__(self, text: str) -> None:
        self.text = text  # "taken place place:speed …"; the last writer's place makes every text different
        start, _, *here = text.split(" ") if text else ("0", "")
        self.start = int(start)
        self.here = {int(place): float(speed) for place, speed in (one.split(":") for one in here)}

    def moved(self, place: int, size: int, here: Mapping[int, float]) -> "PieceCounter":
        """Return the counter after a worker has taken ``size`` samples; with 0 it leaves."""
        there = " ".join(f"{one}:{speed if size or one != place else 0.0:.6g}" for one, speed in here.items())
        return PieceCounter(f"{self.start + size} {place} {there}".rstrip())


class PieceTaker:
    """Yields this worker's pieces in each iteration; raises :class:`ConfigError` for an unsupported model or policy."""

    def __init__(
        self, loop: StepLoop, loader: BalancedLoader, model: nn.Module, line: Line, store: SessionStore
    ) -> None:
        _check(loop, model)
        self._loop = loop
        self._loader = loader
        self._model = model
        self._line = line
        self._store = store
        self._place = line.members.index(line.rank)
        self._rule = FinishTogether(len(line.members), loader.batch_size, loader.lower)
        self._launch = LaunchFit()
        self._told: tuple[Handle, list[torch.Tensor]] | None = None
        self._epoch = -1
        self._through_s = 0.0

    def pieces(self, batch: Any) -> Iterator[Any]:
        """Yield the pieces of the current batch, the first one cut out of ``batch``.
        Raises :class:`TrainingError` without a current batch, on a pass on another one, or inside
        ``session.loss_mean``."""
        part = self._loop.part
        if part is None or self._loop.counting.counted:
            raise TrainingError(
                "session.microbatches with together=True outside of the loop over the loader, or inside of "
                "session.loss_mean or session.loss_sum: which samples a worker takes is not known beforehand, so let "
                "each pass's loss be the mean over its samples"
            )
        asked_s = time.perf_counter()
        self._learn()
        learnt_s = time.perf_counter()
        passes = _Passes(self._through_s + learnt_s - asked_s if part.epoch == self._epoch else learnt_s)
        alike = part.size == self._loader.batch_size and min(part.shares) > 0  # otherwise the last part of an epoch
        firsts = self._rule.first_parts(part.shares) if alike else part.shares
        if sum(firsts) == part.size:
            yield from self._whole(batch, part, passes)
            self._tell(passes)
        else:
            yield from self._taken(batch, part, firsts, passes)
            self._tell(passes)
            self._loop.gradients.exchange_held(passes.samples / part.size)
            self._loop.part = replace(part, shares=self._learn())
        self._loop.reports.books.passes = len(passes.sizes)
        self._epoch, self._through_s = part.epoch, time.perf_counter()

    def _whole(self, batch: Any, part: Portion, passes: _Passes) -> Iterator[Any]:
        """Yield the whole batch in one pass, during which gradients are exchanged as usual."""
        meter = self._loop.reports.books.meter
        before_s = meter.waited_s
        with passes.timed(part.batch(self._line.rank)):
            yield batch
        passes.first_s -= meter.waited_s - before_s  # waiting for others is not this worker's speed

    def _taken(self, batch: Any, part: Portion, firsts: Sequence[int], passes: _Passes) -> Iterator[Any]:
        """Yield the first part, then pieces from the counter while any samples are left."""
        share, first, key = part.shares[self._place], firsts[self._place], f"together/{part.iteration}"
        rest, behind = part.size - sum(firsts), None
        with self._loop.counting.passing():
            yield from self._pass(cut(batch, share, 0, first), first, share, passes)
            self._check_step(part)
            counter = PieceCounter("")
            while True:
                here = {self._place: first / passes.first_s} | counter.here
                size = self._rule.chunk(self._place, passes.samples, rest - counter.start, here)
                if counter.start == rest:
                    break
                mine = counter.moved(self._place, size, here)
                # Compare and swap: if another worker was faster, `found` is its text and this one tries again.
                found = self._store.swap(key, counter.text, mine.text)
                start, counter = counter.start, PieceCounter(found)
                if found != mine.text:
                    continue
                if not size:
                    break
                behind = _behind(part, firsts) if behind is None else behind
                piece = self._loader.read(behind[start : start + size])
                yield from self._pass(piece, size, share, passes)
        if self._place == 0:  # all workers had finished the iteration before when this one started
            self._store.delete(f"together/{part.iteration - 1}")

    def _pass(self, piece: Any, samples: int, share: int, passes: _Passes) -> Iterator[Any]:
        hook = self._model.register_forward_hook(ModelHook(partial(weigh, samples / share)))
        try:
            with passes.timed(samples), self._loop.gradients.no_sync():
                yield piece
        finally:
            hook.remove()

    def _check_step(self, part: Portion) -> None:
        turn = self._loop.hands.turn
        if turn is None or turn.iteration != part.iteration:
            raise TrainingError(
                f"session.microbatches with together=True: no forward pass on the batch of iteration {part.iteration}, "
                "which was handed out last: call the model in each pass, and ask the loader for the next batch after "
                f"the optimizer's step"
            )

    # ---------------------------------------------------------------- numbers of an iteration
    def _tell(self, passes: _Passes) -> None:
        if passes.samples:  # a padded batch has none
            self._launch.add(passes.sizes, passes.took_s)
        busy_s = passes.first_s + sum(passes.took_s[1:])
        row = torch.tensor([passes.samples, busy_s, passes.first_s, self._launch.seconds], dtype=torch.float64)
        rows = [torch.zeros(_NUMBERS, dtype=torch.float64) for _ in self._line.members]
        self._told = self._line.gather(row, rows), rows

    def _learn(self) -> tuple[int, ...]:
        """Take in all workers' numbers of the last iteration, once; return the samples of each."""
        if self._told is None:
            return ()
        (handle, rows), self._told = self._told, None
        handle.wait()
        samples, busy_s, first_s, launch_s = zip(*(row.tolist() for row in rows), strict=True)
        self._rule.launch_s = [*launch_s]
        if min(samples) > 0:  # in the last part of an epoch some have none, and so no speed
            self._rule.ended(samples, busy_s, first_s)
        return tuple(map(round, samples))


def _behind(part: Portion, firsts: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the positions (n,) of the samples that no worker starts with."""
    found, start = [], part.start
    for share, first in zip(part.shares, firsts, strict=True):
        found.append(np.arange(start + first, start + share))
        start += share
    return np.concatenate(found)


def _check(loop: StepLoop, model: nn.Module) -> None:
    context, why = loop.context, ""
    if context.participants.changes:
        why = "in an elastic run: what a lost worker had taken would be missing"
    elif not loop.model.agreement.gradients_only or loop.own_pace is not None:
        why = f"under sync = {describe(context.policy)}: workers do not meet in each iteration there; use sync='bsp'"
    elif is_sharded(model) or any(isinstance(one, nn.SyncBatchNorm) for one in model.modules()):
        why = "with fully_shard or SyncBatchNorm: each of their passes meets all workers, which take unequally many"
    elif (device := check_model(model)).type != "cpu":
        why = f"on {device}: its passes end asynchronously to the script"
    if why:
        raise ConfigError(f"session.loader(together=True) {why}")
