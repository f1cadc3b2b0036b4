"""Several forward and backward passes over a batch that is larger than memory allows."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel.distributed import _find_tensors

from uneven.errors import DataError, TrainingError
from uneven.run.gradients.backward_start import weighted_on_entering
from uneven.run.model.hooks import ModelHook
from uneven.run.step.loop import StepLoop


def in_passes(loop: StepLoop, model: nn.Module, batch: Any, most: int | None) -> Iterator[Any]:
    """Yield the batch in pieces of at most ``most`` samples, as equal as possible; whole if None.

    All but the last pass leave their gradients in ``.grad``; see :meth:`uneven.Session.microbatches`.
    """
    samples = _rows(batch)
    passes = 1 if most is None else -(-samples // most)
    loop.reports.books.passes = passes
    if passes == 1:
        yield batch
        return
    edges = [samples * number // passes for number in range(passes + 1)]
    counted = loop.counting.counted
    with loop.counting.passing():
        for start, end in pairwise(edges):
            # Means over pieces, weighted by their samples, add up to the mean over the batch. Inside session.loss_mean
            # and session.loss_sum the script has weighted the pieces already.
            part = 1.0 if counted else (end - start) / samples
            hook = model.register_forward_hook(ModelHook(partial(weigh, part)))
            try:
                with nullcontext() if end == samples else loop.gradients.no_sync():
                    yield cut(batch, samples, start, end)
            finally:
                hook.remove()


def weigh(part: float, model: nn.Module, args: Any, output: Any) -> Any:
    """Multiply the gradients of a forward pass by ``part``, in its hook; raise :class:`TrainingError` if it cannot."""
    if not torch.is_grad_enabled():
        return output
    weighed, found = weighted_on_entering(output, lambda: part)
    if found < sum(one.requires_grad for one in _find_tensors(output)) or not (found or _tensors(output)):
        raise TrainingError(
            f"session.microbatches: the gradients of the model's output, {type(output).__name__}, cannot all be "
            "weighted: return tensors, or tuples, lists or dictionaries of them"
        )
    return weighed


def _rows(batch: Any) -> int:
    """Return the samples of a batch, the first size of its first tensor; raise :class:`DataError` if it holds none."""
    for one in _tensors(batch):
        if one.dim():
            return len(one)
    raise DataError(
        f"session.microbatches of a {type(batch).__name__}: give a batch with a tensor whose first dimension counts "
        "the samples"
    )


def _tensors(batch: Any) -> list[Tensor]:
    """Return the tensors that :func:`cut` can find, each of any shape; it does not look into other objects."""
    if isinstance(batch, Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return [found for one in parts for found in _tensors(one)]


def cut(batch: Any, samples: int, start: int, end: int) -> Any:
    """Return a batch of the same kind with these samples only; values of another length belong to all samples."""
    if isinstance(batch, Tensor):
        return batch[start:end] if batch.dim() and len(batch) == samples else batch
    if isinstance(batch, Mapping):
        return type(batch)({key: cut(one, samples, start, end) for key, one in batch.items()})  # type: ignore[call-arg]
        # Mappings from collate functions can be constructed from pairs.
    if isinstance(batch, list | tuple):
        if len(batch) == samples and not _tensors(batch):
            return batch[start:end]  # for example, texts
        parts = [cut(one, samples, start, end) for one in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch
