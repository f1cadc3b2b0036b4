"""The order of an epoch: shuffled here, or drawn by the script's sampler.

Every rank draws the sampler's whole order at the start of an epoch, with random numbers that depend only on seed and
epoch. So all draw the same, also after a resume. A batch sampler's lists are global batches, split by the shares in
force. Draws of torch's ``RandomSampler`` with replacement may exceed memory, so they are computed on demand.
"""

import hashlib
import random
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import RandomSampler

from uneven.errors import CheckpointError, DataError
from uneven.policy.samples.keyed_order import KEYED_FROM, KeyedDraws, KeyedOrder
from uneven.policy.samples.order import epoch_order
from uneven.run.samples.stream_fingerprint import LENGTH

Indices = npt.NDArray[np.int64]

_DRAWS_KEPT = 2**20  # draws with replacement from which on they are computed on demand


EpochOrder = Indices | KeyedOrder | KeyedDraws
"""The index of the sample at every position of an epoch."""


class EpochOrders:
    """The orders of all epochs.

    Attributes:
        kind: how they are made, which a loaded state must match: "" shuffled or sorted, "keyed" if there are too many
            to keep, "sampler" and "batches" for the script's samplers.
    """

    kind = ""
    batches: int | None = None  # global batches in an epoch, if a sampler defines them; otherwise None
    keyed = False  # whether indices are computed on demand

    def __init__(self, length: int, seed: int, shuffle: bool) -> None:
        self.length = length  # positions in an epoch, as far as known before it is drawn
        self._seed = seed
        self._shuffle = shuffle
        if length >= KEYED_FROM:
            self.kind = "keyed"
            self.keyed = True

    def __call__(self, epoch: int) -> EpochOrder:
        make: Any = KeyedOrder if self.keyed else epoch_order
        order: EpochOrder = make(length=self.length, seed=self._seed, epoch=epoch, shuffle=self._shuffle)
        return order

    def check_paced(self) -> None:
        """Raise DataError if workers cannot take samples of these orders asynchronously."""
        if self.keyed or self.kind == "batches":
            what = "a batch_sampler" if self.kind == "batches" else f"an epoch of {self.length} samples"
            raise DataError(f"{what} needs workers that step together: use a policy such as sync='bsp'")

    def ends(self) -> Indices | None:
        """Return the positions after each global batch of the newest order, shape (batches,); None if all have one
        size."""
        return None

    def drawn(self, epoch: int) -> str:
        """Return a fingerprint of an epoch's order; "" if none is needed."""
        return ""

    def expect(self, drawn: str) -> None:
        """Require that the next order has this fingerprint, which is that of a saved state."""

    def tell(self) -> list[float] | None:
        """Return numbers for comparing the order among ranks; None if they cannot differ."""
        return None


