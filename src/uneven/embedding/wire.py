"""What travels between a worker and a shard of tables: frames of fixed layout, raw numbers, nothing pickled. Pure.

::

    frame 0      header, 80 bytes, little-endian (below)
    frame 1      text, of the length that the header announces: descriptions, paths, counts
    frame 2      one entry of 32 bytes for each group of bags
    frame 3 …    of each group: ids, lengths, weights and values, as its entry announces, each in pieces of PIECE_BYTES

Every length in a message follows from its header and entries. A message in which one does not is refused as a whole,
with the reason, as the parameter server does it (:mod:`uneven.server.wire`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from uneven.embedding.rows import Bags
from uneven.server.wire import PIECE_BYTES, Refusal, Refused

MAGIC = b"UNET"
VERSION = 2
MOST_GROUPS = 1 << 12
MOST_NUMBERS = 1 << 30
"""In one array. An entry that announces more is not believed."""
MOST_TEXT = 1 << 22

_HEADER = struct.Struct("<4sHBBIIQQQQQQII")
_ENTRY = struct.Struct("<IIQQII")
HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size
_LENGTHS, _WEIGHTS, _VALUES, _HALVES, _WIDE = 1, 2, 4, 8, 16


class Say(IntEnum):
    """What a message is. Below 32 a worker says it, above a shard."""

    OPEN = 1  # who I am, and the tables that I expect, as text
    LOOKUP = 2  # the sums of some bags
    GRADIENT = 3  # of some bags, with their ids; one step on their rows
    WRITE = 4  # rows themselves, by id; Adagrad's sums as the weights, or they begin again
    PING = 5
    FLUSH = 6  # answer when all who are here have said so as often: then all that they gave before is in the rows
    STATS = 7
    SAVE = 8  # write all rows to the folder that the text names
    LOAD = 9  # take rows from there
    LEAVE = 10
    READ = 11  # as LOOKUP, but no sighting of an id
    NAMES = 12  # which ids have rows in the group that the text numbers
    SUMS = 13  # as READ, of Adagrad's sums; width 1
    WELCOME = 33  # you are known; your updates up to this sequence are in the rows
    WHO = 34  # I have been started again since: greet me
    POOLED = 35
    PONG = 36  # your updates up to this sequence are in the rows
    FLUSHED = 37
    TOLD = 38  # text
    DONE = 39  # what was asked for has been written or read; with a text, it has failed
    REFUSED = 40
    NAMED = 41  # these ids, and where their rows are


CHANGING = frozenset({Say.GRADIENT, Say.WRITE})
"""Messages that change rows, each with a sequence number."""

_WITH_IDS = frozenset({Say.LOOKUP, Say.READ, Say.SUMS, Say.GRADIENT, Say.WRITE, Say.NAMED})
_WITH_VALUES = frozenset({Say.GRADIENT, Say.WRITE, Say.POOLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMessage:
    """One message.

    Attributes:
        rank: the worker that it is from or for.
        number: of the request, counted by the worker; a reply has that of its request.
        sequence: of the sender's updates.
        life: of the shard; another one after each start.
        version: updates of all workers in the rows; of a gradient, those at its lookup.
        meeting: which flush of all workers.
        table: fingerprint of the tables and where they are.
        halves: of a lookup, whether the answer's numbers may be bfloat16.
    """

    kind: Say
    rank: int = 0
    number: int = 0
    sequence: int = 0
    life: int = 0
    version: int = 0
    meeting: int = 0
    table: int = 0
    halves: bool = False
    text: str = ""
    bags: tuple[Bags, ...] = ()


def encode(message: TableMessage) -> list[Any]:
    """Frames of a message; those of arrays are their own memory."""
    text = message.text.encode()
    m = message
    header = _HEADER.pack(
        MAGIC, VERSION, m.kind, m.halves, m.rank, m.table, m.number, m.sequence, m.life, m.version, m.meeting, 0,
        len(text), len(m.bags),
    )  # fmt: skip
    frames: list[Any] = [header, text, b"".join(_entry(one) for one in m.bags)]
    for one in m.bags:
        for array in (one.ids, one.lengths, one.weights, one.values):
            if array is not None:
                frames += _cut(array)
    return frames


def _entry(one: Bags) -> bytes:
    flags = _LENGTHS * (one.lengths is not None) | _WEIGHTS * (one.weights is not None)
    if one.values is not None:
        flags |= _HALVES if one.values.dtype == np.uint16 else _VALUES
    if one.ids is not None and one.ids.dtype == np.int64:
        flags |= _WIDE
    return _ENTRY.pack(one.group, one.width, 0 if one.ids is None else len(one.ids), one.count, one.each, flags)


def _cut(array: npt.NDArray[Any]) -> Iterator[Any]:
    flat = array.reshape(-1)
    each = PIECE_BYTES // flat.itemsize
    return (flat[start : start + each] for start in range(0, len(flat), each))


def decode(frames: Sequence[Any]) -> TableMessage:
    """The message in some frames, whose arrays are views of them where they came in one piece.

    Raises:
        Refused: it is malformed; nothing of it has been believed.
    """
    if len(frames) < 3:
        raise Refused(Refusal.FRAMES)
    header = memoryview(frames[0])
    if header.nbytes != HEADER_BYTES:
        raise Refused(Refusal.HEADER)
    magic, version, kind, halves, rank, table, number, sequence, life, seen, meeting, pad, text, groups = (
        _HEADER.unpack(header)
    )
    if magic != MAGIC:
        raise Refused(Refusal.MAGIC)
    if version != VERSION:
        raise Refused(Refusal.VERSION)
    if kind not in _KINDS or halves > 1 or pad:
        raise Refused(Refusal.KIND)
    what = Say(kind)
    return TableMessage(
        kind=what,
        rank=rank,
        number=number,
        sequence=sequence,
        life=life,
        version=seen,
        meeting=meeting,
        table=table,
        halves=bool(halves),
        text=_text(memoryview(frames[1]), text),
        bags=_bags(what, memoryview(frames[2]), groups, [memoryview(one) for one in frames[3:]]),
    )


_KINDS = frozenset(int(kind) for kind in Say)


def _text(frame: memoryview, length: int) -> str:
    if length > MOST_TEXT or frame.nbytes != length:
        raise Refused(Refusal.BYTES)
    try:
        return bytes(frame).decode()
    except UnicodeDecodeError:
        raise Refused(Refusal.BYTES) from None


def _bags(kind: Say, entries: memoryview, groups: int, frames: list[memoryview]) -> tuple[Bags, ...]:
    if groups > MOST_GROUPS or entries.nbytes != groups * ENTRY_BYTES:
        raise Refused(Refusal.ENTRIES)
    if groups and kind not in _WITH_IDS | _WITH_VALUES:
        raise Refused(Refusal.ENTRIES)
    left = iter(frames)
    found = tuple(_one(kind, fields, left) for fields in _ENTRY.iter_unpack(entries))
    if next(left, None) is not None:
        raise Refused(Refusal.FRAMES)
    return found


def _one(kind: Say, fields: tuple[int, ...], frames: Iterator[memoryview]) -> Bags:
    group, width, ids, count, each, flags = fields
    with_ids, with_values = kind in _WITH_IDS, kind in _WITH_VALUES
    values = flags & (_VALUES | _HALVES)
    if flags > 31 or values == _VALUES | _HALVES or bool(values) != with_values:
        raise Refused(Refusal.DTYPE)
    if not width or max(ids, count * max(width, 1)) > MOST_NUMBERS or (not with_ids and (ids or each or flags & 19)):
        raise Refused(Refusal.BYTES)
    ragged = bool(flags & _LENGTHS)
    if with_ids and (ragged == bool(each) or (not ragged and ids != count * each)):
        raise Refused(Refusal.BYTES)
    wanted = _array(frames, ids, np.dtype("<i8" if flags & _WIDE else "<i4")) if with_ids else None
    lengths = _array(frames, count, np.dtype("<i4")) if ragged else None
    if lengths is not None and (int(lengths.sum(dtype=np.int64)) != ids or (count and lengths.min() < 0)):
        raise Refused(Refusal.PIECES)
    weights = _array(frames, ids, np.dtype("<f4")) if flags & _WEIGHTS else None
    rows = None
    if values:
        rows = _array(frames, count * width, np.dtype("<f4" if values == _VALUES else "<u2")).reshape(count, width)
    return Bags(group, width, count, wanted, each, lengths, weights, rows)


def _array(frames: Iterator[memoryview], count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The next one, which has as many pieces as its length asks for."""
    left, pieces = count * dtype.itemsize, []
    while left:
        piece, due = next(frames, None), min(left, PIECE_BYTES)
        if piece is None:
            raise Refused(Refusal.FRAMES)
        if piece.nbytes != due:
            raise Refused(Refusal.PIECES)
        pieces.append(np.frombuffer(piece, dtype))
        left -= due
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype)
