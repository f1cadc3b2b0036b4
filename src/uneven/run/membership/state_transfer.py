"""The transfer of a run's state to a newcomer: a text in the store, and tensors over a process group."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from uneven.run.lines.abortable_group import AbortableGroup, GroupAborted
from uneven.run.membership import tensor_packing
from uneven.runtime.membership_board import Board

_LOOK_EVERY_S = 0.002


def give(state: dict[str, Any], board: Board, key: str, meet: Callable[[], AbortableGroup]) -> None:
    """Send the state under ``key``; ``meet`` forms the group of the newcomers, in which this worker is the first.
    Raises GroupAborted if one of them has failed."""
    text, tensors = tensor_packing.pack(state)
    board.write(f"state/{key}", json.dumps([text, tensor_packing.shapes(tensors)]))
    _move(tensors, meet())


def take(
    board: Board, key: str, cannot: Callable[[], bool], meet: Callable[[], AbortableGroup]
) -> tuple[dict[str, Any], int]:
    """Receive the result of :func:`give`, and the size of its tensors in bytes. Raises GroupAborted once ``cannot``
    returns that it will not come."""
    while (said := board.look(f"state/{key}")) is None:
        if cannot():
            raise GroupAborted("the members have changed before this worker was given the state")
        time.sleep(_LOOK_EVERY_S)
    text, shapes = json.loads(said)
    tensors = tensor_packing.room(shapes)
    _move(tensors, meet())
    return tensor_packing.unpack(text, tensors), sum(one.nbytes for one in tensors)


def _move(tensors: list[Tensor], circle: AbortableGroup) -> None:
    for one in tensors:
        circle.wait(circle.broadcast(one, 0))
    circle.drop()


def state_of(model: nn.Module, others: Sequence[Any]) -> dict[str, Any]:
    """Return the state of the user's objects, also of buffers that a state dict leaves out."""
    states = [one.state_dict() for one in others]
    return {"model": dict(model.state_dict()), "buffers": _unsaved(model), "others": states}


def load_state(state: dict[str, Any], model: nn.Module, others: Sequence[Any]) -> None:
    with torch.no_grad():
        model.load_state_dict(state["model"])
        for name, buffer in _unsaved(model).items():
            buffer.copy_(state["buffers"][name])
    for one, its in zip(others, state["others"], strict=True):
        one.load_state_dict(its)


def _unsaved(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that the state dict leaves out (``persistent=False``)."""
    saved = model.state_dict()
    return {name: one for name, one in model.named_buffers() if name not in saved}
