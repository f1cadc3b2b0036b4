"""Read the ids of a batch from the formats that scripts use.

* a tensor of shape (batch, features): one id each; (batch, features, n): n each;
* a dictionary: feature → a tensor of shape (batch,) or (batch, n), or (values, offsets), or (values, offsets, weights),
  with offsets as in ``torch.nn.EmbeddingBag`` without ``include_last_offset``: the start of each bag;
* ``torch.nested`` tensors as entries of a dictionary, one bag in each component;
* any object with the methods ``keys()``, ``values()`` and ``lengths()`` of TorchRec's ``KeyedJaggedTensor``, and
  ``inverse_indices`` if its features have different numbers of bags.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uneven.embedding.pure.config import TableSpec
from uneven.embedding.pure.route import BatchIds, GivenFeatures, apart, by_sample, ranges
from uneven.embedding.pure.row_optimizers import Floats
from uneven.errors import DataError


class _Feature(NamedTuple):
    """The ids of one feature, bag by bag: values (n,), lengths (batch,), weights (n,) or None."""

    values: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    weights: Floats | None = None


class BatchReader:
    """The features of some tables, read from a batch. ``unpooled`` makes each id a bag."""

    def __init__(self, spec: TableSpec, *, unpooled: bool = False) -> None:
        self._unpooled = unpooled
        self._features = GivenFeatures(spec)

    def read(self, given: Any) -> BatchIds:
        """Return the ids; raise :class:`DataError` if they are malformed."""
        found = self._features.of_tables(read_ids(given, self._features.names, pooled=not self._unpooled))
        return apart(found) if self._unpooled else found


def read_ids(given: Any, features: Sequence[str], *, pooled: bool = True) -> BatchIds:
    """Return the ids of ``features``, in this order; raise :class:`DataError` if they are malformed."""
    if isinstance(given, Tensor):
        return _of_tensor(given, features)
    if isinstance(given, Mapping):
        found = [_of_entry(name, _entry(given, name)) for name in features]
    elif all(hasattr(given, name) for name in ("keys", "values", "lengths")):
        found = _of_keyed(given, features, pooled)
    else:
        raise DataError(
            f"ids of type {type(given).__name__}: give a tensor of shape (batch, features), a dictionary, "
            f"or a KeyedJaggedTensor"
        )
    batches = {len(one.lengths) for one in found}
    if len(batches) != 1:
        raise DataError(
            f"features {list(features)} have {sorted(batches)} bags: give all features the same number of bags, "
            "or a KeyedJaggedTensor with inverse_indices"
        )
    weighted = any(one.weights is not None for one in found)
    return by_sample(
        np.concatenate([one.values for one in found]),
        np.stack([one.lengths for one in found]),
        np.concatenate([_weights_of(one) for one in found]) if weighted else None,
    )


def device_of(given: Any) -> torch.device:
    """Return the device of the first feature's ids, in any of the formats."""
    if isinstance(given, Mapping):
        given = next(iter(given.values()), None)
        given = given[0] if isinstance(given, Sequence) else given
    elif not isinstance(given, Tensor):
        given = given.values()
    return given.device if isinstance(given, Tensor) else torch.device("cpu")


def _of_tensor(given: Tensor, features: Sequence[str]) -> BatchIds:
    values = _whole(given, "ids")
    if given.dim() not in (2, 3) or given.shape[1] != len(features) or 0 in given.shape[2:]:
        raise DataError(
            f"ids of shape {tuple(given.shape)} and type {given.dtype} for {len(features)} features: give "
            "integers of shape (batch, features), or (batch, features, n)"
        )
    return BatchIds(values, len(given), len(features), given.shape[2] if given.dim() == 3 else 1)


def _entry(given: Mapping[str, Any], name: str) -> Any:
    if name not in given:
        raise DataError(
            f"no ids of feature {name!r} in a batch that has {sorted(given)}: give ids for every feature of the tables"
        )
    return given[name]


