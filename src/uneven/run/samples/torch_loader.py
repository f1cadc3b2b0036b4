"""What a session's loader takes over from a ready ``DataLoader`` of torch."""

from collections.abc import Mapping
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from uneven.errors import DataError
from uneven.run.samples.stream import is_stream

_PASSED = (
    *("collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("generator", "prefetch_factor", "persistent_workers"),
)


def taken_over(loader: DataLoader[Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    """Return the arguments of ``session.loader``, and the batch size of ``loader`` if the caller gave none.

    What the caller gave (not None) stays. A ``DistributedSampler`` only decides whether samples are shuffled, because
    the session divides them.

    Raises:
        DataError: something of ``loader`` cannot be taken over; the message names it.
    """
    if wrong := _refused(loader):
        raise DataError(
            f"session.loader cannot take over a {type(loader).__name__} with {wrong}; give it the data set, the size "
            f"of the global batch, and the DataLoader's other options (num_workers, collate_fn, …)"
        )
    options = {name: getattr(loader, name) for name in _PASSED}
    found = {**given, "dataset": loader.dataset, "dataloader": {**options, **given["dataloader"]}}
    source: Any = loader.batch_sampler if loader.batch_size is None else loader  # of batch_size, drop_last and sampler
    if given["drop_last"] is None:
        found["drop_last"] = source.drop_last
    if not is_stream(loader.dataset) and given["sampler"] is None and given["batch_sampler"] is None:
        sampler = source.sampler
        if isinstance(sampler, DistributedSampler):
            order = {"shuffle": sampler.shuffle}
        elif type(sampler) is SequentialSampler or _plain(sampler):
            order = {"shuffle": type(sampler) is RandomSampler}
        else:
            order = {"sampler": sampler}
        found |= {name: value for name, value in order.items() if given[name] is None}
    return found, source.batch_size if given["batch_size"] is None else None


def _plain(sampler: Any) -> bool:
    """Return whether it is a ``RandomSampler`` that draws each sample once."""
    once = type(sampler) is RandomSampler and not sampler.replacement
    return once and len(sampler) == len(sampler.data_source)


def _refused(loader: DataLoader[Any]) -> str:
    """Return the first thing of ``loader`` that a session's loader cannot do; "" if there is none."""
    if type(loader).__iter__ is not DataLoader.__iter__:
        return "an __iter__ that is not torch's"
    if loader.batch_size is None and loader.batch_sampler is None:
        return "batch_size=None: its data set yields whole batches, and batches are divided by sample here"
    if loader.batch_size is None and type(loader.batch_sampler) is not BatchSampler:
        return f"batch_sampler={type(loader.batch_sampler).__name__}: its batches are those of one worker"
    if not getattr(loader, "in_order", True):
        return "in_order=False: batches are identified by their order here"
    return ""
