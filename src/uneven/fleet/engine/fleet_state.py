"""Keep the state of a run in one small file, which is replaced as a whole at the end of an epoch.

::

    DIRECTORY/state.json              which members are trained or wait, and the number of finished passes
    DIRECTORY/members/00-NAME/00007.pt    a member after seven epochs; the newest and the best are kept
    DIRECTORY/lock                    held by the run that uses this directory

A member's file is written before the state that names it, and deleted after the state that no longer does. So after a
kill at any moment, the state names only complete files, and all its members are at the same pass.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from uneven.errors import CheckpointError, ConfigError, access, reason
from uneven.fleet.pure.converge import Epoch, History
from uneven.fleet.pure.planning.rates import Rates
from uneven.policy.core.plain import Amount, Count, Misfit, Range, read
from uneven.runtime.system import lock

SCHEMA = 1
STATE = "state.json"
Devices = Annotated[int, Range(1, 2**20)]

MOST_DEATHS = 3  # deaths of its process within one epoch or profile after which a member has failed

_HINTS = {
    "SIGSEGV": "; perhaps it writes into its batch, which is shared and read-only: let it clone first",
    "SIGKILL": "; perhaps memory ran out: see the system's log",
}


@dataclass(slots=True)
class MemberState:
    """The progress of one member."""

    # "waiting" (not trained, or not to the end), "trained" or "failed"
    status: Literal["waiting", "trained", "failed"] = "waiting"
    why: str = ""  # the reason for its end, in words
    epochs: list[Epoch] = field(default_factory=list)
    device_s: Amount = 0.0  # seconds times devices, from its starts to its stops
    deaths: Count = 0  # number of times that its process was killed since its last finished epoch
    note: str = ""  # a remark, such as why it is not trained on more devices

    def history(self, higher_is_better: bool) -> History:
        """Return its epochs for the convergence rule."""
        return History(tuple(self.epochs), higher_is_better)

    def died(self, how: str, during: str) -> str:
        """Count a death of its process. Return the reason to give up if there were too many, otherwise ""."""
        self.deaths += 1
        if self.deaths < MOST_DEATHS:
            return ""
        self.deaths = 0
        return f"its process died {MOST_DEATHS} times in {during} ({how}){_HINTS.get(how, '')}"


@dataclass(slots=True)
class RunState:
    """All of ``state.json``."""

    asked: dict[str, Any]  # what the run was started with; a later start must ask for the same
    passes: Count = 0  # finished passes over the data
    rates: dict[str, list[Amount]] = field(default_factory=dict)  # member → samples/s on 1, 2, … devices
    members: dict[str, MemberState] = field(default_factory=dict)  # in the order of the ensemble
    running: dict[str, Devices] = field(default_factory=dict)  # members in the middle of a round → devices
    # each flotilla's first pass, and member → devices
    plan: list[tuple[Count, dict[str, Devices]]] = field(default_factory=list)
    wall_s: Amount = 0.0  # seconds of all starts together
    preprocess_cpu_s: Amount = 0.0  # processor time of the preprocessors
    prepared: Count = 0  # samples that they made
    scheduling_s: Amount = 0.0  # seconds of planning
    # member → samples/s on a CPU slot, from a brief profile; filled if members take turns
    alone: dict[str, Annotated[float, Range(1e-9)]] = field(default_factory=dict)
    member_bytes: Count = 0  # memory of the largest member's process in that profile


def folders(directory: Path, names: list[str]) -> dict[str, Path]:
    """Return each member's checkpoint folder."""
    # The number keeps names apart that are equal after the replacement.
    safe = [re.sub(r"[^\w.-]+", "_", name)[:60] for name in names]
    return {name: directory / "members" / f"{i:02d}-{safe[i]}" for i, name in enumerate(names)}


def load(directory: Path, asked: dict[str, Any]) -> RunState:
    """Return the state of the run in this directory, or a new one.

    Raises `CheckpointError` if it cannot be read, or if the run was started with something else.
    """
    path = directory / STATE
    if not path.exists():
        return RunState(asked, members={name: MemberState() for name in asked["members"]})
    try:
        saved = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {reason(error)}") from error
    if not isinstance(saved, dict) or saved.get("schema") != SCHEMA:
        raise CheckpointError(f"{path} was written by another version of uneven: name another directory")
    try:
        state = read(RunState, saved)
        different = [key for key in asked if state.asked.get(key) != asked[key]]
        if different:
            key = different[0]
            raise CheckpointError(
                f"{directory} holds a run with {key} = {state.asked.get(key)}, but {asked[key]} was given: give "
                "the value of the first call, or name another directory"
            )
        _consistent(state)
    except (Misfit, ConfigError) as error:
        raise CheckpointError(
            f"{path} is damaged: {error}; restore a copy of it, or name another directory to start again"
        ) from error
    state.asked = asked
    return state


def _consistent(state: RunState) -> None:
    """Check that the state names only members of the run. Raises `Misfit` or `ConfigError` if it does not."""
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
    """Replace the state. Raises `CheckpointError` if it cannot be written."""
    path = directory / STATE
    part = path.with_suffix(".part")
    with access(f"write {path}", CheckpointError):
        with part.open("w", encoding="utf-8") as file:
            json.dump({"schema": SCHEMA, **asdict(state)}, file)
            file.flush()
            os.fsync(file.fileno())  # before the rename, or a power loss could leave an empty file
        part.replace(path)


def tidy(folder: Path, keep: set[int]) -> None:
    """Delete a member's checkpoints except these epochs', and partly written files."""
    for path in folder.glob("*.pt") if folder.is_dir() else ():
        if int(path.stem) not in keep:
            path.unlink()
    for path in folder.glob("*.part") if folder.is_dir() else ():
        path.unlink()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock. Raises `ConfigError` if another run holds it or the directory cannot be made."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / "lock").open("a")
    except OSError as error:
        raise ConfigError(f"cannot use {directory} for a run: {reason(error)}") from error
    with file:
        try:
            # The kernel releases the lock when the process ends, even by SIGKILL, so no stale lock remains.
            lock(file)
        except BlockingIOError:
            raise ConfigError(f"another run uses {directory}: wait until it ends, or name another directory") from None
        yield
