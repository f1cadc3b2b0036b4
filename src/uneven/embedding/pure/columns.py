"""The columns of a click log, and the parsing of a block of its text into arrays."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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


_WORDS = {b"1": [b"True", b"TRUE", b"true"], b"0": [b"False", b"FALSE", b"false"]}
_INTEGERS = 2**63


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a log, counted from 0; the defaults are Criteo's.

    Attributes:
        clicked: 0 or 1, or true or false; None for a log without labels, which are then NaN.
        numbers: an empty field is 0.
        ids: an empty field is 0.
        sequences: column of several ids in order, as text with spaces or as a list → how many of them are kept: the
            last ones. They follow the other ids of a row, with −1 after the end of a shorter sequence.
        kind: of the ids in text: "hex" (at most 15 digits), "int", or "text", which is hashed (FNV-1a, 63 bits).

    Raises:
        ConfigError: a column is given twice, is not an index, no column is given, or the kind is unknown.
    """

    clicked: int | None = 0
    numbers: tuple[int, ...] = tuple(range(1, 14))
    ids: tuple[int, ...] = tuple(range(14, 40))
    kind: str = "hex"
    sequences: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ConfigError(f"Columns(kind={self.kind!r}): it is one of {', '.join(_KINDS)}")
        if wrong := [most for most in self.sequences.values() if type(most) is not int or most < 1]:
            raise ConfigError(f"Columns(sequences={dict(self.sequences)}): keep 1 id or more, not {wrong[0]!r}")
        every = [*self.every]
        for one in every:
            if isinstance(one, bool) or not isinstance(one, int) or one < 0:
                raise ConfigError(
                    f"Columns: column {one!r} is not a column number: count the columns of the file from 0"
                )
        if len(set(every)) < max(1, len(every)):
            raise ConfigError(f"Columns: {every} names no column, or one column twice: name each once")

    @property
    def valued(self) -> tuple[int, ...]:
        """The label column, if any, and the number columns."""
        return (*([] if self.clicked is None else [self.clicked]), *self.numbers)

    @property
    def every(self) -> tuple[int, ...]:
        """All columns: :attr:`valued`, then ids, then sequences."""
        return (*self.valued, *self.ids, *self.sequences)

    @property
    def needed(self) -> int:
        """The minimum number of columns of a file."""
        return max(*self.every, 0) + 1


class LogRows(NamedTuple):
    """Rows of a log: ids (n, fields and places of sequences), numbers (n, numbers), clicked (n,)."""

    ids: Wholes
    numbers: Floats
    clicked: Floats


def is_header(fields: list[bytes], columns: Columns) -> bool:
    """Return whether a first line holds column names: no field parses as its column's type, and none repeats."""
    counted = fields if fields[0] else fields[1:]  # pandas writes numbers for columns without names
    if len(counted) > 3 and counted == [b"%d" % place for place in range(len(counted))]:
        return True
    typed = columns.valued or (() if columns.kind == "text" else columns.ids)
    names = {fields[place] for place in typed}
    for one in names:
        with suppress(ValueError):
            as_floats(np.array([one])) if columns.valued else as_ids(np.array([one]), columns.kind)
            return False
    return len(names) == len(typed) > 0


def read_text(lines: list[bytes], columns: Columns, path: Any, row: int, width: int, divider: bytes = b"\t") -> LogRows:
    """Parse non-empty lines into ids (n, fields), numbers (n, numbers) and clicks (n,), or raise DataError."""
    try:
        text = divider.join(lines)
        if found := next((one for one in (b"\0", b"\r") if one in text), None):
            raise ValueError(f"the character {found!r} in a line: save the file as UTF-8 with Linux line ends")
        if text[:1] == b'"' or divider + b'"' in text:
            raise ValueError("a quoted field: write the file without quotes (csv.QUOTE_NONE)")
        if wrong := next((one for one in lines if one.count(divider) != width - 1), None):
            raise ValueError(f"{wrong.count(divider) + 1} fields, but {width} in the first line")
        cells = text.split(divider) if lines else []
        parts = []
        for column, most in columns.sequences.items():
            parts.append(in_order([one.split() for one in cells[column::width]], most, columns.kind))
            cells[column::width] = [b""] * len(lines)  # every field of the array below has the width of the longest
        fields = np.array(cells, np.bytes_).reshape(len(lines), width)
        numbers = as_floats(fields[:, list(columns.numbers)])
        clicked = np.full(len(lines), np.nan, np.float32)
        if columns.clicked is not None:
            clicked = as_floats(fields[:, columns.clicked], labels=True)
        ids = as_ids(fields[:, list(columns.ids)], columns.kind)
        return LogRows(np.concatenate([ids, *parts], 1), numbers, clicked)
    except ValueError as error:
        if len(lines) > 1:  # parse line by line, to report the row
            for place, line in enumerate(lines):
                read_text([line], columns, path, row + place, width, divider)
        raise DataError(f"{path}, row {row}: {error}") from error


