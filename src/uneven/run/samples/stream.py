"""Samples of a stream, read ahead by global batches and collated late.

A stream has no indices to divide, so every rank reads all samples and keeps its slice of every X consecutive ones.
Reader processes send each sample pickled; a rank unpickles only the samples that it keeps.
"""

import io
import pickle
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from uneven.errors import DataError
from uneven.policy.samples.order import Cursor, EpochPlan, Portion
from uneven.run.samples.source import BatchSource
from uneven.run.samples.stream_fingerprint import LOOKED_AT, first_samples

Collate = Callable[[list[Any]], Any]

_NUMPY_HAS = frozenset(
    (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
)


def is_stream(dataset: object) -> bool:
    """Return whether ``dataset`` is iterated instead of indexed; raises DataError if both are impossible."""
    if isinstance(dataset, IterableDataset):
        return True
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return False
    if hasattr(dataset, "__next__"):
        raise DataError(
            f"data set of type {type(dataset).__name__} is an iterator, which can be read only once: give an "
            "object whose __iter__ starts a new pass, for instance a torch.utils.data.IterableDataset"
        )
    if hasattr(dataset, "__iter__"):
        return True
    raise DataError(f"data set of type {type(dataset).__name__}: give it __len__ and __getitem__, or __iter__")


class StreamSource(BatchSource):
    """The batches of one rank from a stream that every rank reads identically.

    A ``sharded`` stream divides itself among reader processes (``torch.utils.data.get_worker_info``).
    """

    def __init__(
        self, dataset: Iterable[Any], *, plan: EpochPlan, rank: int, sharded: bool, options: Mapping[str, Any]
    ) -> None:
        options = dict(options)
        self._collate: Collate = options.pop("collate_fn", None) or default_collate
        self._pin = bool(options.pop("pin_memory", False))
        if not sharded:
            # Each of several readers would read the whole stream, and every sample would come several times.
            options["num_workers"] = min(options.get("num_workers", 0), 1)
        self._plan = plan
        self._rank = rank
        self._first: list[float] | None = None  # of this pass
        packed = options.get("num_workers", 0) > 0
        self._unpack: Callable[[Any], Any] = unpack if packed else same
        self._chunks: DataLoader[Any] = DataLoader(
            dataset if isinstance(dataset, IterableDataset) else Adapter(dataset),
            batch_size=plan.batch_size,
            collate_fn=pack_all if packed else same,
            **options,
        )

    def pairs(self, cursor: Cursor) -> Generator[tuple[Portion, Any], None, None]:
        self._first = None
        parts: deque[Portion] = deque()
        batches = self._batches(cursor, parts)
        for batch in _pinned(batches) if self._pin else batches:
            yield parts.popleft(), batch

    def resume(self, cursor: Cursor, state: Mapping[str, Any]) -> None:
        """Do nothing: a stream is read from its start, and used samples are skipped."""

    def tell(self) -> list[float] | None:
        return self._first

    def close(self) -> None:
        del self._chunks

    def _batches(self, cursor: Cursor, parts: deque[Portion]) -> Iterator[Any]:
        samples = chain.from_iterable(self._chunks)
        # What was used before an interruption is read again and dropped without being unpacked.
        for _ in islice(samples, cursor.start):
            pass
        while True:
            group = list(islice(samples, self._plan.batch_size))
            part = self._plan.part(cursor, len(group))
            if part is None:
                return
            if self._first is None:
                self._first = first_samples([self._unpack(one) for one in group[:LOOKED_AT]], packed)
            parts.append(part)
            own = (group[i - part.start] for i in part.positions(self._rank, self._plan.lower))
            yield self._collate([self._unpack(sample) for sample in own])
            cursor = cursor.after(part)


def _pinned(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the same batches in pinned memory, by torch's own rules."""
    # Torch draws a seed for each pass: a separate generator keeps the user's random state unchanged.
    one_by_one: DataLoader[Any] = DataLoader(
        Adapter(batches), batch_size=None, collate_fn=same, pin_memory=True, generator=torch.Generator()
    )
    return iter(one_by_one)


class Adapter(IterableDataset[Any]):
    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)


class _Packer(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        # By value: torch's pickling would open a file descriptor for each tensor of a global batch, and is many times
        # slower.
        plain = type(obj) is torch.Tensor and obj.device.type == "cpu" and obj.layout == torch.strided
        if plain and not obj.requires_grad and obj.dtype in _NUMPY_HAS:
            return torch.from_numpy, (obj.numpy(),)
        return NotImplemented


class _Comparer(_Packer):
    def persistent_id(self, obj: Any) -> Any:
        """Return a form that is the same in each process: without a set's order, a tensor's memory layout or its
        device."""
        if type(obj) in (set, frozenset):
            return sorted(map(repr, obj))
        if isinstance(obj, torch.Tensor) and obj.layout == torch.strided and not obj.is_quantized:
            plain = obj.detach().cpu().contiguous().reshape(-1)  # a device has another number on each rank
            return str(obj.dtype), tuple(obj.shape), plain.as_strided(plain.shape, (1,)).view(torch.uint8).numpy()
        return None


def pack(sample: Any, packer: type[_Packer] = _Packer) -> bytes:
    """Return one sample as bytes that only our reader process sends to its parent."""
    buffer = io.BytesIO()
    packer(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(sample)
    return buffer.getvalue()


def packed(part: Any) -> bytes:
    """Return a part of a sample as bytes for comparison; for a part that cannot be pickled, its type."""
    try:
        return pack(part, _Comparer)
    except (pickle.PicklingError, TypeError, AttributeError):
        return type(part).__name__.encode()


def unpack(packed: bytes) -> Any:
    return pickle.loads(packed)  # noqa: S301 — written by our own child process a moment ago


def pack_all(samples: list[Any]) -> list[bytes]:
    """Pack each sample separately, so that the parent can unpack only those that it keeps."""
    return [pack(sample) for sample in samples]


def same(items: Any) -> Any:
    return items
