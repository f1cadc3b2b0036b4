"""One pipeline per member: each slot trains one member with torch's data loader, without sharing.

Also as trials of Ray Tune: a core and a pipeline each, one per slot at a time. Every trial runs to its end, so Tune's
choice of trials is not used. The next trial reuses its processes, and Ray starts before the clock.
"""

import resource
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from uneven.errors import TrainingError
from uneven.fleet import Ensemble, Member
from uneven.runtime.jobs.call import starter
from uneven_bench.harness.ray_rival import ray_cluster, ray_fit

# A loader's processes as in a plain script: a fork starts in no time.
FORKED: dict[str, Any] = {"persistent_workers": True, "multiprocessing_context": "fork"}


class Prepared(Dataset[Any]):
    """A data set with a transform of each sample."""

    def __init__(self, data: Any, transform: Callable[[Any], Any] | None) -> None:
        self._data = data
        self._transform = transform

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        sample = self._data[index]
        return sample if self._transform is None else self._transform(sample)


def train_member(ensemble: Ensemble, name: str) -> dict[str, float]:
    """Train one member with its own loader process. Result: ``accuracy``, ``waited_s`` (for data), ``took_s``, and
    ``cpu_s``, the processor time of the loader."""
    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    accuracy, waited_s, took_s = _with_loader(ensemble, name)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"accuracy": accuracy, "waited_s": waited_s, "took_s": took_s, "cpu_s": cpu_s}


def _with_loader(ensemble: Ensemble, name: str) -> tuple[float, float, float]:
    torch.manual_seed(ensemble.seed)
    member = ensemble.members[name]()
    train = Prepared(ensemble.dataset, ensemble.transform)
    loader = DataLoader(train, member.batch_size, shuffle=True, num_workers=1, **FORKED)
    return fit(ensemble, member, loader)


def fit(ensemble: Ensemble, member: Member, batches: Iterable[Any]) -> tuple[float, float, float]:
    """Train a member for all its epochs, with the loop that all methods share. ``batches``: yields one epoch of batches
    (inputs, target) at each iteration over it. Returns the accuracy after the last epoch, seconds of waiting for
    batches, and seconds in all."""
    validation = DataLoader(ensemble.validate, member.batch_size)
    worth, waited_s, began_s = 0.0, 0.0, time.perf_counter()
    for _ in range(ensemble.max_epochs):
        member.model.train()
        epoch = iter(batches)
        while True:
            asked_s = time.perf_counter()
            batch = next(epoch, None)
            waited_s += time.perf_counter() - asked_s
            if batch is None:
                break
            *inputs, target = batch
            member.loss(member.model(*inputs), target).backward()
            member.optimizer.step()
            member.optimizer.zero_grad()
        member.model.eval()
        with torch.no_grad():
            right = sum(int((member.model(x).argmax(1) == y).sum()) for x, y in validation)
        worth = right / len(ensemble.validate)
    return worth, waited_s, time.perf_counter() - began_s


_held: list[Ensemble] = []  # of a process of the pool, so that no member sends the data


def _hold(ensemble: Ensemble) -> None:
    _held.append(ensemble)


def _train_held(name: str) -> dict[str, float]:
    return train_member(_held[0], name)


def baseline(ensemble: Ensemble, slots: int) -> dict[str, Any]:
    """Train every member, one in each free slot, and return the figures of ``uneven bench fleet``. Raises
    TrainingError: a process died."""
    began_s = time.perf_counter()
    with ProcessPoolExecutor(slots, mp_context=starter(), initializer=_hold, initargs=(ensemble,)) as pool:
        try:
            told = dict(zip(ensemble.members, pool.map(_train_held, ensemble.members), strict=True))
        except BrokenProcessPool as error:
            raise TrainingError(f"one pipeline per member: {error}") from error
        wall_s = time.perf_counter() - began_s
    return alone(wall_s, told)


def alone(wall_s: float, told: Mapping[str, Mapping[str, float]], **more: float) -> dict[str, Any]:
    """Return the figures of members that :func:`train_member` has trained; ``told``: member → its result."""
    return figures(
        wall_s,
        {name: one["accuracy"] for name, one in told.items()},
        preprocess_cpu_s=sum(one["cpu_s"] for one in told.values()),
        wait_share=sum(one["waited_s"] for one in told.values()) / sum(one["took_s"] for one in told.values()),
        rounds=len(told),
        **more,
    )


def figures(wall_s: float, accuracy: dict[str, float], **more: float) -> dict[str, Any]:
    """Return the figures of a training: those of a method that neither shares, plans nor saves, and ``more``."""
    none = {"checkpoint_share": 0.0, "scheduling_share": 0.0, "sharing": 1.0}
    return {"wall_s": wall_s, **none, **more, "accuracy": accuracy}


def trial(config: dict[str, Any], ensemble: Ensemble) -> dict[str, float]:
    """Train the member of this name in a process of Ray, and return the figures for Tune."""
    return train_member(ensemble, config["member"])


def ray_tune(ensemble: Ensemble, slots: int) -> dict[str, Any]:
    """Train every member as a trial, and return the figures of ``uneven bench fleet`` and ``started_s``, the start of
    Ray. Raises TrainingError: a trial failed."""
    from ray import tune

    began_s = time.perf_counter()
    with ray_cluster(slots):
        started_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        trainable = tune.with_parameters(trial, ensemble=ensemble)
        found = ray_fit(trainable, {"member": tune.grid_search(list(ensemble.members))})
        wall_s = time.perf_counter() - began_s
        if found.errors:
            raise TrainingError(f"Ray Tune: {found.errors[0]}")
        told = [found[place].metrics or {} for place in range(len(found))]
    return alone(wall_s, {one["config"]["member"]: one for one in told}, started_s=started_s)