def as_floats(values: npt.NDArray[Any], *, labels: bool = False) -> Floats:
    """Convert numbers or bytes of any shape to float32, missing values and NaN to 0; raise ValueError for others."""
    if values.dtype.kind not in "biufS":
        raise ValueError(f"numbers of dtype {values.dtype}: give integers or floats")
    with np.errstate(over="ignore"):
        found = _parsed(values) if values.dtype.kind == "S" else values.astype(np.float32)
    if np.isinf(found).any():
        raise ValueError("a number that is not a finite float32")
    if labels and np.isnan(found).any():
        raise ValueError("a row without a label: leave such rows out, or pass clicked=None for a log without labels")
    return np.nan_to_num(found, copy=False)


def as_ids(values: npt.NDArray[Any], kind: str) -> Wholes:
    """Convert numbers or bytes of any shape to int64 ids, NaN to 0; raise ValueError for others."""
    if values.dtype.kind == "S":
        return _ids(values, kind)
    if values.dtype.kind not in "biuf":
        raise ValueError(f"ids of dtype {values.dtype}: give integers")
    if values.dtype.kind == "f":
        values = np.nan_to_num(values, posinf=np.inf, neginf=-np.inf)  # infinities stay, to be rejected below
        # Above 2^(mantissa bits + 1), floats skip integers.
        wrong = (values != np.floor(values)) | (np.abs(values) >= 2.0 ** (np.finfo(values.dtype).nmant + 1))
    else:
        wrong = values >= _INTEGERS
    if wrong.any():
        raise ValueError(f"{values[wrong][0]!s} is not an exact 64-bit integer: give integers, or text")
    found: Wholes = values.astype(np.int64)
    return found


def in_order(sequences: Sequence[Sequence[Any]], most: int, kind: str) -> Wholes:
    """Return the last ``most`` ids of each sequence, then −1; shape (sequences, most). Raise ValueError as as_ids."""
    kept = [one[-most:] for one in sequences]
    found = np.full((len(kept), most), -1, np.int64)
    places = np.arange(most) < np.array([len(one) for one in kept], np.int64)[:, None]
    found[places] = as_ids(np.array([one for each in kept for one in each]), kind)
    return found


def _parsed(values: npt.NDArray[Any]) -> Floats:
    _plain(values)
    filled = np.where(values == b"", b"nan", values)
    try:
        return filled.astype(np.float32)
    except ValueError:
        for digit, words in _WORDS.items():  # booleans are rare: try them only after numbers fail
            filled = np.where(np.isin(filled, words), digit, filled)
        return filled.astype(np.float32)


def _plain(values: npt.NDArray[Any]) -> None:
    """Raise ValueError for 1_000, which only Python reads as a number."""
    if (np.ascontiguousarray(values).view(np.uint8) == ord("_")).any():
        raise ValueError("'_' in a number")


def _ids(fields: npt.NDArray[Any], kind: str) -> Wholes:
    if kind == "int":
        _plain(fields)
        try:
            return np.where(fields == b"", b"0", fields).astype(np.int64)
        except OverflowError:
            raise ValueError("an id with more than 64 bits: use kind='text'") from None
        except ValueError:  # pandas writes integers of a column with gaps as 12.0
            return as_ids(np.where(fields == b"", b"0", fields).astype(np.float64), kind)
    width = fields.dtype.itemsize
    letters = np.ascontiguousarray(fields).view(np.uint8).reshape(*fields.shape, width)
    return _hashed(letters) if kind == "text" else _of_hex(letters)


def _of_hex(letters: npt.NDArray[np.uint8]) -> Wholes:
    if letters.shape[-1] > 15 and letters[..., 15:].any():
        raise ValueError("an id with more than 15 hexadecimal digits: use kind='text'")
    found = np.zeros(letters.shape[:-1], np.int64)
    for place in range(min(15, letters.shape[-1])):
        letter = letters[..., place]
        digit = _NIBBLES[letter]
        if (wrong := (digit == 255) & (letter != 0)).any():
            raise ValueError(f"{chr(int(letter[wrong][0]))!r} is not a hexadecimal digit: use kind='text'")
        found = np.where(letter == 0, found, found * 16 + digit)
    return found


def _hashed(letters: npt.NDArray[np.uint8]) -> Wholes:
    found = np.full(letters.shape[:-1], _FNV_OFFSET, np.uint64)
    for place in range(letters.shape[-1]):
        letter = letters[..., place]
        found = np.where(letter == 0, found, (found ^ letter) * _FNV_PRIME)
    empty = (letters == 0).all(-1) if letters.shape[-1] else np.ones(letters.shape[:-1], bool)
    return np.where(empty, np.uint64(0), found >> np.uint64(1)).astype(np.int64)
