"""Compute the position of each sample in the shared stream.

The stream is a sequence of passes: the training set in a new order, then the validation set in its own order. Each set
starts with a new chunk, so its last chunk may be smaller::

    pass 0                                      pass 1
    ├ training set ──────────┼ validation set ──┼ training set ── …
    │ 0 │ 1 │ 2 │ 3 (short)  │ 4 │ 5 (short)    │ 6 │ 7 │ …            chunks
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Chunk:
    """The samples that a preprocessor makes at a time."""

    number: int  # counted over the whole run
    epoch: int  # its pass over the data
    validates: bool  # it holds samples of the validation set
    start: int  # its first position in the order of that set
    size: int  # number of samples


@dataclass(frozen=True, slots=True)
class Section:
    """A whole set within a pass."""

    first: int  # its first chunk
    chunks: int  # number of chunks
    samples: int  # number of samples


@dataclass(frozen=True, slots=True)
class Stream:
    """The division of passes into chunks."""

    train: int  # samples of the training set
    validate: int  # samples of the validation set; may be 0
    chunk: int  # samples of a full chunk
    # determines, with the pass's number, the order of the training set and the random numbers of augmentation
    seed: int

    def __post_init__(self) -> None:
        if self.train < 1 or self.validate < 0 or self.chunk < 1:
            raise ConfigError(
                f"a stream of {self.train} training and {self.validate} validation samples in chunks of "
                f"{self.chunk}: give at least one training sample, and at least one sample per chunk"
            )

    @property
    def per_pass(self) -> int:
        return -(-self.train // self.chunk) - (-self.validate // self.chunk)

    def begins(self, epoch: int) -> int:
        return epoch * self.per_pass

    def sections(self, epoch: int) -> tuple[Section, Section]:
        """Return the training set and the validation set of a pass."""
        chunks = -(-self.train // self.chunk)
        first = self.begins(epoch)
        return Section(first, chunks, self.train), Section(first + chunks, self.per_pass - chunks, self.validate)

    def describe(self, number: int) -> Chunk:
        epoch, within = divmod(number, self.per_pass)
        training = -(-self.train // self.chunk)
        validates = within >= training
        start = (within - training if validates else within) * self.chunk
        total = self.validate if validates else self.train
        return Chunk(number, epoch, validates, start, min(self.chunk, total - start))

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the training-set index of every position of a pass: int64, shape (train,)."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
        return generator.permutation(self.train).astype(np.int64, copy=False)

    def draws(self, number: int) -> int:
        """Return the random seed for making a chunk, 0 … 2^32 − 1."""
        # It depends only on the chunk, so the number of preprocessors and their deaths change no sample.
        return int(np.random.SeedSequence([self.seed, 1, number]).generate_state(1)[0])


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one reader, within a section."""

    start: int  # first sample, counted from the section's first
    stop: int  # the sample after the last one
    needs: int  # every chunk below this one must have been made
    frees: int  # chunks below this one are not needed once the batch has been used


def batches(section: Section, size: int, chunk: int) -> list[Batch]:
    """Divide a section into batches of ``size`` samples; the last may be smaller. Raises `ConfigError` for size 0."""
    if size < 1:
        raise ConfigError(f"a batch of {size} samples: give at least one")
    found = []
    for start in range(0, section.samples, size):
        stop = min(start + size, section.samples)
        last = stop == section.samples
        # A chunk that a batch uses in part is still needed by the next batch, except at the section's end.
        frees = section.first + (section.chunks if last else stop // chunk)
        found.append(Batch(start, stop, section.first + -(-stop // chunk), frees))
    return found
