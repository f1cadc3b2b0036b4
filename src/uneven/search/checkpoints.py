"""Keep trials' states on disk: ``DIRECTORY/trials/00007/1-9.pt`` is trial 7 in its second life, trained to 9.

Files are not synced to the disk, because trials write many.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from uneven.runtime.states import StateFiles

FILES = StateFiles(
    schema=1,
    remedy="let what trial.keep(…) is given have a state_dict, or save() return, tensors, numbers, words, lists and "
    "dictionaries only",
)


@dataclass(frozen=True, slots=True)
class SavedTrial:
    path: Path
    life: int
    t: float


def folder_of(directory: Path, trial: int) -> Path:
    return directory / "trials" / f"{trial:05d}"


def path_of(folder: Path, life: int, t: float) -> Path:
    # 17 digits write every float exactly, so that `t` in a file name equals the reported one.
    return folder / f"{life}-{t:.17g}.pt"


def saved_in(folder: Path) -> list[SavedTrial]:
    """Return the state files of a trial, oldest first."""
    found = []
    for path in folder.glob("*.pt") if folder.is_dir() else ():
        life, _, t = path.stem.partition("-")
        try:
            found.append(SavedTrial(path, int(life), float(t)))
        except ValueError:
            continue  # not a file of a search
    return sorted(found, key=lambda one: (one.life, one.t))


def newest(folder: Path, life: int, upto: float) -> SavedTrial | None:
    """Return the most trained state of this life, but not beyond the last report."""
    return max(
        (one for one in saved_in(folder) if one.life == life and one.t <= upto), key=lambda one: one.t, default=None
    )


def tidy(folder: Path, life: int, keep: Collection[float]) -> None:
    """Delete older lives, and all states of this life except the newest and those trained to ``keep``."""
    mine = saved_in(folder)
    # The newest state is always kept, because the trial may resume from it.
    for one in mine[:-1]:
        if one.life != life or one.t not in keep:
            one.path.unlink(missing_ok=True)


def adopt(source: Path, folder: Path, life: int, t: float) -> Path:
    """Link a state of another trial as this one's, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, life, t)
    if not path.exists():
        os.link(source, path)  # a state may be gigabytes, and none is changed after it is written
    return path