class SampledOrders(EpochOrders):
    """The orders that a sampler draws: indices or, if ``batched``, lists of indices, each a global batch."""

    def __init__(self, sampler: Any, *, batch_size: int, batched: bool, size: int, seed: int) -> None:
        name = "batch_sampler" if batched else "sampler"
        if hasattr(sampler, "num_replicas"):
            raise DataError(
                f"{name}={type(sampler).__name__}: it divides samples by rank, but the loader divides them by "
                "speed; leave it out (each epoch is shuffled), or give one that draws for all workers together"
            )
        if not (isinstance(sampler, Iterable) and isinstance(sampler, Sized)) or hasattr(sampler, "__next__"):
            raise DataError(
                f"{name}={type(sampler).__name__}: give it __len__, and an __iter__ that starts a new epoch; for an "
                "endless one, give the loader a torch.utils.data.IterableDataset"
            )
        length = len(sampler)
        super().__init__(size if batched else length, seed, shuffle=True)
        self.kind, self.batches = ("batches", length) if batched else ("sampler", None)
        self._sampler: Any = sampler
        self._name = name
        self._batch_size = batch_size  # the global batch; the largest one if `batched`
        self._size = size  # samples in the data set
        self._ends: Indices | None = None
        self._expected = ""
        self._drawn: dict[int, str] = {}
        self.keyed = type(sampler) is RandomSampler and sampler.replacement and length >= _DRAWS_KEPT
        if length == 0:
            raise DataError(f"{name}={type(sampler).__name__} is empty: its length is 0")
        if length >= KEYED_FROM and not self.keyed:
            raise DataError(
                f"{name}={type(sampler).__name__} draws {length} indices an epoch, and every rank keeps them all: give "
                f"a shorter one (num_samples) and loop over several epochs, or RandomSampler(replacement=True)"
            )

    def __call__(self, epoch: int) -> EpochOrder:
        """Draw the order of an epoch; raises DataError if it is wrong, and CheckpointError if it is not that of a
        saved state."""
        if self.keyed:
            return self._draws(epoch)
        with seeded(self._seed, epoch, self._sampler):
            drawn = [*self._sampler]
        if self.kind == "batches":
            drawn = [self._checked(number, one) for number, one in enumerate(drawn)]
            self._ends = np.cumsum([len(one) for one in drawn], dtype=np.int64)
            drawn = [index for one in drawn for index in one]
        order = np.asarray(drawn)
        if order.ndim != 1 or not np.issubdtype(order.dtype, np.integer) or order.size == 0:
            raise DataError(
                f"{self._name} drew {str(drawn[:3])[:80]} …, which are not integers: draw indices of samples"
            )
        if order.min() < 0 or order.max() >= self._size:
            self._refuse(int(order[(order < 0) | (order >= self._size)][0]))
        if self.kind == "sampler" and len(order) != self.length:
            raise DataError(f"{self._name} drew {len(order)} indices, but its length is {self.length}")
        order = order.astype(np.int64)
        self._note(epoch, order)
        return order

    def _draws(self, epoch: int) -> KeyedDraws:
        samples = len(self._sampler.data_source)
        if samples > self._size:
            self._refuse(samples - 1)
        self._note(epoch, np.array([self.length, samples]))
        return KeyedDraws(length=self.length, samples=samples, seed=self._seed, epoch=epoch)

    def _refuse(self, index: int) -> NoReturn:
        raise DataError(f"{self._name} drew the index {index}, but the data set has {self._size} samples")

    def _checked(self, number: int, batch: Any) -> list[int]:
        if not isinstance(batch, list | tuple) or not 0 < len(batch) <= self._batch_size:
            what = f"{len(batch)} indices" if isinstance(batch, list | tuple) else repr(batch)[:60]
            raise DataError(
                f"batch {number} of the batch_sampler has {what}: give lists of 1 to batch_size = {self._batch_size} "
                f"indices; each is a global batch, of all workers together"
            )
        return [*batch]

    def _note(self, epoch: int, order: Indices) -> None:
        digest = hashlib.blake2b(order.tobytes(), digest_size=6)
        if self._ends is not None:
            digest.update(self._ends.tobytes())
        newest, before = digest.hexdigest(), [*self._drawn.items()]
        self._drawn = {**dict(before[-1:]), epoch: newest}  # batches of the epoch before may be in flight
        expected, self._expected = self._expected, ""
        if expected not in ("", newest):
            raise CheckpointError(
                f"{self._name}={type(self._sampler).__name__} draws another order than when the state was saved: "
                "let its order depend only on the epoch (set_epoch) and on torch's, numpy's or Python's random "
                "numbers"
            )

    def ends(self) -> Indices | None:
        return self._ends

    def drawn(self, epoch: int) -> str:
        return self._drawn.get(epoch, "")

    def expect(self, drawn: str) -> None:
        self._expected = drawn

    def tell(self) -> list[float] | None:
        return [1.0, float(int([*self._drawn.values()][-1], 16)), 1.0, *[0.0] * (LENGTH - 3)]


def check_samplers(sampler: Any, batch_sampler: Any, *, stream: bool, drop_last: bool) -> None:
    """Raise DataError if samplers do not fit each other and the other options."""
    given = [name for name, one in (("sampler", sampler), ("batch_sampler", batch_sampler)) if one is not None]
    if len(given) == 2:
        raise DataError("sampler and batch_sampler: give one of the two; a batch sampler has its own sampler")
    if given and stream:
        raise DataError(f"{given[0]} with a stream, which has no index to draw; shuffle inside the stream")
    if batch_sampler is not None and drop_last:
        raise DataError("drop_last with batch_sampler, which decides itself what it leaves out")


@contextmanager
def seeded(seed: int, epoch: int, sampler: Any) -> Iterator[None]:
    """Seed all random generators by seed and epoch inside the context, and restore their state afterwards."""
    # Every rank seeds equally, so a sampler without its own seed draws the same on all.
    if callable(getattr(sampler, "set_epoch", None)):
        sampler.set_epoch(epoch)
    one, other = np.random.SeedSequence([seed, epoch]).generate_state(2, np.uint32).tolist()
    of_python, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    generators = [
        found
        for holder in (sampler, getattr(sampler, "sampler", None))
        if isinstance(found := getattr(holder, "generator", None), torch.Generator)
    ]
    try:
        random.seed(one)
        np.random.seed(other)
        torch.default_generator.manual_seed(one)
        for generator in generators:
            generator.manual_seed(one)
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.random.set_rng_state(of_torch)
