"""The contributions of workers to exchanges."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from uneven.cluster.pure.simulate.virtual_exchanges import ExchangeShape, kind_of
from uneven.errors import ConfigError
from uneven.policy.core.actions import Combined, Exchange, Payload

# Rank, payload and members: a worker has at most one contribution of a kind to the same members in transit.
Key = tuple[int, Payload, tuple[int, ...]]


@dataclass(slots=True, eq=False)
class Sent:
    """A worker's contribution to an exchange."""

    value: Tensor  # shape (size,), or of a piece
    parameters: Tensor  # of its replica when it was sent, (size,)
    samples: int  # since its last contribution; its weight


def key_of(rank: int, exchange: Exchange) -> Key:
    return rank, exchange.payload, exchange.members


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
        raise ConfigError(f"{what}: only movements are filtered for significant entries: exchange Payload.DELTA")
    if payload not in merge.payloads:
        merged = " and ".join(f"Payload.{one.name}" for one in Payload if one in merge.payloads)
        raise ConfigError(f"{what}: {type(merge).__name__} merges {merged}")
    if payload is Payload.GRADIENT and not (merge.plain or merge.combined is Combined.SUM):
        raise ConfigError(f"{what}: gradients are averaged or added up as they are: use Mean or Add")
    if merge.combined is Combined.CENTRE and kind not in (ExchangeShape.APART, ExchangeShape.RING):
        raise ConfigError(f"{what}: it moves replicas and the server one by one or all at once, without a quorum")
