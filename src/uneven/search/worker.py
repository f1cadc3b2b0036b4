"""The process in which trials are trained, one after the other: a trial is a message, not a process."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

import torch

from uneven.jobs.call import telling
from uneven.jobs.place import ProcessLine
from uneven.search.data import DataHandle, DataReader
from uneven.search.post import TrialPost
from uneven.search.trial import LeaveTrial, Trainable, Trial, TrialJob, drive
from uneven.states import seed_all

Train = Callable[[Trial], Any] | type[Trainable]


def seed_of(seed: int, trial: int) -> int:
    """The seed of a trial, 0 … 2^32 − 1."""
    return int.from_bytes(hashlib.sha256(f"{seed} trial {trial}".encode()).digest()[:4])


def work(line: ProcessLine, train: bytes, handle: DataHandle | None = None) -> None:
    """Train whatever trials come.

    It begins with ``("ready", None)``. Messages in: ``("run", TrialJob)``, and answers ``("ruling", move, save)``,
    ``("value", value)`` and ``("refused", text)``. Out: what a :class:`Trial` says, ``("left", trial)``, ``("ended",
    trial, metrics, seconds)`` when its function has returned, where metrics are None if it returned nothing, and
    ``("failed", trial, text)``, or ``("lost", trial, text)`` of one that misses another process of its trial, after
    which the process ends, since nobody knows what the user's code has left behind.

    Args:
        train: the function or class, pickled.
        handle: the data that trials read.
    """
    torch.set_num_threads(1)
    function: Train = pickle.loads(train)  # noqa: S301  # it comes from the process that started this one
    post = TrialPost(line)
    post.send(("ready", None))
    data = handle.open(line, post) if handle is not None else None
    while True:
        _run(post, function, post.begin(), data)


def _run(post: TrialPost, function: Train, job: TrialJob, data: DataReader | None) -> None:
    seed_all(job.seed)
    with telling(
        lambda text: post.send(("failed", job.number, text)), lambda text: post.send(("lost", job.number, text))
    ):
        if job.device.startswith("cuda"):
            torch.cuda.set_device(job.device)
        trial = Trial(post, job, data)
        try:
            if isinstance(function, type):
                drive(function, trial)
            found = trial.returned(function(trial) if not isinstance(function, type) else None)
        except LeaveTrial:
            trial.leave()
            post.send(("left", job.number))
            return
        except pruned():
            found = {}, 0.0
        trial.leave()
    post.send(("ended", job.number, *found))


def pruned() -> tuple[type[BaseException], ...]:
    """What a function raises by its own decision, as Optuna has it: the trial ends with what it has reported."""
    return (sys.modules["optuna"].TrialPruned,) if "optuna" in sys.modules else ()
