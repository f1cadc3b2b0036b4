"""Builds the engine of a session: the only file that knows all implementations of participants and exchanges.

Every worker calls these functions in the same order, because they form groups and open lines.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from torch import nn

from uneven.policy.balance import Balancer
from uneven.policy.control.ledger import StepLedger
from uneven.policy.control.reporter import Report
from uneven.policy.control.step_plans import StepPlans
from uneven.policy.core.actions import Exchange, Moment, Payload
from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.core.registry import describe
from uneven.policy.core.run_config import RunConfig
from uneven.policy.sync import Outlook, SyncPolicy, asks_ahead, by_server, first_plans, in_groups
from uneven.run.context.context import Context
from uneven.run.context.participants import FixedMembers, Participants
from uneven.run.context.scribe import Scribe
from uneven.run.gradients.base import Gradients, unless_scaled
from uneven.run.gradients.batch_order import PassFollower
from uneven.run.gradients.bucket_gradients import BucketGradients
from uneven.run.gradients.exchange_weight import RemainingWeight
from uneven.run.gradients.loss_weight import PassCounts
from uneven.run.gradients.sharded_gradients import ShardedGradients
from uneven.run.lines.bucket_communicator import BucketCommunicator
from uneven.run.lines.communicator import VectorLine
from uneven.run.lines.control_words import ControlWords
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.lines.group_communicator import GroupCommunicator
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.staging import HostRounds
from uneven.run.measure.meter import Meter
from uneven.run.membership.agreed import AgreedMembers, BackgroundMembers
from uneven.run.membership.elastic_connection import ElasticConnection, connect_elastic
from uneven.run.membership.elastic_run import ElasticRun
from uneven.run.membership.followed import FollowedMembers
from uneven.run.model.batch_norm import batch_norms
from uneven.run.model.check import refuse_inelastic, refuse_sparse_on_accelerator
from uneven.run.replicas.background_thread import PATIENCE_S, BackgroundThread
from uneven.run.replicas.flat import Flat
from uneven.run.replicas.no_sync import NoSync
from uneven.run.replicas.peer_aggregator import BackgroundPeers, PeerAggregator, PeerLines
from uneven.run.replicas.replica import Replica, announce, refuse_synchronised_layers
from uneven.run.replicas.replica_sync import ReplicaSync
from uneven.run.replicas.server.client_copy import ServerParameters
from uneven.run.replicas.server.locate import find_home
from uneven.run.replicas.server.outer_round import check_outer, check_shards, plans_outer
from uneven.run.replicas.server.server_aggregator import ServerAggregator, SiteAggregator
from uneven.run.replicas.server.site_bridge import BetweenSites, OtherSite
from uneven.run.replicas.sparse.elastic_entries import ElasticEntries
from uneven.run.replicas.sparse.exchange import EntriesExchange, most_bytes, peers_of
from uneven.run.replicas.sparse.unsent import UnsentMovement
from uneven.run.samples.async_sampling.evaluation_barrier import EvaluationBarrier, ShutdownHandshake
from uneven.run.samples.async_sampling.leased_samples import LeasedSamples, OwnPace, make_own_pace
from uneven.run.samples.async_sampling.sample_counter import StoredSampleCounter
from uneven.run.samples.async_sampling.session_store import SessionStore
from uneven.run.samples.in_flight import InFlightBatches
from uneven.run.samples.stream import is_stream
from uneven.run.start.connect import Connection, compare, connect, gradient_group
from uneven.run.step.refusals import refuse_elastic
from uneven.runtime.messages.peer_messages import PeerMessages
from uneven.runtime.world import World

Members = tuple[int, ...]


def connected(world: World, policy: SyncPolicy, balancer: Balancer, config: RunConfig) -> Connection:
    """Connect to the other workers. Raises ConfigError if an elastic run does not support the settings."""
    if world.elastic is None:
        return connect(world, config.timeout_s)
    refuse_elastic(world.elastic, policy, balancer, config)
    return connect_elastic(world, world.elastic, config.timeout_s)


def elastic_kind(policy: SyncPolicy) -> type[ElasticRun]:
    """Return the class that lets workers leave and join under this policy."""
    if by_server(policy):
        return FollowedMembers
    return BackgroundMembers if asks_ahead(policy) else AgreedMembers


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


def own_pace_of(context: Context) -> OwnPace | None:
    """Return the shared state of workers that take samples asynchronously; None if all take the same steps."""
    ahead, timeout_s = asks_ahead(context.policy), context.config.timeout_s
    if not (ahead or _by_server(context)):
        return None
    if isinstance(context.participants, ElasticRun):
        return make_leased_pace(context.participants, timeout_s, ahead=ahead)
    return make_own_pace(context.rank, len(context.members), timeout_s, ahead=ahead)


def make_leased_pace(elastic: ElasticRun, timeout_s: float, *, ahead: bool) -> OwnPace:
    """Make the objects of one worker of an elastic run; see :func:`make_own_pace`."""
    membership, watch = elastic.membership, elastic.membership.watch
    store = SessionStore(membership.worker, membership.bounds[1] + 1, membership.connected())
    claims = LeasedSamples(
        store, timeout_s, ahead=ahead, members=membership.members, tend=elastic.tend, there=lambda: membership.members
    )
    elastic.lease(claims)

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


def exchanging(context: Context, model: nn.Module, out: Outlook, own_pace: OwnPace | None, observer: Meter) -> NoSync:
    """Make the exchanges other than those of gradients; every rank calls it at the same time.

    Raises ConfigError if the model has layers that synchronize all workers, or a server shard cannot be reached.
    """
    there, who = context.participants, (context.policy, context.rank, context.members, context.sites)
    served = own_pace is not None and _by_server(context)
    if not served and out.gradients_of_all(context.members):
        return NoSync(StepPlans(*who))
    if not served:
        _advise(context, model)
    replica = _replica(context, model, on_host=served or context.connection.staged)
    # Workers to which an exchange costs less wait up to timeout_s for this one, so half of it is safe.
    thread = BackgroundThread(PATIENCE_S if served else min(PATIENCE_S, context.config.timeout_s / 2))
    ledger = StepLedger(StepPlans(*who, grouped=there.changes and in_groups(context.policy, there.most)), served=served)
    how: dict[str, Any] = {"observer": observer, "on_record": context.scribe.write}
    aggregator: PeerAggregator | ServerAggregator
    if served and own_pace is not None:
        aggregator = _through_server(context, model, ledger, replica, thread, own_pace)
        how["on_lost"] = _once_lost(context)
    else:
        aggregator = _among_peers(context, model, out, replica, thread, own_pace)
    how["on_nonfinite"] = context.nonfinite("movement" if served else "parameter")
    how["barrier"] = None if own_pace is None else own_pace.barrier
    agreement = ReplicaSync(ledger, replica, aggregator, thread, **how)
    if isinstance(there, BackgroundMembers):
        there.merging = agreement
    if isinstance(there, FollowedMembers):
        there.keeper = agreement
    # In an elastic run nothing is under way between two steps, unless it runs in the background.
    if served or not there.changes or isinstance(there, BackgroundMembers):
        context.connection.left_by(agreement.leave)
    return agreement


def _among_peers(
    context: Context,
    model: nn.Module,
    out: Outlook,
    replica: Replica,
    thread: BackgroundThread,
    own_pace: OwnPace | None,
) -> PeerAggregator:
    there = context.participants
    announce(replica, context.policy, context.members, context.sites)
    entries = _entries(context, model)
    lines = _peer_lines(context, out, together=own_pace is None, picked=entries is not None)
    kind = partial(BackgroundPeers, there) if isinstance(there, BackgroundMembers) else PeerAggregator
    return kind(
        context.policy,
        context.rank,
        replica,
        thread,
        lines,
        shadowed=Moment.BACKGROUND in out.moments,
        changing=there if isinstance(there, ElasticRun) else None,
        entries=entries,
    )


def _peer_lines(context: Context, out: Outlook, *, together: bool, picked: bool) -> PeerLines:
    rounds, roll, book = rounds_of(context), context.connection.roll, context.connection.traffic
    if rounds is not None:
        line = VectorLine(rounds, book.open("parameters"))
        return PeerLines(line, line, together)
    if roll is None:
        return PeerLines(in_step=together)
    timeout_s = context.config.timeout_s
    waited, aside = VectorLine(GroupCommunicator(roll, timeout_s), book.open("parameters")), None
    if Moment.BACKGROUND in out.moments or (out.delayed and not picked):
        aside = VectorLine(GroupCommunicator(roll, timeout_s), book.open("shadow"))
    return PeerLines(waited, aside, together)


def _advise(context: Context, model: nn.Module) -> None:
    layers = batch_norms(model)
    if context.rank == 0 and layers and len(set(context.sites.values())) > 1:
        context.scribe.say(
            f"the model has batch norm ({layers[0]!r} and {len(layers) - 1} more): each site normalizes by its "
            "batches, and the evaluated model has the mean of their statistics. If the data of sites differ, that "
            "costs accuracy; use group norm, as torch.nn.GroupNorm(2, channels)",
            "batch-norm",
        )


def _through_server(
    context: Context,
    model: nn.Module,
    ledger: StepLedger,
    replica: Replica,
    thread: BackgroundThread,
    own_pace: OwnPace,
) -> ServerAggregator:
    there, timeout_s, traffic = context.participants, context.config.timeout_s, context.connection.traffic
    who = context.policy, context.members, context.sites
    check_outer(model, *who)
    exchange = next((one for one in _first_exchanges(context) if one.parties), None)
    parties = () if exchange is None else exchange.parties  # with a server in each site
    party = next((party for party in parties if context.rank in party), ())
    home = find_home(context.connection.transport, context.world, timeout_s, party, stays=not there.changes)
    check_shards(*who, home.shards, changes=there.changes)
    home.begun(training=False)
    kind = partial(SiteAggregator, parties=parties, mean_by=_mean_by(context)) if parties else ServerAggregator
    copy = ServerParameters(replica, context.rank, home, timeout_s, traffic.open("parameter server"))
    means = any(one.quorum is not None and one.payload is Payload.GRADIENT for one in _first_exchanges(context))
    outer = plans_outer(*who)
    aggregator = kind(context.policy, replica, thread, copy, home, own_pace, outer=outer, means=means)
    if parties:
        home.between = _between_sites(context, parties, ledger, replica.flat.size)
    if isinstance(there, FollowedMembers):
        aggregator.claims = there.claims
    return aggregator


def _once_lost(context: Context) -> Callable[[int], None]:
    """Return the function that reports a lost worker, once; an elastic run requeues its samples."""
    known: set[int] = set()

    def lost(rank: int) -> None:
        if rank not in known and not context.participants.changes:
            known.add(rank)
            text = f"rank {rank} is gone; its unfinished samples are lost"
            context.scribe.event("lost", text, warn=True, rank=rank)

    return lost


def _mean_by(context: Context) -> VectorLine:
    connection = context.connection
    assert connection.roll is not None, "there are several sites"
    traffic = connection.traffic.open("parameters")
    return VectorLine(GroupCommunicator(connection.roll, context.config.timeout_s), traffic)


def _between_sites(context: Context, parties: Sequence[Members], ledger: StepLedger, size: int) -> BetweenSites | None:
    """Return the exchange of this worker's site with others; None if another worker runs it."""
    rank, connection = context.rank, context.connection
    assert connection.roll is not None, "there are several sites"
    mine = next(party for party in parties if rank in party)
    others = [party for party in parties if party is not mine]
    speaks = rank == mine[0]
    post = _open_post(context, connection.roll, [party[0] for party in others] if speaks else (), size)
    if not speaks:
        post.close(failed=False)
        return None
    names = {party: context.sites[party[0]] for party in parties}
    sites = [
        OtherSite(party[0], connection.traffic.open(f"entries {names[mine]} to {names[party]}")) for party in others
    ]
    plans = StepPlans(deepcopy(context.policy), rank, context.members, context.sites)
    return BetweenSites(plans, sites, post, lambda: ledger.rate)


