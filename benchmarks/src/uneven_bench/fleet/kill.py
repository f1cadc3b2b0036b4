"""``uneven bench fleet-kill``: trainings of an ensemble with a kill at a random moment.

In turn the run, a member's process and a preprocessor get ``kill -9``. The same command then runs again until it ends
well. The judge checks that every member took all of its epochs, and not one step more (the optimizers count them). As a
program, this module is the training that is killed.
"""

import os
import random
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from uneven.errors import TrainingError
from uneven.fleet.engine.fleet_options import Options, RunSnapshot
from uneven.fleet.engine.fleet_run import run as train
from uneven.fleet.engine.fleet_state import RunState, folders, load
from uneven.fleet.member import member_checkpoint
from uneven_bench.fleet.cases import BATCH, ensemble
from uneven_bench.harness.killed import MOST_STARTS, begun, strike, until_it_ends
from uneven_bench.harness.show import Progress

KINDS = ("run", "member", "preprocessor")
DEVICES = 3
RATES = {"tiny": [1000.0], "middle": [500.0, 1000.0], "large": [300.0, 600.0]}
"""Rates as if measured: "tiny" on one slot and "middle" on two keep pace, "large" comes after them."""


def run(quick: bool, data: str, progress: Progress) -> dict[str, Any]:
    """Kill ten times; with ``quick``, three times. Result: ``undisturbed_s``, and ``kills``: for each the ``kind``, the
    moment ``at_s`` (seconds after the training began), ``starts``, ``trained`` (every member, for all epochs),
    ``steps_too_many``, and ``same`` (bit-identical to the undisturbed training; a member set back by a pass sees other
    orders, so it may differ). ``all_finished``: trainings with no step too many. Raises TrainingError: a training that
    was not disturbed failed."""
    return measure(data, progress, kills=3 if quick else 10, samples=600, epochs=3, seed=int(time.time()))


def measure(data: str, progress: Progress, *, kills: int, samples: int, epochs: int, seed: int) -> dict[str, Any]:
    """See :func:`run`, with every size given."""
    draw = random.Random(seed)
    sizes = (data, samples, epochs)
    program, undisturbed, found = "uneven_bench.fleet.kill", ("nothing", 0.0, 0), []
    with tempfile.TemporaryDirectory(prefix="uneven-fleet-") as folder:
        progress("killing", "an undisturbed training", 0.0)
        whole = Path(folder) / "whole"
        until_it_ends(program, whole, *sizes, *undisturbed, starts=MOST_STARTS - 1)
        state = _state(whole, sizes)
        for number in range(kills):
            kind, at_s = KINDS[number % len(KINDS)], draw.uniform(0.0, state.wall_s)
            progress("killing", f"{kind}, after {at_s:.1f} s", (number + 1) / (kills + 1))
            directory = Path(folder) / f"{number}"
            one: dict[str, Any] = {"kind": kind, "at_s": at_s, "starts": 1}
            with begun(program, directory, *sizes, kind, at_s, draw.randrange(2**31)) as child:
                child.communicate()
            try:
                if child.returncode:
                    one["starts"] = until_it_ends(program, directory, *sizes, *undisturbed, starts=1)
                found.append(one | _judged(directory, whole, sizes))
            except TrainingError as error:
                found.append(one | _judged(directory, whole, sizes) | {"trained": False, "said": str(error)})
        progress("killing", "done", 1.0)
    good = sum(one["trained"] and not one["steps_too_many"] for one in found)
    return {"undisturbed_s": state.wall_s, "seed": seed, "kills": found, "all_finished": f"{good} of {kills}"}


def _state(directory: Path, sizes: tuple[str, int, int]) -> RunState:
    data, samples, epochs = sizes
    asked = ensemble(data, "preprocessing-light", tuple(RATES), samples=samples, epochs=epochs)
    return load(directory, {"members": list(asked.members)})


def _judged(directory: Path, whole: Path, sizes: tuple[str, int, int]) -> dict[str, Any]:
    state, (_, samples, epochs) = _state(directory, sizes), sizes
    steps = epochs * -(-samples // BATCH)
    newest = {name: _newest(directory, state, name) for name in RATES}
    taken = {name: _steps(saved) for name, saved in newest.items()}
    trained = all(one.status == "trained" and len(one.epochs) == epochs for one in state.members.values())
    return {
        "trained": trained and all(taken[name] >= steps for name in RATES),
        "steps_too_many": sum(max(0, count - steps) for count in taken.values()),
        "same": all(_equal(saved, _newest(whole, state, name)) for name, saved in newest.items()),
    }


def _newest(directory: Path, state: RunState, name: str) -> dict[str, Any]:
    found = sorted(folders(directory, list(state.members))[name].glob("*.pt"))
    return member_checkpoint.FILES.read(found[-1]) if found else {}


def _steps(saved: dict[str, Any]) -> int:
    return int(saved["optimizer"]["state"][0]["step"]) if saved else 0


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if not one or not other:
        return False
    return all(torch.equal(one["model"][key], value) for key, value in other["model"].items())


def main(directory: str, data: str, samples: str, epochs: str, kind: str, at_s: str, seed: str) -> None:
    asked = ensemble(data, "preprocessing-light", tuple(RATES), samples=int(samples), epochs=int(epochs))
    options = Options(rates=RATES, balance="even", buffer=512, chunk=64, preprocessors=2)
    newest, draw = deque[RunSnapshot](maxlen=1), random.Random(int(seed))

    def kill() -> None:
        time.sleep(float(at_s))
        while not strike(_pids(kind, newest[-1].processes if newest else {}), draw):
            time.sleep(0.1)  # no process yet, or it has just ended

    if kind != "nothing":
        threading.Thread(target=kill, daemon=True).start()
    state = train(asked, DEVICES, Path(directory), options, newest.append)
    sys.exit(any(one.status != "trained" for one in state.members.values()))


def _pids(kind: str, processes: Mapping[str, Sequence[int]]) -> list[int]:
    """Return the processes of this kind. ``processes``: member → its processes; those of "" prepare samples."""
    if kind == "run":
        return [os.getpid()]
    return [pid for name, pids in processes.items() for pid in pids if bool(name) == (kind == "member")]


if __name__ == "__main__":
    main(*sys.argv[1:])
