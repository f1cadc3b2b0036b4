"""What is kept of a member: enough to go on bit for bit, and readable with ``torch.load(weights_only=True)``."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from uneven.errors import CheckpointError
from uneven.fleet.ensemble import Member

SCHEMA = 1


def random_state() -> dict[str, Any]:
    """The state of Python's, NumPy's and torch's random numbers in this process, as plain data and tensors."""
    kind, keys, place, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [str(kind), torch.tensor(np.asarray(keys, dtype=np.int64)), int(place), int(has_gauss), float(gauss)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Go on with the random numbers where :func:`random_state` was taken."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def capture(
    name: str, member: Member, epochs: int, history: list[dict[str, Any]], states: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The state of a member after ``epochs`` epochs.

    Args:
        states: the random state of each of its workers; by default of this process alone.
    """
    states = states or [random_state()]
    return {
        "schema": SCHEMA,
        "name": name,
        "epochs": epochs,
        "history": history,
        "model": member.model.state_dict(),
        "optimizer": member.optimizer.state_dict(),
        "scheduler": member.scheduler.state_dict() if member.scheduler is not None else None,
        "random": states[0],
        "others": states[1:],
    }


def restore(saved: dict[str, Any], name: str, member: Member, rank: int = 0) -> None:
    """Bring a member, newly made by its factory, to where it was.

    Args:
        rank: of this worker of the member. One that was not there before keeps its random state.

    Raises:
        CheckpointError: the factory makes another model, optimizer or scheduler than the one that was saved.
    """
    try:
        member.model.load_state_dict(saved["model"])
        member.optimizer.load_state_dict(saved["optimizer"])
        if (member.scheduler is None) != (saved["scheduler"] is None):
            raise CheckpointError(
                f"member {name!r}: the scheduler was there before or is there now, but not both: let the factory make "
                f"what it made when the training began, or name another directory"
            )
        if member.scheduler is not None:
            member.scheduler.load_state_dict(saved["scheduler"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"member {name!r}: its checkpoint does not fit what its factory makes ({error}): let the factory make what "
            f"it made when the training began, or name another directory"
        ) from error
    states = [saved["random"], *saved.get("others", ())]
    if rank < len(states):
        set_random_state(states[rank])


def write(path: Path, saved: dict[str, Any], *, verify: bool = False) -> None:
    """Write the file at once or not at all.

    Args:
        verify: read it back, as a later start will.

    Raises:
        CheckpointError: it cannot be written, or could not be read again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            torch.save(saved, file)
            file.flush()
            os.fsync(file.fileno())
        if verify:
            read(part)
        part.replace(path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror}") from error


def read(path: Path, device: str = "cpu") -> dict[str, Any]:
    """A member's state.

    Raises:
        CheckpointError: it cannot be read, or holds more than tensors and plain data.
    """
    try:
        saved: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds more than tensors and plain data, so that it cannot be read safely: a state_dict of the "
            f"member's model, optimizer or scheduler returns such an object ({error})"
        ) from error
    if saved.get("schema") != SCHEMA:
        raise CheckpointError(f"{path} has schema {saved.get('schema')}, this version reads {SCHEMA}")
    return saved
