"""Training state in files of tensors and plain data, and the state of random number generators."""

import os
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from uneven.errors import CheckpointError, reason


def seed_all(seed: int) -> None:
    """Seed the random number generators of Python, NumPy and torch in this process; ``seed`` is 0 … 2^32 − 1."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """Return the state of the random number generators of this process, as plain data and tensors."""
    kind, keys, place, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [str(kind), torch.tensor(np.asarray(keys, dtype=np.int64)), int(place), int(has_gauss), float(gauss)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the result of :func:`random_state`."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def save_whole(path: Path, state: Any, *, durable: bool = False, check: Callable[[Path], object] | None = None) -> None:
    """Write ``state`` with ``torch.save``, and make its folders; the file is complete or absent.

    Args:
        durable: wait until it is on the disk. Without it, a killed process loses nothing, but a machine that loses
            power goes back to an older file.
        check: reads the new file before it replaces an older one.

    Raises:
        CheckpointError: it cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            torch.save(state, file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if check is not None:
            check(part)
        part.replace(path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {reason(error)}") from error


@dataclass(frozen=True, slots=True)
class StateFiles:
    """Files of one kind. Each is complete or absent, and is read with ``torch.load(weights_only=True)``."""

    schema: int  # the version that this library writes, under that key
    remedy: str  # what to change if a state holds more than tensors and plain data

    def write(self, path: Path, state: dict[str, Any], *, durable: bool = False, verify: bool = False) -> None:
        """Write a file, as :func:`save_whole`; with ``verify``, read it again, as a later start will."""
        try:
            whole = {"schema": self.schema, **state}
            save_whole(path, whole, durable=durable, check=self.read if verify else None)
        except (pickle.PicklingError, AttributeError) as error:
            raise CheckpointError(f"{path} cannot be written ({error}): {self.remedy}") from error

    def read(self, path: Path) -> dict[str, Any]:
        """Return a file's content. Raises CheckpointError if unreadable, or not only tensors and plain data."""
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        except (OSError, RuntimeError, EOFError) as error:
            raise CheckpointError(f"cannot read {path}: {reason(error)}") from error
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{path} has more than tensors and plain data, so it cannot be read safely ({error}): {self.remedy}"
            ) from error
        if state.get("schema") != self.schema:
            raise CheckpointError(
                f"{path} has schema {state.get('schema')}, this version reads {self.schema}: use the former version"
            )
        return state
