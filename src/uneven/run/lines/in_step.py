"""The check that all workers that exchange are at the same place of the same loop, by one number added to their sum.

A worker that left an epoch early or skipped a batch still exchanges, but with other workers' different batches. So each
worker adds a mark of its place; the first one adds it negated, times the number of others. The sum is 0 if all are
at one place. It is an integer that the type holds exactly, so rounding leaves nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from uneven.errors import TrainingError

# Distance of two epochs in a mark, in iterations: a rank that left an epoch early continues to count iterations, so
# iterations without epochs could agree.
_EPOCH = 1009

# The largest integer up to which a type holds every integer.
_EXACT = {torch.float64: 2**53, torch.float32: 2**24, torch.float16: 2**11, torch.bfloat16: 2**8}

_MOST = 2**20


def mark(epoch: int, iteration: int, index: int, count: int, dtype: torch.dtype) -> float:
    """Return the number that worker ``index`` of ``count`` adds to the sum, which is 0 if all are at one place.

    Places that differ by a multiple of some thousands of iterations have the same mark. With 256 or more workers and
    sums in bfloat16 all places do.
    """
    others = count - 1
    alike = min(_MOST, _EXACT.get(dtype, 1) // max(1, others))
    place = float((epoch * _EPOCH + iteration) % max(1, alike))
    return place if index else -others * place


def is_still(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer's steps change nothing."""
    # torch.distributed.checkpoint takes such a step to create an optimizer's state.
    return all(group.get("lr") == 0.0 for group in optimizer.param_groups)


def closures_checked(args: Any, kwargs: Any, check: Callable[[], None]) -> tuple[Any, Any] | None:
    """Return a step's arguments with a closure that calls ``check`` at its end; None without a closure."""

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
    """Raise :class:`TrainingError` if an optimizer is about to use gradients of passes inside ``no_sync``."""
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
    """Return the error for ranks whose marks do not add up to 0; every one of them calls this then.
    ``total`` replaces a vector, shape (3 · ranks,), by its sum; ``passes`` are this rank's exchanges on its batch so
    far."""
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
        "makes different numbers of pieces: take `for x, y in session.microbatches(batch)`, with "
        "session.loader(…, microbatch=n). LBFGS ends by the loss that its closure returns: return session.mean(loss)"
    )
    return TrainingError(f"ranks are out of step, and would mix different batches ({where}): {cause}")
