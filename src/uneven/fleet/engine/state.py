"""What a run knows at the end of an epoch: one small file, written at once or not at all.

::

    DIRECTORY/state.json              who is trained, who waits, how many passes over the data are behind
    DIRECTORY/members/00-NAME/00007.pt    a member after seven epochs; the newest and the best are kept
    DIRECTORY/lock                    held by the run that goes on here

A member's file is written before the state that names it, and deleted after the state that no longer does. So whatever
is killed at whatever moment, the state names files that are whole, and all members of it stand at the same pass.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from uneven.core.plain import Amount, Count, Misfit, Range, read
from uneven.errors import CheckpointError, ConfigError, reason
from uneven.fleet.member.converge import Epoch, History
from uneven.fleet.planning.rates import Rates

SCHEMA = 1
STATE = "state.json"
Devices = Annotated[int, Range(1, 2**20)]

MOST_DEATHS = 3
"""A member whose process was killed so often within one epoch, or in its profile, has failed."""

_HINTS = {
    "SIGSEGV": "; perhaps it writes into its batch, which is shared and read-only: let it clone first",
    "SIGKILL": "; perhaps memory ran out, which the system's log tells",
}


@dataclass(slots=True)
class MemberState:
    """What is known of a member.

    Attributes:
        status: "waiting" (to be trained, or trained in part), "trained" or "failed".
        why: what ended it, in words.
        epochs: all of its epochs.
        device_s: seconds times devices, from when it was started to when it was stopped.
        deaths: how often its process was killed since its last finished epoch.
        note: what else is to be known of it: why it is not trained on more devices.
    """

    status: Literal["waiting", "trained", "failed"] = "waiting"
    why: str = ""
    epochs: list[Epoch] = field(default_factory=list)
    device_s: Amount = 0.0
    deaths: Count = 0
    note: str = ""

    def history(self, higher_is_better: bool) -> History:
        """For the rule of convergence."""
        return History(tuple(self.epochs), higher_is_better)

    def died(self, how: str, during: str) -> str:
        """Count that its process died; why it is not tried again, if that was too often."""
        self.deaths += 1
        if self.deaths < MOST_DEATHS:
            return ""
        self.deaths = 0
        return f"its process died {MOST_DEATHS} times in {during} ({how}){_HINTS.get(how, '')}"


@dataclass(slots=True)
class RunState:
    """All of ``state.json``.

    Attributes:
        asked: what the run was asked for; a later start must ask for the same.
        passes: passes over the data that are behind.
        rates: member → samples/s on 1, 2, … devices.
        alone: member → samples/s on a CPU slot, from a short look; where members take turns.
        member_bytes: memory of the largest member's process in that look.
        members: in the order of the ensemble.
        running: who is in the middle of a round → devices.
        plan: every flotilla: first pass, and member → devices.
        wall_s: seconds of all starts together.
        preprocess_cpu_s: processor time of the preprocessors.
        prepared: samples that they made.
        scheduling_s: seconds of planning.
    """

    asked: dict[str, Any]
    passes: Count = 0
    rates: dict[str, list[Amount]] = field(default_factory=dict)
    members: dict[str, MemberState] = field(default_factory=dict)
    running: dict[str, Devices] = field(default_factory=dict)
    plan: list[tuple[Count, dict[str, Devices]]] = field(default_factory=list)
    wall_s: Amount = 0.0
    preprocess_cpu_s: Amount = 0.0
    prepared: Count = 0
    scheduling_s: Amount = 0.0
    alone: dict[str, Annotated[float, Range(1e-9)]] = field(default_factory=dict)
    member_bytes: Count = 0


def folders(directory: Path, names: list[str]) -> dict[str, Path]:
    """Where each member's checkpoints lie; names that no file system holds are made to fit."""
    safe = [re.sub(r"[^\w.-]+", "_", name)[:60] for name in names]
    return {name: directory / "members" / f"{i:02d}-{safe[i]}" for i, name in enumerate(names)}


def load(directory: Path, asked: dict[str, Any]) -> RunState:
    """The state of a run that was begun here, or a new one.

    Raises:
        CheckpointError: it cannot be read, or belongs to a run that was asked for something else.
    """
    path = directory / STATE
    if not path.exists():
        return RunState(asked, members={name: MemberState() for name in asked["members"]})
    try:
        saved = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {reason(error)}") from error
    if not isinstance(saved, dict) or saved.get("schema") != SCHEMA:
        raise CheckpointError(f"{path} was written by another version: name another directory")
    try:
        state = read(RunState, saved)
        different = [key for key in asked if state.asked.get(key) != asked[key]]
        if different:
            key = different[0]
            raise CheckpointError(
                f"{directory} holds a run with {key} = {state.asked.get(key)}, this one has {asked[key]}: go on with "
                f"what the run was begun with, or name another directory"
            )
        _consistent(state)
    except (Misfit, ConfigError) as error:
        raise CheckpointError(
            f"{path} is damaged: {error}; put back a copy of it, or name another directory to begin anew"
        ) from error
    state.asked = asked
    return state


def _consistent(state: RunState) -> None:
    """See that what is said of members is said of those of the run.

    Raises:
        Misfit: it is not.
        ConfigError: rates that no member can have.
    """
    names = state.asked["members"]
    if list(state.members) != names:
        raise Misfit(list(state.members), f"the members {names}", "members")
    named: dict[str, Iterable[str]] = {"running": state.running, "rates": state.rates, "alone": state.alone}
    named |= {f"plan[{place}]": devices for place, (_, devices) in enumerate(state.plan)}
    for path, said in named.items():
        if strangers := [name for name in said if name not in state.members]:
            raise Misfit(strangers[0], f"one of {names}", path)
    for name, member in state.members.items():
        if member.status == "trained" and not member.epochs:
            raise Misfit([], "epochs of a member that is trained", f"members.{name}.epochs")
    if state.rates:
        Rates(state.rates)


def save(directory: Path, state: RunState) -> None:
    """Replace the state.

    Raises:
        CheckpointError: it cannot be written.
    """
    path = directory / STATE
    part = path.with_suffix(".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump({"schema": SCHEMA, **asdict(state)}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {reason(error)}") from error


def tidy(folder: Path, keep: set[int]) -> None:
    """Delete a member's checkpoints but those of these epochs, and what was left half written."""
    for path in folder.glob("*.pt") if folder.is_dir() else ():
        if int(path.stem) not in keep:
            path.unlink()
    for path in folder.glob("*.part") if folder.is_dir() else ():
        path.unlink()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep a second run out. The kernel gives the lock back when this process ends, however it does.

    Raises:
        ConfigError: a run goes on here, or the directory cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / "lock").open("a")
    except OSError as error:
        raise ConfigError(f"cannot use {directory} for a run: {reason(error)}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another run goes on in {directory}: wait for its end, or name another directory"
            ) from None
        yield
