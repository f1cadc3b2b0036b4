"""Data sets, readers, streams, and runs that are saved and go on."""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from idiom_base import (
    CLASSES,
    EPOCHS,
    FEATURES,
    OWN_PACE,
    Differs,
    N,
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
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)

DATA = "Data"
RESUMED = "Checkpoints"
OF_STREAMS = "a stream has no index"


def trained(session: Any, dataset: Any, batch_size: int = X, epochs: int = EPOCHS, **loader: Any) -> nn.Module:
    model = mlp()
    model, optimizer = session.setup(model, sgd(model))
    batches = session.loader(dataset, batch_size, **loader)
    for _ in range(epochs):
        for x, y in batches:
            step(model, optimizer, x, y)
    return model


@idiom("`num_workers=2`", DATA)
def readers(session: Any) -> nn.Module:
    return trained(session, samples(), num_workers=2, prefetch_factor=1, persistent_workers=True)


class Dictionaries(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y = samples()[index]
        return {"features": x, "label": int(y)}


def collate(batch: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([one["features"] for one in batch]), torch.tensor([one["label"] for one in batch])


@idiom("a data set of dictionaries and a `collate_fn`", DATA)
def collated(session: Any) -> nn.Module:
    return trained(session, Dictionaries(), collate_fn=collate)


def without_rare(batch: list[Any]) -> Any:
    """As for images that cannot be read; and how many are left, where one stands for none."""
    left = [one for one in batch if one[0][0] < 1.0]
    return *default_collate(left or batch[:1]), len(left)


@idiom("a `collate_fn` that drops samples", DATA, by=apart("replicas take steps of their own"),
       expect=Differs("parts have other numbers of samples", warns="leaves samples out"))  # fmt: skip
def left_out(session: Any) -> nn.Module:
    model, optimizer = session.setup(model := mlp(), sgd(model))
    batches = session.loader(samples(), X, collate_fn=without_rare)
    for _ in range(EPOCHS):
        for x, y, _ in batches:
            step(model, optimizer, x, y)
    return model


@idiom("a `collate_fn` that drops samples, with `session.loss_mean(number that remains)`", DATA,
       like="left_out", by=dict.fromkeys(("local", *OWN_PACE), Refused("averages parameters")))  # fmt: skip
def left_out_and_weighted(session: Any) -> nn.Module:
    model, optimizer = session.setup(model := mlp(), sgd(model))
    batches = session.loader(samples(), X, collate_fn=without_rare)
    for _ in range(EPOCHS):
        for x, y, left in batches:
            with session.loss_mean(left):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("`drop_last=True`", DATA, whole=False)
def dropped_last(session: Any) -> nn.Module:
    return trained(session, samples(), drop_last=True)


@idiom("`shuffle=False`", DATA)
def unshuffled(session: Any) -> nn.Module:
    return trained(session, samples(), shuffle=False)


@idiom("`Subset`, `ConcatDataset`, `random_split`", DATA, whole=False)
def composed(session: Any) -> nn.Module:
    whole = samples()
    first, _ = random_split(whole, [40, N - 40], generator=torch.Generator().manual_seed(3))
    return trained(session, ConcatDataset([first, Subset(whole, range(0, N, 2))]))


@idiom("a global batch as large as the data set", DATA)
def full_batch(session: Any) -> nn.Module:
    return trained(session, samples(), batch_size=N, epochs=4)


class Noisy(Dataset[Any]):
    """Augments by numbers that depend on nothing but the sample."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        x, y = samples()[index]
        return x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(index)), y


@idiom("augmentation seeded by the sample's index", DATA)
def augmented(session: Any) -> nn.Module:
    return trained(session, Noisy())


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from samples()


@idiom("a stream (`IterableDataset`), the same on every rank", DATA, by={"asp": Refused(OF_STREAMS)})
def stream(session: Any) -> nn.Module:
    return trained(session, Stream())


class Sharded(IterableDataset[Any]):
    """As scripts for DDP have it: each rank reads every n-th sample."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def __iter__(self) -> Iterator[Any]:
        dataset = samples()
        yield from (dataset[index] for index in range(self.rank, N, self.size))


@idiom("a stream that each rank shards by its rank", DATA, whole=False, expect=Refused("stream"))
def stream_sharded(session: Any) -> nn.Module:
    return trained(session, Sharded(session.rank, session.world_size))


class Shuffled(IterableDataset[Any]):
    """In another order on each rank."""

    def __iter__(self) -> Iterator[Any]:
        order = list(range(N))
        random.SystemRandom().shuffle(order)
        dataset = samples()
        yield from (dataset[index] for index in order)


@idiom("a stream shuffled without a common seed", DATA, whole=False, expect=Refused("stream"))
def stream_shuffled(session: Any) -> nn.Module:
    return trained(session, Shuffled())


@idiom("a `DistributedSampler`", DATA, expect=Refused("divides samples by rank"))
def sampler(session: Any) -> nn.Module:
    return trained(session, samples(), sampler=DistributedSampler(samples()))


SPLIT = Refused(r"data set of rank [\d, ]+ differs from that of rank 0.*random_state=0")


@idiom("each rank's own random split (`random_split` without a generator, `train_test_split` without a seed)", DATA,
       whole=False, expect=SPLIT)  # fmt: skip
def own_split(session: Any) -> nn.Module:
    generator = torch.Generator().manual_seed(session.rank)
    return trained(session, random_split(samples(), [40, N - 40], generator=generator)[0])


class Files(Dataset[Any]):
    """As a folder is read: the label of a file is its class, and the list has any order."""

    def __init__(self, order: int) -> None:
        self.files = list(range(N))
        random.Random(order).shuffle(self.files)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return tensors()[0][self.files[index]], self.files[index] % CLASSES


@idiom("a list of files whose order differs between ranks (`os.listdir`, a shuffle without a seed)", DATA, whole=False,
       expect=SPLIT)  # fmt: skip
def own_order(session: Any) -> nn.Module:
    return trained(session, Files(session.rank))


class Growing(TensorDataset):
    """As in active learning: labelled samples come in between two epochs."""

    def __init__(self) -> None:
        super().__init__(*(one[: N // 2] for one in tensors()))


@idiom("a data set that grows between two epochs", DATA, whole=False, expect=Refused("use another uneven.Session"))
def growing(session: Any) -> nn.Module:
    model = mlp()
    model, optimizer = session.setup(model, sgd(model))
    dataset = Growing()
    loader = session.loader(dataset, X)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
        dataset.tensors = tensors()
    return model


@idiom("a global batch smaller than the number of workers", DATA, expect=Refused("too small for [34] workers"))
def tiny_batch(session: Any) -> nn.Module:
    return trained(session, samples(), batch_size=2)


@idiom("a loss weighted by class, or that leaves out padding (`weight=`, `ignore_index=`)", DATA,
       by=apart("replicas take steps of their own"),
       expect=Differs("a mean over something else than samples", warns="loss_mean(weight[y].sum())"))  # fmt: skip
def weighted_classes(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    weight = torch.tensor([0.2, 1.0, 3.0])
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x), y, weight=weight).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


class Columns(Dataset[Any]):
    """A long text cut into ``X`` columns, each into pieces: a batch is the next piece of every column."""

    PIECES, LENGTH = 3, 4

    def __len__(self) -> int:
        return X * self.PIECES

    def __getitem__(self, index: int) -> Any:
        text = torch.randint(0, 7, (self.LENGTH + 1,), generator=torch.Generator().manual_seed(index))
        return text[:-1], text[1:]


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding, self.rnn, self.decoder = nn.Embedding(7, 6), nn.LSTM(6, 6, batch_first=True), nn.Linear(6, 7)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        hidden, state = self.rnn(self.embedding(x), state)
        return self.decoder(hidden).flatten(0, 1), state


@idiom("an RNN's hidden state carried from batch to batch (word_language_model)", DATA,
       whole=False, by={
           **dict.fromkeys(("bsp moving", "local moving"), Refused("hidden|size")),
           **at_own_pace(Unfit("the state belongs to the columns of the batch before")),
       })  # fmt: skip
def state_carried(session: Any) -> nn.Module:
    model = Language()
    model, optimizer = session.setup(model, sgd(model))
    loader = session.loader(Columns(), X, shuffle=False, drop_last=True)
    for _ in range(EPOCHS):
        state = None
        for x, y in loader:
            output, state = model(x, state)
            F.cross_entropy(output, y.flatten()).backward()
            nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None])
            optimizer.step()
            optimizer.zero_grad()
            state = tuple(one.detach() for one in state)
    return model


def gone_on(session: Any, saved: Any, look: bool = False) -> nn.Module:
    """What a script that is started again does: from the saved state to the last epoch."""
    session = session.again()
    model, optimizer, loader = started(session)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    session.load_state_dict(saved[2])
    if look:
        next(iter(loader))
    for _ in range(loader.epoch, EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
    return model


def checkpoint(session: Any, model: nn.Module, optimizer: Any) -> Any:
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict(), session.state_dict()), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@idiom("saved after a step mid-epoch, then resumed", RESUMED, like="plain_loop", whole=False,
       by=at_own_pace(Unfit("save inside session.evaluation_model(), at the end of an epoch")))  # fmt: skip
def resumed(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for number, (x, y) in enumerate(loader):
        step(model, optimizer, x, y)
        if number == 1:
            saved = checkpoint(session, model, optimizer)
            break
    return gone_on(session, saved)


@idiom("resumed mid-epoch, after a script that takes a batch before the loop (`next(iter(loader))`)", RESUMED,
       like="plain_loop", whole=False, by=at_own_pace(Unfit("refused, see *loops*")))  # fmt: skip
def resumed_and_looked_at(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for number, (x, y) in enumerate(loader):
        step(model, optimizer, x, y)
        if number == 1:
            saved = checkpoint(session, model, optimizer)
            break
    return gone_on(session, saved, look=True)


@idiom("saved every N steps, the last time right after an epoch's last step, then resumed", RESUMED,
       like="plain_loop", whole=False,
       by=at_own_pace(Unfit("save inside session.evaluation_model(), at the end of an epoch")))  # fmt: skip
def resumed_at_the_end(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for number, (x, y) in enumerate(loader, 1):
        step(model, optimizer, x, y)
        if number % 2 == 0:
            saved = checkpoint(session, model, optimizer)
    return gone_on(session, saved)


@idiom("saved after a batch was fetched but before training on it (nanoGPT), then resumed", RESUMED, like="plain_loop",
       whole=False, by={**fetching_ahead(), "shadow:ma": Unfit("save inside session.evaluation_model()")})  # fmt: skip
def resumed_in_hand(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    batches = iter(loader)
    x, y = next(batches)
    for _ in range(2):
        loss = F.cross_entropy(model(x), y)
        x, y = next(batches)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    saved = checkpoint(session, model, optimizer)
    batches.close()
    return gone_on(session, saved)


@idiom("saved inside `session.evaluation_model()` at the end of an epoch, then resumed", RESUMED, like="plain_loop")
def resumed_between_epochs(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for x, y in loader:
        step(model, optimizer, x, y)
    with session.evaluation_model():
        saved = checkpoint(session, model, optimizer)
    return gone_on(session, saved)


@idiom("`torch.save(model)` after `setup`, loaded by a script without uneven", RESUMED)
def saved_whole(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
    file = io.BytesIO()
    torch.save(model, file)
    assert b"uneven" not in file.getvalue(), "the file needs uneven to be read"
    file.seek(0)
    again = torch.load(file, weights_only=False)
    if session.rank == 0:
        again(tensors()[0]).sum().backward()
    return model


@idiom("`deepcopy(model)` after `setup`, trained by one rank alone", RESUMED)
def copied(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    twin = copy.deepcopy(model)
    of_twin = sgd(twin)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
            if session.rank == 0:
                step(twin, of_twin, x, y)
    assert [type(one) for one in twin.modules()] == [type(one) for one in model.modules()]
    assert tensors()[0].shape == (N, FEATURES)
    assert twin(tensors()[0]).shape == (N, CLASSES)
    return model
