"""Builds the engine of a session: the only file that knows all implementations of participants and exchanges.

Every worker calls these functions in the same order, because they form groups and open lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from torch import nn

from uneven.policy.balance import Balancer
from uneven.policy.control.reports import Report
from uneven.policy.control.step_plans import StepPlans
from uneven.policy.core.actions import Exchange, Moment
from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.core.registry import describe
from uneven.policy.core.run_config import RunConfig
from uneven.policy.sync import Outlook, SyncPolicy, asks_ahead, by_server, first_plans, in_groups
from uneven.run.context.context import Context
from uneven.run.context.observer import ExchangeObserver
from uneven.run.context.participants import FixedMembers, Participants
from uneven.run.context.scribe import Scribe
from uneven.run.gradients.averaged import AnyCarrier, Averaged, unless_scaled
from uneven.run.gradients.batch_order import PassFollower
from uneven.run.gradients.elastic_carrier import ElasticCarrier
from uneven.run.gradients.fully_sharded import ShardedCarrier
from uneven.run.gradients.gradient_carrier import GradientCarrier
from uneven.run.gradients.loss_weight import PassCounts
from uneven.run.lines.communicator import VectorLine
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.lines.group_communicator import GroupCommunicator
from uneven.run.lines.piggyback import Piggyback
from uneven.run.lines.rollcall import RollCall
from uneven.run.membership.async_run import OwnPaceElastic
from uneven.run.membership.elastic_background_sync import BesideElastic
from uneven.run.membership.elastic_connection import ElasticConnection, connect_elastic
from uneven.run.membership.elastic_run import ElasticRun
from uneven.run.membership.leasing_run import ClaimingElastic
from uneven.run.model.batch_norm import batch_norms
from uneven.run.replicas.flat import Flat
from uneven.run.replicas.peers.background_sync import BackgroundPeerSync
from uneven.run.replicas.peers.peer_sync import PeerSync
from uneven.run.replicas.peers.replica import Replica, broadcast_from_first, refuse_synchronised_layers
from uneven.run.replicas.peers.replica_sync import NoSync, ReplicaSync
from uneven.run.replicas.server.locate import find_home
from uneven.run.replicas.server.outer_round import check_outer, check_shards
from uneven.run.replicas.server.per_site import PerSiteSync
from uneven.run.replicas.server.server_sync import ServerSync
from uneven.run.replicas.server.site_bridge import BetweenSites, OtherSite
from uneven.run.replicas.sparse.exchange import EntriesExchange, most_bytes, peers_of
from uneven.run.samples.async_sampling.evaluation_barrier import EvaluationBarrier
from uneven.run.samples.async_sampling.leased_samples import LeasedSamples
from uneven.run.samples.async_sampling.sample_counter import StoredSampleCounter
from uneven.run.samples.async_sampling.session_store import SessionStore
from uneven.run.samples.async_sampling.shared import OwnPace, make_own_pace
from uneven.run.samples.async_sampling.shutdown import ShutdownHandshake
from uneven.run.samples.in_flight import InFlightBatches
from uneven.run.samples.stream import is_stream
from uneven.run.start.connect import Connection, compare, connect, gradient_group
from uneven.run.step.refusals import refuse_elastic
from uneven.runtime.messages.peer_messages import PeerMessages
from uneven.runtime.world import World

Members = tuple[int, ...]


# -------------------------------------------------------------------- the other workers
def connected(world: World, policy: SyncPolicy, balancer: Balancer, config: RunConfig) -> Connection:
    """Connect to the other workers. Raises ConfigError if an elastic run does not support the settings."""
    if world.elastic is None:
        return connect(world, config.timeout_s)
    refuse_elastic(world.elastic, policy, balancer, config)
    return connect_elastic(world, world.elastic, config.timeout_s)


def elastic_kind(policy: SyncPolicy) -> type[ElasticRun]:
    """Return the class that lets workers leave and join under this policy."""
    if by_server(policy):
        return OwnPaceElastic
    return BesideElastic if asks_ahead(policy) else ElasticRun


def participants_of(connection: Connection, policy: SyncPolicy, scribe: Scribe) -> Participants:
    world = connection.world
    if not isinstance(connection, ElasticConnection):
        return FixedMembers(world.rank, world.size)
    elastic = elastic_kind(policy)(connection.membership, scribe.write, scribe.say, world.leave_on)
    connection.leaving, connection.rounds = elastic.close, elastic.rounds
    return elastic


def rounds_of(context: Context) -> ElasticCommunicator | None:
    """Return the object that makes the exchanges of workers that may leave; None if they are fixed."""
    return context.participants.rounds if isinstance(context.participants, ElasticRun) else None


# -------------------------------------------------------------------- samples that workers take asynchronously
def own_pace_of(context: Context) -> OwnPace | None:
    """Return the shared state of workers that take samples asynchronously; None if all take the same steps."""
    ahead, timeout_s = asks_ahead(context.policy), context.config.timeout_s
    if not (ahead or _by_server(context)):
        return None
    if isinstance(context.participants, ClaimingElastic):
        return make_leased_pace(context.participants, timeout_s, ahead=ahead)
    return make_own_pace(context.rank, len(context.members), timeout_s, ahead=ahead)


def make_leased_pace(elastic: ClaimingElastic, timeout_s: float, *, ahead: bool) -> OwnPace:
    """Make the objects of one worker of an elastic run; see :func:`make_own_pace`."""
    membership, watch = elastic.membership, elastic.membership.watch
    store = SessionStore(membership.worker, membership.bounds[1] + 1, membership.connected())
    elastic.claims = claims = LeasedSamples(
        store, timeout_s, ahead=ahead, members=membership.members, tend=elastic.tend, there=lambda: membership.members
    )

    def alive() -> Members:
        return tuple(one for one in membership.members if one not in watch.dead)

    barrier = EvaluationBarrier(store, claims, timeout_s, alive)
    return OwnPace(membership.worker, claims, barrier, ShutdownHandshake(store))


def counter_of(dataset: Any, context: Context, own_pace: OwnPace | None) -> StoredSampleCounter | None:
    """Return the sample counter for this data set; None if its samples are divided by step."""
    # A stream can be cut into equal parts only if there is no parameter server.
    return None if own_pace is None or (is_stream(dataset) and not _by_server(context)) else own_pace.counter


def _by_server(context: Context) -> bool:
    return by_server(context.policy, context.members, context.sites)


# -------------------------------------------------------------------- exchanges of replicas
def exchanging(
    context: Context, model: nn.Module, out: Outlook, own_pace: OwnPace | None, observer: ExchangeObserver
) -> ReplicaSync:
    """Make the exchanges other than those of gradients; every rank calls it at the same time.

    Raises ConfigError if the model has layers that synchronize all workers, or a server shard cannot be reached.
    """
    if own_pace is not None and _by_server(context):
        return _through_server(context, model, own_pace, observer)
    if not out.gradients_of_all(context.members):
        return _among_peers(context, model, out, own_pace, observer)
    return NoSync(StepPlans(context.policy, context.rank, context.members, context.sites))


def _among_peers(
    context: Context, model: nn.Module, out: Outlook, own_pace: OwnPace | None, observer: ExchangeObserver
) -> PeerSync:
    _advise(context, model)
    replica, barrier = _replica(context, model), None if own_pace is None else own_pace.barrier
    who, there = (context.policy, context.rank, context.members, context.sites), context.participants
    plans = StepPlans(*who, grouped=there.changes and in_groups(context.policy))
    how = replica, barrier, plans
    beside = there if isinstance(there, BesideElastic) else None
    agreement = PeerSync(*who, *how) if beside is None else BackgroundPeerSync(beside, *who, *how)
    agreement.carry_by(
        roll=context.connection.roll,
        timeout_s=context.config.timeout_s,
        shadowed=Moment.BACKGROUND in out.moments,
        delayed=out.delayed,
        book=context.connection.traffic,
        observer=observer,
        on_record=context.scribe.write,
        on_nonfinite=context.nonfinite("parameter"),
        rounds=rounds_of(context),
        spoken_for=there.spoken_for if isinstance(there, ElasticRun) else None,
        entries=_entries(context, model),
    )
    if beside is not None or not there.changes:  # otherwise nothing is under way between two steps
        context.connection.left_by(agreement.leave)
    return agreement


def _advise(context: Context, model: nn.Module) -> None:
    layers = batch_norms(model)
    if context.rank == 0 and layers and len(set(context.sites.values())) > 1:
        context.scribe.say(
            f"the model has batch norm ({layers[0]!r} and {len(layers) - 1} more): each site normalizes by its own "
            f"batches, and the model to evaluate has the mean of their statistics. Where sites have unlike data that "
            f"costs accuracy; group norm does not mind, as torch.nn.GroupNorm(2, channels)",
            "batch-norm",
        )


def _through_server(context: Context, model: nn.Module, own_pace: OwnPace, observer: ExchangeObserver) -> ServerSync:
    scribe, timeout_s, there = context.scribe, context.config.timeout_s, context.participants

    def lost(rank: int) -> None:
        text = f"rank {rank} is gone; nobody trains on the samples that it had taken and not finished"
        scribe.event("lost", text, warn=True, rank=rank)

    replica = _replica(context, model)
    check_outer(model, context.policy, context.members, context.sites)
    exchange = next((one for one in _first_exchanges(context) if one.parties), None)
    parties = () if exchange is None else exchange.parties  # with a server in each site
    party = next((party for party in parties if context.rank in party), ())
    home = find_home(context.connection.transport, context.world, timeout_s, party, stays=not there.changes)
    check_shards(context.policy, context.members, context.sites, home.shards)
    home.begun(training=False)
    kind = partial(PerSiteSync, parties=parties, mean_by=_mean_by(context)) if parties else ServerSync
    agreement = kind(
        context.policy,
        context.members,
        context.sites,
        replica,
        home=home,
        own_pace=own_pace,
        timeout_s=timeout_s,
        traffic=context.connection.traffic.open("parameter server"),
        observer=observer,
        on_record=scribe.write,
        on_lost=_nothing if there.changes else lost,  # an elastic run requeues its samples
        on_nonfinite=context.nonfinite("movement"),
    )
    if isinstance(agreement, PerSiteSync):
        home.between = _between_sites(context, parties, agreement)
    if isinstance(there, OwnPaceElastic):
        there.keeper = agreement
        agreement.claims = there.claims
    context.connection.left_by(agreement.leave)
    return agreement


def _mean_by(context: Context) -> VectorLine:
    connection = context.connection
    assert connection.roll is not None, "there are several sites"
    traffic = connection.traffic.open("parameters")
    return VectorLine(GroupCommunicator(connection.roll, context.config.timeout_s), traffic)


def _nothing(rank: int) -> None:
    pass


def _between_sites(context: Context, parties: Sequence[Members], agreement: PerSiteSync) -> BetweenSites | None:
    """Return the exchange of this worker's site with others; None if another worker runs it."""
    rank, connection = context.rank, context.connection
    assert connection.roll is not None, "there are several sites"
    mine = next(party for party in parties if rank in party)
    others = [party for party in parties if party is not mine]
    speaks = rank == mine[0]
    post = _open_post(context, connection.roll, [party[0] for party in others] if speaks else (), agreement.size)
    if not speaks:
        post.close(failed=False)
        return None
    names = {party: context.sites[party[0]] for party in parties}
    sites = [
        OtherSite(party[0], connection.traffic.open(f"entries {names[mine]} to {names[party]}")) for party in others
    ]
    plans = StepPlans(deepcopy(context.policy), rank, context.members, context.sites)
    return BetweenSites(plans, sites, post, agreement.rate)


