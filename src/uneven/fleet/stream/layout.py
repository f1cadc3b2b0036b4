"""Describe prepared samples in memory: all samples have the same fields, dtypes and shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uneven.errors import DataError


@dataclass(frozen=True, slots=True)
class Field:
    """One part of a sample, such as an image or a label."""

    dtype: str  # NumPy's name
    shape: tuple[int, ...]  # of one sample

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


Layout = tuple[Field, ...]


def arrays_of(sample: Any, what: str) -> list[npt.NDArray[Any]]:
    """Return the fields of a sample as arrays of any shape; a sample that is not a tuple or list has one field.

    Numbers become int64 and float64, as in torch's ``default_collate``. Raises `DataError`, which names the sample as
    `what`, if a field is not a tensor, array or number.
    """
    fields = sample if isinstance(sample, tuple | list) else (sample,)
    return [_array(field, number, what) for number, field in enumerate(fields)]


def _array(field: Any, number: int, what: str) -> npt.NDArray[Any]:
    if isinstance(field, torch.Tensor):
        try:
            return field.detach().numpy()
        except TypeError as error:
            raise DataError(f"{what}: field {number} is a tensor that NumPy does not hold ({error})") from error
    if isinstance(field, np.ndarray | np.generic | bool | int | float):
        array = np.asarray(field)
        if array.dtype.kind in "biuf":
            return array
    raise DataError(
        f"{what}: field {number} is a {type(field).__name__}: a sample is a tensor, an array or a number, or a tuple "
        f"of them; let the transform make one of it"
    )


def layout_of(sample: Any, what: str) -> Layout:
    """Return the layout that all samples must have. Raises `DataError` if a field is not a tensor, array or number."""
    return tuple(Field(array.dtype.name, array.shape) for array in arrays_of(sample, what))


def check(arrays: list[npt.NDArray[Any]], layout: Layout, what: str) -> None:
    """Check that a sample's arrays, of any shape, have this layout. Raises `DataError`, which names both."""
    if len(arrays) == len(layout):
        for array, field in zip(arrays, layout, strict=True):
            if array.shape != field.shape or array.dtype.name != field.dtype:
                break
        else:
            return
    found = ", ".join(f"{array.dtype.name} {array.shape}" for array in arrays)
    raise DataError(
        f"{what} has the fields {found}, but the training set's first sample has {', '.join(map(str, layout))}: "
        f"all members read the same batches, so let the transform give every sample the same types and shapes"
    )
