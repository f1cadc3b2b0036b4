"""Which of the batches that the user holds is a forward pass on, and which of them are in the model?

In a plain loop the pass is on the newest one, and the step that follows takes it in. A script that fetches its next
batch between forward and backward, a prefetcher that runs one ahead, a generator that looks whether this is the last
one: all hold several, and a gradient counts with the weight of the batch that it was computed on. What tells them
apart, in this order:

1. the memory of the pass's arguments, if it is that of one batch (also through views, and ``.to`` the same device);
2. that all of them count alike, so that it does not matter for the gradient: the oldest;
3. the number of samples, if it is among the leading sizes of the arguments and fits only batches that count alike.

If none of these does, the pass is refused, as a wrong weight gives wrong gradients without a word.

A script may also keep batches and use them again: ``list(loader)`` for several epochs, ``itertools.cycle``, a replay
buffer. Their tensors are known by their memory for as long as they live. A pass on a copy, while no loop over the
loader is under way, is taken by its number of samples, if all batches of that size have counted alike; else it is
refused when its gradient comes.

A batch is used, and so not to be trained on again after a resume, when an optimizer has made a step after the forward
pass that ran on it. Batches that were fetched ahead have had no forward pass yet; micro-batches of which only ``.grad``
knows have had no step.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook

from uneven.errors import TrainingError
from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.samples.order import Portion

_MOST = 4096
"""Batches that may wait for a step; a longer wait is none."""

_ROOM = 64
"""Tensors of earlier batches that may be kept before those that are gone are looked for."""

_DEEP, _WIDE = 4, 32
"""Levels of containers in which tensors of a batch are looked for, and members of each of these."""


@dataclass(frozen=True, slots=True)
class _Trace:
    """Where a tensor of a batch lies. When its memory is gone, others may be given the same place."""

    memory: StorageWeakRef
    start: int
    end: int

    def holds(self, tensor: Tensor) -> bool:
        try:
            memory = tensor.untyped_storage()._cdata
        except NotImplementedError:  # torch.func wraps what it differentiates, and such a tensor lies nowhere
            return False
        same = memory == self.memory.cdata and not self.memory.expired()
        return same and self.start <= tensor.data_ptr() < self.end


@dataclass(frozen=True, slots=True)
class _Undecided(BatchWeight):
    """That of a pass on a batch that nothing tells; it does no harm if it only evaluates."""

    why: str = ""

    @property
    def in_gradient(self) -> float:
        raise TrainingError(self.why)

    def counts_like(self, other: BatchWeight) -> bool:
        return self is other


@dataclass(slots=True, eq=False)
class _Held:
    part: Portion
    turn: BatchWeight | None
    batch: Any  # itself as long as it is the newest, for the loader holds that one as well
    traces: list[_Trace] | None = None
    samples: int | None = None  # that it has, if these are fewer than were drawn

    def traced(self) -> list[_Trace]:
        if self.traces is None:
            self.traces = [_trace(one) for one in tensors_in(self.batch)]
        return self.traces

    def is_in(self, tensors: list[Tensor]) -> bool:
        traces = self.traced()
        return any(trace.holds(one) for one in tensors for trace in traces)

    def counts_like(self, other: _Held) -> bool:
        return self.turn is None or other.turn is None or self.turn.counts_like(other.turn)


class InFlightBatches:
    """Batches that were handed out and that no optimizer step has taken in, in the order in which they were.

    A batch that is passed over has been left out by the user, and counts as used with the next one. Where no forward
    pass is seen (parts of the model are called, not the model), a step takes in all that was handed out before it.
    Where nothing is known of a step, all that was handed out counts as used: no optimizer was given to :meth:`watch`,
    and none has stepped.

    Attributes:
        turn_of: part → what the batch that is handed out now counts; None where nobody wants to know.
        exchanged: whether gradients are exchanged, at the end of a backward pass.
        one_thread: whether the thread that trains has to be the one that asks for batches.
        fewer: called with samples and turn of a batch that has fewer samples than were drawn, when a pass is on it.
        once: whether what a batch counts is known only while it is the newest: its workers may leave.
        trained: whether a batch of the loader's newest pass has been trained on.
        over: whether the script has gone through that pass to its end.
    """

    def __init__(self, turn_of: Callable[[Portion], BatchWeight] | None = None) -> None:
        self.turn_of = turn_of
        self.exchanged = self.once = False
        self.trained = self.over = False
        self.fewer: Callable[[int, BatchWeight], None] | None = None
        self.one_thread: Callable[[], bool] | None = None
        self._open: deque[_Held] = deque()
        self._passed = 0  # how many of them, from the first on, have had a forward pass
        self._last: _Held | None = None  # that the newest forward pass was on
        self._newest: _Held | None = None  # that was handed out last
        self._down = False  # whether the loop over the loader that it is from is over
        self._kept: dict[int, list[tuple[_Trace, _Held]]] = {}  # earlier ones, by their memory
        self._room = _ROOM
        self._sizes: dict[int, _Held | None] = {}  # the newest of each size; None where they count differently
        self._thread = self._home = 0  # that asked for it, and that trains or, before, set up the model
        self._ahead = False  # whether the user has been seen to fetch ahead
        self._fresh = False  # whether a batch has been handed out since the last step
        self._watched = False
        self._trained: frozenset[int] = frozenset()

    def watch(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        """See the steps of all optimizers that hold a parameter of ``model``, also of those that are made later."""
        self._watched, self._home = bool(optimizers), get_ident()
        self._trained = frozenset(map(id, model.parameters()))
        _see_steps()
        _watching.add(self)

    @property
    def turn(self) -> BatchWeight | None:
        """The turn of the batch that the newest forward pass was on."""
        return None if self._last is None else self._last.turn

    @property
    def newest(self) -> BatchWeight | None:
        """The turn of the batch that was handed out last."""
        return None if self._newest is None else self._newest.turn

    def hand(self, part: Portion, batch: Any) -> None:
        """``batch`` is handed to the user."""
        self.rest()
        if len(self._open) == _MOST:
            self._open.popleft()
            self._passed = max(0, self._passed - 1)
        turn = None if self.turn_of is None else self.turn_of(part)
        self._newest = held = _Held(part, turn, batch, samples=_fewer(batch, turn) if self.fewer and turn else None)
        self._open.append(held)
        self._fresh, self._down, self.over, self._thread = True, False, False, get_ident()
        if held.turn is not None:
            before = self._sizes.get(held.turn.samples, held)
            self._sizes[held.turn.samples] = held if before is not None and held.counts_like(before) else None

    @property
    def peeked(self) -> bool:
        """Whether nothing of the loader's newest pass was trained on; never where training is out of sight."""
        return bool(self._trained) and not self.trained

    def settle(self) -> None:
        """Batches that have had no forward pass get none any more: the next pass is on one that is handed out later."""
        if self._passed < len(self._open):
            self._passed, self._last = len(self._open), self._open[-1]

    def rest(self) -> None:
        """The newest batch is not to be kept any longer than the user keeps it."""
        newest = self._newest
        if newest is None or newest.batch is None:
            return
        for trace in newest.traced():
            there = [one for one in self._kept.get(trace.memory.cdata, ()) if one[0].start != trace.start]
            self._kept[trace.memory.cdata] = [*there[-_ROOM:], (trace, newest)]
        newest.batch = None
        if len(self._kept) > self._room:
            alive = [(at, there) for at, there in self._kept.items() if not there[-1][0].memory.expired()]
            self._kept = dict(alive[-_MOST:])
            self._room = max(_ROOM, 2 * len(self._kept))

    def put_down(self, whole: bool) -> None:
        """The loop over the loader is over, or was left before the end of the epoch."""
        self._down, self.over = True, whole
        self.rest()

    def forward(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward pass begins; a hook of the model that the batches are for.

        Raises:
            TrainingError: it may be on any of several batches that count differently; or another thread reads the
                loader, where that cannot be.
        """
        if not torch.is_grad_enabled() or self._newest is None:
            return
        if torch._C._current_graph_task_id() == -1:
            self._home = get_ident()
            if self._home != self._thread:
                self._check_thread()
        self.trained |= not self._watched
        found = self._found([*tensors_in(args), *tensors_in(kwargs)])
        if any(one is found for one in islice(self._open, self._passed, None)):
            while self._last is not found:  # those in between are passed over
                self._last = self._open[self._passed]
                self._passed += 1
        self._last = found
        if found.samples is not None and self.fewer is not None and found.turn is not None:
            self.fewer(found.samples, found.turn)

    def asked(self) -> None:
        """The loader is asked for the next batch.

        Raises:
            TrainingError: another thread reads ahead, where that cannot be.
        """
        if get_ident() != self._home and self._home and self._passed < len(self._open):
            self._check_thread()

    def _check_thread(self) -> None:
        if self.one_thread is not None and self.one_thread():
            raise TrainingError(
                "a thread reads the session's loader, and another one trains: what workers decide and exchange when "
                "the loader is asked for a batch has to come between two steps. Read ahead with "
                "session.loader(num_workers=…) instead, or use sync='bsp' with shares that stay, balance='even' or "
                "'static:…'"
            )

    def _found(self, tensors: list[Tensor]) -> _Held:
        waiting, last = [*islice(self._open, self._passed, None)], self._last
        if last is not None and isinstance(last.turn, _Undecided):
            last = None
        several = len(waiting) > 1
        able = waiting if last is None else [last, *waiting]
        seen = [one for one in able if one.is_in(tensors)] or self._earlier(tensors)
        if len(seen) == 1:
            if several and seen[0] in waiting:  # one that is passed over was left out
                self._ahead = seen[0] is not waiting[-1]
            return seen[0]
        if not waiting:
            return self._again(tensors, last or self._newest)
        if not several and not self._ahead:
            return waiting[0]
        self._ahead = True
        if last is not None and several:
            able = waiting  # a second pass over the same batch comes before others are fetched
        if all(one.counts_like(able[0]) for one in able):
            return waiting[0]
        sizes = {size for one in tensors for size in one.shape[:2]}
        fitting = [one for one in able if one.turn is not None and one.turn.samples in sizes]
        if fitting and all(one.counts_like(fitting[0]) for one in fitting):
            return fitting[0]
        raise TrainingError(_undecided([one.turn for one in able if one.turn is not None]))

    def _earlier(self, tensors: list[Tensor]) -> list[_Held]:
        """Those that were handed out before and in whose memory these are; what it holds now it may hold later."""
        found: list[_Held] = []
        for one in tensors:
            try:
                there = self._kept.get(one.untyped_storage()._cdata, ())
            except NotImplementedError:
                continue
            found += [held for trace, held in there if trace.holds(one) and held not in found]
        return [self._refused(_ONCE)] if found and self.once else found

    def _again(self, tensors: list[Tensor], last: Any) -> _Held:
        """Return the batch of a pass whose tensors are in no batch's memory: ``last``, or the batch that they copy."""
        if last.turn is None or not last.turn.exchanging or not self._down:
            return last
        sizes = {size for one in tensors for size in one.shape[:2]}
        able = [held for size, held in self._sizes.items() if size in sizes]
        alike = [one for one in able if one is not None and able[0] is not None and one.counts_like(able[0])]
        if len(alike) < len(able) or (able and self.once and not alike[0].counts_like(last)):
            return self._refused(_COPY)
        return alike[0] if able and not self.once else last

    def _refused(self, why: str) -> _Held:
        assert self._newest is not None
        turn, part = self._newest.turn, self._newest.part
        if turn is None:
            return self._newest
        fields = turn.iteration, turn.epoch, turn.samples, turn.weight, turn.exchanging
        return _Held(part, _Undecided(*fields, f"iteration {turn.iteration}: {why}"), None, [])

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has made a step.

        Raises:
            TrainingError: in the midst of a backward pass, before the exchange.
        """
        if not self._open or not self._holds(optimizer):
            return
        self.trained = True
        if self.exchanged and torch._C._current_graph_task_id() != -1:
            raise TrainingError(
                "optimizer.step() inside of a backward pass, as in register_post_accumulate_grad_hook: gradients are "
                "exchanged when the pass ends, so the step was on this worker's own; step after loss.backward()"
            )
        self._watched = True
        if not self._passed and self._fresh:  # no forward pass was seen
            self.settle()
        for _ in range(self._passed):
            self._open.popleft()
        self._passed, self._fresh = 0, False

    def _holds(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(id(one) in self._trained for group in optimizer.param_groups for one in group["params"])

    def unused(self) -> tuple[Portion, ...]:
        """Parts whose batches were handed out and are not used."""
        return tuple(one.part for one in self._open) if self._watched else ()

    def ahead(self) -> Portion | None:
        """The first part that has had no forward pass yet; the script is still in its epoch."""
        return self._open[self._passed].part if self._watched and self._passed < len(self._open) else None

    def clear(self) -> None:
        """What is in hand will not be trained on: the pass that it is from was left, or a state was loaded."""
        self._open.clear()
        self._passed, self._last, self._fresh = 0, None, False


_watching: weakref.WeakSet[InFlightBatches] = weakref.WeakSet()


@cache
def _see_steps() -> None:
    """Once in a process, and for good: taken off by the collector of garbage, which may come in the midst of a step, it
    would change torch's table of hooks while torch walks over it."""
    register_optimizer_step_post_hook(_on_step)


def _on_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for hands in list(_watching):
        hands.stepped(optimizer)


_ONCE = (
    "a pass on a batch that was handed out before the newest one: in an elastic run its weight is known only until the "
    "loader is asked for the next batch; train on each batch when it is handed out"
)
_COPY = (
    "a pass on a copy of a batch that was handed out before, and batches of that size counted differently: a gradient "
    "with the weight of another batch is wrong. Keep the loader's own tensors and pass the model these, or put the "
    "forward pass and the loss into `with session.weighted(len(y)):`"
)


def _undecided(turns: list[BatchWeight]) -> str:
    batches = ", ".join(f"{one.samples} samples (iteration {one.iteration})" for one in turns)
    return (
        f"a forward pass while {len(turns)} batches are in hand that count differently: {batches}. Its arguments do "
        f"not tell which one it is on, and a gradient with the weight of another batch is wrong: ask the loader for "
        f"the next batch after optimizer.step(), or pass the model the loader's own tensors"
    )


def _fewer(batch: Any, turn: BatchWeight) -> int | None:
    """Samples of a batch, if these are fewer than its turn says, as where a collate function leaves some out."""
    members = [batch] if isinstance(batch, Tensor) else batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(batch, Tensor | Mapping | list | tuple) or len(members) == turn.samples:
        return None
    shapes = [one.shape for one in members if isinstance(one, Tensor) and one.dim()]
    firsts = {shape[0] for shape in shapes}
    fits = len(firsts) != 1 or any(turn.samples in shape[:2] for shape in shapes)
    return None if fits or min(firsts) > turn.samples else firsts.pop()


def _trace(tensor: Tensor) -> _Trace:
    start = tensor.data_ptr()
    reach = sum((size - 1) * abs(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return _Trace(StorageWeakRef(tensor.untyped_storage()), start, start + reach * tensor.element_size())


def tensors_in(found: Any, deep: int = _DEEP) -> Iterator[Tensor]:
    """Yield the tensors that have memory in a batch or in arguments, also inside containers and plain objects."""
    if isinstance(found, Tensor):
        if _has_memory(found):
            yield found
    elif deep == 0 or isinstance(found, str | bytes | int | float | type | None):
        return
    elif isinstance(found, Mapping):
        for one in islice(found.values(), _WIDE):
            yield from tensors_in(one, deep - 1)
    elif isinstance(found, list | tuple):
        for one in islice(found, _WIDE):
            yield from tensors_in(one, deep - 1)
    elif hasattr(found, "__dict__"):
        yield from tensors_in(vars(found), deep - 1)


def _has_memory(tensor: Tensor) -> bool:
    """Not a sparse one, nor one that stands for others, as torch.func makes them."""
    try:
        return tensor.layout == torch.strided and tensor.numel() > 0 and tensor.data_ptr() != 0
    except RuntimeError:
        return False
