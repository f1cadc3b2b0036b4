"""The real data sets."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from uneven.cluster.virtual.datasets import digits, fashion_mnist, load_digits
from uneven.errors import DataError


def test_digits_are_split_by_class_and_always_alike() -> None:
    data = digits()
    (x, y), (x_test, y_test) = data.train.tensors, data.test.tensors
    assert (data.name, data.classes, len(data.train), len(data.test)) == ("digits", 10, 1442, 355)
    assert x.shape[1:] == x_test.shape[1:] == (1, 8, 8)
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert x.min() == 0.0
    assert x.max() == 1.0
    counts, held_out = y.bincount(), y_test.bincount()
    assert torch.equal(held_out, (counts + held_out) // 5)
    assert torch.equal(digits().test.tensors[1], y_test)


def test_digits_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.datasets")
    for ours, theirs in zip(load_digits(), sklearn.load_digits(return_X_y=True), strict=True):
        assert np.array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


def write(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    (folder / "fashion_mnist").mkdir()
    np.savez(folder / "fashion_mnist" / "fashion_mnist.npz", **arrays)


def test_fashion_mnist_is_read_from_the_folder_that_the_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
    labels = np.array([0, 9, 4], dtype=np.uint8)
    write(tmp_path, {"x_train": images, "y_train": labels, "x_test": images[:1], "y_test": labels[:1]})
    monkeypatch.setenv("UNEVEN_DATA", str(tmp_path))
    data = fashion_mnist()
    x, y = data.train.tensors
    assert (x.shape, x.dtype, x.max()) == ((3, 1, 28, 28), torch.float32, 1.0)
    assert (y.tolist(), y.dtype) == ([0, 9, 4], torch.int64)
    assert len(data.test) == 1


def test_missing_or_damaged_files_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    with pytest.raises(DataError, match="UNEVEN_DATA is not set"):
        fashion_mnist()
    with pytest.raises(DataError, match="does not exist"):
        fashion_mnist(tmp_path)
    write(tmp_path, {"x_train": np.zeros(1)})
    with pytest.raises(DataError, match="y_train"):
        fashion_mnist(tmp_path)
    (tmp_path / "fashion_mnist" / "fashion_mnist.npz").write_bytes(b"not an archive")
    with pytest.raises(DataError, match=r"fashion_mnist\.npz"):
        fashion_mnist(tmp_path)


@pytest.mark.skipif("UNEVEN_DATA" not in os.environ, reason="UNEVEN_DATA names no folder")
def test_the_real_fashion_mnist() -> None:
    data = fashion_mnist()
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert data.train.tensors[1].bincount().tolist() == [6000] * 10
