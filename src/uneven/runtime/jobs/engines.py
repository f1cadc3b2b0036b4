"""The registry of places by engine name."""

from __future__ import annotations

from collections.abc import Sequence

from uneven.errors import UnknownNameError
from uneven.runtime.installed import need
from uneven.runtime.jobs.call import IMPORTED
from uneven.runtime.jobs.devices import Devices, devices_of
from uneven.runtime.jobs.executor import Place
from uneven.runtime.jobs.local_executor import Local

ENGINES = ("local", "ray")


def place_for(engine: str, devices: Devices, imported: Sequence[str] = IMPORTED) -> Place:
    """Return the place of an engine; raise UnknownNameError or ConfigError if it, its devices or package are
    missing.
    """
    if engine == "local":
        return Local(devices_of(devices), imported)
    if engine != "ray":
        raise UnknownNameError("engine", engine, ENGINES)
    need("ray", "ray")
    from uneven.runtime.jobs.ray import Cluster

    return Cluster(devices)
