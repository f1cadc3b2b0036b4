"""An all-to-all among members, which can be repeated after a loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from uneven.policy.core.membership import Members
from uneven.run.lines.abortable_group import AbortableGroup, GroupAborted


class Swap:
    """The pieces that one member sends and receives.

    Received pieces stay in separate memory until the exchange is complete, so a failed one leaves the targets
    unchanged.

    Args:
        outgoing: worker → the piece for it, any shape; not changed until the exchange is complete.
    """

    def __init__(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        self._outgoing = outgoing
        self._incoming = incoming  # worker → the tensor for its piece, with the size that it sends
        self._members: Members = ()
        self._arrived = torch.empty(0, dtype=torch.uint8)
        self._work: Any = None

    def begin(self, circle: AbortableGroup | None, members: Members) -> None:
        """Start or repeat the exchange among these members."""
        self._members, self._work = members, None
        # As bytes, because pieces may differ in dtype and one collective takes one tensor.
        sent = torch.cat([_bytes(self._outgoing[one]) for one in members])
        self._arrived = torch.empty(sum(self._incoming[one].nbytes for one in members), dtype=torch.uint8)
        sizes = [[those[one].nbytes for one in members] for those in (self._outgoing, self._incoming)]
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