def _of_entry(name: str, given: Any) -> _Feature:
    if isinstance(given, Tensor) and given.is_nested and given.dim() == 2:
        bags = given.unbind()
        return _Feature(_whole(torch.cat(bags), f"feature {name!r}: ids"), np.array([len(one) for one in bags]))
    if isinstance(given, Tensor):
        values = _whole(given, f"feature {name!r}: ids")
        if given.dim() not in (1, 2) or 0 in given.shape[1:]:
            raise DataError(
                f"feature {name!r} has ids of shape {tuple(given.shape)} and type {given.dtype}: give integers of "
                "shape (batch,) or (batch, n), or (values, offsets)"
            )
        return _Feature(values, np.full(len(given), given[:1].numel(), np.int64))
    flat = isinstance(given, tuple) and all(isinstance(one, Tensor | np.ndarray) and one.ndim == 1 for one in given[:2])
    if not flat or len(given) not in (2, 3):  # a list is ambiguous: it may hold one bag per sample
        raise DataError(
            f"feature {name!r} has ids of type {type(given).__name__}: give integers of shape (batch,) or (batch, "
            "n), flat tensors (values, offsets[, weights]), or torch.nested.nested_tensor(bags)"
        )
    values, offsets, *weights = given
    # Raises for weights passed as offsets, which would all become 0.
    begins = _whole(offsets, f"feature {name!r}: offsets")
    if len(begins) == 0 or begins[0] != 0 or (np.diff(begins) < 0).any() or begins[-1] > len(values):
        raise DataError(
            f"feature {name!r}: offsets must begin with 0, never decrease, and not exceed the {len(values)} values"
        )
    lengths = np.diff(begins, append=len(values))
    ids = _whole(values, f"feature {name!r}: ids")
    return _Feature(ids, lengths, _weights(weights[0], values, name) if weights else None)


def _of_keyed(given: Any, features: Sequence[str], pooled: bool) -> list[_Feature]:
    keys = list(given.keys())
    lengths, values = _whole(given.lengths(), "lengths"), _whole(given.values(), "ids")
    # Unpooled rows are not scaled.
    weights = given.weights_or_none() if pooled and hasattr(given, "weights_or_none") else None
    inverse = given.inverse_indices_or_none() if pooled and hasattr(given, "inverse_indices_or_none") else None
    even = [len(lengths) // max(1, len(keys))] * len(keys)
    strides = list(given.stride_per_key()) if hasattr(given, "stride_per_key") else even
    if sum(strides) != len(lengths) or (lengths < 0).any() or lengths.sum() != len(values):
        raise DataError(
            f"{len(lengths)} lengths, {lengths.sum()} in sum, for {sum(strides)} bags of {len(values)} ids: give "
            "one per bag, adding up to the ids"
        )
    first, begins = np.cumsum([0, *strides]), np.cumsum([0, *lengths])
    found = []
    for name in features:
        at = keys.index(_entry({key: key for key in keys}, name))
        sizes = lengths[first[at] : first[at + 1]]
        part: Any = slice(int(begins[first[at]]), int(begins[first[at + 1]]))
        if inverse is not None:  # bags are stored once; this maps each sample to its bag
            bags = first[at] + _numbers(inverse[1][list(inverse[0]).index(name)])
            sizes, part = lengths[bags], ranges(begins[bags], lengths[bags])
        elif not pooled:
            sizes = np.pad(sizes, (0, max(strides) - len(sizes)))
        scale = None if weights is None else _weights(weights[part], values[part], name)
        found.append(_Feature(values[part], sizes, scale))
    return found


def _whole(given: Any, what: str) -> npt.NDArray[np.int64]:
    """Return integers (n,) int64; raise for floats, because rounding would silently produce other ids."""
    found = torch.as_tensor(given)
    if found.layout is not torch.strided or found.is_nested:
        raise DataError(f"{what} have layout {found.layout}: give a dense tensor")
    if (found.is_floating_point() or found.is_complex() or found.dtype is torch.bool) and found.numel():
        raise DataError(f"{what} have dtype {found.dtype}: give integers")
    return _numbers(found)


def _numbers(given: Any) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = torch.as_tensor(given).detach().cpu().to(torch.int64).reshape(-1).numpy()
    return found


def _weights_of(one: _Feature) -> Floats:
    return np.ones(len(one.values), np.float32) if one.weights is None else one.weights


def _weights(given: Any, values: Any, name: str) -> Floats:
    found: Floats = torch.as_tensor(given).detach().cpu().float().reshape(-1).numpy()
    if len(found) != len(values):
        raise DataError(f"feature {name!r} has {len(found)} weights for {len(values)} ids: give one weight per id")
    return found
