"""Parameter servers in virtual time: one of all workers, or one of each site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from uneven.merge import Combined, Kept, Merge
from uneven.virtual.replicas import mean


@dataclass(slots=True, eq=False)
class VirtualCopy:
    """The parameters that a server keeps.

    Attributes:
        first: what it began with, shape (size,).
        parameters: shape (size,).
        shared: these without what other servers have not been told, shape (size,).
        kept: by each kind of merge, beside the parameters.
    """

    first: Tensor
    parameters: Tensor
    shared: Tensor
    kept: dict[type[Merge], Kept] = field(default_factory=dict)

    def kept_by(self, merge: Merge) -> Kept:
        """What a merge keeps beside the parameters, or as them."""
        kept = self.kept.get(type(merge)) or merge.begin(self.first)
        return kept if merge.combined is Combined.MEAN else {**kept, "centre": self.parameters}

    def take_in(self, merge: Merge, given: Tensor) -> None:
        """A contribution of shape (size,), or some of them added up."""
        self.kept[type(merge)], self.parameters = merge.combine(self.kept_by(merge), given, 1.0)

    def hear(self, given: Tensor) -> None:
        """Add what another server tells, shape (size,)."""
        self.parameters, self.shared = self.parameters + given, self.shared + given


class VirtualCopies:
    """The copy of each worker's server; who is a member of one exchange with a server has the same.

    Args:
        first: what each begins with, shape (size,).
    """

    def __init__(self, first: Tensor) -> None:
        self._first = first
        self._of: dict[int, VirtualCopy] = {}

    @property
    def begun(self) -> bool:
        """Whether there has been an exchange with any server."""
        return bool(self._of)

    def of(self, members: Sequence[int]) -> VirtualCopy:
        """That of these workers."""
        found = next((self._of[rank] for rank in members if rank in self._of), None)
        if found is None:
            found = VirtualCopy(self._first, self._first, self._first)
        self._of.update({rank: found for rank in members if rank not in self._of})
        return found

    @property
    def parameters(self) -> Tensor:
        """The one copy's, or the mean of several by the number of their workers; shape (size,)."""
        copies = list({id(one): one for one in self._of.values()}.values())
        if len(copies) < 2:
            return copies[0].parameters if copies else self._first
        counts = [sum(one is copy for one in self._of.values()) for copy in copies]
        return mean([copy.parameters for copy in copies], counts)
