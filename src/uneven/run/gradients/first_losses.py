"""The check that losses of a run's first steps are means over samples.

A loss's graph shows how torch computed it, but a backward pass frees what it saved before any hook of the model runs.
So ``torch.autograd.backward`` is replaced from a forward pass to its backward pass, on one worker, a few times.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from uneven.run.gradients.loss_weight import PassCounts
from uneven.run.samples.in_flight import InFlightBatches, tensors_in

_LOOKS, _SEVERAL = 10, 5  # budget of looks; an iteration costs 1 if its batch is a single sample, otherwise 5
_NODES, _MEAN, _SUM = 2000, 1, 2  # most nodes to visit from the loss; reductions, as torch numbers them
_ADDING = ("Add", "Sub", "Neg", "ToCopy", "Squeeze")  # prefixes of nodes that keep a sum a sum
_DIVIDING = ("Mul", "Div", "Stack", "Cat")  # prefixes of nodes whose results may add up to a mean


class FirstLosses:
    """Inspects this worker's losses, and calls ``warn`` once if one is not a mean over samples."""

    _iteration, _thread = -1, 0

    def __init__(self, hands: InFlightBatches, counting: PassCounts, warn: Callable[[str], None]) -> None:
        self._hands = hands
        self._counting = counting
        self._warn = warn
        self._torch = torch.autograd.backward
        self._left = _LOOKS
        self._sizes = set[int]()

    def forward(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Call ``InFlightBatches.forward`` for a forward pass, and prepare to inspect its backward pass."""
        self._hands.forward(model, args, kwargs)
        self.close()
        turn = self._hands.turn
        if self._counting.counted or self._left < 0 or turn is None or not torch.is_grad_enabled():
            return
        self._sizes = {n for one in tensors_in([args, kwargs]) for n in one.shape[: 2 if one.dim() in (2, 3) else 1]}
        if turn.iteration != self._iteration:
            self._iteration = turn.iteration
            self._left -= 1 if 1 in self._sizes else _SEVERAL
        # Another session of this process may have replaced the function already.
        elsewhere = isinstance(getattr(torch.autograd.backward, "__self__", None), FirstLosses)
        if self._left >= 0 and not elsewhere:
            self._thread, self._torch = get_ident(), torch.autograd.backward
            torch.autograd.backward = self._backward

    def _backward(self, tensors: Any, *given: Any, **named: Any) -> None:
        if get_ident() == self._thread:
            self.close()
            if text := complaint([tensors] if isinstance(tensors, Tensor) else tensors, self._sizes):
                self._left = -1
                self._warn(text)
        self._torch(tensors, *given, **named)

    def close(self) -> None:
        if torch.autograd.backward == self._backward:
            torch.autograd.backward = self._torch


def complaint(losses: Iterable[Any], sizes: set[int]) -> str:
    """Explain why these losses are not means over samples, with the remedy; "" if they are, or if the graph hides it.
    One of ``sizes``, the leading sizes of the model's inputs, is the number of samples."""
    roots = [one.grad_fn for one in losses if getattr(one, "grad_fn", None) is not None]
    sums = (_sum(node, sizes) for node in _reached(roots, _keeps_sum))
    means = (_mean(node, sizes) for node in _reached(roots, lambda node: True))
    try:
        what, method = next(filter(None, chain(sums, means)), ("", ""))
    except RuntimeError:  # the graph has been freed, or its tensors have changed
        return ""
    return what and (
        f"the loss {what}, but the gradients of the workers are weighted by samples. So the result is not that of one "
        f"process: put the forward pass and the loss into `with session.{method}:`, see docs/how-to/losses.md"
    )


def _reached(roots: list[Any], through: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield the nodes of a graph, nearest first; continue behind a node only if ``through`` is true for it."""
    waiting, seen = deque(roots), set(roots)
    while waiting and len(seen) < _NODES:
        yield (node := waiting.popleft())
        fresh = {one for one, _ in node.next_functions if one is not None} - seen if through(node) else set()
        seen |= fresh
        waiting += fresh


def _keeps_sum(node: Any) -> bool:
    by = getattr(node, "_saved_other", None) if node.name().startswith("Mul") else None
    scaled = by is not None and (not isinstance(by, Tensor) or by.numel() == 1) and float(by) >= 1.0  # by a GradScaler
    return scaled or node.name().startswith(_ADDING)


def _sum(node: Any, sizes: set[int]) -> tuple[str, str] | None:
    name = node.name().removesuffix("Backward0")
    if getattr(node, "_saved_reduction", None) == _SUM:
        call = re.sub("(?<=.)(?=[A-Z])", "_", name).lower()
        return f"{call}(reduction='sum') is a sum over samples", "loss_sum()"
    if name != "Sum" or not (shape := node._saved_self_sym_sizes) or shape[0] not in sizes - {1}:
        return None
    divided = any(
        one.name().startswith(_DIVIDING) or (one.name() == "MeanBackward1" and 0 in one._saved_dim)  # over samples
        for one, _ in node.next_functions
        if one is not None
    )
    return None if divided else ("is a sum over samples", "loss_sum()")


def _mean(node: Any, sizes: set[int]) -> tuple[str, str] | None:
    if not node.name().startswith("NllLoss") or node._saved_reduction != _MEAN:
        return None
    ignored = (node._saved_ignore_index + 2**63) % 2**64 - 2**63  # torch saves it as unsigned
    target, weight = node._saved_target.long(), node._saved_weight
    kept = target.ne(ignored)
    count = (kept if weight is None else weight.detach()[target.where(kept, 0)] * kept).double().flatten()
    ways = [way for n in sizes if len(count) % n == 0 for way in (count.view(n, -1).sum(1), count.view(-1, n).sum(0))]
    if not ways or any(torch.allclose(one, one[0]) for one in ways):  # equal per sample, or per position
        return None
    if weight is None:
        return (
            f"cross_entropy(ignore_index={ignored}) is a mean over some targets",
            f"loss_mean((y != {ignored}).sum())",
        )
    targets = "y" if kept.all() else f"y[y != {ignored}]"
    return "cross_entropy(weight=…) is a mean by the weights of its targets", f"loss_mean(weight[{targets}].sum())"
