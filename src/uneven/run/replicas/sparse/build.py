"""The creation of exchanges of picked entries, if a policy plans any."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from uneven.policy.core.actions import Exchange
from uneven.policy.sync import first_plans
from uneven.run.lines.rollcall import RollCall
from uneven.run.replicas.flat import Flat
from uneven.run.replicas.sparse.exchange import EntriesExchange, most_bytes, peers_of
from uneven.run.start.connect import compare
from uneven.run.step.context import Context
from uneven.runtime.messages.peer_messages import PeerMessages


def open_entries(context: Context, model: nn.Module) -> EntriesExchange | None:
    """Return the exchange; None if no entries are picked, or in a single-process run. Every worker calls it together.
    Raises :class:`PeerError` if a worker did not come, :class:`ConfigError` if no socket could be bound."""
    far, roll = _picked(context), context.connection.roll
    if far is None or roll is None:
        return None
    rank, parties, transport = context.rank, far.parties, context.connection.transport
    flat = Flat([one for one in model.parameters() if one.requires_grad])
    two_ways = far.barrier_bytes > 0 and rank in (party[0] for party in parties)
    post = open_post(context, roll, peers_of(rank, parties), flat.size, two_ways=two_ways)
    # A site's name only if each party is a site: otherwise names would not be unique in the traffic book.
    names = [
        context.sites.get(party[0], "") if len(set(context.sites.values())) == len(parties) else f"rank {party[0]}"
        for party in parties
    ]
    mine = next(place for place, party in enumerate(parties) if rank in party)
    book = context.connection.traffic
    traffic = [
        book.open(f"entries inside {name}" if place == mine else f"entries {names[mine]} to {name}")
        for place, name in enumerate(names)
    ]
    connection = context.connection
    return EntriesExchange(
        flat, rank, parties, post, traffic, roll, transport.gather_text, dropped=lambda: connection.dropped
    )


def open_post(
    context: Context, roll: RollCall, peers: Sequence[int], size: int, *, two_ways: bool = False
) -> PeerMessages:
    """Return this worker's end of messages with entries of vectors of ``size``; every worker calls it together, as
    above."""
    transport, where = context.connection.transport, "start of the exchange of entries"
    # Workers on one machine use the loopback interface, without a meeting address.
    hosts = {one["_host"] for one in compare(transport, {"_host": context.world.host}, where)}
    with roll.waiting(f"the {where}"):
        return PeerMessages(
            context.rank,
            peers,
            transport.gather_text,
            most_bytes=most_bytes(size),
            two_ways=two_ways,
            meeting=context.world.meeting if len(hosts) > 1 else None,
            timeout_s=context.config.timeout_s,
        )


def _picked(context: Context) -> Exchange | None:
    plans = first_plans(context.policy, context.members, context.sites)
    return next((one for plan in plans for one in plan.exchanges if one.select is not None), None)
