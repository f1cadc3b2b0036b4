"""Train trials one after the other in one process, because a process takes long to start."""

import hashlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

import torch

from uneven.runtime.jobs.call import telling
from uneven.runtime.jobs.executor import ProcessLine
from uneven.runtime.states import seed_all
from uneven.search.data import DataHandle, DataReader
from uneven.search.search_messages import TrialPost
from uneven.search.trial import LeaveTrial, Trainable, Trial, TrialJob, drive

Train = Callable[[Trial], Any] | type[Trainable]


def seed_of(seed: int, trial: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} trial {trial}".encode()).digest()[:4])


def work(line: ProcessLine, train: bytes, handle: DataHandle | None = None) -> None:
    """Train the trials that arrive with the pickled function or class `train`.

    It starts with ``("ready", None)``. Messages in: ``("run", TrialJob)``, and answers ``("ruling", move, save)``,
    ``("value", value)`` and ``("refused", text)``. Out: those of a :class:`Trial`, ``("left", trial)``, ``("ended",
    trial, metrics, seconds)`` when its function has returned (metrics are None if it returned nothing), and
    ``("failed", trial, text)``, or ``("lost", trial, text)`` if it misses another process of its trial.
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
    # After an error the process ends, because the state that the user's code left behind is unknown.
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
    """Return Optuna's exception for a trial that prunes itself; the trial ends with the reports it has made."""
    # Only if the function has imported Optuna can it raise this, so the import is not needed here.
    return (sys.modules["optuna"].TrialPruned,) if "optuna" in sys.modules else ()
