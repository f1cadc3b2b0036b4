"""Nested plain data with tensors, packed as one text and a list of tensors. No pickle is used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from uneven.errors import CheckpointError

_TENSOR, _TUPLE, _MAP = "__tensor__", "__tuple__", "__map__"


def pack(what: Any) -> tuple[str, list[Tensor]]:
    """Pack nested dictionaries, lists, tuples, numbers, texts, None and tensors of any shape; others raise
    CheckpointError."""
    tensors: list[Tensor] = []
    return json.dumps(_plain(what, tensors, "state")), tensors


def shapes(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """Return the dtype and shape of each tensor; a receiver allocates memory for them."""
    return [[str(one.dtype).removeprefix("torch."), list(one.shape)] for one in tensors]


def room(shapes: Sequence[Sequence[Any]]) -> list[Tensor]:
    """Return uninitialized tensors of these dtypes and shapes; an unknown dtype raises CheckpointError."""
    return [torch.empty(list(shape), dtype=_dtype(name)) for name, shape in shapes]


def unpack(text: str, tensors: Sequence[Tensor]) -> Any:
    """Return the data of :func:`pack` again; tensors have their packed shapes."""
    return _whole(json.loads(text), iter(tensors))


def _plain(what: Any, tensors: list[Tensor], path: str) -> Any:
    if isinstance(what, Tensor):
        tensors.append(what.detach().contiguous().cpu())
        return {_TENSOR: len(tensors) - 1}
    if isinstance(what, dict):
        # A list of pairs: JSON would turn keys that are numbers or tuples into texts.
        return {_MAP: [[_plain(key, tensors, path), _plain(it, tensors, f"{path}.{key}")] for key, it in what.items()]}
    if isinstance(what, tuple):
        return {_TUPLE: [_plain(one, tensors, f"{path}[{place}]") for place, one in enumerate(what)]}
    if isinstance(what, list):
        return [_plain(one, tensors, f"{path}[{place}]") for place, one in enumerate(what)]
    if what is None or isinstance(what, bool | int | float | str):
        return what
    raise CheckpointError(
        f"{path} is of type {type(what).__name__}: a newcomer can be given numbers, texts, containers of them and "
        f"tensors; keep anything else out of state_dict()"
    )


def _whole(what: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(what, list):
        return [_whole(one, tensors) for one in what]
    if not isinstance(what, dict):
        return what
    if _TENSOR in what:
        return next(tensors)
    if _TUPLE in what:
        return tuple(_whole(one, tensors) for one in what[_TUPLE])
    return {_whole(key, tensors): _whole(it, tensors) for key, it in what[_MAP]}


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"there is no type of tensors {name!r} here; run one version of torch on all workers")
    return found
