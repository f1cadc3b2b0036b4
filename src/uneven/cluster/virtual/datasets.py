"""Real data for the demo, the benchmarks and the tests: small digits, and Fashion-MNIST if it is on this machine."""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import TensorDataset

from uneven.errors import DataError, UnknownNameError, access, reason

_DIGITS_FILE = Path(__file__).with_name("digits.npz")
_FASHION_FILE = Path("fashion_mnist") / "fashion_mnist.npz"
_FASHION_KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageData:
    """Labelled images: float32 of shape (n, 1, height, width) in [0, 1], and int64 labels of shape (n,) in [0,
    classes)."""

    name: str
    train: TensorDataset
    test: TensorDataset
    classes: int


def digits() -> ImageData:
    """Return the 1,797 handwritten digits of 8 × 8 pixels, which come with this package.

    Every fifth image of each class, in the order of the file, is held out: 1,442 to train, 355 to test.
    """
    pixels, labels = load_digits()
    held_out = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        held_out[np.flatnonzero(labels == label)[4::5]] = True
    images = pixels.reshape(-1, 1, 8, 8).astype(np.float32) / np.float32(16)
    return ImageData(
        name="digits",
        train=_tensors(images[~held_out], labels[~held_out]),
        test=_tensors(images[held_out], labels[held_out]),
        classes=10,
    )


def load_digits() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the digits as scikit-learn's ``load_digits(return_X_y=True)`` does: images (1797, 64), labels (1797,).

    Source: the test set of E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (CC BY 4.0).
    """
    with np.load(_DIGITS_FILE, allow_pickle=False) as arrays:
        return arrays["images"].astype(np.float64), arrays["labels"].astype(np.int64)


def fashion_mnist(folder: str | os.PathLike[str] | None = None) -> ImageData:
    """Return Fashion-MNIST, 60,000 images to train and 10,000 to test of 28 × 28 pixels.

    The split is that of the file, which may differ from the official one.

    Args:
        folder: contains ``fashion_mnist/fashion_mnist.npz`` with the arrays ``x_train``, ``y_train``, ``x_test`` and
            ``y_test``; the default is the folder in ``UNEVEN_DATA``.

    Raises:
        DataError: the folder, the file or an array is missing; the message gives the remedy.
    """
    where = folder or os.environ.get("UNEVEN_DATA")
    want = f"a folder that holds {_FASHION_FILE} (arrays {', '.join(_FASHION_KEYS)}; uint8 images)"
    if not where:
        raise DataError(f"Fashion-MNIST: UNEVEN_DATA is not set: set it to {want}, or take digits()")
    path = Path(where) / _FASHION_FILE
    with access(f"look for Fashion-MNIST, {path}", DataError):
        if not path.is_file():
            raise DataError(f"Fashion-MNIST: {path} does not exist: set UNEVEN_DATA to {want}, or take digits()")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            x_train, y_train, x_test, y_test = (arrays[key] for key in _FASHION_KEYS)
    except (ValueError, KeyError, OSError) as error:
        raise DataError(f"Fashion-MNIST: {path}: {reason(error)}: set UNEVEN_DATA to {want}") from error
    return ImageData(
        name="fashion-mnist", train=_tensors(_unit(x_train), y_train), test=_tensors(_unit(x_test), y_test), classes=10
    )


_BY_NAME = {"digits": digits, "fashion-mnist": fashion_mnist}


@lru_cache(maxsize=1)
def images(name: str) -> ImageData:
    """Return "digits" (comes with this package) or "fashion-mnist" (from the folder in ``UNEVEN_DATA``).

    Raises:
        UnknownNameError: the data set is unknown.
        DataError: it is not on this machine; the message gives the remedy.
    """
    if name not in _BY_NAME:
        raise UnknownNameError("data set", name, _BY_NAME)
    return _BY_NAME[name]()


def _unit(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return pixels[:, None].astype(np.float32) / np.float32(255)


def _tensors(images: npt.NDArray[np.float32], labels: npt.NDArray[np.integer]) -> TensorDataset:
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))
