"""Recorded data in the folder that ``UNEVEN_DATA`` names."""

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from uneven.cluster.series import DATA_VARIABLE
from uneven.errors import DataError

CIFAR = Path("cifar10") / "cifar10_10k2k_delta.npz"
_CIFAR_KEYS = ("x_train_delta", "y_train", "x_test_delta", "y_test")


def data_file(*parts: str | Path) -> Path | None:
    """Return a file of the folder, None without it or the folder."""
    folder = os.environ.get(DATA_VARIABLE)
    path = Path(folder or "", *parts)
    return path if folder and path.is_file() else None


def needed_file(*parts: str | Path) -> Path:
    """Return a file of the folder. Raises DataError: it is not there."""
    if (path := data_file(*parts)) is None:
        raise DataError(f"set {DATA_VARIABLE} to a folder with {Path(*parts)}")
    return path


def shakespeare() -> str:
    """Return the text of tiny Shakespeare. Raises DataError: it is not there."""
    return needed_file("text", "tinyshakespeare.txt").read_text(encoding="utf-8")


def arrays(path: Path, keys: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Return these arrays of a file. Raises DataError: it has other contents."""
    try:
        with np.load(path, allow_pickle=False) as held:
            return [held[key] for key in keys]
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: {error}: it must hold the arrays {', '.join(keys)}") from error


def cifar10(path: Path) -> list[npt.NDArray[Any]]:
    """Return pictures to train on, uint8 (n, 3, 32, 32), their labels, int64 (n,), and the same to test. The file holds
    differences, modulo 256, along both sides and of red and blue from green. Raises DataError: other contents."""
    x, y, test_x, test_y = arrays(path, _CIFAR_KEYS)
    return [_pixels(x), y.astype(np.int64), _pixels(test_x), test_y.astype(np.int64)]


def _pixels(deltas: npt.NDArray[Any]) -> npt.NDArray[Any]:
    found = np.cumsum(np.cumsum(deltas, 2, dtype=np.uint8), 3, dtype=np.uint8)
    found[:, 0] += found[:, 1]
    found[:, 2] += found[:, 1]
    return found


def job_times() -> npt.NDArray[np.float64] | None:
    """Return the mini-batch times of a recorded job, (records, 10 workers), or None without them."""
    if (path := data_file("traces", "alibaba2020_minibatch_time.npz")) is None:
        return None
    worker, times = arrays(path, ("job4_worker", "job4_batch_time_norm"))
    rows = [times.astype(np.float64)[worker == number] for number in range(10)]
    return np.stack([row[: min(map(len, rows))] for row in rows], axis=1)


def machine_use(name: str) -> npt.NDArray[np.float64] | None:
    """Return the use of machines, 0 … 1, (records of five minutes, machines), or None without them. ``name``: of the
    file."""
    path = data_file("traces", f"{name}.npz")
    return None if path is None else arrays(path, ("cpu_percent",))[0].T.astype(np.float64) / 100.0
