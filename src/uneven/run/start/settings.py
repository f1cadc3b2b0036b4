"""The settings of a run, merged from code, command line and file, in this order of precedence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from uneven.errors import ConfigError
from uneven.policy.balance import Balancer, balancers
from uneven.policy.core.registry import describe
from uneven.policy.core.run_config import Conflict, RunConfig, merge
from uneven.policy.sync import compatible, threaded, unheeded
from uneven.runtime import rundir
from uneven.runtime.world import World

CODE = "Session(...)"  # source of the values that the code gives
ALONE = "a worker that is alone"  # source of the value that replaces a balancer for several workers


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
