"""Are all who exchange at the same place of the same loop? One number beside what they add up anyway tells.

Somebody who has left an epoch before the others, or has left out a batch, exchanges all the same, only with their other
batches. So everybody adds a mark of its place: the first one as many times as there are others, with a minus. The sum
is nothing where all are at one place. It is a whole number that the type holds exactly, so nothing is left by rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from uneven.errors import TrainingError

_EPOCH = 1009
"""Iterations that an epoch is taken to be apart in a mark: who has left an epoch early counts its iterations on."""

_EXACT = {torch.float64: 2**53, torch.float32: 2**24, torch.float16: 2**11, torch.bfloat16: 2**8}
"""Up to where a type holds every whole number."""

_MOST = 2**20


def mark(epoch: int, iteration: int, index: int, count: int, dtype: torch.dtype) -> float:
    """What the one at ``index`` of ``count`` adds to the sum, which is 0 where all are at one place.

    Places that are a multiple of some thousands of iterations apart look alike, and with 256 and more workers whose
    sums are in bfloat16 all do.
    """
    others = count - 1
    alike = min(_MOST, _EXACT.get(dtype, 1) // max(1, others))
    place = float((epoch * _EPOCH + iteration) % max(1, alike))
    return place if index else -others * place


def is_still(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its steps change nothing: ``torch.distributed.checkpoint`` makes one so, to have an optimizer's state."""
    return all(group.get("lr") == 0.0 for group in optimizer.param_groups)


def closures_checked(args: Any, kwargs: Any, check: Callable[[], None]) -> tuple[Any, Any] | None:
    """The arguments of an optimizer's step, whose closure calls ``check`` at its end; None if there is no closure."""

    def checked(value: Any) -> Any:
        if not callable(value):
            return value

        @wraps(value)
        def closure(*given: Any) -> Any:
            loss = value(*given)
            check()
            return loss

        return closure

    if not any(map(callable, (*args[1:], kwargs.get("closure")))):
        return None
    named = {name: checked(value) if name == "closure" else value for name, value in kwargs.items()}
    return (args[0], *map(checked, args[1:])), named


def refuse_held(held: bool) -> None:
    """
    Raises:
        TrainingError: gradients of passes inside ``no_sync`` wait, and an optimizer is about to use them.
    """
    if held:
        raise TrainingError(
            "optimizer.step() with gradients that were not exchanged: the last backward pass before a step must run "
            "outside session.no_sync()"
        )


def out_of_step(
    total: Callable[[torch.Tensor], object],
    epoch: int,
    iteration: int,
    index: int,
    ranks: Sequence[int],
    passes: int = 1,
) -> TrainingError:
    """The error for ranks of which the marks did not add up to nothing; every one of them calls this then.

    Args:
        total: replaces a vector, shape (3 · ranks,), by its sum over them.
        index: of this one among ``ranks``.
        passes: backward passes of this one on its batch so far, each with an exchange.
    """
    table = torch.zeros(len(ranks), 3, dtype=torch.float64)
    table[index] = torch.tensor([epoch, iteration, passes])
    total(table.view(-1))
    places: dict[tuple[int, int], list[str]] = defaultdict(list)
    for rank, (its_epoch, its_iteration, _) in zip(ranks, table.long().tolist(), strict=True):
        places[its_epoch, its_iteration].append(str(rank))
    where = "; ".join(f"rank {', '.join(who)}: iteration {at[1]} of epoch {at[0]}" for at, who in places.items())
    cause = (
        "all ranks must run the same loop. Look for a break, continue or return that only some ranks reach, as inside "
        "`if rank == 0`"
        if table[:, 2].max() == 1.0
        else "they have taken different numbers of backward passes on one batch. Parts differ in size, so x.split(n) "
        "makes different numbers of pieces: take `for x, y in session.passes(batch)`, with "
        "session.loader(…, microbatch=n). LBFGS ends by the loss that its closure returns: return session.mean(loss)"
    )
    return TrainingError(
        f"ranks are out of step, and would mix batches that do not belong together ({where}): {cause}"
    )
