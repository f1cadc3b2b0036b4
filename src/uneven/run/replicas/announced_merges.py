"""The announcement of a policy's first plans to a replica, before training starts."""

from __future__ import annotations

from uneven.errors import ConfigError
from uneven.policy.core.actions import Moment, Payload
from uneven.policy.sync import Evaluated, SyncPolicy, first_plans
from uneven.run.replicas.replica import Replica


def announce(replica: Replica, policy: SyncPolicy, members: tuple[int, ...], sites: dict[int, str]) -> None:
    """Announce the merges to come to the replica; raise :class:`ConfigError` if they cannot be combined."""
    everything = [one for plan in first_plans(policy, members, sites) for one in plan.exchanges]
    coming = [one for one in everything if one.select is None]
    moved = {one.merge for one in coming if one.payload is Payload.DELTA}
    if moved and any(one.select is not None or one.moment is Moment.BACKGROUND for one in everything):
        raise ConfigError(
            f"{policy!r} exchanges movements in full, and beside them picked entries or something in the background, "
            f"which would count as moved by this worker: take one of both"
        )
    if len({one.select is None for one in everything if one.delay}) > 1:
        raise ConfigError(f"{policy!r} delays both pieces and picked entries: take one of both")
    replica.expect(
        {one.merge for one in coming if one.payload is not Payload.DELTA},
        centre=policy.evaluated is Evaluated.CENTRE,
        cuts=[one.piece[1] for one in coming if one.piece is not None],
        moved=moved,
        delays=any(one.delay for one in everything),
    )
