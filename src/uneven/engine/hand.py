"""Which of the batches that the user holds is a forward pass on?

In a plain loop it is the newest one. A script that fetches its next batch between forward and backward, a prefetcher
that runs one ahead, a generator that looks whether this is the last one: all hold several, and a gradient counts with
the weight of the batch that it was computed on. What tells them apart, in this order:

1. the memory of the pass's arguments, if it is that of one batch (also through views and ``.to`` the same device);
2. that all of them count alike, so that it does not matter which one it is: the oldest;
3. the number of samples, if it is among the leading sizes of the arguments and fits only batches that count alike.

If none of these does, the pass is refused: a wrong weight gives wrong gradients without a word.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from uneven.core.actions import Payload, StepPlan
from uneven.data.order import Part
from uneven.errors import TrainingError
from uneven.transport.gradients import Turn, on_entering
from uneven.transport.hooks import ModelHook

_MOST = 256
"""Batches that are remembered; who holds more without a forward pass does not train on them."""

_DEEP, _WIDE = 4, 32
"""Levels of containers in which tensors of a batch are looked for, and members of each of these."""


@dataclass(frozen=True, slots=True)
class _Trace:
    """Where a tensor of a batch lies."""

    memory: StorageWeakRef
    start: int
    end: int

    def holds(self, tensor: torch.Tensor) -> bool:
        try:
            memory = tensor.untyped_storage()._cdata
        except NotImplementedError:  # torch.func wraps what it differentiates, and such a tensor lies nowhere
            return False
        same = memory == self.memory.cdata and not self.memory.expired()
        return same and self.start <= tensor.data_ptr() < self.end


@dataclass(slots=True)
class _Held:
    turn: Turn
    batch: Any  # the batch itself as long as it is the newest, for the loader holds that one as well
    traces: list[_Trace] | None = None

    def let_go(self) -> None:
        if self.traces is None:
            self.traces = [_trace(one) for one in _tensors(self.batch)]
        self.batch = None

    def is_in(self, tensors: list[torch.Tensor]) -> bool:
        if self.traces is None:
            self.traces = [_trace(one) for one in _tensors(self.batch)]
        return any(trace.holds(one) for one in tensors for trace in self.traces)


class Hand:
    """The batches that were handed out, from the one that the newest forward pass was on to the newest one.

    Attributes:
        least: samples of this worker in a batch that only fills up a last part.
        all_average: whether the gradients of all are averaged in the iteration of the newest one.
    """

    def __init__(self, rank: int, members: tuple[int, ...]) -> None:
        self.least, self.all_average = 1, False
        self._rank, self._members = rank, members
        self._planned: StepPlan | None = None  # most policies give the same plan again and again
        self._group: tuple[int, ...] | None = None  # those whose gradients are averaged then
        self._used: _Held | None = None
        self._waiting: deque[_Held] = deque(maxlen=_MOST)
        self._ahead = False  # whether the user has been seen to hold several

    @property
    def newest(self) -> Turn | None:
        """Of the batch that was handed out last."""
        newest = self._waiting[-1] if self._waiting else self._used
        return None if newest is None else newest.turn

    def give(self, part: Part, plan: StepPlan, batch: Any) -> None:
        """A batch is about to be handed out."""
        self.rest()
        self._waiting.append(_Held(self._turn(part, plan), batch))

    def _turn(self, part: Part, plan: StepPlan) -> Turn:
        if plan is not self._planned:
            self._planned = plan
            self._group = next((one.members for one in plan.exchanges if one.payload is Payload.GRADIENT), None)
            self.all_average = self._group is not None and len(self._group) == len(self._members)
        own, group = part.batch(self._rank), self._group
        of = part.size if group is None or self.all_average else sum(map(part.batch, group))
        return Turn(part.iteration, part.epoch, own or self.least, own / max(1, of), group is not None)

    def rest(self) -> None:
        """The newest batch is not to be kept any longer than the user keeps it."""
        newest = self._waiting[-1] if self._waiting else self._used
        if newest is not None:
            newest.let_go()

    def on(self, args: Any, kwargs: Any) -> Turn | None:
        """The turn of the batch that a forward pass with these arguments is on; None before the first batch.

        Raises:
            TrainingError: it may be on any of several batches that count differently.
        """
        if self._waiting:
            self._take(self._found([*_tensors(args), *_tensors(kwargs)]))
        return None if self._used is None else self._used.turn

    def _take(self, found: _Held) -> None:
        if found is self._used:
            return
        while (oldest := self._waiting.popleft()) is not found:
            oldest.batch = None
        self._used = found

    def _found(self, tensors: list[torch.Tensor]) -> _Held:
        waiting, used = self._waiting, self._used
        several = len(waiting) > 1
        if not several and waiting[0].is_in(tensors) and not (used is not None and used.is_in(tensors)):
            return waiting[0]  # a plain loop
        able = [*waiting] if used is None else [used, *waiting]
        seen = [one for one in able if one.is_in(tensors)]
        if len(seen) == 1:
            if several:  # one that is passed over was left out
                self._ahead = seen[0] is not waiting[-1]
            return seen[0]
        if not several and not self._ahead:
            return waiting[0]
        self._ahead = True
        if used is not None and several:
            able.remove(used)  # a plain second pass over the same batch comes before others are fetched
        if _alike(able):
            return waiting[0]
        sizes = {size for one in tensors for size in one.shape[:2]}
        fitting = [one for one in able if one.turn.samples in sizes]
        if fitting and _alike(fitting):
            return fitting[0]
        raise TrainingError(_undecided(able))


class Follower:
    """Follows the passes of a model whose parameters are exchanged when the next batch is asked for.

    A batch's step has to be over by then: what the exchange takes along would else be that of the batch before, with
    the samples of this one. Where exchanges are made beside the training it does not matter when a batch was asked for.

    Args:
        strict: whether anything is exchanged when the next batch is asked for.
        padded: told at each pass whether its batch only fills up a last part.
        policy: for the message.
    """

    def __init__(
        self, model: nn.Module, hand: Hand, *, strict: bool, padded: Callable[[bool], None], policy: str
    ) -> None:
        self._hand, self._strict, self._padded, self._policy = hand, strict, padded, policy
        self._turn: Turn | None = None
        self._handles = [
            model.register_forward_pre_hook(ModelHook(self._before), with_kwargs=True),
            model.register_forward_hook(ModelHook(self._after)),
        ]

    def detach(self) -> None:
        """Leave the model as it came."""
        for handle in self._handles:
            handle.remove()

    def _before(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled() and (turn := self._hand.on(args, kwargs)) is not None:
            self._turn = turn
            self._check(turn)
            self._padded(turn.weight == 0.0)

    def _after(self, model: nn.Module, args: Any, output: Any) -> None:
        if self._strict and self._turn is not None and torch.is_grad_enabled():
            on_entering(output, partial(self._check, self._turn))

    def _check(self, turn: Turn, gradient: torch.Tensor | None = None) -> None:
        newest = self._hand.newest
        if self._strict and newest is not turn:
            raise TrainingError(
                f"iteration {turn.iteration}: the loader was asked for the next batch before this one's step was over. "
                f"Under {self._policy} parameters are exchanged when the next batch is asked for: ask for it after "
                f"optimizer.step(), without a prefetcher or a look ahead, or use sync='bsp'"
            )


def _alike(held: list[_Held]) -> bool:
    first = held[0].turn
    return all(one.turn.counts_like(first) for one in held)


def _undecided(held: list[_Held]) -> str:
    batches = ", ".join(f"{one.turn.samples} samples (iteration {one.turn.iteration})" for one in held)
    return (
        f"a forward pass while {len(held)} batches are in hand that count differently: {batches}. Its arguments do not "
        f"tell which one it is on, and a gradient with the weight of another batch is wrong: ask the loader for the "
        f"next batch after optimizer.step(), or pass the model the loader's own tensors"
    )


def _trace(tensor: torch.Tensor) -> _Trace:
    start = tensor.data_ptr()
    reach = sum((size - 1) * abs(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return _Trace(StorageWeakRef(tensor.untyped_storage()), start, start + reach * tensor.element_size())


def _tensors(found: Any, deep: int = _DEEP) -> Iterator[torch.Tensor]:
    """Those with memory of their own in a batch or in arguments, also inside of containers and plain objects."""
    if isinstance(found, torch.Tensor):
        if found.layout == torch.strided and found.numel() and found.device.type != "meta":
            yield found
    elif deep == 0 or isinstance(found, str | bytes | int | float | type | None):
        return
    elif isinstance(found, Mapping):
        for one in islice(found.values(), _WIDE):
            yield from _tensors(one, deep - 1)
    elif isinstance(found, list | tuple):
        for one in islice(found, _WIDE):
            yield from _tensors(one, deep - 1)
    elif hasattr(found, "__dict__"):
        yield from _tensors(vars(found), deep - 1)
