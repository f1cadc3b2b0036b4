"""Drives the loaders of several ranks in one process, in step, as an exchange would."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from uneven.policy.samples.order import Portion
from uneven.run.samples.loader import BalancedLoader, LoaderCalls
from uneven.run.samples.opening import DataLoaderOptions, Division, LoaderOptions


class Numbers(Dataset[torch.Tensor]):
    """Sample i is the number i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class NumberStream(IterableDataset[torch.Tensor]):
    """The same as a stream; ``divided`` among reader processes or not."""

    def __init__(self, length: int, *, divided: bool = False) -> None:
        self.length = length
        self.divided = divided

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info() if self.divided else None
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return (torch.tensor(i) for i in range(first, self.length, step))


def loader_of(**given: Any) -> BalancedLoader:
    """One rank's loader; every option of it, of who takes what and of whom it calls by its own name."""

    def of(kind: type[Any]) -> dict[str, Any]:
        return {one.name: given.pop(one.name) for one in fields(kind) if one.name in given}

    hands, division, calls = given.pop("hands", None), Division(**of(Division)), LoaderCalls(**of(LoaderCalls))
    torchs = {name: given.pop(name) for name in [*given] if name in DataLoaderOptions.__annotations__}
    return BalancedLoader(LoaderOptions(**given, dataloader=torchs), division, calls, hands)


def random_splits(world_size: int, batch_size: int, seed: int) -> Callable[[int], tuple[int, ...]]:
    """A new split for every iteration, the same on every rank."""

    def split_for(iteration: int) -> tuple[int, ...]:
        rng = random.Random(f"{seed}/{iteration}")
        cuts = sorted(rng.randint(0, batch_size) for _ in range(world_size - 1))
        edges = [0, *cuts, batch_size]
        return tuple(b - a for a, b in pairwise(edges))

    return split_for


@dataclass
class Crew:
    """The loaders of all ranks and what they were told."""

    loaders: list[BalancedLoader]
    parts: list[list[Portion]] = field(default_factory=list)

    def iterations(self) -> Iterator[tuple[Portion, list[Any]]]:
        """One epoch, in step: the part and every rank's batch. All ranks must end together."""
        for batches in zip(*self.loaders, strict=True):
            newest = {parts[-1] for parts in self.parts}
            assert len(newest) == 1, f"ranks are in different parts: {newest}"
            yield newest.pop(), list(batches)

    def epoch(self, most: int | None = None) -> list[list[int]]:
        """Samples that count, by iteration, in the order of the ranks; at most ``most`` iterations."""
        seen = []
        for part, batches in self.iterations():
            counted = [batch.tolist() for rank, batch in enumerate(batches) if part.batch(rank)]
            seen.append([number for batch in counted for number in batch])
            if len(seen) == most:
                break
        return seen


def crew(dataset: Any, *, world_size: int = 3, batch_size: int = 12, split_seed: int = 0, seed: int = 5,
         state: dict[str, Any] | None = None, **kwargs: Any) -> Crew:  # fmt: skip
    """Loaders for every rank over one data set, with random splits unless ``split_for`` is given."""
    made = Crew(loaders=[], parts=[[] for _ in range(world_size)])
    kwargs.setdefault("split_for", random_splits(world_size, batch_size, split_seed))
    for rank in range(world_size):
        loader = loader_of(
            dataset=dataset, batch_size=batch_size, rank=rank, workers=world_size, seed=seed,
            begin=made.parts[rank].append, **kwargs,
        )  # fmt: skip
        if state is not None:
            loader.load_state_dict(state)
        made.loaders.append(loader)
    return made


def flat(seen: list[list[int]]) -> list[int]:
    """All samples of an epoch, in order."""
    return [number for batch in seen for number in batch]
