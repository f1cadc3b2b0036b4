"""A trial's states on disk: ``DIRECTORY/trials/00007/1-9.pt`` is trial 7 in its second life, trained to 9.

A file is whole or not there. It is left to the system when it reaches the disk: a killed process loses nothing, and
a machine that loses its power goes back to an older state.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from uneven.errors import CheckpointError

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class SavedTrial:
    """A file of a trial."""

    path: Path
    life: int
    t: float


def folder_of(directory: Path, trial: int) -> Path:
    """Where a trial's states lie."""
    return directory / "trials" / f"{trial:05d}"


def path_of(folder: Path, life: int, t: float) -> Path:
    """The file of a trial that has been trained to ``t`` in this life."""
    return folder / f"{life}-{t:.17g}.pt"


def saved_in(folder: Path) -> list[SavedTrial]:
    """What is there, the oldest first."""
    found = []
    for path in folder.glob("*.pt") if folder.is_dir() else ():
        life, _, t = path.stem.partition("-")
        try:
            found.append(SavedTrial(path, int(life), float(t)))
        except ValueError:
            continue  # somebody else's
    return sorted(found, key=lambda one: (one.life, one.t))


def newest(folder: Path, life: int, upto: float) -> SavedTrial | None:
    """The state of this life that has been trained most, but no further than was reported."""
    return max(
        (one for one in saved_in(folder) if one.life == life and one.t <= upto), key=lambda one: one.t, default=None
    )


def tidy(folder: Path, life: int, keep: Collection[float]) -> None:
    """Delete what nobody needs: older lives, and all of this one but the newest and those trained to ``keep``."""
    mine = saved_in(folder)
    for one in mine[:-1]:
        if one.life != life or one.t not in keep:
            one.path.unlink(missing_ok=True)


def adopt(source: Path, folder: Path, life: int, t: float) -> Path:
    """Let a state of another trial be this one's, without copying it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, life, t)
    if not path.exists():
        os.link(source, path)
    return path


def write(path: Path, state: dict[str, Any]) -> None:
    """Write a state at once or not at all.

    Raises:
        CheckpointError: it cannot be written.
    """
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"schema": SCHEMA, **state}, part)
        part.replace(path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror}") from error
    except (pickle.PicklingError, AttributeError) as error:
        raise CheckpointError(
            f"the state of a trial cannot be kept ({error}): what trial.keep(…) is given must have a state_dict of "
            f"tensors and plain data"
        ) from error


def read(path: Path) -> dict[str, Any]:
    """A state.

    Raises:
        CheckpointError: it cannot be read, or holds more than tensors and plain data.
    """
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds more than tensors and plain data, so it cannot be read safely ({error}): let state_dict or "
            f"save() return tensors, numbers, words, lists and dictionaries"
        ) from error
    if state.get("schema") != SCHEMA:
        raise CheckpointError(f"{path} has schema {state.get('schema')}, this version reads {SCHEMA}")
    return state
