"""One pipeline per member: each slot trains one member with torch's data loader, without sharing."""

import pickle
import resource
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from uneven.errors import TrainingError
from uneven.fleet import Ensemble, Member
from uneven.runtime.jobs import Events
from uneven.runtime.jobs.call import Child, telling


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


def one_by_one(connection: Connection, ensemble: Ensemble) -> None:
    """Train the named members in turn, with one loader process each. Messages: ``("done", name, accuracy, waited
    seconds, seconds)``; at the end, ``("cpu", seconds)`` of the loaders."""
    torch.set_num_threads(1)
    while (name := connection.recv()) is not None:
        with telling(lambda text: connection.send(("failed", text))):
            connection.send(("done", name, *train_member(ensemble, name)))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    connection.send(("cpu", used.ru_utime + used.ru_stime))
    connection.poll(None)


def train_member(ensemble: Ensemble, name: str) -> tuple[float, float, float]:
    """Train one member with its own loader process; return accuracy, seconds of waiting for data, and seconds."""
    torch.manual_seed(ensemble.seed)
    member = ensemble.members[name]()
    train = Prepared(ensemble.dataset, ensemble.transform)
    loader = DataLoader(
        train,
        member.batch_size,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",  # as in a plain script: a fork starts in no time
    )
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


def baseline(ensemble: Ensemble, slots: int) -> dict[str, Any]:
    """Train every member, one in each free slot, and return the figures of ``uneven bench fleet``. Raises
    TrainingError: a member failed."""
    pickle.dumps(ensemble)  # raise here if it cannot be sent
    began_s = time.perf_counter()
    events, queue = Events(), list(ensemble.members)
    accuracy: dict[str, float] = {}
    cpu_s, waited_s, busy_s, failed = [0.0], [0.0], [0.0], []

    def heard(child: Child, message: tuple[Any, ...]) -> None:
        if message[0] == "failed":
            failed.append(message[1])
        elif message[0] == "cpu":
            cpu_s.append(message[1])
        else:
            _, name, accuracy[name], waited, took = message
            waited_s.append(waited)
            busy_s.append(took)
            child.send(queue.pop(0) if queue else None)

    def died(child: Child) -> None:
        failed.append(f"a process died ({child.ending})")

    children = [
        Child(events, f"slot {number}", one_by_one, (ensemble,), heard=heard, ended=died) for number in range(slots)
    ]
    try:
        for child in children:
            child.send(queue.pop(0) if queue else None)
        while len(cpu_s) <= slots and not failed:
            events.wait(1.0)
        wall_s = time.perf_counter() - began_s
    finally:
        for child in children:
            child.end()
        events.close()
    if failed:
        raise TrainingError(f"one pipeline per member: {failed[0]}")
    wait_share = sum(waited_s) / sum(busy_s)
    return figures(wall_s, accuracy, preprocess_cpu_s=sum(cpu_s), wait_share=wait_share, rounds=len(ensemble.members))


def figures(wall_s: float, accuracy: dict[str, float], **more: float) -> dict[str, Any]:
    """Return the figures of a training: those of a method that neither shares, plans nor saves, and ``more``."""
    none = {"checkpoint_share": 0.0, "scheduling_share": 0.0, "sharing": 1.0}
    return {"wall_s": wall_s, **none, **more, "accuracy": accuracy}
