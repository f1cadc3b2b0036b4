"""The places that there are, by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from uneven.errors import ConfigError, UnknownNameError, install_hint
from uneven.jobs.call import IMPORTED
from uneven.jobs.devices import Devices, devices_of
from uneven.jobs.local import Local
from uneven.jobs.place import Place

ENGINES = ("local", "ray")


def place_for(engine: str, devices: Devices, imported: Sequence[str] = IMPORTED) -> Place:
    """The place that an engine's name stands for.

    Args:
        imported: modules that processes of this machine find imported.

    Raises:
        UnknownNameError: there is no such engine.
        ConfigError: it has no such devices, or needs a package that is not installed.
    """
    if engine == "local":
        return Local(devices_of(devices), imported)
    if engine != "ray":
        raise UnknownNameError("engine", engine, ENGINES)
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"engine='ray': Ray is not installed: {install_hint('.[ray]')}")
    from uneven.jobs.ray import Cluster

    return Cluster(devices)
