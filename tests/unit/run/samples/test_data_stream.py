"""The loader on streams, with and without reader processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from crew import Numbers, NumberStream, crew, flat, loader_of
from torch.utils.data import IterableDataset

from uneven.run.samples.stream import pack, unpack


class PlainStream:
    """No class of torch's, only ``__iter__``."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor(i) for i in range(31))


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("dataset", [NumberStream(31), NumberStream(31, divided=True), PlainStream()])
def test_every_sample_once_in_the_order_of_the_stream(dataset: Any, num_workers: int) -> None:
    ranks = crew(dataset, num_workers=num_workers)
    for _ in range(2):
        seen = ranks.epoch()
        assert flat(seen) == list(range(31))
        assert [len(batch) for batch in seen] == [12, 12, 7]


def test_a_stream_that_divides_itself_is_read_by_as_many_processes_as_asked() -> None:
    ranks = crew(NumberStream(31, divided=True), world_size=2, num_workers=2, stream_sharded=True)
    seen = ranks.epoch()
    assert sorted(flat(seen)) == list(range(31))
    assert seen[0] == list(range(0, 24, 2))  # the first reader's
    assert [len(batch) for batch in seen] == [12, 12, 7]


def test_a_stream_that_is_not_divided_comes_several_times_if_one_says_it_is() -> None:
    # What torch does by itself, and why one process reads unless the user says otherwise.
    ranks = crew(NumberStream(10), world_size=1, num_workers=2, stream_sharded=True)
    assert sorted(flat(ranks.epoch())) == sorted([*range(10), *range(10)])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_last_part_smaller_than_the_workers(num_workers: int) -> None:
    ranks = crew(NumberStream(14), world_size=4, split_for=lambda _: (6, 3, 2, 1), num_workers=num_workers)
    *_, (part, batches) = ranks.iterations()
    assert part.shares == (1, 1, 0, 0)
    assert [batch.tolist() for batch in batches] == [[12], [13], [12], [12]]


def test_drop_last() -> None:
    assert flat(crew(NumberStream(31), drop_last=True).epoch()) == list(range(24))


def test_a_split_can_change_until_the_batch_is_asked_for() -> None:
    asked: list[int] = []

    def split_for(iteration: int) -> tuple[int, ...]:
        asked.append(iteration)
        return (12,)

    ranks = crew(NumberStream(60), world_size=1, split_for=split_for, num_workers=1, prefetch_factor=4)
    assert ranks.loaders[0].lookahead == 0
    for k, _ in enumerate(ranks.iterations()):
        assert asked == list(range(k + 1))


def test_end_comes_before_reading_and_leaving_early_ends_the_iteration() -> None:
    calls: list[str] = []

    class Telling(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            for i in range(4):
                calls.append("read")
                yield i

    loader = loader_of(
        dataset=Telling(), batch_size=2, rank=0, workers=1, seed=0, split_for=lambda _: (2,),
        begin=lambda part: calls.append(f"begin {part.iteration}"), end=lambda leaving: calls.append("end"),
    )  # fmt: skip
    for _ in loader:
        calls.append("step")
    expected = ["read", "read", "begin 0", "step", "end", "read", "read", "begin 1", "step", "end"]
    assert calls == expected
    for _ in loader:
        break
    assert calls[len(expected) :] == ["read", "read", "begin 2", "end"]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_users_collate_function_sees_samples_as_the_stream_made_them(num_workers: int) -> None:
    class Words(IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return ({"word": "a" * i, "array": np.full(2, i)} for i in range(4))

    def collate(samples: list[dict[str, Any]]) -> list[tuple[str, str]]:
        return [(sample["word"], type(sample["array"]).__name__) for sample in samples]

    loader = loader_of(
        dataset=Words(), batch_size=4, rank=1, workers=2, seed=0, split_for=lambda _: (1, 3),
        collate_fn=collate, num_workers=num_workers,
    )  # fmt: skip
    assert list(loader) == [[("a", "ndarray"), ("aa", "ndarray"), ("aaa", "ndarray")]]


def test_pin_memory_reaches_torch() -> None:
    loader = crew(NumberStream(24), world_size=1, pin_memory=True).loaders[0]
    if torch.cuda.is_available():
        assert all(batch.is_pinned() for batch in loader)
    else:
        with pytest.warns(UserWarning, match="pin_memory"):
            assert len(list(loader)) == 2


def test_the_length_is_the_streams_own_or_unknown() -> None:
    class Known(NumberStream):
        def __len__(self) -> int:
            return self.length

    assert len(crew(Known(31)).loaders[0]) == 3
    assert len(crew(Numbers(31)).loaders[0]) == 3
    unknown = crew(NumberStream(31)).loaders[0]
    with pytest.raises(TypeError):
        len(unknown)
    assert len(list(unknown)) == 3  # list() asks for a length first and must take no for an answer


def test_a_stream_is_told_the_epoch() -> None:
    class Shifted(NumberStream):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[torch.Tensor]:
            return (torch.tensor(100 * self.epoch + i) for i in range(self.length))

    ranks = crew(Shifted(3), world_size=1, num_workers=1)
    assert [flat(ranks.epoch()) for _ in range(2)] == [[0, 1, 2], [100, 101, 102]]


class Pair(NamedTuple):
    image: torch.Tensor
    label: int


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.tensor(3),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, requires_grad=True),
        torch.zeros(0, 3),
        torch.tensor([[0, 1]]).to_sparse(),
    ],
    ids=["strided", "scalar", "bfloat16", "conjugate", "parameter", "empty", "sparse"],
)
def test_a_packed_sample_comes_back_equal(tensor: torch.Tensor) -> None:
    image, label = unpack(pack(Pair(tensor, 3)))
    assert label == 3
    assert (image.dtype, image.shape, image.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert image.requires_grad == tensor.requires_grad
    assert torch.equal(image.to_dense(), tensor.to_dense())


def test_packed_tensors_are_sent_by_their_own_bytes_and_can_be_written() -> None:
    part_of_much = torch.zeros(1_000_000)[:10]
    packed = pack(part_of_much)
    assert len(packed) < 1000
    back = unpack(packed)
    back += 1
    assert back.sum() == 10
