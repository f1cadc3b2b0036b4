"""The in-flight batches, and the one among them that a forward pass is on.

In a plain loop the pass is on the newest batch, and the next step uses it. A script that fetches its next batch between
forward and backward, a prefetcher, or a generator that checks for the last batch holds several. A gradient counts with
the weight of its batch. The batch of a pass is found by, in this order:

1. the memory of the pass's arguments, if it is that of one batch (also through views, and ``.to`` the same device);
2. equal weights: if all candidates count the same, the oldest, because the choice does not change the gradient;
3. the number of samples, if it is among the leading sizes of the arguments and fits only batches with equal weights.

Otherwise the pass raises an error, because a wrong weight would give wrong gradients silently.

A script may also keep batches and use them again: ``list(loader)`` for several epochs, ``itertools.cycle``, a replay
buffer. Their tensors are recognized by their memory as long as they live. A pass on a copy, after the loop over the
loader, is matched by its number of samples if all batches of that size have counted the same; otherwise its gradient
raises an error.

A batch is used, so a resume does not repeat it, once an optimizer has made a step after its forward pass. Prefetched
batches have had no forward pass yet; micro-batches that are only in ``.grad`` have had no step.
"""

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

_MOST = 4096  # batches that may wait for a step; more means that none will come

_ROOM = 64  # tensors of earlier batches that are kept before freed ones are removed

_DEEP, _WIDE = 4, 32  # levels of containers that are searched for a batch's tensors, and members of each


@dataclass(frozen=True, slots=True)
class _Trace:
    """The memory of a batch's tensor. Once it is freed, other tensors may get the same address."""

    memory: StorageWeakRef
    start: int
    end: int

    def holds(self, tensor: Tensor) -> bool:
        try:
            memory = tensor.untyped_storage()._cdata
        except NotImplementedError:  # torch.func's wrapped tensors have no memory
            return False
        same = memory == self.memory.cdata and not self.memory.expired()
        return same and self.start <= tensor.data_ptr() < self.end


@dataclass(frozen=True, slots=True)
class _Undecided(BatchWeight):
    """The weight of a pass whose batch is unknown; it raises only if a gradient needs it, so evaluation works."""

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
    batch: Any  # only while it is the newest, because the loader holds that one anyway
    traces: list[_Trace] | None = None
    samples: int | None = None  # its number of samples, if fewer than were drawn

    def traced(self) -> list[_Trace]:
        if self.traces is None:
            self.traces = [_trace(one) for one in tensors_in(self.batch)]
        return self.traces

    def is_in(self, tensors: list[Tensor]) -> bool:
        traces = self.traced()
        return any(trace.holds(one) for one in tensors for trace in traces)

    def counts_like(self, other: "_Held") -> bool:
        return self.turn is None or other.turn is None or self.turn.counts_like(other.turn)


