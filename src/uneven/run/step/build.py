"""Makes the exchanges of a session's policy: among workers, through the parameter server, or of gradients only."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from uneven.policy.core.actions import Moment
from uneven.policy.core.registry import describe
from uneven.policy.sync import Outlook, Pace, SyncPolicy, first_plans, in_groups, served
from uneven.run.gradients.batch_order import PassFollower
from uneven.run.lines.vectors import VectorCarrier
from uneven.run.membership.async_run import OwnPaceElastic
from uneven.run.membership.elastic_background_sync import BesideElastic
from uneven.run.membership.elastic_run import Elastic
from uneven.run.membership.leasing_run import ClaimingElastic
from uneven.run.model.batch_norm import batch_norms
from uneven.run.replicas.peers.background_sync import BackgroundPeerSync
from uneven.run.replicas.peers.peer_sync import PeerSync
from uneven.run.replicas.peers.plans import GroupPlans, Plans
from uneven.run.replicas.peers.replica import Replica, broadcast_from_first, refuse_synchronised_layers
from uneven.run.replicas.peers.replica_sync import NoSync, ReplicaSync
from uneven.run.replicas.server.locate import find_home
from uneven.run.replicas.server.outer_round import check_outer, check_shards
from uneven.run.replicas.server.per_site import PerSiteSync, between_sites, sites_of
from uneven.run.replicas.server.server_sync import ServerSync
from uneven.run.replicas.sparse.build import open_entries
from uneven.run.samples.async_sampling.sample_counter import StoredSampleCounter
from uneven.run.samples.async_sampling.shared import OwnPace, make_changing_pace, make_own_pace
from uneven.run.samples.in_flight import InFlightBatches
from uneven.run.samples.stream import is_stream
from uneven.run.step.context import Context
from uneven.run.step.observer import ExchangeObserver

Members = tuple[int, ...]


def by_copy(context: Context) -> bool:
    """Return whether exchanges go through the parameter server."""
    return _served(context.policy, context.members, context.sites)


def elastic_kind(policy: SyncPolicy) -> type[Elastic]:
    """Return the class that lets workers leave and join under this policy."""
    if _served(policy, FEW, {}):
        return OwnPaceElastic
    return BesideElastic if _asks_ahead(policy) else Elastic


def _served(policy: SyncPolicy, members: Members, sites: dict[int, str]) -> bool:
    return any(served(plan) for plan in first_plans(policy, members, sites))


def _asks_ahead(policy: SyncPolicy) -> bool:
    """Return whether no worker waits for the steps of others."""
    return policy.facts is not None and not policy.facts.pace.waits


def at_own_pace(policy: SyncPolicy, members: Members, sites: dict[int, str]) -> bool:
    """Return whether workers take samples asynchronously, and so different numbers of steps."""
    return _asks_ahead(policy) or _served(policy, members, sites)


FEW = (0, 1, 2, 3)  # members for a trial of a policy's plans; their number makes no difference


def pace_of(policy: SyncPolicy) -> Pace:
    """Return the pace for the journal; without facts, the pace that the policy's plans imply."""
    if policy.facts is not None:
        return policy.facts.pace
    return Pace.BOUNDED if at_own_pace(policy, FEW, {}) else Pace.TOGETHER


def shared(context: Context) -> OwnPace | None:
    """Return the shared state of workers that take samples asynchronously; None if all take the same steps."""
    if not at_own_pace(context.policy, context.members, context.sites):
        return None
    ahead, timeout_s = _asks_ahead(context.policy), context.config.timeout_s
    if isinstance(context.elastic, ClaimingElastic):
        return make_changing_pace(context.elastic, timeout_s, ahead=ahead)
    return make_own_pace(context.rank, len(context.members), timeout_s, ahead=ahead)


def counter_of(dataset: Any, context: Context, own_pace: OwnPace | None) -> StoredSampleCounter | None:
    """Return the sample counter for this data set; None if its samples are divided by step."""
    # A stream can be cut into equal parts only if there is no parameter server.
    return None if own_pace is None or (is_stream(dataset) and not by_copy(context)) else own_pace.counter


def exchanging(
    context: Context, model: nn.Module, out: Outlook, own_pace: OwnPace | None, observer: ExchangeObserver
) -> ReplicaSync:
    """Make the exchanges other than those of gradients; every rank calls it at the same time.

    Raises ConfigError if the model has layers that synchronize all workers, or a server shard cannot be reached.
    """
    if own_pace is not None and by_copy(context):
        return _serve(context, model, own_pace, observer)
    if not out.gradients_of_all(context.members):
        return _agree(context, model, out, own_pace, observer)
    return NoSync(Plans(context.policy, context.rank, context.members, context.sites))


def _agree(
    context: Context, model: nn.Module, out: Outlook, own_pace: OwnPace | None, observer: ExchangeObserver
) -> PeerSync:
    _advise(context, model)
    replica, barrier = _replica(context, model), None if own_pace is None else own_pace.barrier
    who = context.policy, context.rank, context.members, context.sites
    plans = GroupPlans(*who) if context.elastic is not None and in_groups(context.policy) else Plans(*who)
    beside = context.elastic if isinstance(context.elastic, BesideElastic) else None
    how = replica, barrier, plans
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
        recovery=None if context.elastic is None else context.elastic.recovery,
        entries=open_entries(context, model),
    )
    if context.elastic is None or beside is not None:  # otherwise nothing is under way between two steps
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


def _serve(context: Context, model: nn.Module, own_pace: OwnPace, observer: ExchangeObserver) -> ServerSync:
    scribe, timeout_s = context.scribe, context.config.timeout_s

    def lost(rank: int) -> None:
        text = f"rank {rank} is gone; nobody trains on the samples that it had taken and not finished"
        scribe.event("lost", text, warn=True, rank=rank)

    replica = _replica(context, model)
    check_outer(model, context.policy, context.members, context.sites)
    parties = sites_of(context)
    party = next((party for party in parties if context.rank in party), ())
    home = find_home(context.connection.transport, context.world, timeout_s, party)
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
        on_lost=lost if context.elastic is None else _nothing,  # an elastic run requeues its samples
        on_nonfinite=context.nonfinite("movement"),
    )
    if isinstance(agreement, PerSiteSync):
        home.between = between_sites(context, parties, replica.flat.size, agreement.rate)
    if isinstance(context.elastic, OwnPaceElastic):
        context.elastic.keeper = agreement
        agreement.claims = context.elastic.claims
    context.connection.left_by(agreement.leave)
    return agreement


def _mean_by(context: Context) -> VectorCarrier:
    connection = context.connection
    assert connection.roll is not None, "there are several sites"
    return VectorCarrier(connection.roll, context.config.timeout_s, connection.traffic.open("parameters"))


def _nothing(rank: int) -> None:
    pass


def follow(
    context: Context, model: nn.Module, hands: InFlightBatches, agreement: ReplicaSync, out: Outlook
) -> PassFollower:
    """Return the hook that keeps each batch together with its own step."""
    # An exchange after a step would fall between forward and step of a batch that was fetched early.
    strict = out.moments != {Moment.BACKGROUND} and (len(context.members) > 1 or context.elastic is not None)
    agreement.followed = not strict
    name = f"sync = {describe(context.policy)}"
    return PassFollower(model, hands, strict=strict, padded=agreement.passing, policy=name)


def _replica(context: Context, model: nn.Module) -> Replica:
    refuse_synchronised_layers(model, context.policy)
    if context.connection.roll is not None:
        broadcast_from_first(model)
    return Replica(model)
