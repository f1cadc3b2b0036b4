"""Which of the batches that were handed out are in the model, and which are only in the user's hands.

A batch is used when an optimizer has made a step after the forward pass that ran on it. Batches that were fetched ahead
have had no forward pass yet; micro-batches of which only ``.grad`` knows have had no step.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from uneven.data.order import Part

_MOST = 4096
"""Batches that may wait for a step; a longer wait is none."""

_ENTRIES = 64
"""Of a list that are looked at, as it may hold a text for each sample."""

Extents = list[tuple[int, int, weakref.ref[Tensor]]]
"""First address, the one behind the last, and whose they are: when it is gone, others may get the same."""


class Hands:
    """Batches that were handed out and that no optimizer step has taken in, in the order in which they were.

    A forward pass belongs to the batch whose memory it is given; where no memory is shared (the batch was copied to a
    device, or changed), to the next batch without one. A batch that is passed over has been left out by the user, and
    counts as used with the next one. Where no forward pass is seen (parts of the model are called, not the model), a
    step takes in all that was handed out before it.

    Where nothing is known of a step, all that was handed out counts as used: no optimizer was given to :meth:`watch`,
    and none has stepped.
    """

    def __init__(self) -> None:
        self._open: deque[tuple[Part, Extents]] = deque()
        self._passed = 0  # how many of them, from the first on, have had a forward pass
        self._last: Extents = []  # of the batch that the newest forward pass belongs to
        self._fresh = False  # whether a batch has been handed out since the last step
        self._watched = False
        self._trained: frozenset[int] = frozenset()

    def watch(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        """See the steps of all optimizers that hold a parameter of ``model``, also of those that are made later."""
        self._watched = bool(optimizers)
        self._trained = frozenset(map(id, model.parameters()))
        handle = register_optimizer_step_post_hook(partial(_on_step, weakref.ref(self)))
        weakref.finalize(self, handle.remove)

    def hand(self, part: Part, batch: Any) -> None:
        """``batch`` is handed to the user."""
        if len(self._open) == _MOST:
            self._open.popleft()
            self._passed = max(0, self._passed - 1)
        self._open.append((part, _extents(batch)))
        self._fresh = True

    def forward(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward pass begins; a hook of the model that the batches are for."""
        if torch.compiler.is_compiling() or self._passed == len(self._open) or not torch.is_grad_enabled():
            return
        given = _extents((args, kwargs)) if kwargs else _extents(args)
        ahead = len(self._open) - self._passed
        for number in range(1, ahead + 1):
            if _meet(given, self._open[-number][1]):
                self._pass(ahead + 1 - number)
                return
        if not _meet(given, self._last):
            self._pass(1)

    def _pass(self, batches: int) -> None:
        """So many more have had a forward pass, or have been passed over."""
        self._passed += batches
        self._last = self._open[self._passed - 1][1]

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has made a step."""
        if not self._open or not self._holds(optimizer):
            return
        self._watched = True
        taken = self._passed if self._passed or not self._fresh else len(self._open)
        for _ in range(taken):
            self._open.popleft()
        self._passed, self._fresh = 0, False

    def _holds(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(id(one) in self._trained for group in optimizer.param_groups for one in group["params"])

    def unused(self) -> tuple[Part, ...]:
        """Parts whose batches were handed out and are not used."""
        return tuple(part for part, _ in self._open) if self._watched else ()

    def ahead(self) -> Part | None:
        """The first part that has had no forward pass yet; the script is still in its epoch."""
        return self._open[self._passed][0] if self._watched and self._passed < len(self._open) else None

    def clear(self) -> None:
        """What is in hand will not be trained on: the pass that it is from was left, or a state was loaded."""
        self._open.clear()
        self._passed, self._last, self._fresh = 0, [], False


def _on_step(hands: weakref.ref[Hands], optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if (found := hands()) is not None:
        found.stepped(optimizer)


def _extents(values: Any) -> Extents:
    """Where the tensors among ``values`` lie."""
    found: Extents = []
    left = [values]
    while left:
        one = left.pop()
        if isinstance(one, Tensor):
            try:
                first = one.data_ptr()
                found.append((first, first + one.nbytes, weakref.ref(one)))
            except RuntimeError:  # it has no memory of its own to lie in: a sparse one, or one of torch.func
                continue
        elif isinstance(one, (list, tuple)):
            left.extend(one[:_ENTRIES])
        elif isinstance(one, Mapping):
            left.extend(one.values())
    return found


def _meet(given: Extents, own: Extents) -> bool:
    for place, _, _ in given:
        for first, end, tensor in own:
            if first <= place < end and tensor() is not None:
                return True
    return False
