"""Joins a run: decides and checks the settings, connects to the others, and opens the journal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError
from uneven.policy.balance import balancers
from uneven.policy.sync import pace_of, policies, unsited
from uneven.run.context.context import Context
from uneven.run.context.scribe import Scribe
from uneven.run.loops.visits import bind_visits
from uneven.run.start.connect import compare, identity, versions
from uneven.run.start.settings import ALONE, CODE, decide_settings
from uneven.run.step.build import connected, participants_of
from uneven.run.step.part import Part
from uneven.run.step.refusals import check_carried
from uneven.runtime.world import World


def join(
    # `given` has None for settings that the script does not set
    world: World,
    given: dict[str, Any],
    journal: str | Path | None,
    parts: Sequence[Part],
) -> Context:
    """Join the others with the same settings; every rank calls it at the same time. Raises as
    :class:`uneven.Session`."""
    if isinstance(parts, Part):
        raise ConfigError(f"parts={parts.name!r}: give a list, even of one, parts=[…]")
    settings = decide_settings(world, {key: value for key, value in given.items() if value is not None})
    config = settings.config
    sync, balance = (settings.objects.get(key, getattr(config, key)) for key in ("sync", "balance"))
    balancer, policy = balancers.resolve(balance), policies.resolve(sync)
    check_carried(policy, tuple(range(world.size)), {})
    if parts and config.threads > 1:
        raise ConfigError(f"parts with threads = {config.threads}: there is no one step that they could be of")
    connection = connected(world, policy, balancer, config)
    with ExitStack() as undo:
        # Without this the others would wait for this worker until the time-out if the rest of the start fails.
        undo.callback(connection.close, failed=True)
        said = compare(connection.transport, {**identity(config), "_site": world.site}, "start of the session")
        directory = journal if journal is not None else world.run_directory
        scribe = Scribe(world, directory, config, versions(), pace_of(policy))
        undo.pop_all()
    for conflict in settings.conflicts:  # the launcher has reported those between command line and file
        scribe.event("conflict", str(conflict), warn=world.rank == 0 and conflict.winner in (CODE, ALONE))
    sites = {rank: one["_site"] for rank, one in enumerate(said)}
    if world.rank == 0 and (plain := unsited(policy, sites)):
        scribe.say(plain, "one-site")
    if world.rank == 0 and settings.note and not world.alone:
        scribe.say(settings.note, "balance")
    context = Context(
        world=world, config=config, policy=policy, balancer=balancer, sites=sites, connection=connection,
        scribe=scribe, participants=participants_of(connection, policy, scribe),
    )  # fmt: skip
    bind_visits(context, parts)
    return context