class InFlightBatches:
    """The batches that were yielded and that no optimizer step includes, in their order.

    A batch that is skipped counts as used with the next one. If no forward pass is seen (parts of the model are called
    instead), a step uses all batches before it. If no steps are seen, because no optimizer was given to :meth:`watch`
    and none has stepped, all yielded batches count as used.

    Attributes:
        exchanged: whether gradients are exchanged at the end of a backward pass.
        once: whether a batch's weight is known only while it is the newest, because members may change.
        trained: whether a batch of the loader's newest pass has been trained on.
        over: whether the script has iterated to the end of that pass.
    """

    def __init__(self, turn_of: Callable[[Portion], BatchWeight] | None = None) -> None:
        self.turn_of = turn_of  # part → loss weight of its batch; None if weights are not needed
        self.exchanged = self.once = False
        self.trained = self.over = False
        # called if a batch has fewer samples than were drawn
        self.fewer: Callable[[int, BatchWeight], None] | None = None
        self.one_thread: Callable[[], bool] | None = None  # whether the training thread must request batches
        self._open: deque[_Held] = deque()
        self._passed = 0  # number of these, from the first on, with a forward pass
        self._last: _Held | None = None  # batch of the newest forward pass
        self._newest: _Held | None = None  # batch that was yielded last
        self._down = False  # whether the loop that yielded it has ended
        self._kept: dict[int, list[tuple[_Trace, _Held]]] = {}  # earlier batches, by their memory
        self._room = _ROOM
        self._sizes: dict[int, _Held | None] = {}  # the newest of each size; None where they count differently
        self._thread = self._home = 0  # thread that requested it, and thread that trains (at first: that set up)
        self._ahead = False  # whether the script has fetched ahead before
        self._fresh = False  # whether a batch was yielded since the last step
        self._watched = False
        self._trained: frozenset[int] = frozenset()

    def watch(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        """Observe the steps of all optimizers with a parameter of ``model``, also of those that are made later."""
        self._watched, self._home = bool(optimizers), get_ident()
        self._trained = frozenset(map(id, model.parameters()))
        _see_steps()
        _watching.add(self)

    @property
    def turn(self) -> BatchWeight | None:
        """The loss weight of the newest forward pass's batch."""
        return None if self._last is None else self._last.turn

    @property
    def newest(self) -> BatchWeight | None:
        """The loss weight of the batch that was yielded last."""
        return None if self._newest is None else self._newest.turn

    def hand(self, part: Portion, batch: Any) -> None:
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
        """True if no batch of the loader's newest pass was trained on; False if training cannot be observed."""
        return bool(self._trained) and not self.trained

    def settle(self) -> None:
        """Treat waiting batches as passed: the next forward pass is on a batch that is yielded later."""
        if self._passed < len(self._open):
            self._passed, self._last = len(self._open), self._open[-1]

    def rest(self) -> None:
        """Release the newest batch and remember only its memory, so that it lives no longer than the user keeps it."""
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
        """Record the end of the loop over the loader; ``whole`` if it reached the end of the epoch."""
        self._down, self.over = True, whole
        self.rest()

    def forward(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Find the batch of a forward pass that starts; a hook of the model. Raises TrainingError if several batches
        with different weights are possible, or another thread reads the loader although the run does not allow it."""
        if not torch.is_grad_enabled() or self._newest is None:
            return
        # Not in a backward pass: activation checkpointing runs forward passes again, perhaps in autograd's threads.
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

    def holds(self, arguments: Any) -> bool:
        """Return whether a pass's arguments are batches of the loader: in their memory, or as large as the newest."""
        like = {one.shape for one in tensors_in(self._newest and self._newest.batch)}
        return all(
            one.shape in like or any(held.is_in([one]) for held in self._open) or bool(self._earlier([one]))
            for one in tensors_in(arguments)
        )

    def asked(self) -> None:
        """Check the thread that requests the next batch; raises TrainingError as :meth:`forward` does."""
        if get_ident() != self._home and self._home and self._passed < len(self._open):
            self._check_thread()

    def _check_thread(self) -> None:
        if self.one_thread is not None and self.one_thread():
            raise TrainingError(
                "one thread reads the session's loader, and another one trains: workers decide and exchange "
                "between two steps, when a batch is requested. Read ahead with session.loader(num_workers=…) "
                "instead, or use sync='bsp' with fixed shares, balance='even' or 'static:…'"
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
        """Return the earlier batches in whose memory these tensors are."""
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
        """Record a step of an optimizer; raises TrainingError inside a backward pass, before the exchange."""
        if not self._open or not self._holds(optimizer):
            return
        self.trained = True
        if self.exchanged and torch._C._current_graph_task_id() != -1:
            raise TrainingError(
                "optimizer.step() inside of a backward pass, as in register_post_accumulate_grad_hook: gradients "
                "are exchanged at the end of the pass, so this step used local ones; step after loss.backward()"
            )
        self._watched = True
        if not self._passed and self._fresh:  # no forward pass was seen
            self.settle()
        for _ in range(self._passed):
            self._open.popleft()
        self._passed, self._fresh = 0, False

    def _holds(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(id(one) in self._trained for group in optimizer.param_groups for one in group["params"])

    @property
    def unstepped(self) -> bool:
        """True if gradients of batches wait for a step; False if steps cannot be observed."""
        return self._watched and self._passed > 0

    def unused(self) -> tuple[Portion, ...]:
        return tuple(one.part for one in self._open) if self._watched else ()

    def ahead(self) -> Portion | None:
        """Return the first part without a forward pass; the script is still in its epoch."""
        return self._open[self._passed].part if self._watched and self._passed < len(self._open) else None

    def clear(self) -> None:
        """Forget the in-flight batches: the loop was left, or a state was loaded."""
        self._open.clear()
        self._passed, self._last, self._fresh = 0, None, False


_watching: weakref.WeakSet[InFlightBatches] = weakref.WeakSet()


@cache
def _see_steps() -> None:
    """Register the hook on all optimizers, once per process."""
    # It is never removed: garbage collection could remove it during a step, while torch iterates over its hooks.
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
    "forward pass and the loss into `with session.loss_mean(len(y)):`"
)


def _undecided(turns: list[BatchWeight]) -> str:
    batches = ", ".join(f"{one.samples} samples (iteration {one.iteration})" for one in turns)
    return (
        f"a forward pass while {len(turns)} batches are in hand that count differently: {batches}. Its arguments do "
        f"not tell which one it is on, and a gradient with the weight of another batch is wrong: ask the loader for "
        f"the next batch after optimizer.step(), or pass the model the loader's own tensors"
    )


def _fewer(batch: Any, turn: BatchWeight) -> int | None:
    """Return the samples of a batch if they are fewer than its weight counts, for instance after a filtering collate
    function."""
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
    """Yield the tensors with memory in a batch or in arguments, of any shape, also inside containers and plain
    objects."""
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
    try:
        return tensor.layout == torch.strided and tensor.numel() > 0 and tensor.data_ptr() != 0
    except RuntimeError:
        return False