def _entries(context: Context, model: nn.Module) -> EntriesExchange | None:
    """Return the exchange of picked entries; None if no entries are picked, or in a single-process run."""
    picking = next((one for one in _first_exchanges(context) if one.select is not None), None)
    roll = context.connection.roll
    if picking is None or roll is None:
        return None
    rank, parties, connection = context.rank, picking.parties, context.connection
    flat = Flat([one for one in model.parameters() if one.requires_grad])
    two_ways = picking.far.barrier_bytes > 0 and rank in (party[0] for party in parties)
    post = _open_post(context, roll, peers_of(rank, parties), flat.size, two_ways=two_ways)
    # A site's name only if each party is a site: otherwise names would not be unique in the traffic book.
    names = [
        context.sites.get(party[0], "") if len(set(context.sites.values())) == len(parties) else f"rank {party[0]}"
        for party in parties
    ]
    mine = next(place for place, party in enumerate(parties) if rank in party)
    traffic = [
        connection.traffic.open(f"entries inside {name}" if place == mine else f"entries {names[mine]} to {name}")
        for place, name in enumerate(names)
    ]
    gather = connection.transport.gather_text
    return EntriesExchange(flat, rank, parties, post, traffic, roll, gather, dropped=lambda: connection.dropped)


def _open_post(
    context: Context, roll: RollCall, peers: Sequence[int], size: int, *, two_ways: bool = False
) -> PeerMessages:
    """Return this worker's end of messages with entries of vectors of ``size``. Raises PeerError if a worker did not
    come, ConfigError if no socket could be bound."""
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


