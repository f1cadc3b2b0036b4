"""``uneven.fleet.train``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from uneven.fleet.engine.fleet_options import Options
from uneven.fleet.engine.fleet_run import code_in, run
from uneven.fleet.engine.fleet_view import live
from uneven.fleet.ensemble import Ensemble
from uneven.fleet.fleet_result import Result
from uneven.runtime.jobs.begun import DefaultFolder, folder_for
from uneven.runtime.jobs.devices import Devices

_DIRECTORY = DefaultFolder("runs/fleet")


def train(
    ensemble: Ensemble,
    *,
    devices: Devices = "auto",
    directory: str | Path = _DIRECTORY,
    options: Options | None = None,
    engine: str = "local",
    progress: bool = True,
) -> Result:
    """Train every member, several at a time, on shared data.

    It may be stopped at any moment, by Ctrl-C or by ``kill -9``; the same call continues at the end of the last pass
    over the data and trains no member twice. A member that fails does not hold up the others. No member is trained
    further with changed code.

    Args:
        ensemble: the members and their data.
        devices: "auto" for every GPU, or one CPU slot per core if there is none; a number of CPU slots; or names of
            devices. A member with several devices trains in as many processes. With Ray, ``["cuda"] * 4`` gives a kind
            and a number.
        directory: for checkpoints and ``state.json``; by default ``runs/fleet``, with a number appended if other code
            has finished a run there.
        options: buffer, planning and preprocessing; see :class:`~uneven.fleet.engine.fleet_options.Options`.
        engine: "local", or "ray" for the devices of a Ray cluster (extra ``ray``).
        progress: show the progress on the terminal.

    Returns:
        The table of members, their best weights, and the ensemble's predictions.

    Raises:
        ConfigError: devices, factories, data or options cannot be used; raised before training starts.
        UnknownNameError: the engine does not exist.
        TrainingError: every device was lost with its machine.
        DataError: the named sample cannot be read or transformed; what was trained before is kept.
        CheckpointError: the directory holds a run that was started with something else, or with other code.
    """
    where = folder_for(directory, "fleet", code_in(ensemble))
    with live(ensemble.metric.name) if progress else nullcontext(lambda moment: None) as show:
        state = run(ensemble, devices, where.absolute(), options or Options(), show, engine)
    return Result(ensemble, state, where)
