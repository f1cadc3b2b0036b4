"""An all-to-all among members, which can be repeated after a loss."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from uneven.policy.core.membership import Members
from uneven.run.lines.abortable_group import AbortableGroup, GroupAborted

Pieces = Callable[[Members], tuple[Mapping[int, Tensor], Mapping[int, Tensor]]]
"""Returns worker → the piece for it, and worker → the tensor for its piece, with the size that it sends, of any shape.
Asked when the pieces are sent, and again after a loss. An outgoing piece does not change before the end."""


class Swap:
    """The pieces that one member sends and receives.

    Received pieces stay in separate memory until the exchange is complete, so a failed one leaves the targets
    unchanged.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._incoming: Mapping[int, Tensor] = {}
        self._members: Members = ()
        self._arrived = torch.empty(0, dtype=torch.uint8)
        self._work: Any = None

    def begin(self, circle: AbortableGroup | None, members: Members) -> None:
        """Start or repeat the exchange among these members."""
        self._members, self._work = members, None
        outgoing, self._incoming = self._pieces(members)
        # As bytes, because pieces may differ in dtype and one collective takes one tensor.
        sent = torch.cat([_bytes(outgoing[one]) for one in members])
        self._arrived = torch.empty(sum(self._incoming[one].nbytes for one in members), dtype=torch.uint8)
        sizes = [[those[one].nbytes for one in members] for those in (outgoing, self._incoming)]
        try:
            self._work = None if circle is None else circle.swap(sent, self._arrived, *sizes)
        except GroupAborted:
            self._work = None

    def wait(self, circle: AbortableGroup) -> bool:
        if self._work is None:
            return False
        circle.wait(self._work)
        return True

    def drop(self) -> list[Any]:
        """Return, and release, the objects that a failed group may still use."""
        held, self._work = [self._work, self._arrived], None
        return held

    def take(self, contributors: Collection[int]) -> None:
        """Copy the pieces of ``contributors`` to their targets, and zeros to the targets of all others."""
        first = 0
        for one in self._members:
            to = self._incoming[one]
            if one in contributors and to.numel():
                to.copy_(self._arrived[first : first + to.nbytes].view(to.dtype).view(to.shape))
            first += to.nbytes
        for one in set(self._incoming) - set(self._members).intersection(contributors):
            self._incoming[one].zero_()


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)
