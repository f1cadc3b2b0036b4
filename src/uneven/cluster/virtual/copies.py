"""Parameter servers in virtual time: one for all workers, or one per site."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from uneven.cluster.pure.simulate.virtual_exchanges import ExchangeShape, kind_of
from uneven.cluster.virtual.virtual_replicas import mean
from uneven.errors import ConfigError
from uneven.policy.core.actions import Exchange, Payload
from uneven.policy.merge import Combined, Kept, Merge


@dataclass(slots=True, eq=False)
class VirtualCopy:
    """The parameters of a server, vectors of shape (size,)."""

    first: Tensor  # its initial parameters
    parameters: Tensor
    shared: Tensor  # the parameters without what was not sent to other servers
    kept: dict[type[Merge], Kept] = field(default_factory=dict)  # further state of each kind of merge

    def kept_by(self, merge: Merge) -> Kept:
        """Return the state of a merge, including the center if the parameters are one."""
        kept = self.kept.get(type(merge)) or merge.begin(self.first)
        return kept if merge.combined is Combined.MEAN else {**kept, "centre": self.parameters}

    def take_in(self, merge: Merge, given: Tensor) -> None:
        """Add a contribution, or a sum of several, of shape (size,)."""
        self.kept[type(merge)], self.parameters = merge.combine(self.kept_by(merge), given, 1.0)

    def hear(self, given: Tensor) -> None:
        """Add another server's message, of shape (size,)."""
        # Added to both, so that it is not sent on as this server's own movement.
        self.parameters, self.shared = self.parameters + given, self.shared + given


class VirtualCopies:
    """The copy of each worker's server; all members of one exchange with a server share it."""

    def __init__(self, first: Tensor) -> None:
        self._first = first
        self._of: dict[int, VirtualCopy] = {}

    @property
    def begun(self) -> bool:
        return bool(self._of)

    def of(self, members: Sequence[int]) -> VirtualCopy:
        found = next((self._of[rank] for rank in members if rank in self._of), None)
        if found is None:
            found = VirtualCopy(self._first, self._first, self._first)
        self._of.update({rank: found for rank in members if rank not in self._of})
        return found

    @property
    def parameters(self) -> Tensor:
        """The copy's parameters, or the mean of several copies weighted by their workers; shape (size,)."""
        # By identity: several ranks share one copy.
        copies = list({id(one): one for one in self._of.values()}.values())
        if len(copies) < 2:
            return copies[0].parameters if copies else self._first
        counts = [sum(one is copy for one in self._of.values()) for copy in copies]
        return mean([copy.parameters for copy in copies], counts)


# Rank, payload and members: a worker has at most one contribution of a kind to the same members in transit. Learners of
# a quorum have none: its members may change meanwhile.
Key = tuple[int, Payload, tuple[int, ...]]


@dataclass(slots=True, eq=False)
class Sent:
    """A worker's contribution to an exchange."""

    value: Tensor  # shape (size,), or of a piece
    parameters: Tensor  # of its replica when it was sent, (size,)
    samples: int  # since its last contribution; its weight


def key_of(rank: int, exchange: Exchange) -> Key:
    learner = exchange.beside and exchange.quorum is not None
    return rank, exchange.payload, () if learner else exchange.members


def parties_of(exchange: Exchange, ranks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the contributors, grouped by party; the first of each sends."""
    if not exchange.parties:
        return [(rank,) for rank in ranks]
    here = set(ranks)
    present = (tuple(rank for rank in party if rank in here) for party in exchange.parties)
    return [party for party in present if party]


def weights_of(sent: dict[int, Sent], parties: list[tuple[int, ...]], exchange: Exchange) -> list[float]:
    return [exchange.merge.weight(sum(sent[rank].samples for rank in party)) for party in parties]


def check(exchange: Exchange) -> None:
    """Raise ``ConfigError`` for an exchange without a meaning here."""
    kind, merge, payload = kind_of(exchange), exchange.merge, exchange.payload
    what = f"an exchange of {payload.value} by {type(merge).__name__} ({kind.value})"
    if exchange.select is not None and payload is not Payload.DELTA:
        raise ConfigError(
            f"{what}: the filter for significant entries applies to movements only: exchange Payload.DELTA"
        )
    if payload not in merge.payloads:
        merged = " and ".join(f"Payload.{one.name}" for one in Payload if one in merge.payloads)
        raise ConfigError(f"{what}: {type(merge).__name__} merges {merged}")
    if payload is Payload.GRADIENT and not (merge.plain or merge.combined is Combined.SUM):
        raise ConfigError(f"{what}: gradients support only the merges Mean and Add")
    if merge.combined is Combined.CENTRE and kind not in (ExchangeShape.APART, ExchangeShape.RING):
        raise ConfigError(f"{what}: its merge does not support a quorum: leave the quorum out")
