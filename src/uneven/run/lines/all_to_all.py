"""Pieces that each member has for each other one, in one exchange that may have to be made again.

What arrives lies in memory of its own until the exchange is complete: one that has failed leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from uneven.policy.core.membership import Members
from uneven.run.lines.abortable_group import AbortableGroup, GroupAborted


class Swap:
    """See the module.

    Args:
        outgoing: worker → the piece for it; not touched until the exchange is over.
        incoming: worker → where its piece for this worker goes, of the size of what it sends.
    """

    def __init__(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        self._outgoing, self._incoming = outgoing, incoming
        self._members: Members = ()
        self._arrived = torch.empty(0, dtype=torch.uint8)
        self._work: Any = None

    def begin(self, circle: AbortableGroup | None, members: Members) -> None:
        """Begin, anew if it has begun before, among those that take part now."""
        self._members, self._work = members, None
        sent = torch.cat([_bytes(self._outgoing[one]) for one in members])
        self._arrived = torch.empty(sum(self._incoming[one].nbytes for one in members), dtype=torch.uint8)
        sizes = [[those[one].nbytes for one in members] for those in (self._outgoing, self._incoming)]
        try:
            self._work = None if circle is None else circle.swap(sent, self._arrived, *sizes)
        except GroupAborted:
            self._work = None

    def wait(self, circle: AbortableGroup) -> bool:
        """Whether all pieces have come.

        Raises:
            Broken, TimeoutError: see :meth:`AbortableGroup.wait`.
        """
        if self._work is None:
            return False
        circle.wait(self._work)
        return True

    def drop(self) -> list[Any]:
        """What holds on to a group that has failed."""
        held, self._work = [self._work, self._arrived], None
        return held

    def take(self, contributors: Collection[int]) -> None:
        """The exchange is complete: the pieces of these go to where they belong, and zeros in the place of others'."""
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
