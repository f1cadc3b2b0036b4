"""The transfer of a run's state to a newcomer: a text in the store, and tensors over a process group."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from uneven.errors import CheckpointError
from uneven.run.lines.abortable_group import AbortableGroup, GroupAborted
from uneven.run.model.check import frozen_digest
from uneven.runtime.membership_board import Board

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
        f"{path} is of type {type(what).__name__}: a state for a new worker may have numbers, texts, tensors and "
        "containers of them; keep other objects out of state_dict()"
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
        raise CheckpointError(f"this version of torch has no dtype {name!r}; run one version on all workers")
    return found


_LOOK_EVERY_S = 0.002


def give(state: dict[str, Any], board: Board, key: str, meet: Callable[[], AbortableGroup]) -> None:
    """Send the state under ``key``; ``meet`` forms the group of the newcomers, in which this worker is the first.
    Raises GroupAborted if one of them has failed."""
    text, tensors = pack(state)
    board.write(f"state/{key}", json.dumps([text, shapes(tensors)]))
    _move(tensors, meet())


def take(
    board: Board, key: str, cannot: Callable[[], bool], meet: Callable[[], AbortableGroup]
) -> tuple[dict[str, Any], int]:
    """Receive the result of :func:`give`, and the size of its tensors in bytes. Raises GroupAborted once ``cannot``
    returns that it will not come."""
    while (said := board.look(f"state/{key}")) is None:
        if cannot():
            raise GroupAborted("the members changed before this worker received the state")
        time.sleep(_LOOK_EVERY_S)
    text, shapes = json.loads(said)
    tensors = room(shapes)
    _move(tensors, meet())
    return unpack(text, tensors), sum(one.nbytes for one in tensors)


def _move(tensors: list[Tensor], circle: AbortableGroup) -> None:
    for one in tensors:
        circle.wait(circle.broadcast(one, 0))
    circle.drop()


def state_of(model: nn.Module, others: Sequence[Any], frozen: str) -> dict[str, Any]:
    """Return the state of the user's objects, also of buffers that a state dict leaves out.
    Frozen parameters are left out if their digest is still ``frozen``, as on the newcomer."""
    states, saved = [one.state_dict() for one in others], model.state_dict(keep_vars=True)
    if frozen and frozen_digest(model) == frozen:  # a script may change them, as those of a moving average
        saved = {name: one for name, one in saved.items() if not _frozen(one)}
    return {"model": dict(saved), "buffers": _unsaved(model), "others": states}


def load_state(state: dict[str, Any], model: nn.Module, others: Sequence[Any]) -> None:
    with torch.no_grad():
        model.load_state_dict(model.state_dict() | state["model"])
        for name, buffer in _unsaved(model).items():
            buffer.copy_(state["buffers"][name])
    for one, its in zip(others, state["others"], strict=True):
        one.load_state_dict(its)


def _frozen(saved: Any) -> bool:
    return isinstance(saved, nn.Parameter) and not saved.requires_grad


def _unsaved(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that the state dict leaves out (``persistent=False``)."""
    saved = model.state_dict()
    return {name: one for name, one in model.named_buffers() if name not in saved}
