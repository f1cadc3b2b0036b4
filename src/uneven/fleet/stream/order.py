"""Where each sample lies in the shared stream. Pure.

The stream is the same pass over and over: the training set in a new order, then the validation set as it lies. Each
begins with a chunk of its own, so its last chunk may hold fewer samples than the others::

    pass 0                                      pass 1
    ├ training set ──────────┼ validation set ──┼ training set ── …
    │ 0 │ 1 │ 2 │ 3 (short)  │ 4 │ 5 (short)    │ 6 │ 7 │ …            chunks
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one preprocessor makes in one go.

    Attributes:
        number: counted over the whole run.
        epoch: the pass over the data that it belongs to.
        validates: it holds samples of the validation set.
        start: its first position in the order of that set.
        size: samples.
    """

    number: int
    epoch: int
    validates: bool
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Section:
    """A whole set within a pass.

    Attributes:
        first: its first chunk.
        chunks: how many.
        samples: how many.
    """

    first: int
    chunks: int
    samples: int


@dataclass(frozen=True, slots=True)
class Stream:
    """How passes are cut into chunks.

    Attributes:
        train: samples of the training set.
        validate: samples of the validation set; may be 0.
        chunk: samples of a whole chunk.
        seed: with the pass's number, decides the order of the training set and what augmentation draws.
    """

    train: int
    validate: int
    chunk: int
    seed: int

    def __post_init__(self) -> None:
        if self.train < 1 or self.validate < 0 or self.chunk < 1:
            raise ConfigError(
                f"a stream of {self.train} training and {self.validate} validation samples in chunks of {self.chunk}: "
                f"it needs at least one sample to train on, and at least one in a chunk"
            )

    @property
    def per_pass(self) -> int:
        """Chunks of a pass."""
        return -(-self.train // self.chunk) - (-self.validate // self.chunk)

    def begins(self, epoch: int) -> int:
        """The first chunk of a pass."""
        return epoch * self.per_pass

    def sections(self, epoch: int) -> tuple[Section, Section]:
        """The training set and the validation set of a pass."""
        chunks = -(-self.train // self.chunk)
        first = self.begins(epoch)
        return Section(first, chunks, self.train), Section(first + chunks, self.per_pass - chunks, self.validate)

    def describe(self, number: int) -> Chunk:
        """What the chunk of this number holds."""
        epoch, within = divmod(number, self.per_pass)
        training = -(-self.train // self.chunk)
        validates = within >= training
        start = (within - training if validates else within) * self.chunk
        total = self.validate if validates else self.train
        return Chunk(number, epoch, validates, start, min(self.chunk, total - start))

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Index in the training set of every position of a pass: int64, shape ``(train,)``."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
        return generator.permutation(self.train).astype(np.int64, copy=False)

    def draws(self, number: int) -> int:
        """The seed of everything random in the making of a chunk, 0 … 2^32 − 1.

        It depends on the chunk alone. So it does not matter which preprocessor makes it, how many there are, or
        whether one of them died over it.
        """
        return int(np.random.SeedSequence([self.seed, 1, number]).generate_state(1)[0])


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one reader, within a section.

    Attributes:
        start: first sample, counted from the section's first.
        stop: the sample after the last one.
        needs: every chunk below this one must have been made.
        frees: once the batch has been used, nothing below this chunk is needed.
    """

    start: int
    stop: int
    needs: int
    frees: int


def batches(section: Section, size: int, chunk: int) -> list[Batch]:
    """A section in batches of ``size`` samples; the last one may be smaller, and no sample is left out.

    Raises:
        ConfigError: a batch of less than one sample.
    """
    if size < 1:
        raise ConfigError(f"a batch of {size} samples cannot be: give it at least one")
    found = []
    for start in range(0, section.samples, size):
        stop = min(start + size, section.samples)
        last = stop == section.samples
        frees = section.first + (section.chunks if last else stop // chunk)
        found.append(Batch(start, stop, section.first + -(-stop // chunk), frees))
    return found
