"""How scripts walk over their batches."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from idiom_base import (
    EPOCHS,
    STEPS,
    Agrees,
    Either,
    Refused,
    Unfit,
    X,
    apart,
    at_own_pace,
    fetching_ahead,
    idiom,
    mlp,
    samples,
    sgd,
    started,
    step,
    tensors,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LOOPS = "Loops"
OUT_OF_STEP = r"rank \d.*(iteration|step|epoch)"
"""Which rank stands where."""


@idiom("the plain loop", LOOPS)
def plain_loop(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("`enumerate`, `len(loader)`, `loader.dataset`, a progress line on rank 0", LOOPS)
def enumerated(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for epoch in range(EPOCHS):
        for number, (x, y) in enumerate(loader):
            loss = step(model, optimizer, x, y)
            if session.rank == 0 and number % 2 == 0:
                f"{epoch} [{number * loader.batch_size}/{len(loader.dataset)}] {number / len(loader):.0%} {loss:.3f}"
            session.log(loss=loss.item())
    return model


class Bar:
    """As tqdm is: knows the length, walks, can be updated."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable, self.total, self.n = iterable, len(iterable), 0  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for one in self.iterable:
            yield one
            self.n += 1

    def set_description(self, text: str) -> None:
        self.text = text


@idiom("a progress bar around the loader (`tqdm`)", LOOPS)
def progress_bar(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for epoch in range(EPOCHS):
        bar = Bar(loader)
        for x, y in bar:
            bar.set_description(f"{epoch}: {step(model, optimizer, x, y).item():.2f}")
        assert bar.n == bar.total or session.world_size > 1
    return model


@idiom("`zip` with another loader", LOOPS)
def zipped(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    other = DataLoader(TensorDataset(tensors()[0][:40]), batch_size=1)
    for _ in range(EPOCHS):
        for (x, y), (u,) in zip(loader, other, strict=False):
            loss = F.cross_entropy(model(x), y) + 0.1 * model(u).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("`itertools.islice` over the loader", LOOPS, whole=False)
def sliced(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in itertools.islice(loader, 3):
            step(model, optimizer, x, y)
    return model


@idiom("`break` after a maximum number of steps, on all ranks", LOOPS, whole=False)
def stopped(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    steps = 0
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
            steps += 1
            if steps >= STEPS + 2:
                break
    return model


@idiom("`while True` up to a maximum number of steps, left by `return`", LOOPS, whole=False)
def endless(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    steps = 0
    while True:
        for x, y in loader:
            step(model, optimizer, x, y)
            steps += 1
            if steps == STEPS + 3:
                return model


@idiom("an explicit `iter(loader)`, with `next()` and `StopIteration`", LOOPS, whole=False)
def by_hand(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    batches = iter(loader)
    for _ in range(STEPS + 3):
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(loader)
            continue
        step(model, optimizer, x, y)
    return model


def cycled(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


@idiom("the next batch is fetched between forward and backward (nanoGPT)", LOOPS, whole=False,
       by=fetching_ahead())  # fmt: skip
def fetched_between(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    batches = cycled(loader)
    x, y = next(batches)
    for _ in range(2 * STEPS):
        loss = F.cross_entropy(model(x), y)
        x, y = next(batches)  # as a device computes meanwhile
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model


class Prefetcher:
    """As timm's and apex's: the next batch is on its way to the device before this one is handed out."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        ready = None
        for following in self.loader:
            if ready is not None:
                yield ready
            ready = following
        if ready is not None:
            yield ready


@idiom("a prefetcher that runs one batch ahead (timm, apex)", LOOPS, by=fetching_ahead())
def prefetched(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in Prefetcher(loader):
            step(model, optimizer, x, y)
    return model


@idiom("a prefetcher that also normalizes or converts, so that the model does not get the loader's tensors",
       LOOPS, expect=Either("do not tell which one"),
       by={**fetching_ahead(), "shadow:ma": Either("do not tell which one", Agrees("at its own pace"))})  # fmt: skip
def prefetched_and_normalized(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in Prefetcher((x - 0.1, y) for x, y in loader):
            step(model, optimizer, x, y)
    return model


def with_last(loader: Iterable[Any]) -> Iterator[tuple[bool, Any]]:
    """Each batch, and whether it is the last one (Lightning's fetcher, Accelerate's ``DataLoaderShard``)."""
    batches = iter(loader)
    ready = next(batches, None)
    for following in batches:
        yield False, ready
        ready = following
    if ready is not None:
        yield True, ready


@idiom("a generator that looks ahead to see whether a batch is the last (Lightning, Accelerate)", LOOPS,
       by=fetching_ahead())  # fmt: skip
def looked_ahead(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    ended = 0
    for _ in range(EPOCHS):
        for last, (x, y) in with_last(loader):
            step(model, optimizer, x, y)
            ended += last
    assert ended <= EPOCHS
    return model


@idiom("`list(loader)`: all batches of an epoch are fetched first", LOOPS, by=fetching_ahead())
def listed(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in list(loader):
            step(model, optimizer, x, y)
    return model


@idiom("every third batch is skipped before its forward pass", LOOPS)
def skipped_before(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader):
            if number % 3 == 1:
                continue
            step(model, optimizer, x, y)
    return model


@idiom("a loss is skipped after its forward pass, on all ranks", LOOPS)
def skipped_after(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            if number % 3 == 1:
                continue
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("a NaN loss is skipped after an `all_reduce` decides to skip it on all ranks", LOOPS,
       by=at_own_pace(Unfit("a collective in the loop, where steps are not counted alike")))  # fmt: skip
def skipped_nan(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for epoch in range(EPOCHS):
        for number, (x, y) in enumerate(loader):
            bad = epoch == 0 and number == 1
            loss = F.cross_entropy(model(x), y) * (float("nan") if bad else 1.0)
            if not torch.isfinite(session.everybodys(loss) if session.world_size > 1 and not bad else loss):
                continue
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("rank 0 alone leaves the loop early (`--dry-run` inside `if rank == 0`)", LOOPS, whole=False,
       expect=Refused(OUT_OF_STEP),
       by=at_own_pace(Agrees("each at its own pace")))  # fmt: skip
def left_by_rank_0(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader):
            step(model, optimizer, x, y)
            if session.rank == 0 and number == 1:
                break
    return model


@idiom("one rank alone skips a loss", LOOPS, whole=False, expect=Refused(OUT_OF_STEP),
       by=apart("each takes steps of its own"))  # fmt: skip
def skipped_by_one(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            if session.rank == 1 and number == 1:
                continue
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("evaluation between steps, on rank 0 alone", LOOPS)
def evaluated_between(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader):
            if session.rank == 0 and number % 2 == 1:
                model.eval()
                with torch.no_grad():
                    model(tensors()[0])
                model.train()
            step(model, optimizer, x, y)
    return model


@idiom("evaluation on every rank at the end of an epoch, with early stopping", LOOPS)
def evaluated_after(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    x_all, y_all = tensors()
    best = float("inf")
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
        with session.evaluation_model(), torch.inference_mode():
            loss = F.cross_entropy(model(x_all), y_all).item()
        if loss > best:
            break
        best = loss
    return model


@idiom("`deepcopy` of the best weights, loaded at the end", LOOPS)
def best_weights(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
        with session.evaluation_model():
            best = copy.deepcopy(model.state_dict())
    with session.evaluation_model():
        model.load_state_dict(best)
    return model


class Trainer:
    """The loop inside a class, as tutorials have it."""

    def __init__(self, session: Any) -> None:
        self.model = mlp()
        self.optimizer = sgd(self.model)
        self.model, self.optimizer = session.setup(self.model, self.optimizer)
        self.loader = session.loader(samples(), global_batch_size=X)
        self.criterion = nn.CrossEntropyLoss()

    def train_one_epoch(self) -> None:
        self.model.train()
        for inputs, targets in self.loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()


@idiom("a trainer class, `zero_grad()` before the forward pass", LOOPS)
def trainer_class(session: Any) -> nn.Module:
    trainer = Trainer(session)
    for _ in range(EPOCHS):
        trainer.train_one_epoch()
    return trainer.model
