"""The division of tensors among shards. Pure; every worker computes the same division from the same shapes."""

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from uneven.errors import ConfigError
from uneven.runtime.parameter_server.pure.wire import DTYPES, PIECE_BYTES


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Elements ``start`` to ``stop`` of a flat tensor."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """The parts of tensors that each shard holds."""

    sizes: tuple[int, ...]  # elements of each tensor
    dtype: int  # index in ``wire.DTYPES``; one for all tensors
    shards: tuple[tuple[Piece, ...], ...]  # pieces of each shard, in the order of its vector
    fingerprint: int  # equal for equal divisions of tensors of equal shapes

    def elements(self, shard: int) -> int:
        return sum(piece.stop - piece.start for piece in self.shards[shard])

    def moves(self, shard: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the places of tensors in a shard's vector: (tensor, first element, end, piece, offset in the piece)."""
        each = PIECE_BYTES // DTYPES[self.dtype].itemsize
        at = 0
        for piece in self.shards[shard]:
            start = piece.start
            while start < piece.stop:
                number, offset = divmod(at, each)
                length = min(piece.stop - start, each - offset)
                yield piece.tensor, start, start + length, number, offset
                start, at = start + length, at + length


def table_of(shapes: Sequence[tuple[int, ...]], dtype: str, shards: int) -> PartitionTable:
    """Divide tensors among shards by bytes: the largest first, each to the shard with the least so far.

    A tensor with more than a shard's fair part is cut into parts of that size first. (Largest first onto the least
    loaded is the usual greedy rule for tables in parameter servers; cutting is ours.)

    Args:
        dtype: ``float32`` or ``float64``, the same for all.

    Raises:
        ConfigError: no elements, no shards, or another dtype.
    """
    names = [known.name for known in DTYPES]
    if dtype not in names:
        raise ConfigError(f"a parameter server holds {' or '.join(names)}, not of {dtype}: convert the model")
    sizes = tuple(math.prod(shape) for shape in shapes)
    total = sum(sizes)
    if total == 0 or shards < 1:
        raise ConfigError(
            f"{len(sizes)} tensors with {total} elements do not fit {shards} shards: use fewer (--servers)"
        )
    fair = -(-total // shards)
    pieces = [
        Piece(tensor, start, min(start + fair, size))
        for tensor, size in enumerate(sizes)
        for start in range(0, size, fair)
    ]
    bins: list[list[Piece]] = [[] for _ in range(shards)]
    loads = [0] * shards
    for piece in sorted(pieces, key=lambda one: (one.start - one.stop, one)):
        least = loads.index(min(loads))
        bins[least].append(piece)
        loads[least] += piece.stop - piece.start
    divided = tuple(tuple(sorted(each)) for each in bins)
    text = repr((tuple(shapes), dtype, [[(p.tensor, p.start, p.stop) for p in each] for each in divided]))
    return PartitionTable(sizes, names.index(dtype), divided, zlib.crc32(text.encode()))