def _first_exchanges(context: Context) -> list[Exchange]:
    plans = first_plans(context.policy, context.members, context.sites)
    return [one for plan in plans for one in plan.exchanges]


def follow(
    context: Context, model: nn.Module, hands: InFlightBatches, agreement: ReplicaSync, out: Outlook
) -> PassFollower:
    """Return the hook that keeps each batch together with its own step."""
    # An exchange after a step would fall between forward and step of a batch that was fetched early.
    strict = out.moments != {Moment.BACKGROUND} and not context.participants.alone
    agreement.followed = not strict
    name = f"sync = {describe(context.policy)}"
    return PassFollower(model, hands, strict=strict, padded=agreement.passing, policy=name)


def _replica(context: Context, model: nn.Module) -> Replica:
    refuse_synchronised_layers(model, context.policy)
    if context.connection.roll is not None:
        broadcast_from_first(model)
    return Replica(model)


# -------------------------------------------------------------------- exchanges of gradients
def gradients_by(
    context: Context,
    out: Outlook,
    counting: PassCounts,
    observer: ExchangeObserver,
    agreement: ReplicaSync,
    *,
    sharded: bool,
) -> tuple[AnyCarrier, Members] | None:
    """Return the exchange of gradients and its members; None without one. Every rank calls it at the same time."""
    there, connection = context.participants, context.connection
    if _by_server(context):
        return None
    how: dict[str, Any] = {
        "turn_now": lambda: counting.turn,
        "observer": observer,
        "on_nonfinite": partial(unless_scaled, context.nonfinite("gradient")),
    }
    if isinstance(there, ElasticRun):
        if not out.gradient_groups:
            return None
        how |= {"returned": there.returned, "rounds": there.rounds, "groups": agreement.groups}
        turn = _from_the_start(context, len(context.members))
        carrier = ElasticCarrier(**how, **turn, membership=there.membership)
        there.wrap_again = carrier.wrap_again
        return carrier, context.members
    group = None if connection.roll is None else gradient_group(out, context.rank, context.members)
    if group is None:
        return None
    make = ShardedCarrier if sharded else partial(GradientCarrier, report_length=len(Report._fields))
    how |= {**_from_the_start(context, group.size()), "roll": connection.roll, "group": group}
    return make(**how), next(one for one in out.gradient_groups if context.rank in one)


def _from_the_start(context: Context, workers: int) -> dict[str, Any]:
    turn = BatchWeight(iteration=0, epoch=0, samples=0, weight=1.0 / workers)
    return {"turn": turn, "traffic": context.connection.traffic.open("gradients")}


def reports_behind(
    context: Context, gradients: Averaged, own_pace: OwnPace | None, *, alike: bool
) -> tuple[Piggyback | None, bool]:
    """Return the object that sends reports behind gradients, or also behind merges if workers may leave, and whether it
    can do so in every step."""
    rounds = rounds_of(context)
    if rounds is None or own_pace is not None:
        return gradients.piggyback, alike
    return rounds.slots, True  # type: ignore[return-value] # has the methods that are used
