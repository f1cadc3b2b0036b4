"""The devices that processes compute on: GPUs, or CPU slots."""

from collections.abc import Mapping, Sequence

import torch

from uneven.errors import ConfigError
from uneven.runtime.jobs.processes import usable_cores

Devices = str | int | Sequence[str]


def devices_of(asked: Devices) -> tuple[str, ...]:
    """Return the names of the devices; a CPU slot is a process with one thread, and there may be more slots than cores.

    ``asked`` is "auto" for every GPU, or one slot per core without GPUs; a number of CPU slots; or names, such as
    ``["cuda:0", "cuda:1"]``. Raises ConfigError if there are none, or some do not exist.
    """
    if asked == "auto":
        found = tuple(f"cuda:{number}" for number in range(torch.cuda.device_count()))
        return found or ("cpu",) * usable_cores()
    if isinstance(asked, int):
        if asked < 1:
            raise ConfigError(f"devices={asked}: give at least one")
        return ("cpu",) * asked
    if isinstance(asked, str):
        raise ConfigError(f'devices={asked!r}: give "auto", a number of CPU slots, or a list of names')
    if not asked:
        raise ConfigError("devices=[]: give at least one")
    for name in asked:
        try:
            kind = torch.device(name)
        except RuntimeError as error:
            raise ConfigError(f"devices: {error}") from error
        if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"devices: no {name}; this machine has {torch.cuda.device_count()} GPUs")
        if kind.type not in ("cpu", "cuda"):
            raise ConfigError(f"devices: {name} is not supported: give cpu or cuda")
    if len({torch.device(name).type for name in asked}) > 1:
        raise ConfigError("devices: CPU slots and GPUs together are not supported: name one kind")
    gpus = [name for name in asked if name != "cpu"]
    if len(set(gpus)) < len(gpus):
        raise ConfigError("devices: a GPU is named twice; name each once")
    return tuple(asked)


def devices_of_cluster(asked: Devices, there: Mapping[str, float]) -> tuple[str, int]:
    """Return Ray's name of the kind of devices, and their number; Ray chooses which ones. See also :func:`devices_of`.

    ``asked`` may also be ``["cuda"] * 4``; ``there`` holds the cluster's resources by Ray's names. Raises ConfigError
    if there are too few.
    """
    gpus = int(there.get("GPU", 0))
    if asked == "auto":
        kind, count = ("GPU", gpus) if gpus else ("CPU", int(there.get("CPU", 0)))
    elif isinstance(asked, int):
        kind, count = "CPU", asked
    elif not isinstance(asked, str) and set(asked) in ({"cpu"}, {"cuda"}):
        kind, count = ("GPU" if asked[0] == "cuda" else "CPU"), len(asked)
    else:
        raise ConfigError(
            f'devices={asked!r}: Ray chooses the devices of its cluster; give "auto", a number of CPU slots, or '
            '["cuda"] * 4'
        )
    has = int(there.get(kind, 0))
    if count < 1:
        raise ConfigError(f"devices={asked!r}: give at least one; the cluster has {has}")
    if count > has:
        what = "GPUs" if kind == "GPU" else "CPU slots"
        raise ConfigError(f"devices: {count} {what} requested, but the cluster has {has}: request fewer, or add nodes")
    return kind, count