def _picking(context: Context) -> Exchange | None:
    """Return an exchange of picked entries among the current members; None without one."""
    return next((one for one in _first_exchanges(context) if one.select is not None), None)


def _entries(context: Context, model: nn.Module) -> UnsentMovement | None:
    """Return the exchange of picked entries; None if no entries are picked, or in a single-process run."""
    picking, roll, there = _picking(context), context.connection.roll, context.participants
    rank, connection = context.rank, context.connection
    flat = Flat([one for one in model.parameters() if one.requires_grad], on_host=True)
    if isinstance(there, AgreedMembers) and picking is not None and picking.select is not None:
        elastic = ElasticEntries(
            flat,
            there.rounds,
            connection.traffic.open("entries"),
            parties=lambda: () if (one := _picking(context)) is None else one.parties,
            samples=there.returned.spoken_for,
            leaving=lambda: there.leaving,
            outside=picking.select.beside,
        )
        there.may_leave = elastic.may_leave
        return elastic
    if picking is None or roll is None:
        return None
    parties = picking.parties
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
    who = context.policy, context.members, context.sites
    plans = first_plans(*who, changes=context.participants.changes)
    return [one for plan in plans for one in plan.exchanges]


def follow(context: Context, model: nn.Module, hands: InFlightBatches, agreement: NoSync, out: Outlook) -> PassFollower:
    """Return the hook that keeps each batch together with its own step."""
    # An exchange after a step would fall between forward and step of a batch that was fetched early.
    strict = out.moments != {Moment.BACKGROUND} and not context.participants.alone
    agreement.followed = not strict
    name = f"sync = {describe(context.policy)}"
    return PassFollower(model, hands, strict=strict, padded=agreement.passing, policy=name)


