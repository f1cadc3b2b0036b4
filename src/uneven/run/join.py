"""Joins a run: decides and checks the settings, connects to the others, and opens the journal."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError
from uneven.policy.balance import Balancer, balancers
from uneven.policy.core.registry import describe
from uneven.policy.core.run_config import Conflict, RunConfig, merge
from uneven.policy.sync import compatible, pace_of, policies, threaded, unheeded, unsited
from uneven.run.context.context import Context
from uneven.run.context.scribe import Scribe
from uneven.run.loops.site_evaluation import bind_site_evaluations
from uneven.run.start.connect import compare, identity, versions
from uneven.run.step.build import connected, participants_of
from uneven.run.step.callback import Callback
from uneven.run.step.refusals import check_carried
from uneven.runtime import rundir
from uneven.runtime.world import World

CODE = "Session(...)"  # source of the values that the code gives
ALONE = "a run with one worker"  # source of the value that replaces a balancer for several workers


@dataclass(frozen=True, slots=True)
class Settings:
    """The merged settings."""

    config: RunConfig
    conflicts: tuple[Conflict, ...]  # values that were overruled
    objects: dict[str, Any] = field(default_factory=dict)  # plug-ins given as objects, by setting
    note: str = ""  # why the default balancer is not used


def decide_settings(world: World, given: dict[str, Any]) -> Settings:
    """Merge the arguments in code with the run directory's layers, or with the ``uneven.toml`` next to the script.

    Raises:
        ConfigError: a value is wrong or does not fit another; the message names its source.
    """
    objects = {key: value for key, value in given.items() if key in ("balance", "sync") and not isinstance(value, str)}
    code = {key: describe(value) if key in objects else value for key, value in given.items()}
    layers = {CODE: code, **rundir.load_layers(world.run_directory)}
    config, conflicts = merge(layers)
    sync, balance = objects.get("sync", config.sync), objects.get("balance", config.balance)
    if world.alone and balancers.resolve(balance).made_for not in (None, 1):
        where = next(source for source, values in layers.items() if "balance" in values)
        conflicts += (Conflict("balance", ALONE, "even", where, config.balance),)
        config = replace(config, balance="even")
        objects.pop("balance", None)

    def misfit(balance: str | Balancer) -> str | None:
        why = compatible(sync, balance) or unheeded(sync, balance)
        return why or threaded(sync, balance, config.threads, world.size)

    if (why := misfit(objects.get("balance", config.balance))) is None:
        return Settings(config, conflicts, objects)
    if any("balance" in values for values in layers.values()) or misfit("even"):
        raise ConfigError(why)
    several = f" with threads = {config.threads}" if config.threads > 1 else ""
    note = f"under sync = {describe(sync)}{several} no shares are balanced, so balance = 'even' is used"
    return Settings(replace(config, balance="even"), conflicts, objects, note)


def join(
    # `given` has None for settings that the script does not set
    world: World,
    given: dict[str, Any],
    run_dir: str | Path | None,
    callbacks: Sequence[Callback],
) -> Context:
    """Join the others with the same settings; every rank calls it at the same time. Raises as
    :class:`uneven.Session`."""
    if isinstance(callbacks, Callback):
        raise ConfigError(f"callbacks={callbacks.name!r}: give a list, even of one, callbacks=[…]")
    settings = decide_settings(world, {key: value for key, value in given.items() if value is not None})
    config = settings.config
    sync, balance = (settings.objects.get(key, getattr(config, key)) for key in ("sync", "balance"))
    balancer, policy = balancers.resolve(balance), policies.resolve(sync)
    check_carried(policy, tuple(range(world.size)), {})
    if callbacks and config.threads > 1:
        raise ConfigError(f"callbacks with threads = {config.threads}: callbacks need threads = 1")
    connection = connected(world, policy, balancer, config)
    with ExitStack() as undo:
        # Without this the others would wait for this worker until the time-out if the rest of the start fails.
        undo.callback(connection.close, failed=True)
        said = compare(connection.transport, {**identity(config), "_site": world.site}, "start of the session")
        directory = run_dir if run_dir is not None else world.run_directory
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
    bind_site_evaluations(context, callbacks)
    return context
