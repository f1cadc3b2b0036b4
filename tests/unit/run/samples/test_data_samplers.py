"""Orders that a sampler draws, orders that are reckoned, and shards of a stream: all samples as promised."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from crew import Numbers, NumberStream, crew, flat, loader_of, random_splits
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from brought import brought, refusal
from uneven.errors import CheckpointError, DataError
from uneven.policy.samples.keyed_order import KEYED_FROM, KeyedOrder
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.sampled import SampledOrders
from uneven.run.samples.sharded_files import Shards, shard_shares


class Reversed:
    """A sampler of one's own, no class of torch's; its order depends on the epoch and on three kinds of chance."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        order = [*range(self.length)][::-1]
        random.shuffle(order)
        np.random.shuffle(order)
        first = int(torch.randint(self.length, ())) + self.epoch
        return iter(order[first:] + order[:first])


class Buckets:
    """Batches of various sizes."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(31).tolist()
        edges = [0, 12, 13, 20, 30, 31]
        return iter([order[a:b] for a, b in pairwise(edges)])


SAMPLERS: dict[str, Any] = {
    "with replacement": lambda: RandomSampler(Numbers(31), replacement=True, num_samples=50),
    "weights": lambda: WeightedRandomSampler([1.0, 9.0] * 15 + [0.0], num_samples=40),
    "a part": lambda: SubsetRandomSampler(range(5, 25)),
    "a generator": lambda: RandomSampler(Numbers(31), generator=torch.Generator().manual_seed(3)),
    "one's own": lambda: Reversed(31),
}


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_all_ranks_draw_one_order_anew_in_each_epoch_and_again_after_a_resume(make: Any) -> None:
    ranks = crew(Numbers(31), sampler=make())
    epochs = [flat(ranks.epoch()) for _ in range(3)]
    assert {len(one) for one in epochs} == {len(make())}
    assert epochs[0] != epochs[1] != epochs[2]

    stopped = crew(Numbers(31), sampler=make())
    used = flat(stopped.epoch()) + flat(stopped.epoch(most=1))
    state = stopped.loaders[0].state_dict()
    torch.manual_seed(99)
    after = crew(Numbers(31), sampler=make(), state=state, world_size=2)
    assert used + flat(after.epoch()) + flat(after.epoch()) == [*epochs[0], *epochs[1], *epochs[2]]


def test_random_numbers_of_the_script_stay_as_they_were() -> None:
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()
    orders = SampledOrders(Reversed(31), batch_size=12, batched=False, size=31, seed=5)
    assert sorted(orders(0)[:]) == [*range(31)]
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist())


def test_a_weighted_sampler_draws_by_its_weights() -> None:
    sampler = WeightedRandomSampler([1.0, 9.0, 0.0], num_samples=4000)
    drawn = flat(crew(Numbers(3), world_size=2, sampler=sampler).epoch())
    assert 0.85 < drawn.count(1) / 4000 < 0.95
    assert drawn.count(2) == 0


def test_a_batch_sampler_gives_global_batches() -> None:
    ranks = crew(Numbers(31), batch_sampler=Buckets(), split_for=lambda _: (6, 4, 2))
    assert len(ranks.loaders[0]) == 5
    parts = [part for part, _ in ranks.iterations()]
    assert [part.size for part in parts] == [12, 1, 7, 10, 1]
    assert [part.shares for part in parts] == [(6, 4, 2), (1, 0, 0), (4, 2, 1), (5, 3, 2), (1, 0, 0)]
    assert sorted(flat(ranks.epoch())) == [*range(31)]

    stopped = crew(Numbers(31), batch_sampler=Buckets())
    used = flat(stopped.epoch(most=2))
    after = crew(Numbers(31), batch_sampler=Buckets(), state=stopped.loaders[0].state_dict())
    assert used + flat(after.epoch()) == flat(crew(Numbers(31), batch_sampler=Buckets()).epoch())

    of_torch = BatchSampler(SequentialSampler(range(31)), batch_size=12, drop_last=False)
    assert [len(one) for one in crew(Numbers(31), batch_sampler=of_torch).epoch()] == [12, 12, 7]


class Wrong(Reversed):
    def __init__(self, *drawn: Any, length: int | None = None) -> None:
        self.drawn = drawn
        super().__init__(len(drawn) if length is None else length)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.drawn)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"sampler": DistributedSampler(Numbers(9), 3, 0)}, "divides samples by rank, but the loader"),
        ({"sampler": iter([1])}, "an __iter__ that starts a new epoch"),
        ({"sampler": Wrong()}, "is empty"),
        ({"sampler": Wrong(0, 9)}, "drew the index 9, but the data set has 9 samples"),
        ({"sampler": Wrong("a", "b")}, "draw indices of samples"),
        ({"sampler": Wrong(1, 2, length=3)}, "drew 2 indices, but its length is 3"),
        ({"batch_sampler": Wrong([1], [*range(9), 0, 1, 2, 3])}, "batch 1 of the batch_sampler has 13 indices"),
        ({"batch_sampler": Wrong(3)}, "batch 0 of the batch_sampler has 3"),
        ({"batch_sampler": Wrong([3]), "sampler": Wrong(3)}, "give one of the two"),
        ({"batch_sampler": Wrong([3]), "drop_last": True}, "decides itself"),
    ],
)
def test_what_a_sampler_may_not_be_or_draw_is_refused(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        crew(Numbers(9), world_size=2, batch_size=9 if "drop_last" in given_ else 12, **given_).epoch()
    with pytest.raises(DataError, match="no index to draw"):
        crew(NumberStream(9), sampler=Wrong(1))


def test_a_sampler_that_draws_another_order_after_a_resume_is_refused() -> None:
    class Unseeded(Reversed):
        def __iter__(self) -> Iterator[int]:
            order = [*range(self.length)]
            random.SystemRandom().shuffle(order)
            return iter(order)

    stopped = crew(Numbers(40), world_size=1, sampler=Unseeded(40))
    stopped.epoch(most=1)
    after = crew(Numbers(40), world_size=1, sampler=Unseeded(40), state=stopped.loaders[0].state_dict())
    with pytest.raises(CheckpointError, match="draws another order than when the state was saved"):
        after.epoch()
    with pytest.raises(CheckpointError, match="ordered by a sampler, those of this run by seed and epoch"):
        crew(Numbers(40), state=stopped.loaders[0].state_dict())


@settings(max_examples=60)
@given(length=st.integers(1, 3000), seed=st.integers(0, 2**32), epoch=st.integers(0, 1000))
def test_a_reckoned_order_has_every_sample_once(length: int, seed: int, epoch: int) -> None:
    order = KeyedOrder(length=length, seed=seed, epoch=epoch)
    assert sorted(order[:].tolist()) == [*range(length)]
    places = [length - 1, 0]
    assert order[places].tolist() == order[:][places].tolist()


def test_a_reckoned_order_looks_shuffled() -> None:
    first = np.bincount(
        [int(KeyedOrder(length=100, seed=seed, epoch=0)[[0]][0]) for seed in range(5000)], minlength=100
    )
    assert ((first - 50) ** 2 / 50).sum() < 149  # chi square, 99 degrees of freedom, one in a thousand
    order = KeyedOrder(length=20000, seed=1, epoch=1)[:]
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.03
    assert abs(np.corrcoef(order, np.arange(20000))[0, 1]) < 0.03


@brought("loops", "minGPT, makemore", "`RandomSampler(data, replacement=True, num_samples=10**10)`")
def test_ten_billion_draws_with_replacement_take_no_memory() -> None:
    def of(workers: int, state: Any = None) -> Any:
        drawn = RandomSampler(range(20), replacement=True, num_samples=10**10)
        return crew(Numbers(20), world_size=workers, batch_size=2000, sampler=drawn, state=state)

    tracemalloc.start()
    try:
        alone, ranks = of(1), of(3)
        drawn = alone.epoch(most=3)
        assert ranks.epoch(most=2) == drawn[:2]
        assert of(4, ranks.loaders[0].state_dict()).epoch(most=1) == drawn[2:]
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
    counts = np.bincount(flat(drawn), minlength=20)
    assert ((counts - 300) ** 2 / 300).sum() < 43  # chi square, 19 degrees of freedom, one in a thousand
    assert len(alone.loaders[0]) == 10**10 // 2000


class Endless(RandomSampler):
    """Draws in a way of its own."""


@brought("loops", "PyTorch", "a custom sampler that draws 10**10 indices", refused=True)
def test_so_many_draws_in_another_way_are_refused() -> None:
    with refusal(r"Endless draws 10000000000 indices.*RandomSampler\(replacement=True\)"):
        crew(Numbers(20), sampler=Endless(range(20), replacement=True, num_samples=10**10))


@pytest.mark.parametrize("shuffle", [True, False])
def test_ten_billion_samples_take_no_memory(shuffle: bool) -> None:
    length = 10**10
    tracemalloc.start()
    try:
        loader = loader_of(
            dataset=Numbers(length), batch_size=64, rank=0, workers=1, seed=5, split_for=lambda _: (64,),
            shuffle=shuffle,
        )  # fmt: skip
        batches = iter(loader)
        drawn = [int(number) for _ in range(3) for number in next(batches)]
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
    assert drawn == KeyedOrder(length=length, seed=5, epoch=0, shuffle=shuffle)[0:192].tolist()
    assert (drawn == [*range(192)]) == (not shuffle)
    state = loader.state_dict()
    assert (state["order"], state["cursor"]) == ("keyed", 192)
    batches.close()
    loader.load_state_dict(state)
    assert next(iter(loader))[0] == KeyedOrder(length=length, seed=5, epoch=0, shuffle=shuffle)[192:193][0]
    assert length >= KEYED_FROM


class Shard(IterableDataset[torch.Tensor]):
    """Numbers of one rank."""

    def __init__(self, numbers: list[int], said: int | None = None) -> None:
        self.numbers, self.said = numbers, len(numbers) if said is None else said

    def __len__(self) -> int:
        return self.said

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(map(torch.tensor, self.numbers))


def shards(sizes: tuple[int, ...], most: int = 12, state: Any = None, **more: Any) -> list[BalancedLoader]:
    made = []
    for rank in range(len(sizes)):
        first = sum(sizes[:rank])
        made.append(
            loader_of(
                dataset=Shard([*range(first, first + sizes[rank])]),
                batch_size=12,
                rank=rank,
                workers=len(sizes),
                seed=0,
                split_for=random_splits(len(sizes), 12, seed=3),
                shards=Shards(sizes, (most,) * len(sizes)),
                **more,
            )
        )
        if state is not None:
            made[-1].load_state_dict(state)
    return made


def counted(loaders: list[BalancedLoader], most: int | None = None) -> list[list[int]]:
    """By iteration: what counts, of all ranks, in step."""
    parts: list[Any] = []
    loaders[0]._calls = replace(loaders[0]._calls, begin=parts.append)
    seen = []
    for batches in zip(*loaders, strict=True):
        assert {len(one) for one, n in zip(batches, parts[-1].shares, strict=True) if n == 0} <= {1}
        seen.append([int(x) for one, n in zip(batches, parts[-1].shares, strict=True) for x in one[:n]])
        if len(seen) == most:
            break
    return seen


def test_a_shard_hears_of_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    monkeypatch.setattr(Shard, "set_epoch", lambda _, epoch: heard.append(epoch), raising=False)
    (loader,) = shards((7,))
    for _ in range(2):
        assert len([*loader]) == 1
    assert heard == [0, 1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_rank_takes_from_its_own_shard_until_all_are_empty(num_workers: int) -> None:
    loaders = shards((40, 11, 25), num_workers=num_workers)
    for _ in range(2):
        seen = counted(loaders)
        assert sorted(flat(seen)) == [*range(76)]
        assert [len(one) for one in seen] == [12] * 6 + [4]
    assert len(loaders[0]) == 7
    for one in loaders:
        one.close()


def test_shards_go_on_where_they_were() -> None:
    whole = counted(shards((40, 11, 25)))
    stopped = shards((40, 11, 25))
    used = counted(stopped, most=4)
    states = [one.state_dict() for one in stopped]
    assert states[0] == states[1] == states[2]
    assert sum(states[0]["taken"]) == 48
    again = shards((40, 11, 25), state=states[0])
    assert used + counted(again) == whole
    assert sorted(flat(counted(again))) == [*range(76)]
    with pytest.raises(CheckpointError, match="resume with the same number of workers"):
        shards((40, 36), state=states[0])
    with pytest.raises(CheckpointError, match="length of the checkpoint"):
        shards((40, 11, 26), state=states[0])
    with pytest.raises(CheckpointError, match="of shards with"):
        shards((40, 1, 35), state=states[0] | {"taken": [0, 2, 46]})


def test_a_shard_that_ends_too_early_is_told_and_drop_last_leaves_out_the_end() -> None:
    one = loader_of(
        dataset=Shard([1, 2, 3], said=20), batch_size=12, rank=0, workers=1, seed=0, split_for=lambda _: (12,),
        shards=Shards((20,), (12,)),
    )  # fmt: skip
    with pytest.raises(DataError, match="ended after 3 samples, not 20"):
        list(one)
    assert [len(batch) for batch in counted(shards((40, 11, 25), drop_last=True))] == [12] * 6


def test_shares_of_shards_keep_to_what_is_left_and_what_each_may_take() -> None:
    assert shard_shares((6, 4, 2), (9, 9, 9), (12, 12, 12)) == (6, 4, 2)
    assert shard_shares((6, 4, 2), (3, 99, 99), (12, 12, 12)) == (3, 6, 3)
    assert shard_shares((6, 4, 2), (0, 99, 99), (12, 7, 3)) == (0, 7, 3)
    assert shard_shares((6, 6, 0), (0, 0, 20), (12, 12, 12)) == (0, 0, 12)
