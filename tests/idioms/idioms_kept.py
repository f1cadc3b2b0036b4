"""Batches that are used again or late, second loops, and second loaders."""

from __future__ import annotations

import itertools
import queue
import random
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from idiom_base import (
    CLASSES,
    EPOCHS,
    STEPS,
    Agrees,
    Differs,
    Either,
    Refused,
    Unfit,
    X,
    apart,
    at_own_pace,
    idiom,
    mlp,
    sgd,
    started,
    step,
    tensors,
)
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, DistributedSampler, StackDataset, TensorDataset

LOOPS = "Reused batches and second loops"


class Told:
    """Keeps an error as text."""

    error = ""

    def __enter__(self) -> Told:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self.error = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else ""
        return bool(self.error)


def read_ahead(loader: Any) -> Iterator[Any]:
    """As a background generator (``prefetch_generator``): a thread reads, at most two batches ahead."""
    ready: queue.Queue[Any] = queue.Queue(maxsize=2)

    def read() -> None:
        with Told() as told:
            for batch in loader:
                ready.put(batch)
        ready.put(told.error or None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    while isinstance(batch := ready.get(), list | tuple):
        yield batch
    reader.join()
    if batch is not None:
        raise RuntimeError(batch)


@idiom("a thread that prefetches from the loader (`prefetch_generator`, `BackgroundGenerator`)", LOOPS,
       by=dict.fromkeys(("bsp moving", "local", "shadow:ma", "asp"), Refused("one thread reads")))  # fmt: skip
def read_by_thread(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in read_ahead(loader):
            step(model, optimizer, x, y)
    return model


AGAIN = {"local": Refused("reused batch"), "asp": Refused("reused batch"), "shadow:ma": Agrees("at its own pace")}
"""Where exchanges parameters when the next batch is requested, an earlier one has been exchanged already."""


@idiom("`list(loader)` once, used for several epochs", LOOPS, whole=False, by=AGAIN)
def listed_once(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    batches = list(loader)
    for _ in range(3):
        for x, y in batches:
            step(model, optimizer, x, y)
    return model


@idiom("`list(loader)`, shuffled in each epoch", LOOPS, whole=False, by=AGAIN)
def listed_and_shuffled(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    batches = list(loader)
    for epoch in range(3):
        random.Random(epoch).shuffle(batches)
        for x, y in batches:
            step(model, optimizer, x, y)
    return model


@idiom("`itertools.cycle(loader)`", LOOPS, whole=False, by={**AGAIN})
def kept_and_cycled(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for x, y in itertools.islice(itertools.cycle(loader), 3 * STEPS):
        step(model, optimizer, x, y)
    return model


@idiom("one batch for all steps (`x, y = next(iter(loader))`), to see whether it overfits", LOOPS, whole=False,
       by=apart("exchanges parameters when the next batch is requested"))  # fmt: skip
def overfitted(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    x, y = next(iter(loader))
    for _ in range(STEPS):
        step(model, optimizer, x, y)
    return model


@idiom("a replay buffer: after each batch a step on an earlier one", LOOPS, whole=False, by=AGAIN)
def replayed(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    buffer: list[Any] = []
    chosen = random.Random(5)
    for _ in range(EPOCHS):
        for batch in loader:
            buffer.append(batch)
            step(model, optimizer, *chosen.choice(buffer))
            step(model, optimizer, *batch)
    return model


@idiom("a replay buffer of copies (`.clone()`)", LOOPS, whole=False, by=apart("replicas take steps of their own"),
       expect=Differs("a copy counts as the batch in hand does"))  # fmt: skip
def replayed_copies(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    buffer: list[Any] = []
    chosen = random.Random(5)
    for _ in range(EPOCHS):
        for x, y in loader:
            buffer.append((x.clone(), y.clone()))
            step(model, optimizer, x, y)
            step(model, optimizer, *chosen.choice(buffer))
    return model


COPIED = r"on a copy of a batch|do not tell which one|iteration \d+ of epoch"


@idiom("all batches copied (to a device), used for several epochs", LOOPS, whole=False, expect=Either(COPIED),
       by={**AGAIN, "shadow:ma": Either(COPIED, Agrees("at its own pace"))})  # fmt: skip
def copied_once(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    batches = [(x.clone(), y.clone()) for x, y in loader]
    for _ in range(3):
        for x, y in batches:
            step(model, optimizer, x, y)
    return model


@idiom("all batches copied (to a device) in the first epoch, used from the second one on", LOOPS, whole=False,
       expect=Either(COPIED), by={**AGAIN, "shadow:ma": Agrees("at its own pace")})  # fmt: skip
def copied_on_the_way(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    batches = []
    for x, y in loader:
        batches.append((x.clone(), y.clone()))
        step(model, optimizer, *batches[-1])
    for _ in range(2):
        for x, y in batches:
            step(model, optimizer, x, y)
    return model


@idiom("each batch twice (repeated augmentation)", LOOPS, by={"local": Agrees("two steps between two exchanges")})
def twice(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            for shift in (0.0, 0.1):
                step(model, optimizer, x + shift, y)
    return model


@idiom("a look at a batch before the loop (`next(iter(loader))`)", LOOPS, like="plain_loop", whole=False,
       by=at_own_pace(Refused("taken from the loader before the loop")))  # fmt: skip
def looked_at(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    x, _ = next(iter(loader))
    model(x)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
    return model


@idiom("a look at a batch before the loop on rank 0 alone (`writer.add_graph`)", LOOPS, like="plain_loop", whole=False,
       by={"local": Refused("out of step"), "shadow:ma": Refused("taken from the loader before the loop"),
           "asp": Unfit("one worker is refused, and the others do not wait for it")})  # fmt: skip
def looked_at_by_one(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    if session.rank == 0:
        x, _ = next(iter(loader))
        model(x)
    if session.world_size > 1:
        dist.barrier()  # otherwise the other workers may have taken every sample before
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
    return model


@idiom("the loop in a thread, every other batch skipped", LOOPS)
def in_a_thread(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)

    def train() -> None:
        with told:
            for _ in range(EPOCHS):
                for number, (x, y) in enumerate(loader):
                    if number % 2 == 0:
                        step(model, optimizer, x, y)

    told = Told()
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    if told.error:
        raise RuntimeError(told.error)
    return model


@idiom("accuracy on the training loader inside the loop (a second `iter(loader)`)", LOOPS, whole=False,
       expect=Refused("the second loop took it"))  # fmt: skip
def nested(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for number, (x, y) in enumerate(loader):
        step(model, optimizer, x, y)
        if number == 1:
            with torch.no_grad():
                sum((model(u).argmax(1) == v).sum().item() for u, v in loader)
    return model


@idiom("a second loader with a `DistributedSampler`, equal parts of other samples in the same step", LOOPS,
       whole=False, by=apart("replicas take steps of their own"),
       expect=Differs("weighted by the parts of the first", warns="a DistributedSampler is read inside"))  # fmt: skip
def second_loader(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    other = TensorDataset(tensors()[0])
    mine = DistributedSampler(other, num_replicas=session.world_size, rank=session.rank, shuffle=False)
    unlabelled = DataLoader(other, batch_size=12 // session.world_size, sampler=mine)
    for _ in range(EPOCHS):
        for (x, y), (u,) in zip(loader, unlabelled, strict=False):
            loss = F.cross_entropy(model(x), y) + 0.5 * model(u).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("two data sets in one loader (torch's `StackDataset`)", LOOPS)
def stacked(session: Any) -> nn.Module:
    model = mlp()
    model, optimizer = session.setup(model, sgd(model))
    x, y = tensors()
    loader = session.loader(StackDataset(x, y, x.flip(0)), X)
    for _ in range(EPOCHS):
        for a, b, u in loader:
            loss = F.cross_entropy(model(a), b) + 0.5 * model(u).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("`update_bn(loader, model)` over the session's loader", LOOPS, whole=False,
       expect=Refused("update_bn over the session's loader"))  # fmt: skip
def batch_norm_updated(session: Any) -> nn.Module:
    model, _, loader = started(session, nn.Sequential(mlp(), nn.BatchNorm1d(CLASSES)))
    averaged = AveragedModel(model)
    update_bn(loader, averaged)
    return averaged
