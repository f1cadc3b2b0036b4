"""The ids of a batch, in whichever form a script has them.

* a tensor of shape (batch, features): one id each; (batch, features, n): n each;
* a dictionary: feature → a tensor of shape (batch,) or (batch, n), or (values, offsets), or (values, offsets, weights),
  with offsets as ``torch.nn.EmbeddingBag`` takes them: where each bag begins;
* whatever answers ``keys()``, ``values()`` and ``lengths()`` as TorchRec's ``KeyedJaggedTensor`` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uneven.embedding.route import BatchIds, by_sample
from uneven.embedding.rows import Floats
from uneven.errors import DataError


class _Feature(NamedTuple):
    """The ids of one feature, bag after bag; lengths of shape (batch,), weights as the ids or None."""

    values: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    weights: Floats | None = None


def read_ids(given: Any, features: Sequence[str]) -> BatchIds:
    """The ids of each feature, in this order.

    Raises:
        DataError: they are in no such form, or a feature is missing.
    """
    if isinstance(given, Tensor):
        return _of_tensor(given, features)
    if isinstance(given, Mapping):
        found = [_of_entry(name, _entry(given, name)) for name in features]
    elif all(hasattr(given, name) for name in ("keys", "values", "lengths")):
        found = _of_keyed(given, features)
    else:
        raise DataError(f"ids of type {type(given).__name__}: give a tensor of shape (batch, features), a dictionary, "
                        f"or a KeyedJaggedTensor")  # fmt: skip
    batches = {len(one.lengths) for one in found}
    if len(batches) != 1:
        raise DataError(f"features {list(features)} have {sorted(batches)} bags: a batch has as many of each")
    weighted = any(one.weights is not None for one in found)
    return by_sample(
        np.concatenate([one.values for one in found]),
        np.stack([one.lengths for one in found]),
        np.concatenate([_weights_of(one) for one in found]) if weighted else None,
    )


def device_of(given: Any) -> torch.device:
    """Where the ids of the first feature lie, in whichever form they are."""
    if isinstance(given, Mapping):
        given = next(iter(given.values()), None)
        given = given[0] if isinstance(given, Sequence) else given
    elif not isinstance(given, Tensor):
        given = given.values()
    return given.device if isinstance(given, Tensor) else torch.device("cpu")


def _of_tensor(given: Tensor, features: Sequence[str]) -> BatchIds:
    if (
        given.dim() not in (2, 3)
        or given.shape[1] != len(features)
        or 0 in given.shape[2:]
        or given.is_floating_point()
    ):
        raise DataError(
            f"ids of shape {tuple(given.shape)} and type {given.dtype} for {len(features)} features: give whole "
            f"numbers of shape (batch, features), one each, or (batch, features, n)"
        )
    return BatchIds(_numbers(given), len(given), len(features), given.shape[2] if given.dim() == 3 else 1)


def _entry(given: Mapping[str, Any], name: str) -> Any:
    if name not in given:
        raise DataError(f"no ids of feature {name!r} in a batch with {sorted(given)}: give each feature of the tables")
    return given[name]


def _of_entry(name: str, given: Any) -> _Feature:
    if isinstance(given, Tensor):
        if given.dim() not in (1, 2) or 0 in given.shape[1:] or given.is_floating_point():
            raise DataError(
                f"feature {name!r} has ids of shape {tuple(given.shape)} and type {given.dtype}: give whole numbers of "
                f"shape (batch,) or (batch, n), or (values, offsets)"
            )
        return _Feature(_numbers(given), np.full(len(given), given[:1].numel(), np.int64))
    if not (isinstance(given, Sequence) and len(given) in (2, 3) and all(hasattr(one, "__len__") for one in given)):
        raise DataError(
            f"feature {name!r} has ids of type {type(given).__name__}: give whole numbers of shape (batch,) or (batch, "
            f"n), or (values, offsets), or (values, offsets, weights)"
        )
    values, offsets, *weights = given
    begins = _whole(offsets, f"feature {name!r}: offsets")  # weights in their place would all become 0
    if len(begins) == 0 or begins[0] != 0 or (np.diff(begins) < 0).any() or begins[-1] > len(values):
        raise DataError(f"feature {name!r}: offsets begin with 0, do not fall, and end within the {len(values)} values")
    lengths = np.diff(begins, append=len(values))
    ids = _whole(values, f"feature {name!r}: ids")
    return _Feature(ids, lengths, _weights(weights[0], values, name) if weights else None)


def _of_keyed(given: Any, features: Sequence[str]) -> list[_Feature]:
    keys = list(given.keys())
    lengths, values = _numbers(given.lengths()), _whole(given.values(), "ids")
    weights = given.weights_or_none() if hasattr(given, "weights_or_none") else None
    batch = len(lengths) // max(1, len(keys))
    ends = np.concatenate([[0], np.cumsum(lengths.reshape(len(keys), batch).sum(1))])
    found = []
    for name in features:
        at = keys.index(_entry({key: key for key in keys}, name))
        part = slice(int(ends[at]), int(ends[at + 1]))
        scale = None if weights is None else _weights(weights[part], values[part], name)
        found.append(_Feature(values[part], lengths[at * batch : (at + 1) * batch], scale))
    return found


def _whole(given: Any, what: str) -> npt.NDArray[np.int64]:
    """The numbers, which have to be whole already: cut to whole ones they would be other ids."""
    found = torch.as_tensor(given)
    if found.is_floating_point() and found.numel():
        raise DataError(f"{what} are of type {found.dtype}: give whole numbers")
    return _numbers(found)


def _numbers(given: Any) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = torch.as_tensor(given).detach().cpu().to(torch.int64).reshape(-1).numpy()
    return found


def _weights_of(one: _Feature) -> Floats:
    return np.ones(len(one.values), np.float32) if one.weights is None else one.weights


def _weights(given: Any, values: Any, name: str) -> Floats:
    found: Floats = torch.as_tensor(given).detach().cpu().float().reshape(-1).numpy()
    if len(found) != len(values):
        raise DataError(f"feature {name!r} has {len(found)} weights for {len(values)} ids: give one for each id")
    return found