def _replica(context: Context, model: nn.Module, *, on_host: bool) -> Replica:
    refuse_synchronised_layers(model, context.policy)
    return Replica(model, on_host=on_host)


def gradients_by(
    context: Context,
    out: Outlook,
    counting: PassCounts,
    observer: Meter,
    agreement: NoSync,
    model: nn.Module,
    *,
    sharded: bool,
) -> Gradients:
    """Return the exchange of gradients; every rank calls it at the same time. Raises ConfigError if it does not support
    the model."""
    there, connection = context.participants, context.connection
    if _by_server(context):
        return Gradients()
    how: dict[str, Any] = {
        "turn_now": lambda: counting.turn,
        "observer": observer,
        "on_nonfinite": partial(unless_scaled, context.nonfinite("gradient")),
    }
    if isinstance(there, AgreedMembers):
        if not out.gradient_groups:
            return Gradients()
        refuse_inelastic(model)
        rounds = HostRounds(there.rounds) if connection.staged else there.rounds
        how |= {**_from_the_start(context, len(context.members)), "rounds": rounds, "groups": agreement.groups}
        scale = RemainingWeight(worker=context.rank, returned=there.returned, rounds=there.rounds)
        gradients = BucketGradients(**how, scale=scale, group=None, members=context.members)
        there.wrap_again = gradients.wrap_again
        return gradients
    group = None if connection.roll is None else gradient_group(out, context.rank, context.members)
    if group is None or connection.roll is None:
        return Gradients()
    how |= {**_from_the_start(context, group.size()), "group": group}
    how["members"] = next(one for one in out.gradient_groups if context.rank in one)
    if sharded:
        return ShardedGradients(**how, roll=connection.roll)
    refuse_sparse_on_accelerator(model)
    buckets = BucketCommunicator(group, connection.roll, len(Report._fields))
    return BucketGradients(**how, rounds=HostRounds(buckets) if connection.staged else buckets)


def _from_the_start(context: Context, workers: int) -> dict[str, Any]:
    turn = BatchWeight(iteration=0, epoch=0, samples=0, weight=1.0 / workers)
    return {"turn": turn, "traffic": context.connection.traffic.open("gradients")}


def reports_behind(
    context: Context, gradients: Gradients, own_pace: OwnPace | None, *, alike: bool
) -> tuple[ControlWords | None, bool]:
    """Return the object that sends reports behind gradients, or also behind merges if workers may leave, and whether it
    can do so in every step."""
    rounds = rounds_of(context)
    if rounds is None or own_pace is not None:
        return gradients.words, alike
    return rounds.words, True
