"""Streams with one shard for each rank: each rank takes samples from its own shard at the rate of its share.

All ranks know the rest of every shard, from the lengths and the shares so far. While all shards have samples, a share
is that of the split; when a shard runs dry, the others take more, up to their limits. So iterations keep the global
batch as long as shards and limits allow, and every sample of every shard is used once per epoch.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate

from uneven.errors import CheckpointError, DataError
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import Limits
from uneven.policy.samples.order import Cursor, EpochPlan, Portion
from uneven.run.samples.source import BatchSource
from uneven.run.samples.stream import Adapter, pack_all, same, unpack

_READ = 64  # samples that a reader process sends together

_REMEMBERED = 8192  # places in the epoch whose samples taken from each shard are remembered

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shards:
    """A stream with one shard for each rank."""

    lengths: Counts  # samples in the shard of each rank
    most: Counts  # most samples of each rank in one iteration


def shard_shares(shares: Counts, left: Counts, most: Counts, lower: int = 1) -> Counts:
    """Return the samples of each rank in the next iteration, all 0 if all shards are empty. Pure.

    Rank i has ``left[i]`` samples in its shard and may take ``most[i]`` in one iteration.
    """
    upper = tuple(min(one, other) for one, other in zip(left, most, strict=True))
    total = min(sum(shares), sum(upper))
    if all(share <= cap for share, cap in zip(shares, upper, strict=True)):
        return shares
    lows = tuple(min(lower, cap) for cap in upper)
    if sum(lows) > total:
        lows = (0,) * len(upper)
    weights = [float(max(share, 1)) for share in shares]
    return proportional(weights, total, Limits(lower=lows, upper=upper))


class ShardSource(BatchSource):
    """The batches of one rank from its own shard."""

    kind = "shards"

    def __init__(
        self, dataset: Iterable[Any], *, shards: Shards, rank: int, plan: EpochPlan, options: Mapping[str, Any]
    ) -> None:
        options = dict(options)
        self._collate = options.pop("collate_fn", None) or default_collate
        # several readers would each read the whole shard
        options["num_workers"] = min(options.get("num_workers", 0), 1)
        packed = options["num_workers"] > 0
        self._unpack = unpack if packed else same
        self._lengths = shards.lengths
        self.length = sum(shards.lengths)
        self._most = shards.most
        self._rank = rank
        self._plan = plan  # divides an iteration's samples
        self._taken: OrderedDict[int, Counts] = OrderedDict()  # samples of all ranks so far → of each
        self._chunks: DataLoader[Any] = DataLoader(
            dataset if isinstance(dataset, IterableDataset) else Adapter(dataset),
            batch_size=_READ,
            collate_fn=pack_all if packed else same,
            **options,
        )

    def state(self, cursor: Cursor) -> dict[str, Any]:
        return {"taken": [*self._used(cursor.start)]}

    def resume(self, cursor: Cursor, state: Mapping[str, Any]) -> None:
        taken: Any = state.get("taken")
        sound = isinstance(taken, list | tuple) and all(type(one) is int for one in taken)
        if not sound or sum(taken) != cursor.start or len(taken) != len(self._lengths):
            raise CheckpointError(
                f"loader state: taken = {taken!r}, but there are {len(self._lengths)} shards: resume with the same "
                "number of workers, each with its own shard"
            )
        if any(one > length for one, length in zip(taken, self._lengths, strict=True)):
            raise CheckpointError(f"loader state: taken = {taken!r} of shards with {self._lengths} samples")
        self._remember(cursor.start, tuple(taken))

    def pairs(self, cursor: Cursor) -> Generator[tuple[Portion, Any], None, None]:
        """Yield parts and this rank's batches to the end of all shards. Raises DataError if this shard ends early."""
        taken = self._used(cursor.start)
        samples: Iterator[Any] = chain.from_iterable(self._chunks)
        for _ in islice(samples, taken[self._rank]):
            pass
        held: list[Any] = []
        while any(left := tuple(all_ - used for all_, used in zip(self._lengths, taken, strict=True))):
            split = self._plan.split_for(cursor.iteration)
            shares = shard_shares(split, left, self._most, self._plan.lower)
            if self._plan.drop_last and sum(shares) < sum(split):
                return
            part = Portion(
                iteration=cursor.iteration, epoch=cursor.epoch, start=cursor.start, size=sum(shares), shares=shares
            )
            own = [self._unpack(one) for one in islice(samples, shares[self._rank])]
            if len(own) < shares[self._rank]:
                raise DataError(
                    f"the shard of rank {self._rank} ended after {taken[self._rank] + len(own)} samples, not "
                    f"{self._lengths[self._rank]}: let __len__ return the number of samples of this rank's shard"
                )
            # A padded batch repeats samples of the last batch, because other shards may last longer than this one.
            held = own or held or [self._unpack(one) for one in islice(chain.from_iterable(self._chunks), 1)]
            taken = tuple(used + share for used, share in zip(taken, shares, strict=True))
            self._remember(part.end, taken)
            fill = [held[place % len(held)] for place in range(self._plan.lower)]
            yield part, self._collate(own or fill)
            cursor = cursor.after(part)

    def close(self) -> None:
        del self._chunks

    def _used(self, start: int) -> Counts:
        return self._taken[start] if start else (0,) * len(self._lengths)

    def _remember(self, start: int, taken: Counts) -> None:
        self._taken[start] = taken
        self._taken.move_to_end(start)
        while len(self._taken) > _REMEMBERED:
            self._taken.popitem(last=False)
