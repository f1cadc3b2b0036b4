"""Which columns of a click log are what, and a block of its text as arrays. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError, DataError

Wholes = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
_KINDS = ("hex", "int", "text")
_FNV_OFFSET, _FNV_PRIME = np.uint64(14695981039346656037), np.uint64(1099511628211)
_NIBBLES = np.full(256, 255, np.uint8)
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _NIBBLES[list(_digits)] = range(16)


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a log, from 0; the defaults are those of Criteo's.

    Attributes:
        clicked: 0 or 1.
        numbers: an empty one is 0.
        ids: an empty one is 0.
        kind: of the ids: "hex" digits, at most 15; "int"; or "text", whose id is a hash (FNV-1a, 63 bits).

    Raises:
        ConfigError: a column twice, or another kind.
    """

    clicked: int = 0
    numbers: tuple[int, ...] = tuple(range(1, 14))
    ids: tuple[int, ...] = tuple(range(14, 40))
    kind: str = "hex"

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ConfigError(f"Columns(kind={self.kind!r}): it is one of {', '.join(_KINDS)}")
        every = (self.clicked, *self.numbers, *self.ids)
        if len(set(every)) < len(every) or min(every) < 0:
            raise ConfigError(f"Columns: {list(every)} names a column twice, or one below 0")


class LogRows(NamedTuple):
    """Rows of a log: ids of shape (n, fields), numbers of shape (n, numbers), clicked of shape (n,)."""

    ids: Wholes
    numbers: Floats
    clicked: Floats


def read_text(lines: list[bytes], columns: Columns, where: str) -> LogRows:
    """Rows of fields that tabs divide.

    Args:
        where: of the first line, for messages.

    Raises:
        DataError: a row of another number of fields than the first, or a field that is no such value.
    """
    if not lines:
        ids, numbers = np.zeros((0, len(columns.ids)), np.int64), np.zeros((0, len(columns.numbers)), np.float32)
        return LogRows(ids, numbers, np.zeros(0, np.float32))
    width = lines[0].count(b"\t") + 1
    for place, line in enumerate(lines):
        if line.count(b"\t") != width - 1:
            raise DataError(f"{where}, {place} rows later: {line.count(9) + 1} fields, and {width} in the row before")
    needed = max(columns.clicked, *columns.numbers, *columns.ids, 0)
    if needed >= width:
        raise DataError(f"{where}: {width} fields, and columns up to {needed} are asked for, counted from 0")
    fields = np.array(b"\t".join(lines).split(b"\t")).reshape(len(lines), width)
    try:
        numbers = _floats(fields[:, list(columns.numbers)])
        clicked = _floats(fields[:, columns.clicked])
        return LogRows(_ids(fields[:, list(columns.ids)], columns.kind), numbers, clicked)
    except ValueError as error:
        raise DataError(f"{where} and {len(lines) - 1} rows after it: {error}") from error


def as_ids(values: npt.NDArray[Any], kind: str) -> Wholes:
    """A column of numbers or bytes as ids; shape as it is.

    Raises:
        ValueError: a value that is no such id.
    """
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    return _ids(values.astype(np.bytes_), kind)


def _floats(fields: npt.NDArray[Any]) -> Floats:
    return np.where(fields == b"", b"0", fields).astype(np.float32)


def _ids(fields: npt.NDArray[Any], kind: str) -> Wholes:
    if kind == "int":
        return np.where(fields == b"", b"0", fields).astype(np.int64)
    width = fields.dtype.itemsize
    letters = np.ascontiguousarray(fields).view(np.uint8).reshape(*fields.shape, width)
    return _hashed(letters) if kind == "text" else _of_hex(letters)


def _of_hex(letters: npt.NDArray[np.uint8]) -> Wholes:
    if letters.shape[-1] > 15 and letters[..., 15:].any():
        raise ValueError("an id of more than 15 hexadecimal digits: take kind='text'")
    found = np.zeros(letters.shape[:-1], np.int64)
    for place in range(min(15, letters.shape[-1])):
        letter = letters[..., place]
        digit = _NIBBLES[letter]
        if (wrong := (digit == 255) & (letter != 0)).any():
            raise ValueError(f"{chr(int(letter[wrong][0]))!r} is no hexadecimal digit: take kind='text'")
        found = np.where(letter == 0, found, found * 16 + digit)
    return found


def _hashed(letters: npt.NDArray[np.uint8]) -> Wholes:
    found = np.full(letters.shape[:-1], _FNV_OFFSET, np.uint64)
    for place in range(letters.shape[-1]):
        letter = letters[..., place]
        found = np.where(letter == 0, found, (found ^ letter) * _FNV_PRIME)
    empty = (letters == 0).all(-1) if letters.shape[-1] else np.ones(letters.shape[:-1], bool)
    return np.where(empty, np.uint64(0), found >> np.uint64(1)).astype(np.int64)
