"""Recorded series in ``.npy``, ``.npz`` and CSV files, read without pickle."""

import csv
import os
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from uneven.cluster.pure.describe.quantities import Recorded
from uneven.errors import ConfigError, UnknownNameError, access, reason

DATA_VARIABLE = "UNEVEN_DATA"
"""The environment variable of a folder of recorded data, searched after the folder of the description."""


class SeriesFiles:
    """A reader of the recorded series of a description in ``folder`` (None if shipped); it loads each array once."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._arrays: dict[tuple[Path, str | None], npt.NDArray[np.generic]] = {}

    def __call__(self, recorded: Recorded) -> tuple[float, ...]:
        """Return the values of a series. Raises ConfigError if it does not exist, or has a non-finite value."""
        path = self._find(recorded.file)
        if path.suffix == ".csv":
            return _csv_column(path, recorded)
        if path.suffix not in (".npy", ".npz"):
            raise ConfigError(f"{path}: its name must end in .npy, .npz or .csv")
        if (path, recorded.key) not in self._arrays:
            self._arrays[path, recorded.key] = _array(path, recorded.key)
        line = _line(self._arrays[path, recorded.key], recorded, path)
        for place in np.flatnonzero(~np.isfinite(line)):
            raise ConfigError(f"{recorded}: value {place} is {line[place]}: a trace needs finite numbers")
        return tuple(line.tolist())

    def _find(self, file: str) -> Path:
        data = os.environ.get(DATA_VARIABLE)
        folders = [self._folder, Path(data) if data else None]
        tried = [folder / file for folder in folders if folder is not None]
        for path in tried:
            with access(f"look for {path}"):
                if path.is_file():
                    return path
        places = ", ".join(map(str, tried)) or "nowhere"
        cure = (
            f"{DATA_VARIABLE}={data} must name the folder that holds it"
            if data
            else f"set {DATA_VARIABLE} to the folder that holds {file}"
        )
        raise ConfigError(f"no trace file {file} (looked for: {places}); {cure}")


def _array(path: Path, key: str | None) -> npt.NDArray[np.generic]:
    try:
        with path.open("rb") as file:  # opened here, because NumPy does not close a file that it cannot read
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.ndarray):
                with loaded:
                    return np.asarray(loaded[_key(path, key, loaded.files)])
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        # Errors from `_key` already name the cure; ConfigError is a ValueError.
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"cannot read {path}: {reason(error)}") from error
    if key is not None:
        raise ConfigError(f"{path} holds one array without a name: leave out key = {key!r}")
    return loaded


def _key(path: Path, key: str | None, names: list[str]) -> str:
    if key is None and len(names) == 1:
        return names[0]
    if key is None:
        raise ConfigError(f"{path} holds {len(names)} arrays: name one with key, as key = {names[0]!r}")
    if key not in names:
        raise UnknownNameError(f"array in {path}:", key, names)
    return key


def _line(array: npt.NDArray[np.generic], recorded: Recorded, path: Path) -> npt.NDArray[np.float64]:
    """Return one row or column as float64, shape (n,)."""
    if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)):
        raise ConfigError(f"{recorded}: it holds {array.dtype}, not numbers")
    row, column = recorded.row, recorded.column
    if isinstance(column, str):
        raise ConfigError(f"{recorded}: columns of {path.suffix} files have numbers, not names")
    if array.ndim == 1 and row is None and column is None:
        return array.astype(np.float64)
    if array.ndim != 2 or (row is None) == (column is None):
        raise ConfigError(
            f"{recorded}: the array has the shape {array.shape}: "
            + ("give either row or column" if array.ndim == 2 else "leave out row and column, or name another array")
        )
    axis, index = (0, row) if row is not None else (1, column)
    if not 0 <= (index or 0) < array.shape[axis]:
        raise ConfigError(f"{recorded}: it has the {'rows' if axis == 0 else 'columns'} 0 … {array.shape[axis] - 1}")
    return np.take(array, index or 0, axis=axis).astype(np.float64)


def _csv_column(path: Path, recorded: Recorded) -> tuple[float, ...]:
    if recorded.column is None or recorded.row is not None or recorded.key is not None:
        raise ConfigError(f'{recorded}: from a CSV file take a column, as column = "load" or column = 0')
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [(reader.line_num, row) for reader in [csv.reader(file)] for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}") from error
    if not rows:
        raise ConfigError(f"{path} is empty: it needs one number per line")
    column = recorded.column
    header = rows[0][1]
    if isinstance(column, str):
        names = [name.strip() for name in header]
        if column not in names:
            raise UnknownNameError(f"column in {path}:", column, names)
        return tuple(_cell(path, row, names.index(column)) for row in rows[1:])
    if 0 <= column < len(header) and not _is_number(header[column]):
        rows = rows[1:]  # the first line names the columns
    return tuple(_cell(path, row, column) for row in rows)


def _cell(path: Path, numbered: tuple[int, list[str]], column: int) -> float:
    line, cells = numbered
    if not 0 <= column < len(cells):
        raise ConfigError(f"{path}, line {line}: no column {column}, only 0 … {len(cells) - 1}")
    if not _is_number(cells[column]):
        raise ConfigError(f"{path}, line {line}, column {column}: {cells[column]!r} is not a finite number")
    return float(cells[column])


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
